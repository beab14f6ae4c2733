"""Questions before a run: how the cost will fall with k, and what a seeding will take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .diagnostics import Exponent
from .envelope import best_refresh_size
from .plusplus import qkmeans_plusplus

MC2_CHAIN = 200  # proposals a centre in AFK-MC2


def quantization_exponent(
    X: ArrayLike, k_max: int = 4096, *, n_runs: int = 3, random_state: Any = None, n_threads: int | None = None
) -> Exponent:
    """Measure eps in cost ~ k^-eps, hence the intrinsic dimension 2 / eps, from the acceptances of a few seedings.

    Parameters
    ----------
    X : array or CSR matrix of shape (n_samples, n_features)
        At least 512 samples.
    k_max : int, default=4096
        Centres chosen, at most n_samples // 8: nearer to n_samples the cost falls faster than any power.
    n_runs : int, default=3
        Independent seedings.
    random_state : int, RandomState, Generator or None, default=None
    n_threads : int, default=None

    Returns
    -------
    eps : float
    se : float
        Standard error, of the counts within a run and of the differences between the runs, whichever is larger.
    curve : array (windows, 2)
        Number of centres and potential, for every window of every run, in order of size.

    Raises
    ------
    ValueError
        Fewer than 512 samples, k_max below 64, n_runs below 1, or data without spread.

    Examples
    --------
    >>> import numpy as np
    >>> from cameraready.methods.qkmeans import quantization_exponent
    >>> square = np.random.default_rng(0).random((20000, 2))
    >>> eps, se, curve = quantization_exponent(square, random_state=0)
    >>> 0.8 < eps < 1.2
    True
    """
    n_samples = np.shape(X)[0]
    if n_samples < 512:
        raise ValueError(f"X has {n_samples} samples; the exponent needs at least 512")
    if k_max < 64:
        raise ValueError(f"k_max={k_max} is too few centres to see a power law; pass at least 64")
    if n_runs < 1:
        raise ValueError(f"n_runs={n_runs} is less than 1; pass at least 1")
    rng = np.random.default_rng(random_state) if not isinstance(random_state, np.random.RandomState) else random_state
    runs = [
        qkmeans_plusplus(
            X, min(k_max, n_samples // 8), engine="exact", greedy=False, random_state=rng, n_threads=n_threads,
            return_stats=True,
        )[2]
        for _ in range(n_runs)
    ]  # fmt: skip
    values = np.array([run.eps_hat for run in runs])
    if np.isnan(values).any():
        raise ValueError("X has too few distinct rows for the cost to follow a power law; pass data with more of them")
    precision = np.array([run.eps_se for run in runs]) ** -2.0
    eps = float(np.average(values, weights=precision))
    between = float(np.std(values, ddof=1) / np.sqrt(n_runs)) if n_runs > 1 else 0.0
    curve = np.concatenate([run.acceptance_curve[:, [0, 3]] for run in runs])
    return Exponent(eps, max(float(precision.sum() ** -0.5), between), curve[np.argsort(curve[:, 0])])


@dataclass(frozen=True)
class PlannedWork:
    """Predicted distances and seconds of one thread."""

    distances: float
    seconds: float


def plan(n: int, k: int, D: int, eps: float) -> dict[str, PlannedWork]:
    """Predict the work of three seedings, for n samples of D features, k centres and a quantisation exponent.

    k-means++ computes n k distances, one centre at a time; AFK-MC2 n + 200 k^2 / 2; Qkmeans
    n (1 + m0) + k^(2+eps) m0^(-eps) / (2+eps) with the best refresh size m0. Seconds are those distances at
    the speed of this machine, measured once a process.

    Examples
    --------
    >>> from cameraready.methods.qkmeans import plan
    >>> work = plan(10**6, 1000, 64, 0.2)
    >>> work["k-means++"].distances / work["Qkmeans"].distances > 100
    True
    """
    for name, value in {"n": n, "k": k, "D": D}.items():
        if value < 1:
            raise ValueError(f"{name}={value} is less than 1; pass at least 1")
    if k > n:
        raise ValueError(f"k={k} is larger than n={n}; pass at most n")
    if not 0 < eps <= 2:
        raise ValueError(f"eps={eps} is not in (0, 2]; `quantization_exponent` measures it")
    one, many = _seconds_per_multiplication()
    m0 = best_refresh_size(n, k, eps)
    after_pass = n * (m0 if m0 > 1 else 0) + k ** (2 + eps) * m0**-eps / (2 + eps)
    chain = MC2_CHAIN * k**2 / 2
    return {
        "k-means++": PlannedWork(float(n * k), n * k * D * one),
        "Qkmeans": PlannedWork(n + after_pass, D * (n * one + after_pass * many)),
        "AFK-MC2": PlannedWork(n + chain, D * (n * one + chain * many)),
    }


@lru_cache(maxsize=1)
def _seconds_per_multiplication() -> tuple[float, float]:
    """Of a product with one centre (bound by memory) and with many (bound by arithmetic)."""
    rows = np.ones((16384, 128), dtype=np.float32)
    centers = np.ones((128, 512), dtype=np.float32)

    def seconds(right: np.ndarray) -> float:
        best = np.inf
        for _ in range(5):
            start = perf_counter()
            rows @ right
            best = min(best, perf_counter() - start)
        return best / (rows.size * right.size / rows.shape[1])

    return seconds(centers[:, 0].copy()), seconds(centers)
