"""Which minima training reaches, how often, by optimiser and by the number of surplus neurons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from numba import njit
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from cameraready.methods.relu_landscape.landscape import Landscape
from cameraready.methods.relu_landscape.pair_kernel import loss_and_gradient
from cameraready.methods.relu_landscape.search import Problem, find_critical_point
from cameraready.methods.relu_landscape.sgd import simulate_sgd
from cameraready.methods.relu_landscape.starts import gaussian_starts
from cameraready.methods.relu_landscape.table import MinimaTable

Floats = NDArray[np.float64]
Optimiser = Literal["lbfgs", "gf", "sgd", "adam"]
OPTIMISERS = ("lbfgs", "gf", "sgd", "adam")
FLOW_STEP = 0.02  # the largest curvature is about K / 4: far below 2 / curvature for every K in reach
ADAM_STEP = 0.01
SGD_ETA = 0.2


def basins(
    teacher: int | ArrayLike,
    Ks: Sequence[int],
    *,
    n: int = 200,
    optimiser: Optimiser = "gf",
    scale: float = 1.0,
    t_max: float = 100.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Train ``n`` random students of every size in ``Ks`` and count the families of minima that they end in.

    Parameters
    ----------
    teacher : as in `Landscape`.
    optimiser : "gf" gradient flow on the exact loss, "sgd" one-pass SGD (eta = 0.2, one fresh example a step), "adam"
        on the exact gradient (step 0.01), "lbfgs". After ``t_max`` each is followed down to the critical point below.
    t_max : training time: of the flow, steps / d for SGD, steps / 100 for Adam.
    scale : typical norm of a student neuron at the start, in units of the teachers' root mean square norm.

    Returns
    -------
    DataFrame : one row for each K and family: K, surplus (K - M), optimiser, family, loss (the lowest of the family),
        count, fraction, with its 95 % Wilson interval low, high.
    """
    if optimiser not in OPTIMISERS:
        raise ValueError(f"optimiser={optimiser!r}; choose one of {', '.join(OPTIMISERS)}")
    _check(n, scale, t_max)
    lands = [Landscape(teacher, K) for K in Ks]
    if not lands:
        raise ValueError("Ks is empty; name at least one number of students")
    rows = []
    for land in lands:
        table = train_all(land, n=n, optimiser=optimiser, scale=scale, t_max=t_max, seed=seed)
        for family, group in table.frame.groupby("family", sort=False):
            count = int(group["count"].sum())
            interval = stats.binomtest(count, n).proportion_ci(method="wilson")
            rows.append(
                {
                    "K": land.K,
                    "surplus": land.K - land.M,
                    "optimiser": optimiser,
                    "family": family,
                    "loss": group["loss"].min(),
                    "count": count,
                    "fraction": count / n,
                    "low": interval.low,
                    "high": interval.high,
                }
            )
    return pd.DataFrame(rows)


def train_all(
    land: Landscape, *, n: int, optimiser: Optimiser, scale: float = 1.0, t_max: float = 100.0, seed: int = 0
) -> MinimaTable:
    """Train ``n`` random students and tabulate the critical points below where they stop."""
    _check(n, scale, t_max)
    problem = land.problem
    shape = (land.K, problem.V.shape[1])
    starts = gaussian_starts(n, shape, scale=scale, rng=np.random.default_rng(seed))
    trained = (_train(problem, start, optimiser, t_max=t_max, seed=[seed, i]) for i, start in enumerate(starts))
    return land.tabulate([find_critical_point(problem, W) for W in trained])


def _check(n: int, scale: float, t_max: float) -> None:
    if not isinstance(n, (int, np.integer)) or n < 1 or not 0 < scale < np.inf or not 0 < t_max < np.inf:
        raise ValueError(f"n={n!r} must be a whole number from 1, scale={scale} and t_max={t_max} positive and finite")


def _train(problem: Problem, start: Floats, optimiser: Optimiser, *, t_max: float, seed: list[int]) -> Floats:
    if optimiser == "gf":
        return gradient_descent(start.copy(), problem.V, FLOW_STEP, int(t_max / FLOW_STEP), problem.at_zero(start))
    if optimiser == "adam":
        return adam(start.copy(), problem.V, ADAM_STEP, int(100 * t_max), problem.at_zero(start))
    if optimiser == "sgd":
        # The order parameters of the search space, rotated at random into a dimension where eta / d is small.
        d = max(4 * start.shape[1], 100)
        rng = np.random.default_rng(seed)
        frame = np.linalg.qr(rng.normal(size=(d, start.shape[1])))[0].T
        marks = {"n_times": 2, "seed": int(rng.integers(2**32))}
        end = simulate_sgd(start @ frame, problem.V @ frame, lr=SGD_ETA / d, steps=int(t_max * d), **marks)
        return _from_order_parameters(end.Q[-1], end.R[-1], problem)
    return start


def _from_order_parameters(Q: Floats, R: Floats, problem: Problem) -> Floats:
    """Weights of the search space with these order parameters, as far as its orthogonal directions allow."""
    V = problem.in_span().V
    inside = R @ np.linalg.pinv(V).T
    values, vectors = np.linalg.eigh(Q - inside @ inside.T)
    outside = (vectors * np.sqrt(np.clip(values, 0, None)))[:, ::-1]
    return np.hstack([inside, outside[:, : problem.V.shape[1] - problem.rank]])


@njit(cache=True)
def gradient_descent(W: Floats, V: Floats, step: float, n_steps: int, at_zero: Floats) -> Floats:
    """Plain descent on the exact loss."""
    for _ in range(n_steps):
        _, gradient = loss_and_gradient(W, V, at_zero, 0.0)
        W = W - step * gradient
        if np.abs(gradient).max() < 1e-6:
            break
    return W


@njit(cache=True)
def adam(W: Floats, V: Floats, step: float, n_steps: int, at_zero: Floats) -> Floats:
    """Adam with its usual constants (0.9, 0.999, 1e-8) on the exact gradient."""
    mean, square = np.zeros_like(W), np.zeros_like(W)
    for i in range(1, n_steps + 1):
        _, gradient = loss_and_gradient(W, V, at_zero, 0.0)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        W = W - step * (mean / (1 - 0.9**i)) / (np.sqrt(square / (1 - 0.999**i)) + 1e-8)
        if np.abs(gradient).max() < 1e-6:
            break
    return W
