"""Where a forest plot puts its marks: effects with their intervals on axes shared by whatever can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from cameraready.evidence.finding import Finding, Threshold
from cameraready.evidence.site.axis import round_values
from cameraready.evidence.site.wording import exact

MARGIN = 0.07
CHARACTER = 4.5  # width of a character, in per cent of the axis
CONDITION = ", at "
KINDS = {
    "ratio": "ratio",
    "difference": "difference",
    "value": "mean",
    "slope": "slope",
    "trend": "mean rank correlation",
    "rank": "mean rank",
}
NO_DIFFERENCE = {"ratio": 1.0, "difference": 0.0, "trend": 0.0}


@dataclass(frozen=True)
class Panel:
    """Findings of one kind with one threshold, on one axis from ``low`` to ``high``.

    ``heading`` names the combined rule that they are parts of and ``outcome`` is its verdict, both empty at the top.
    ``alike`` says that the rows' rule is one, which stands in the heading, or at the top in the claim's rule.
    """

    heading: str
    outcome: str
    alike: bool
    rows: tuple[Finding, ...]
    log: bool
    reference: float | None
    low: float
    high: float

    @property
    def threshold(self) -> Threshold:
        return self.rows[0].threshold

    def name(self, row: Finding) -> str:
        """A row's label without the rule where all have the same, so that rows differ at first sight."""
        condition = row.label.removeprefix(_statement(row)).removeprefix(CONDITION)
        return (condition or KINDS.get(row.kind, row.label)) if self.alike else row.label

    def place(self, value: float) -> float:
        """Per cent of the width at which a value stands; values beyond an end stand at that end."""
        if math.isnan(value):
            return 0.0
        low, high, value = (_scaled(limit, self.log) for limit in (self.low, self.high, value))
        return round(100 * min(max((value - low) / (high - low), 0.0), 1.0), 3)

    def drawable(self, row: Finding) -> bool:
        """Whether a row has an effect that can stand on the axis."""
        return math.isfinite(row.effect) and (row.effect > 0 or not self.log)

    @property
    def zone(self) -> tuple[float, float]:
        """Start and width, in per cent, of the effects for which the claim holds."""
        start = 0.0 if self.threshold.at_least is None else self.place(self.threshold.at_least)
        end = 100.0 if self.threshold.at_most is None else self.place(self.threshold.at_most)
        return start, round(end - start, 3)

    @property
    def limits(self) -> tuple[float, ...]:
        """The threshold's finite ends."""
        return tuple(bound for bound in self.threshold.bounds if math.isfinite(bound))

    @property
    def ticks(self) -> tuple[float, ...]:
        """Round values on the axis."""
        return round_values(self.low, self.high, log=self.log)

    @property
    def labels(self) -> tuple[tuple[float, str], ...]:
        """Each tick's place in per cent with its text, without those that would run into the one before."""
        kept: list[tuple[float, str]] = []
        for place, text in ((self.place(value), exact(value)) for value in self.ticks):
            if not kept or place - kept[-1][0] >= CHARACTER * (len(text) + len(kept[-1][1])) / 2 + CHARACTER / 2:
                kept.append((place, text))
        return tuple(kept)


def panels(finding: Finding) -> list[Panel]:
    """Lay out a finding: its leaves in order, neighbours under one heading with one kind and threshold together."""
    groups = groupby(_leaves(finding), key=lambda found: (found.heading, found.leaf.kind, found.leaf.threshold))
    return [_panel(list(group)) for _, group in groups]


@dataclass(frozen=True)
class _Leaf:
    leaf: Finding
    heading: str
    outcome: str
    alike: bool


def _leaves(finding: Finding, heading: str = "", outcome: str = "") -> Iterator[_Leaf]:
    if not finding.parts:
        yield _Leaf(finding, heading, outcome, alike=True)
    alike = len({_statement(part) for part in finding.parts}) == 1
    for part in finding.parts:
        if part.parts:
            yield from _leaves(part, part.label, part.verdict)
        else:
            yield _Leaf(part, heading, outcome, alike)


def _statement(finding: Finding) -> str:
    """A label without its conditions: rules write them behind a comma."""
    return finding.label.partition(CONDITION)[0]


def _panel(leaves: list[_Leaf]) -> Panel:
    first, rows = leaves[0], [found.leaf for found in leaves]
    threshold = rows[0].threshold
    values = [
        value for row in rows for value in (row.low, row.effect, row.high, *threshold.bounds) if math.isfinite(value)
    ]
    reference = NO_DIFFERENCE.get(rows[0].kind)
    if reference is not None:
        values.append(reference)
    log = rows[0].kind == "ratio" and all(value > 0 for value in values)
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low, high = _scaled(low, log), _scaled(high, log)
    margin = MARGIN * (high - low) or 0.1 * abs(high) or 0.5
    low, high = low - margin, high + margin
    if log:
        low, high = math.exp(low), math.exp(high)
    return Panel(first.heading, first.outcome, first.alike, tuple(rows), log, reference, low, high)


def _scaled(value: float, log: bool) -> float:
    if log:
        return math.log(value) if value > 0 else float("-inf")
    return value
