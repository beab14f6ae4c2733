"""What each rule estimates: an effect with its 95 % interval, from the rows it was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
import pandas as pd

from cameraready.evidence import statistics
from cameraready.evidence.pairing import Observations, observe
from cameraready.evidence.statistics import ROUNDING, Array


@dataclass(frozen=True)
class Estimate:
    """An effect over ``n`` seeds; NaN where there is none. ``note`` qualifies it, ``gap`` says what is missing."""

    effect: float
    low: float
    high: float
    n: int
    note: str = ""
    gap: str = ""


def ratio(rows: pd.DataFrame, metric: str, method: str, to: str) -> Estimate:
    """Geometric mean of the paired ratios; the interval is that of the mean logarithm."""
    seen = observe(rows, metric, [method, to], positive="a ratio")
    logs = np.log(seen.values[0] / seen.values[1])
    logs[np.abs(logs) <= ROUNDING] = 0.0
    estimate = _mean(logs.mean(axis=1), seen)
    with np.errstate(over="ignore"):  # two seeds that disagree wildly leave the ratio open up to infinity
        effect, low, high = np.exp([estimate.effect, estimate.low, estimate.high]).tolist()
    return Estimate(effect, low, high, estimate.n, estimate.note, estimate.gap)


def difference(rows: pd.DataFrame, metric: str, method: str, to: str) -> Estimate:
    """Mean paired difference."""
    seen = observe(rows, metric, [method, to])
    differences = seen.values[0] - seen.values[1]
    differences[np.abs(differences) <= ROUNDING * np.abs(seen.values).max(axis=0)] = 0.0
    return _mean(differences.mean(axis=1), seen)


def value(rows: pd.DataFrame, metric: str, method: str) -> Estimate:
    """Mean of the metric."""
    seen = observe(rows, metric, [method])
    return _mean(seen.values[0].mean(axis=1), seen)


def slope(rows: pd.DataFrame, metric: str, method: str, x: str, log: str) -> Estimate:
    """Mean over seeds (and cells) of the least-squares slope of the metric over ``x``."""
    seen = observe(rows, metric, [method], along=x, positive="a slope with log y" if "y" in log else "")
    levels = _numbers(seen.levels, x, f"slope of {metric}")
    if "x" in log and (levels <= 0).any():
        raise ValueError(f"{x} = {levels.min():g}: a slope with log x needs positive values; choose log='y' or log=''")
    x_values = np.log(levels) if "x" in log else levels
    y_values = np.log(seen.values[0]) if "y" in log else seen.values[0]
    slopes = []
    for cell in dict.fromkeys(seen.cells):
        columns = np.flatnonzero(np.array(seen.cells) == cell)
        if len(columns) < 2:
            where = f" at {cell}" if cell else ""
            raise ValueError(
                f"slope of {metric} over {x}{where}: {len(columns)} value of {x}; a slope needs at least 2"
            )
        slopes.append(statistics.least_squares_slopes(x_values[columns], y_values[:, columns]))
    return _mean(np.mean(slopes, axis=0), seen)


def trend(rows: pd.DataFrame, metric: str, method: str, over: str) -> Estimate:
    """Page's test of ordered alternatives with the seeds as blocks, as a mean rank correlation with an interval."""
    seen = observe(rows, metric, [method], along=over)
    _, n, _ = seen.values.shape
    levels = _numbers(seen.levels, over, f"trend of {metric}")
    order = np.unique(levels)
    k = len(order)
    if k < 2:
        raise ValueError(f"trend of {metric} over {over}: 1 value of {over}; a trend needs at least 2, better 4")
    if len(levels) != k * len(set(seen.cells)):
        raise ValueError(f"trend of {metric} over {over}: the cells have different values of {over}; split with each=")
    if n == 0:
        return Estimate(nan, nan, nan, 0, gap=seen.gap)
    blocks = np.stack([seen.values[0][:, levels == level].mean(axis=1) for level in order], axis=1)
    effect = statistics.page_correlation(blocks)
    note = f"Page's test over {k} levels"
    if n == 1:
        return Estimate(effect, nan, nan, 1, note, seen.gap)
    margin = statistics.page_margin(n, k)
    if margin >= 1:
        note += f", too few to show any order in {n} seeds"
    return Estimate(effect, max(effect - margin, -1.0), min(effect + margin, 1.0), n, note, seen.gap)


def rank(rows: pd.DataFrame, metric: str, method: str, best: str) -> Estimate:
    """Mean rank of the method among all methods that record the metric; 1 is the best."""
    observe(rows, metric, [method])  # names an unknown method before ranking the others
    seen = observe(rows, metric, None)
    worst, n, _ = seen.values.shape
    if worst < 2:
        raise ValueError(f"rank by {metric}: only {method!r} recorded it; a rank needs at least 2 methods")
    sign = 1.0 if best == "min" else -1.0
    ranks = statistics.mean_ranks(sign * seen.values)[seen.methods.index(method)]
    note = f"{worst} methods"
    if n < 2:
        return Estimate(float(ranks.mean()) if n else nan, nan, nan, n, note, seen.gap)
    low, high = statistics.rank_interval(ranks, worst)
    return Estimate(float(ranks.mean()), low, high, n, note, seen.gap)


def _mean(effects: Array, seen: Observations) -> Estimate:
    """Mean over seeds. ``effects`` has shape (n,); the observations tell whether equal effects are more than chance."""
    n = len(effects)
    if n == 0:
        return Estimate(nan, nan, nan, 0, gap=seen.gap)
    effect = float(effects.mean())
    if n == 1:
        return Estimate(effect, nan, nan, 1, gap=seen.gap)
    if statistics.is_constant(effects):
        # Coarse metrics (9 of 10 correct) make two noisy seeds agree easily: a true null would pass in 1 of 10 runs.
        if n == 2 and effects[0] != 0 and not statistics.is_constant(seen.values.swapaxes(1, 2)).all():
            return Estimate(effect, nan, nan, n, "equal although the seeds differ: run more", seen.gap)
        effect = float(effects[0])
    low, high = statistics.mean_interval(effects)
    return Estimate(effect, float(low), float(high), n, gap=seen.gap)


def _numbers(levels: Sequence[object], column: str, what: str) -> Array:
    try:
        return np.array(levels, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{what} over {column}: {levels[0]!r} is not a number; record the order as numbers") from None
