"""Decision rules: each turns a table of measurements into a `Finding`.

A rule is declared before the run. It computes an effect with a 95 % interval and compares the whole interval with its
threshold: inside is *supported*, outside is *not supported*, astride is *inconclusive*. The unit of analysis is the seed:
cells are averaged inside a seed (paired across methods by seed and cell), so that n is the number of independent
replicates and never the number of rows. Intervals come from `cameraready.evidence.statistics`, imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["supported", "not supported", "inconclusive"]
Where = Mapping[str, Any]


@dataclass(frozen=True)
class Threshold:
    """The effects for which the claim holds: all values from ``at_least`` to ``at_most``."""

    at_least: float | None = None
    at_most: float | None = None

    def verdict(self, low: float, high: float) -> Verdict:
        """Compare an interval with this range."""
        lower = float("-inf") if self.at_least is None else self.at_least
        upper = float("inf") if self.at_most is None else self.at_most
        if lower <= low and high <= upper:
            return "supported"
        if high < lower or low > upper:
            return "not supported"
        return "inconclusive"


@dataclass(frozen=True)
class Finding:
    """What a rule found: an effect, its 95 % interval, and the verdict against the threshold declared beforehand."""

    effect: float
    low: float
    high: float
    threshold: Threshold
    n: int
    verdict: Verdict
    sentence: str
    label: str
    kind: str
    parts: tuple[Finding, ...] = field(default=())


class Rule(Protocol):
    """Anything that turns measurements (one row a `Trial.record`, columns seed, method, factors, metrics) into a finding."""

    def __call__(self, table: pd.DataFrame) -> Finding: ...

    def describe(self) -> str:
        """The rule in words, shown before and beside the verdict."""
        ...


@dataclass(frozen=True)
class _Pending:
    """Placeholder while the rules are being written (replaced within the hour)."""

    name: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    def __call__(self, table: pd.DataFrame) -> Finding:
        raise NotImplementedError(self.name)

    def describe(self) -> str:
        return f"{self.name}{self.arguments}"


def _pending(name: str) -> Any:
    return lambda *arguments, **options: _Pending(name, arguments, options)


ratio, difference, slope, at_most, at_least, agree, trend, rank, all_of = map(
    _pending, ("ratio", "difference", "slope", "at_most", "at_least", "agree", "trend", "rank", "all_of")
)
