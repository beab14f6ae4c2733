"""Feature decay alpha and target decay beta, estimated from a table of features and a target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from sklearn.utils.extmath import randomized_svd

from cameraready.methods.signsgd_scaling.coverage import Coverage

MOST_MODES = 256
ROWS_A_MODE = 10  # eigenvalue j is estimated from n rows with a relative bias of order j / n
SMALLEST_SPAN = 8.0  # j1 / j0 of the window: a power law is a statement about a range of scales
FEWEST_MODES = 10
LARGEST_DISTANCE = 0.10
DISTANCE_SLACK = 0.01  # among windows this close to the best one, the widest is taken
BINS_A_WINDOW = 8
GROUPS = 32
REPLICATES = 60
NULL_REPLICATES = 19
NULL_DIMENSIONS = 256
SPAN = (1e-100, 1e100)  # of the largest value


@dataclass(frozen=True)
class Decay:
    """Estimated decays: variance of mode j is ``j^(-2 alpha)``, its coefficient in the target ``j^-beta``.

    Attributes
    ----------
    alpha, beta : estimates; NaN where the data do not determine them.
    alpha_ci, beta_ci : 95 % bootstrap intervals.
    window : (j0, j1), the modes that were fitted.
    distance : Kolmogorov-Smirnov distance of the eigenvalues in the window to the power law.
    p_value : of that distance among Gaussian data with exactly this power law; small: the spectrum bends.
    scale : variance of mode 1 by the fitted law. target_scale : coefficient of mode 1 by the fitted law.
    noise : variance of the target that the modes do not explain.
    coverage : whether the scaling laws may be applied, and why.
    """

    alpha: float
    beta: float
    alpha_ci: tuple[float, float]
    beta_ci: tuple[float, float]
    window: tuple[int, int]
    distance: float
    p_value: float
    scale: float
    target_scale: float
    noise: float
    coverage: Coverage

    @property
    def ci(self) -> dict[str, tuple[float, float]]:
        return {"alpha": self.alpha_ci, "beta": self.beta_ci}

    def __str__(self) -> str:
        alpha, beta = _with_interval(self.alpha, self.alpha_ci), _with_interval(self.beta, self.beta_ci)
        chance = "" if np.isnan(self.p_value) else f", p = {self.p_value:.2f}"
        bend = "; the spectrum bends more than chance" if self.p_value <= 0.05 else ""
        window = f"modes {self.window[0]} to {self.window[1]}, KS distance {self.distance:.3f}{chance}{bend}"
        return f"alpha = {alpha}, beta = {beta} ({window}). {self.coverage}"


def _with_interval(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.3f}" + ("" if np.isnan(interval[0]) else f" [{interval[0]:.3f}, {interval[1]:.3f}]")


def fit_decay(X: ArrayLike, y: ArrayLike, *, intervals: bool = True, random_state: int = 0) -> Decay:
    """Estimate alpha and beta from features and a target.

    The features are centred and turned to their principal axes. ``alpha`` is half the slope of the log eigenvalues over
    log j in a window (j0, j1), at least a factor of 8 wide: the widest whose Kolmogorov-Smirnov distance to a power
    law is within 0.01 of the least.
    ``beta`` is the slope of ``log c_j^2 / 2``, averaged in log-spaced bins after subtracting what noise adds to a
    squared coefficient, ``s^2 / (n l_j)``. Intervals are of a bootstrap over groups of rows, with the window held
    fixed.

    Parameters
    ----------
    X : features, (n, D), finite, n >= 100 and D >= 10. Scale matters: standardise columns only if your model does.
    y : target, (n,), finite, not constant.
    intervals : whether to compute the intervals and the p-value, which take most of the time; without, they are NaN.

    Returns
    -------
    Decay : print it; `Decay.coverage` says whether the scaling laws may be applied.

    Raises
    ------
    ValueError : shapes that do not match, values that are not finite, too few rows or columns, a constant target.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> j = np.arange(1, 101)
    >>> X = rng.normal(size=(5000, 100)) * j**-0.8
    >>> found = fit_decay(X, X @ j**-0.5)
    >>> abs(found.alpha - 0.8) < 0.05, abs(found.beta - 0.5) < 0.05
    (True, True)
    """
    X, y = _checked(X, y)
    n = len(X)
    eigenvalues, scores = _principal(X, random_state)
    moments = _Moments.of(scores, y)
    window, distance = _best_window(eigenvalues, n)
    alpha, scale = _power_law(eigenvalues, window)
    beta, target_scale, noise = _target_decay(moments.total(), window)
    rng = np.random.default_rng([random_state, 1])
    draws, p_value = np.empty((0, 2)), np.nan
    if intervals:
        draws = np.array([_bootstrap(moments.resampled(rng), window) for _ in range(REPLICATES)])
        p_value = _p_value(alpha, window, distance, n, len(eigenvalues), rng)
    return Decay(
        alpha=alpha,
        beta=beta,
        alpha_ci=_interval(draws[:, 0], alpha),
        beta_ci=_interval(draws[:, 1], beta),
        window=window,
        distance=distance,
        p_value=p_value,
        scale=scale,
        target_scale=target_scale,
        noise=noise,
        coverage=_coverage(alpha, beta, window, distance),
    )


def n_directions(X: ArrayLike) -> int:
    """The number of directions in which the rows of X vary: its columns, less those that others determine."""
    X = np.asarray(X, dtype=float)
    X = X - X.mean(axis=0)
    values = eigh(X.T @ X if X.shape[1] <= X.shape[0] else X @ X.T, eigvals_only=True)
    return int((values > 1e-12 * values[-1]).sum())


def _checked(X: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if np.iscomplexobj(X) or np.iscomplexobj(y):
        raise TypeError("X or y is complex; features and targets are real numbers")
    X, y = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
    if X.ndim != 2 or y.shape != X.shape[:1]:
        raise ValueError(f"X {X.shape} and y {y.shape} do not match; they are (n, D) and (n,)")
    if len(X) < 10 * FEWEST_MODES or X.shape[1] < FEWEST_MODES:
        raise ValueError(
            f"X has {X.shape[0]} rows and {X.shape[1]} columns; decays need at least {10 * FEWEST_MODES} rows and "
            f"{FEWEST_MODES} columns"
        )
    if not np.isfinite(X).all() or not np.isfinite(y).all():
        raise ValueError(
            f"X holds {np.count_nonzero(~np.isfinite(X))} and y {np.count_nonzero(~np.isfinite(y))} values that "
            "are not finite; drop or impute them"
        )
    if np.ptp(y) == 0:
        raise ValueError(f"y is constant ({y[0]:g}); there is no target to decay")
    X, y = X - X.mean(axis=0), y - y.mean()
    for name, value in (("X", X), ("y", y)):
        if not SPAN[0] <= (largest := np.abs(value).max()) <= SPAN[1]:
            raise ValueError(
                f"{name} departs from its mean by at most {largest:.3g}; its squares leave the range of float64: "
                "rescale it, or drop it if it is constant"
            )
    return X, y


def _principal(X: NDArray[np.float64], random_state: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Leading eigenvalues of the covariance, falling, and the scores on their axes."""
    n, D = X.shape
    modes = min(D, max(FEWEST_MODES, n // ROWS_A_MODE), MOST_MODES)
    if 2 * modes < D and D > MOST_MODES:
        _, singular, axes = randomized_svd(X, n_components=modes, random_state=random_state)
        values = singular**2 / n
    else:
        values, vectors = eigh(X.T @ X / n)
        values, axes = values[::-1][:modes], vectors[:, ::-1].T[:modes]
    kept = values > 1e-12 * values[0]
    if kept.sum() < FEWEST_MODES:
        raise ValueError(f"X varies in {kept.sum()} directions; decays need at least {FEWEST_MODES}")
    return values[kept], X @ axes[kept].T


@dataclass(frozen=True)
class _Moments:
    """Second moments of scores and target, by groups of rows: what a bootstrap over groups needs."""

    scores: NDArray[np.float64]  # (groups, m, m)
    cross: NDArray[np.float64]  # (groups, m)
    target: NDArray[np.float64]  # (groups,)
    n: int

    @classmethod
    def of(cls, scores: NDArray[np.float64], y: NDArray[np.float64]) -> _Moments:
        groups = [slice(group, None, GROUPS) for group in range(GROUPS)]
        return cls(
            np.stack([scores[g].T @ scores[g] for g in groups]),
            np.stack([scores[g].T @ y[g] for g in groups]),
            np.array([y[g] @ y[g] for g in groups]),
            len(y),
        )

    def total(self, weights: NDArray[np.float64] | None = None) -> _Spectrum:
        weights = np.ones(GROUPS) if weights is None else weights
        covariance = np.tensordot(weights, self.scores, 1) / self.n
        values, vectors = eigh(covariance)
        # A resample of few rows may have lost a direction: it then has no variance and no coefficient.
        values, vectors = np.clip(values[::-1], 1e-12 * values[-1], None), vectors[:, ::-1]
        squared = np.where(values > 1e-12 * values[0], (vectors.T @ (weights @ self.cross) / self.n / values) ** 2, 0.0)
        explained = float(np.sum(values * squared))
        noise = max(0.0, float(weights @ self.target) / self.n - explained) * self.n / max(1, self.n - len(values))
        return _Spectrum(values, squared, noise, self.n)

    def resampled(self, rng: np.random.Generator) -> _Spectrum:
        return self.total(rng.multinomial(GROUPS, np.full(GROUPS, 1 / GROUPS)).astype(float))


@dataclass(frozen=True)
class _Spectrum:
    values: NDArray[np.float64]
    squared: NDArray[np.float64]
    noise: float
    n: int


def _power_law(values: NDArray[np.float64], window: tuple[int, int]) -> tuple[float, float]:
    """alpha and the variance of mode 1, by least squares on the logarithms within the window (1-based, inclusive)."""
    j = np.arange(window[0], window[1] + 1)
    slope, intercept = np.polyfit(np.log(j), np.log(values[window[0] - 1 : window[1]]), 1)
    return float(-slope / 2), float(np.exp(intercept))


def _ks_distance(values: NDArray[np.float64], window: tuple[int, int]) -> float:
    """Largest gap between the rank of an eigenvalue and the rank the power law gives it, over the window's length.

    A power law of eigenvalues is a Pareto law of their distribution, and this is its Kolmogorov-Smirnov distance.
    """
    alpha, scale = _power_law(values, window)
    if alpha <= 0.02:
        return 1.0
    j = np.arange(window[0], window[1] + 1)
    predicted = (values[window[0] - 1 : window[1]] / scale) ** (-1 / (2 * alpha))
    return float(np.max(np.abs(predicted - j)) / (window[1] - window[0] + 1))


def _best_window(values: NDArray[np.float64], n: int) -> tuple[tuple[int, int], float]:
    """The widest window, in decades, among those whose distance is within `DISTANCE_SLACK` of the least."""
    last = min(len(values), max(FEWEST_MODES, n // ROWS_A_MODE))
    windows = {(1, last)}
    for j0 in np.unique(np.geomspace(1, max(1, last / SMALLEST_SPAN), 10).astype(int)):
        shortest = max(SMALLEST_SPAN * j0, j0 + FEWEST_MODES - 1)
        if shortest <= last:
            windows |= {(int(j0), int(j1)) for j1 in np.geomspace(shortest, last, 12).round()}
    distances = {window: _ks_distance(values, window) for window in windows}
    limit = min(distances.values()) + DISTANCE_SLACK
    best = max(
        (window for window in windows if distances[window] <= limit), key=lambda window: (window[1] / window[0], window)
    )
    return best, distances[best]


def _target_decay(spectrum: _Spectrum, window: tuple[int, int]) -> tuple[float, float, float]:
    """beta, the coefficient of mode 1, and the noise variance; NaN with fewer than three bins above the noise."""
    j = np.arange(window[0], window[1] + 1)
    part = slice(window[0] - 1, window[1])
    debiased = spectrum.squared[part] - spectrum.noise / (spectrum.n * spectrum.values[part])
    edges = np.unique(np.geomspace(window[0], window[1] + 1, BINS_A_WINDOW + 1).round().astype(int))
    bins = np.digitize(j, edges) - 1
    count = np.bincount(bins)
    mean = np.bincount(bins, debiased)[count > 0] / count[count > 0]
    centre = np.bincount(bins, np.log(j))[count > 0] / count[count > 0]
    kept = mean > 0
    if kept.sum() < 3:
        return np.nan, np.nan, spectrum.noise
    slope, intercept = np.polyfit(centre[kept], np.log(mean[kept]) / 2, 1)
    return float(-slope), float(np.exp(intercept)), spectrum.noise


def _bootstrap(spectrum: _Spectrum, window: tuple[int, int]) -> tuple[float, float]:
    return _power_law(spectrum.values, window)[0], _target_decay(spectrum, window)[0]


def _interval(draws: NDArray[np.float64], estimate: float) -> tuple[float, float]:
    """Normal interval with the bootstrap's standard deviation: resampling shifts eigenvalues, so percentiles would be
    off.
    """
    draws = draws[np.isfinite(draws)]
    if len(draws) < REPLICATES // 2 or not np.isfinite(estimate):
        return np.nan, np.nan
    half = 1.96 * float(np.std(draws, ddof=1)) * np.sqrt(GROUPS / (GROUPS - 1))
    return estimate - half, estimate + half


def _p_value(
    alpha: float, window: tuple[int, int], distance: float, n: int, modes: int, rng: np.random.Generator
) -> float:
    """Share of Gaussian samples with exactly this power law whose window is at least as far from it."""
    if alpha <= 0:
        return 1 / (NULL_REPLICATES + 1)
    d = min(max(window[1], modes), NULL_DIMENSIONS)
    if window[1] > d:
        return np.nan
    scale = np.arange(1, d + 1, dtype=float) ** -alpha
    at_least = 1
    for _ in range(NULL_REPLICATES):
        # Bartlett: the R factor of an (n, d) Gaussian matrix has chi-distributed diagonal and normal entries above it.
        R = np.triu(rng.standard_normal((d, d)), 1)
        np.fill_diagonal(R, np.sqrt(rng.chisquare(np.maximum(n - np.arange(d), 1))))
        values = eigh((R * scale).T @ (R * scale) / n, eigvals_only=True)[::-1]
        at_least += _ks_distance(np.clip(values, 1e-300, None), window) >= distance
    return at_least / (NULL_REPLICATES + 1)


def _coverage(alpha: float, beta: float, window: tuple[int, int], distance: float) -> Coverage:
    if window[1] < SMALLEST_SPAN * window[0] or distance > LARGEST_DISTANCE:
        return Coverage(
            False,
            f"the spectrum is no power law over a factor of {SMALLEST_SPAN:g} in j (KS distance "
            f"{distance:.3f}, limit {LARGEST_DISTANCE})",
        )
    if not np.isfinite(beta):
        return Coverage(False, "the target's coefficients drown in noise: beta cannot be estimated; bring more rows")
    if alpha <= 0 or 2 * alpha + 2 * beta <= 1:
        return Coverage(
            False,
            f"2 alpha + 2 beta = {2 * alpha + 2 * beta:.2f} is not above 1: the target would have infinite "
            "variance in the limit of many features",
        )
    return Coverage(True, f"power law over modes {window[0]} to {window[1]}, KS distance {distance:.3f}")
