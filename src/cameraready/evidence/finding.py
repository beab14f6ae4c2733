"""Findings: what a rule found in the measurements, and what it means against the threshold declared beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Verdict = Literal["supported", "not supported", "inconclusive"]


@dataclass(frozen=True)
class Threshold:
    """The effects for which the claim holds: all values from ``at_least`` to ``at_most``."""

    at_least: float | None = None
    at_most: float | None = None

    def verdict(self, low: float, high: float) -> Verdict:
        """Compare an interval with this range; an end on a bound, up to rounding, is inside. NaN decides nothing."""
        lower = -math.inf if self.at_least is None else self.at_least
        upper = math.inf if self.at_most is None else self.at_most
        if _up_to(lower, low) and _up_to(high, upper):
            return "supported"
        if (high < lower and not _up_to(lower, high)) or (low > upper and not _up_to(low, upper)):
            return "not supported"
        return "inconclusive"

    @property
    def bounds(self) -> tuple[float, ...]:
        """The bounds that there are."""
        return tuple(bound for bound in (self.at_least, self.at_most) if bound is not None)


def _up_to(value: float, bound: float) -> bool:
    return value <= bound or math.isclose(value, bound, rel_tol=1e-12)


@dataclass(frozen=True)
class Finding:
    """What a rule found: an effect, its 95 % interval, and the verdict against the threshold declared beforehand.

    ``low`` and ``high`` are NaN where there is no interval (one seed), ``effect`` too where no seed is complete. ``n``
    counts seeds. ``kind`` is "ratio", "difference", "value", "slope", "trend", "rank" or "all"; a finding of kind "all"
    has ``parts`` and shows the numbers of the part that decides.
    """

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


def combine(parts: Sequence[Finding], label: str) -> Finding:
    """The finding of an intersection-union test, with the numbers of the part (or part of a part) that decides."""
    if len(parts) == 1:
        return parts[0]
    leaves = [leaf for part in parts for leaf in _leaves(part)]
    order: tuple[Verdict, ...] = ("not supported", "inconclusive", "supported")
    verdict = min((leaf.verdict for leaf in leaves), key=order.index)
    of_verdict = [leaf for leaf in leaves if leaf.verdict == verdict]
    deciding = min(of_verdict, key=_slack)
    if verdict == "supported":
        opening = f"{'Both' if len(leaves) == 2 else f'All {len(leaves)}'} conditions hold. Closest to its limit: "
    else:
        are = "is" if len(of_verdict) == 1 else "are"
        opening = f"{len(of_verdict)} of {len(leaves)} conditions {are} {verdict}. "
        opening += "" if len(of_verdict) == 1 else "The clearest: "
    return replace(deciding, sentence=opening + deciding.sentence, label=label, kind="all", parts=tuple(parts))


def _leaves(finding: Finding) -> list[Finding]:
    return [leaf for part in finding.parts for leaf in _leaves(part)] if finding.parts else [finding]


def _slack(finding: Finding) -> float:
    """How far the effect is inside its bounds, in half interval lengths; negative outside, -inf without an interval."""
    if math.isnan(finding.low):
        return -math.inf
    threshold = finding.threshold
    margins = [finding.effect - threshold.at_least] if threshold.at_least is not None else []
    margins += [threshold.at_most - finding.effect] if threshold.at_most is not None else []
    half = (finding.high - finding.low) / 2
    return min(margin / half if half > 0 else math.copysign(math.inf, margin) for margin in margins)
