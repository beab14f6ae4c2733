"""Charts declared next to a claim: what is on which axis. `cameraready.evidence.site` draws them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Log = Literal["", "x", "y", "xy"]


@dataclass(frozen=True)
class Chart:
    """One picture of a claim's measurements, mean and spread over seeds.

    ``x``, ``y``, ``color`` and ``facet`` are columns: a factor, "method", or anything the trials recorded.
    """

    mark: Literal["line", "bar", "point"]
    x: str
    y: str
    color: str = "method"
    facet: str | None = None
    log: Log = ""
    title: str = ""


def line(*, x: str, y: str, color: str = "method", facet: str | None = None, log: Log = "", title: str = "") -> Chart:
    """Mean over seeds as a line, the range of the seeds as a band."""
    return Chart("line", x, y, color, facet, log, title)


def bar(*, x: str, y: str, color: str = "method", facet: str | None = None, log: Log = "", title: str = "") -> Chart:
    """Mean over seeds as a bar, the range of the seeds as a whisker."""
    return Chart("bar", x, y, color, facet, log, title)


def scatter(
    *, x: str, y: str, color: str = "method", facet: str | None = None, log: Log = "", title: str = ""
) -> Chart:
    """One point a recorded row."""
    return Chart("point", x, y, color, facet, log, title)
