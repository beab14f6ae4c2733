"""How fast the last iterate and the average approach the optimum, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .certificate import solve_exactly
from .problem import Problem
from .solver import Settings, run

BOOTSTRAPS = 2000
ABOVE_REFERENCE = 50  # times the optimum's own uncertainty; below, a gap says nothing


@dataclass(frozen=True)
class RateReport:
    """Gaps F(w_T) - F* and their slopes in log T.

    Parameters
    ----------
    gaps : DataFrame with solver, iterate ("last" or "average"), T, seed, gap.
    slopes : DataFrame with solver, iterate, slope, low, high (95 %, bootstrap over seeds), points, final_gap.
    optimum : F*, and ``uncertainty``, its proven accuracy.
    """

    gaps: pd.DataFrame
    slopes: pd.DataFrame
    optimum: float
    uncertainty: float

    def __str__(self) -> str:
        head = f"F* = {self.optimum:.8g} (proven to {self.uncertainty:.1g}); slopes of log gap in log T, 95 % intervals"
        return head + "\n" + self.slopes.to_string(index=False, float_format=lambda value: f"{value:.3g}")

    def plot(self, ax: Any = None) -> Any:
        """Mean gap over T on a matplotlib axes (needs matplotlib); returns the axes."""
        if ax is None:
            try:
                import matplotlib.pyplot as plt
            except ImportError:
                raise ImportError("RateReport.plot draws with matplotlib: pip install matplotlib") from None
            _, ax = plt.subplots()
        for (solver, iterate), rows in self.gaps.groupby(["solver", "iterate"], sort=False):
            mean = rows.groupby("T")["gap"].mean()
            ax.loglog(mean.index, mean, "o-" if iterate == "last" else "s--", label=f"{solver}, {iterate}")
        ax.set_xlabel("T")
        ax.set_ylabel("F(w_T) - F*")
        ax.legend()
        return ax


def rate_study(
    problem: Problem,
    solvers: Mapping[str, Settings],
    T_grid: Sequence[int],
    seeds: Sequence[int],
    *,
    fit_from: int | None = None,
    optimum: float | None = None,
) -> RateReport:
    """Run every solver at every horizon and seed, its step size set anew for each T, and fit slopes.

    Parameters
    ----------
    problem : `Problem`; F* comes from `solve_exactly` unless ``optimum`` is given.
    solvers : name to `Settings`, with a numeric eta0.
    T_grid : horizons; seeds : at least two for intervals.
    fit_from : smallest T in the regression; by default the first quarter of ``T_grid`` is left out.

    Returns
    -------
    RateReport : slopes are least squares on log mean gaps; intervals resample the seeds. Points below 50 times the
        optimum's uncertainty are left out.

    Examples
    --------
    >>> from scipy import sparse
    >>> rng = np.random.default_rng(0)
    >>> X, task = rng.normal(size=(300, 3)), rng.integers(4, size=300)
    >>> y = X.sum(axis=1) + rng.normal(size=300)
    >>> from cameraready.methods.last_iterate import EdgePenalty
    >>> problem = Problem(sparse.csr_array(X), y, task, EdgePenalty([(0, 1), (1, 2), (2, 3)], lam=0.05))
    >>> report = rate_study(problem, {"rip": Settings(eta0=4.0)}, [2**k for k in range(9, 15)], range(4))
    >>> bool((report.slopes["high"] < -0.45).all())
    True
    """
    grid = sorted(T_grid)
    if len(grid) < 2 or grid[0] < 1 or len(list(seeds)) < 1:
        raise ValueError(f"T_grid={list(T_grid)} and seeds={list(seeds)}: pass at least two horizons and one seed")
    uncertainty = 0.0
    if optimum is None:
        exact = solve_exactly(problem)
        # F* lies between the lower bound and this value; the value is the closer of the two by far.
        optimum, uncertainty = exact.certificate.objective, exact.certificate.gap
    rows = []
    for name, settings in solvers.items():
        kept = replace(settings, average_from=settings.average_from or 0.0)
        for T in grid:
            for seed in seeds:
                found = run(problem, T, settings=kept, seed=seed)
                rows.append((name, "last", T, seed, problem.objective(found.W) - optimum))
                rows.append((name, "average", T, seed, problem.objective(found.average) - optimum))
    gaps = pd.DataFrame(rows, columns=["solver", "iterate", "T", "seed", "gap"])
    start = grid[len(grid) // 4] if fit_from is None else fit_from
    floor = max(ABOVE_REFERENCE * uncertainty, 0.0)
    slopes = [
        {"solver": name, "iterate": iterate, **_slope(part, start, floor)}
        for (name, iterate), part in gaps.groupby(["solver", "iterate"], sort=False)
    ]
    return RateReport(gaps, pd.DataFrame(slopes), optimum, uncertainty)


def _slope(gaps: pd.DataFrame, start: int, floor: float) -> dict[str, float]:
    table = gaps[gaps["T"] >= start].pivot(index="T", columns="seed", values="gap")
    kept = table[table.mean(axis=1) > floor]
    final = float(table.iloc[-1].mean())
    if len(kept) < 2:
        return {"slope": np.nan, "low": np.nan, "high": np.nan, "points": len(kept), "final_gap": final}
    x = np.log(kept.index.to_numpy(dtype=float))
    values = kept.to_numpy()
    rng = np.random.default_rng(0)
    chosen = rng.integers(values.shape[1], size=(BOOTSTRAPS, values.shape[1]))
    means = np.maximum(values[:, chosen].mean(axis=2), 1e-300)  # (T, bootstraps)
    draws = _least_squares(x, np.log(means))
    low, high = np.quantile(draws, [0.025, 0.975]) if values.shape[1] > 1 else (np.nan, np.nan)
    slope = float(_least_squares(x, np.log(values.mean(axis=1))[:, None])[0])
    return {"slope": slope, "low": float(low), "high": float(high), "points": len(kept), "final_gap": final}


def _least_squares(x: NDArray, y: NDArray) -> NDArray:
    centered = x - x.mean()
    return centered @ y / (centered @ centered)
