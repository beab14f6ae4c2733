"""The kinds of rules about one metric of one method: what each estimates, and how its finding reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cameraready.evidence import wording
from cameraready.evidence.finding import Finding, Threshold, Verdict, combine

if TYPE_CHECKING:
    import pandas as pd

    from cameraready.evidence.effects import Estimate

Where = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class MetricRule:
    """A rule about one metric of one method. A kind of rule says what it estimates, and how that reads."""

    metric: str
    method: str
    threshold: Threshold
    where: Where = field(default_factory=dict)
    each: str | None = None
    kind: ClassVar[str]

    def __call__(self, table: pd.DataFrame) -> Finding:
        from cameraready.evidence import pairing

        if table.empty:
            raise ValueError(f"no measurements to decide on: {self.describe()}")
        if self.each is None:
            chosen = pairing.resolve(table, self.where)
            return self._finding(self._estimate(pairing.select(table, chosen)), chosen)
        pairing.check_column(table, self.each)
        rows = table
        if self.each in self.where:
            rows = pairing.select(table, pairing.resolve(table, {self.each: self.where[self.each]}))
        values = pairing.distinct(rows, self.each)
        parts = [replace(self, where={**self.where, self.each: value}, each=None) for value in values]
        return combine(
            [part(pairing.select(rows, {self.each: [value]})) for part, value in zip(parts, values, strict=True)],
            self.describe(),
        )

    def describe(self) -> str:
        text = self._statement()
        if self.where:
            text += f", at {wording.condition(self.where)}"
        return f"{text}, for each {self.each}" if self.each else text

    @property
    def _name(self) -> str:
        """The metric in words."""
        return wording.words(self.metric)

    def _estimate(self, rows: pd.DataFrame) -> Estimate:
        raise NotImplementedError

    def _statement(self) -> str:
        """The rule without its conditions."""
        raise NotImplementedError

    def _outcome(self, effect: str) -> str:
        """The effect as the beginning of a sentence."""
        raise NotImplementedError

    def _need(self) -> str:
        return wording.limits(self.threshold.at_least, self.threshold.at_most)

    def _goal(self) -> str:
        """What the claim needs, at the end of a sentence."""
        return self._need() if len(self.threshold.bounds) == 1 else f"a value {self._need()}"

    def _finding(self, found: Estimate, chosen: Where) -> Finding:
        verdict: Verdict = "inconclusive" if found.gap else self.threshold.verdict(found.low, found.high)
        bounds = self.threshold.bounds
        at = f"At {wording.condition(chosen)}: " if chosen else ""
        if found.n == 0:
            sentence = f"{at}No seed has all measurements of {self._name}; the claim needs {self._goal()}."
        else:
            measured = [wording.seeds(found.n), *filter(None, [found.note])]
            if found.low == found.high:
                measured[0] = f"the same in all {found.n} seeds"
            elif not math.isnan(found.low):
                measured.insert(0, f"95 % interval {wording.interval(found.low, found.high, bounds)}")
            [effect] = wording.numbers([found.effect], bounds)
            sentence = f"{at}{self._outcome(effect)} ({', '.join(measured)}); the claim needs {self._goal()}."
        if found.n == 1:
            sentence += " One seed cannot give an interval, so this decides nothing; run at least two."
        if found.gap:
            sentence += f" Inconclusive, because measurements are missing: {found.gap}."
        shown = {column: values[0] if len(values) == 1 else values for column, values in chosen.items()}
        return Finding(
            effect=found.effect,
            low=found.low,
            high=found.high,
            threshold=self.threshold,
            n=found.n,
            verdict=verdict,
            sentence=sentence,
            label=self._statement() + (f", at {wording.condition(shown)}" if shown else ""),
            kind=self.kind,
        )


@dataclass(frozen=True, kw_only=True)
class Ratio(MetricRule):
    to: str
    kind: ClassVar[str] = "ratio"

    def _estimate(self, rows: pd.DataFrame) -> Estimate:
        from cameraready.evidence import effects

        return effects.ratio(rows, self.metric, self.method, self.to)

    def _statement(self) -> str:
        return f"{self._name} of {self.method} {self._need()} times that of {self.to}"

    def _outcome(self, effect: str) -> str:
        return f"{self.method} {wording.verb(self.metric)} {effect} times the {self._name} of {self.to}"


@dataclass(frozen=True, kw_only=True)
class Difference(MetricRule):
    to: str
    kind: ClassVar[str] = "difference"

    def _estimate(self, rows: pd.DataFrame) -> Estimate:
        from cameraready.evidence import effects

        return effects.difference(rows, self.metric, self.method, self.to)

    def _statement(self) -> str:
        return f"{self._name} of {self.method} minus that of {self.to}: {self._need()}"

    def _outcome(self, effect: str) -> str:
        return f"The {self._name} of {self.method} minus that of {self.to} was {effect}"


@dataclass(frozen=True, kw_only=True)
class Value(MetricRule):
    kind: ClassVar[str] = "value"

    def _estimate(self, rows: pd.DataFrame) -> Estimate:
        from cameraready.evidence import effects

        return effects.value(rows, self.metric, self.method)

    def _statement(self) -> str:
        return f"{self._name} of {self.method} {self._need()}"

    def _outcome(self, effect: str) -> str:
        return f"The mean {self._name} of {self.method} was {effect}"


@dataclass(frozen=True, kw_only=True)
class Slope(MetricRule):
    x: str
    log: Literal["", "x", "y", "xy"] = "xy"
    kind: ClassVar[str] = "slope"

    def _estimate(self, rows: pd.DataFrame) -> Estimate:
        from cameraready.evidence import effects

        return effects.slope(rows, self.metric, self.method, self.x, self.log)

    def _statement(self) -> str:
        return f"slope of {self._lines()} of {self.method} {self._need()}"

    def _outcome(self, effect: str) -> str:
        if self.log == "xy":
            return f"The {self._name} of {self.method} scaled as {self.x} to the power {effect}"
        return f"The slope of {self._lines()} of {self.method} was {effect}"

    def _lines(self) -> str:
        y = f"log {self._name}" if "y" in self.log else self._name
        return f"{y} over {f'log {self.x}' if 'x' in self.log else self.x}"


@dataclass(frozen=True, kw_only=True)
class Trend(MetricRule):
    over: str
    kind: ClassVar[str] = "trend"

    def _estimate(self, rows: pd.DataFrame) -> Estimate:
        from cameraready.evidence import effects

        return effects.trend(rows, self.metric, self.method, self.over)

    def _statement(self) -> str:
        return f"{self._name} of {self.method} {self._direction()} with {self.over}"

    def _outcome(self, effect: str) -> str:
        return f"The mean rank correlation of {self._name} of {self.method} with {self.over} was {effect}"

    def _goal(self) -> str:
        return f"an interval {'above' if self.threshold.at_most is None else 'below'} 0"

    def _direction(self) -> str:
        return "increasing" if self.threshold.at_most is None else "decreasing"


@dataclass(frozen=True, kw_only=True)
class Rank(MetricRule):
    best: Literal["min", "max"]
    kind: ClassVar[str] = "rank"

    def _estimate(self, rows: pd.DataFrame) -> Estimate:
        from cameraready.evidence import effects

        return effects.rank(rows, self.metric, self.method, self.best)

    def _statement(self) -> str:
        return f"mean rank of {self.method} by {self._order()} {self._need()}"

    def _outcome(self, effect: str) -> str:
        return f"{self.method} had mean rank {effect} by {self._order()}"

    def _order(self) -> str:
        return f"{self._name} ({'lowest' if self.best == 'min' else 'highest'} first)"
