"""Numbers, durations and verdicts as a reader wants to see them."""

from __future__ import annotations

import math
from typing import Any

from cameraready.evidence.finding import Finding, Threshold
from cameraready.evidence.wording import number as written

OUTCOMES = ("supported", "not supported", "inconclusive", "untestable", "skipped", "not run")

MEANING = {
    "supported": "the whole 95 % interval lies where the claim needs it",
    "not supported": "the whole interval lies outside",
    "inconclusive": "the interval lies astride the threshold: more seeds may decide",
    "untestable": "this scale cannot test the claim; nothing was run",
    "skipped": "something that the method needs is not installed or not to be had",
    "not run": "no measurements are in the store yet",
}


def number(value: float) -> str:
    """Three significant digits, a real minus sign, thousands apart: ``0.0214``, ``−3.2``, ``12,400``, ``1.2e+09``."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size and (size < 1e-4 or size >= 1e7):
        text = f"{value:.2e}".replace(".00e", "e")
    elif size >= 1000:
        text = f"{value:,.0f}"
    else:
        digits = 2 - math.floor(math.log10(size)) if size else 0
        text = f"{value:.{max(digits, 0)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "−")


def exact(value: float) -> str:
    """A number that somebody chose, a threshold or a tick, with all its digits: ``1.005``."""
    return f"{value:g}".replace("-", "−") if 1e-4 <= abs(value) < 1e5 else number(value)


def value(finding: Finding) -> str:
    """The effect, with as many digits as tell it from the ends of its interval and from the threshold."""
    return _written(finding)[0]


def interval(finding: Finding) -> str:
    """The 95 % interval in brackets, or that there is none."""
    _, low, high = _written(finding)
    return "no interval" if math.isnan(finding.low) and math.isnan(finding.high) else f"[{low}, {high}]"


def _written(finding: Finding) -> list[str]:
    values = (finding.effect, finding.low, finding.high)
    apart = {value for value in (*values, *finding.threshold.bounds) if math.isfinite(value)}
    digits = next(
        (digits for digits in range(3, 6) if len({written(value, digits) for value in apart}) == len(apart)), 6
    )
    return [written(value, digits).replace("-", "−") if math.isfinite(value) else number(value) for value in values]


def label(value: Any) -> str:
    """A factor's value or a category as text; whole floats without their ".0"."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:g}"
    return str(value)


def needed(threshold: Threshold) -> str:
    """The effects that a claim needs, in symbols."""
    low, high = threshold.at_least, threshold.at_most
    if low is not None and high is not None:
        return f"{exact(low)} to {exact(high)}"
    if high is not None:
        return f"≤ {exact(high)}"
    return f"≥ {exact(low)}" if low is not None else ""


def duration(seconds: float) -> str:
    """``0.4 s``, ``38 s``, ``4 min 10 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: int) -> str:
    """Bytes in binary units: ``412 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def plural(count: int, noun: str) -> str:
    """``1 seed``, ``3 seeds``, ``1,200 trials``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
