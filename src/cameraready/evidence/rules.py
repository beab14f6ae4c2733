"""Decision rules: each turns a table of measurements into a `Finding`.

A rule is declared before the run. It computes an effect with a 95 % interval and compares the whole interval with its
threshold: inside is *supported*, outside is *not supported*, astride is *inconclusive*. The unit of analysis is the
seed: cells are averaged inside a seed (paired across methods by seed and cell), so that n is the number of independent
replicates and never the number of rows. One seed has no interval, and a seed or cell that misses a measurement of a
method makes the finding inconclusive. `cameraready.evidence.effects`, imported on first use, says what is estimated.

Every rule takes ``where={column: value | [values] | "max" | "min"}``, the rows that it is about, and ``each="column"``:
it must then hold for every value of that column separately. "max" and "min" pick a column's largest or smallest number.

Values that are exactly the same in all seeds (counts of operations, bytes of a data structure) have an interval of
length zero: they count as known. A metric that is random but coarse (success in one of two episodes) can look the same;
record its mean over many episodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from cameraready.evidence.finding import Finding, Threshold, Verdict, combine
from cameraready.evidence.rule_kinds import Difference, Rank, Ratio, Slope, Trend, Value, Where

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "AllOf",
    "Finding",
    "Rule",
    "Threshold",
    "Verdict",
    "agree",
    "all_of",
    "at_least",
    "at_most",
    "difference",
    "rank",
    "ratio",
    "slope",
    "trend",
]

Range = tuple[float, float]


class Rule(Protocol):
    """Anything that turns measurements (one row a `Trial.record`: seed, method, factors, metrics) into a finding."""

    def __call__(self, table: pd.DataFrame) -> Finding: ...

    def describe(self) -> str:
        """The rule in words, shown before and beside the verdict."""
        ...


def ratio(
    metric: str,
    method: str,
    *,
    to: str,
    at_most: float | None = None,
    at_least: float | None = None,
    between: Range | None = None,
    where: Where | None = None,
    each: str | None = None,
) -> Ratio:
    """The geometric mean of the paired ratios ``method`` / ``to`` of a positive metric is in the given range."""
    threshold = _threshold("ratio", at_least, at_most, between)
    _check_pair("ratio", method, to)
    if any(bound <= 0 for bound in threshold.bounds):
        raise ValueError(f"ratio of {metric}: bounds {threshold.bounds}; they must be positive")
    return Ratio(metric=metric, method=method, to=to, threshold=threshold, where=dict(where or {}), each=each)


def difference(
    metric: str,
    method: str,
    *,
    to: str,
    at_most: float | None = None,
    at_least: float | None = None,
    between: Range | None = None,
    where: Where | None = None,
    each: str | None = None,
) -> Difference:
    """The mean paired difference, ``method`` minus ``to``, is in the given range."""
    threshold = _threshold("difference", at_least, at_most, between)
    _check_pair("difference", method, to)
    return Difference(metric=metric, method=method, to=to, threshold=threshold, where=dict(where or {}), each=each)


def agree(
    metric: str,
    method: str,
    *,
    to: str,
    within: float,
    relative: bool = False,
    where: Where | None = None,
    each: str | None = None,
) -> Ratio | Difference:
    """Equivalence: the paired difference is between -within and within, or the ratio between 1 - within and 1 + within.

    The whole 95 % interval must be inside the margin, which is stricter than two one-sided tests at 5 %.
    """
    if not 0 < within < (1 if relative else math.inf):
        limit = "between 0 and 1" if relative else "positive"
        raise ValueError(f"agree on {metric}: within={within:g}; the margin must be {limit}")
    if relative:
        return ratio(metric, method, to=to, between=(1 - within, 1 + within), where=where, each=each)
    return difference(metric, method, to=to, between=(-within, within), where=where, each=each)


def at_most(metric: str, method: str, value: float, *, where: Where | None = None, each: str | None = None) -> Value:
    """The mean of the metric is at most ``value``."""
    threshold = _threshold("at_most", None, value, None)
    return Value(metric=metric, method=method, threshold=threshold, where=dict(where or {}), each=each)


def at_least(metric: str, method: str, value: float, *, where: Where | None = None, each: str | None = None) -> Value:
    """The mean of the metric is at least ``value``."""
    threshold = _threshold("at_least", value, None, None)
    return Value(metric=metric, method=method, threshold=threshold, where=dict(where or {}), each=each)


def slope(
    metric: str,
    method: str,
    *,
    x: str,
    at_most: float | None = None,
    at_least: float | None = None,
    between: Range | None = None,
    log: Literal["", "x", "y", "xy"] = "xy",
    where: Where | None = None,
    each: str | None = None,
) -> Slope:
    """The least-squares slope of the metric over ``x`` is in the given range; with ``log="xy"``, the exponent of x.

    One slope a seed (of each cell, averaged); the axes named by ``log`` are natural logarithms.
    """
    if log not in ("", "x", "y", "xy"):
        raise ValueError(f"slope of {metric}: log={log!r}; choose '', 'x', 'y' or 'xy'")
    threshold = _threshold("slope", at_least, at_most, between)
    return Slope(metric=metric, method=method, x=x, log=log, threshold=threshold, where=dict(where or {}), each=each)


def trend(
    metric: str,
    method: str,
    *,
    over: str,
    direction: Literal["increasing", "decreasing"],
    where: Where | None = None,
    each: str | None = None,
) -> Trend:
    """The metric increases (decreases) with ``over``: Page's test of ordered alternatives with the seeds as blocks.

    The effect is the mean rank correlation. Its interval excludes 0 if and only if the one-sided p is below 0.025.
    """
    if direction not in ("increasing", "decreasing"):
        raise ValueError(f"trend of {metric}: direction={direction!r}; choose 'increasing' or 'decreasing'")
    threshold = Threshold(at_least=0.0) if direction == "increasing" else Threshold(at_most=0.0)
    return Trend(metric=metric, method=method, over=over, threshold=threshold, where=dict(where or {}), each=each)


def rank(
    metric: str,
    method: str,
    *,
    at_most: float,
    best: Literal["min", "max"] = "min",
    where: Where | None = None,
    each: str | None = None,
) -> Rank:
    """The mean rank of ``method`` among all that record the metric (1 is best, ties share) is at most ``at_most``.

    Few seeds show little here: a method that always comes first has mean rank below 1.5 for certain from six seeds on.
    """
    if best not in ("min", "max"):
        raise ValueError(f"rank by {metric}: best={best!r}; choose 'min' or 'max'")
    threshold = _threshold("rank", None, at_most, None)
    return Rank(metric=metric, method=method, best=best, threshold=threshold, where=dict(where or {}), each=each)


@dataclass(frozen=True)
class AllOf:
    """Every rule must be supported: an intersection-union test, which needs no correction for the number of rules."""

    rules: tuple[Rule, ...]

    def __call__(self, table: pd.DataFrame) -> Finding:
        return combine([rule(table) for rule in self.rules], self.describe())

    def describe(self) -> str:
        return "; and ".join(rule.describe() for rule in self.rules)


def all_of(*rules: Rule) -> AllOf:
    """Every rule must be supported. One that is not supported decides; else one that is inconclusive does."""
    if not rules:
        raise ValueError("all_of() has no rule; name at least one")
    return AllOf(rules)


def _check_pair(rule: str, method: str, to: str) -> None:
    if method == to:
        raise ValueError(f"{rule}: {method!r} is compared with itself; name another method in to=")


def _threshold(rule: str, at_least: float | None, at_most: float | None, between: Range | None) -> Threshold:
    if between is not None:
        if at_least is not None or at_most is not None:
            raise ValueError(f"{rule}: between= stands alone; leave out at_least= and at_most=")
        at_least, at_most = between
    if at_least is None and at_most is None:
        raise ValueError(f"{rule}: no threshold; give at_most=, at_least= or between=")
    threshold = Threshold(at_least=at_least, at_most=at_most)
    if not all(math.isfinite(bound) for bound in threshold.bounds):
        raise ValueError(f"{rule}: bounds {threshold.bounds}; they must be finite numbers")
    if at_least is not None and at_most is not None and at_least > at_most:
        raise ValueError(f"{rule}: no effect is between {at_least:g} and {at_most:g}; swap the bounds")
    return threshold
