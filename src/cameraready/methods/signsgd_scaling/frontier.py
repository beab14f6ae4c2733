"""The best risk at each compute budget, measured over model sizes and learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cameraready.methods.signsgd_scaling.power_law import PLRF
from cameraready.methods.signsgd_scaling.regression import GaussianRegression, Schedule

RATES = 12


@dataclass(frozen=True)
class BestRun:
    """The best learning rate found for a model and a number of steps, and the risk there."""

    lr: float
    risk: float


def sketches(alpha: float, beta: float, sizes: Sequence[int], *, seed: int = 0, most: int = 8) -> list[list[PLRF]]:
    """Several sketches of each size, more of the small ones: their risks differ most, and they cost least.

    A list a size: ``max(1, min(most, largest // d))`` models with seeds of their own.
    """
    largest = max(sizes)
    return [
        [PLRF(alpha, beta, int(d), seed=1000 * seed + i) for i in range(max(1, min(most, int(largest // d))))]
        for d in sizes
    ]


def runs_table(
    models: Sequence[Sequence[GaussianRegression]],
    optimizer: str,
    budgets: Sequence[float],
    *,
    schedule: Schedule = "constant",
    rates: int = RATES,
    runs: int | None = None,
) -> pd.DataFrame:
    """Mean risk over the sketches of every size, at every budget, with the best rate.

    A run with a constant rate passes through all budgets, so it is done once; one with a schedule is done for each.

    Parameters
    ----------
    models : for each size its sketches, see `sketches`.
    budgets : compute ``f = d N``; a model whose N would be below 1 is left out.
    runs : average of this many simulated runs a sketch; None takes the mode recursion.

    Returns
    -------
    DataFrame: compute, d, steps, lr, risk. Where the best rate is inside the grid, lr and risk are the vertex of a
    parabola in log-log coordinates through it and its neighbours.
    """
    rows = []
    for same_size in models:
        d = same_size[0].d
        steps = np.unique(np.floor(np.asarray(budgets) / d)).astype(np.int64)
        steps = steps[steps >= 1]
        if not len(steps):
            continue
        grid = np.min([problem.rate_grid(optimizer, rates) for problem in same_size], axis=0)
        ends = [steps] if schedule == "constant" else np.split(steps, len(steps))
        risks = np.mean(
            [
                [np.concatenate([_risks(problem, optimizer, lr, schedule, end, runs) for end in ends]) for lr in grid]
                for problem in same_size
            ],
            axis=0,
        )
        for budget in budgets:
            if budget < d:
                continue
            column = int(np.searchsorted(steps, np.floor(budget / d)))
            best = _vertex(grid, risks[:, column])
            rows.append((float(budget), d, int(steps[column]), best.lr, best.risk))
    return pd.DataFrame(rows, columns=["compute", "d", "steps", "lr", "risk"])


def frontier(table: pd.DataFrame) -> pd.DataFrame:
    """The best model at each budget of `runs_table`, on a continuous scale of sizes.

    Returns
    -------
    DataFrame: compute, d, lr, risk, interior (False where the best size is at an end of the sizes tried, so that a
    larger or smaller model may be better).
    """
    rows = []
    for compute, models in table.groupby("compute"):
        models = models.sort_values("d")
        best = _vertex(models["d"].to_numpy(float), models["risk"].to_numpy())
        interior = models["d"].min() < best.lr < models["d"].max()
        lr = np.exp(np.interp(np.log(best.lr), np.log(models["d"]), np.log(models["lr"])))
        rows.append((compute, best.lr, float(lr), best.risk, bool(interior)))
    return pd.DataFrame(rows, columns=["compute", "d", "lr", "risk", "interior"])


def best_rate(
    problem: GaussianRegression,
    optimizer: str,
    steps: int,
    *,
    schedule: Schedule = "constant",
    rates: int = RATES,
    runs: int | None = None,
) -> BestRun:
    """The learning rate with the least risk after ``steps`` steps; simulated if ``runs`` is given."""
    grid = problem.rate_grid(optimizer, rates)
    record = np.array([steps])
    return _vertex(grid, np.array([_risks(problem, optimizer, lr, schedule, record, runs)[0] for lr in grid]))


def _risks(
    problem: GaussianRegression,
    optimizer: str,
    lr: float,
    schedule: Schedule,
    steps: NDArray[np.int64],
    runs: int | None,
) -> NDArray[np.float64]:
    last = int(steps[-1])
    if runs is None:
        return problem.mode_recursion(optimizer, lr=lr, steps=last, schedule=schedule, batch=1, record=steps)
    measured = problem.simulate(optimizer, lr=lr, steps=last, schedule=schedule, seeds=runs, record=steps)
    return measured["risk_mean"].to_numpy()


def _vertex(x: NDArray[np.float64], risk: NDArray[np.float64]) -> BestRun:
    """Minimum over ``log x`` of ``log risk``: the vertex of a parabola through the best point and its neighbours."""
    best = int(np.argmin(risk))
    if not 0 < best < len(x) - 1 or not np.isfinite(risk[best - 1 : best + 2]).all() or risk[best] <= 0:
        return BestRun(float(x[best]), float(risk[best]))
    u, z = np.log(x[best - 1 : best + 2]), np.log(risk[best - 1 : best + 2])
    a, b, c = np.polyfit(u - u[1], z, 2)
    if a <= 0:
        return BestRun(float(x[best]), float(risk[best]))
    shift = np.clip(-b / (2 * a), u[0] - u[1], u[2] - u[1])
    return BestRun(float(np.exp(u[1] + shift)), float(np.exp(c + b * shift + a * shift**2)))
