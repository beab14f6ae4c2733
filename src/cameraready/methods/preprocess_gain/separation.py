"""How far apart the classes of a data set are, seen by a linear plug-in classifier: estimates of (m, d).

A linear plug-in classifier sees x through a metric: it is the nearer class mean of x / sqrt(s^2 + alpha) in the
eigenbasis of the within-class covariance (eigenvalues s^2). alpha = 0 whitens (Fisher's rule), alpha = inf is the
nearest mean of x as it is, and alpha between is a regularised rule. For one pair of classes, h half the difference of
their means and V the remaining variances s^2 / (s^2 + alpha), all in that metric, the two numbers with

    m = |h|^2 / sqrt(h'Vh),    d = m^2 tr(V^2) / h'Vh

give the rule the score of a spherical mixture: the same mean and the same variance for many labels and for few.
Everything is debiased: a half distance of means from n_1 and n_2 samples is too long by tr(V) (1/n_1 + 1/n_2) / 4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from sklearn.covariance import ledoit_wolf_shrinkage

from cameraready.methods.preprocess_gain.plugin_accuracy import Array

Codes = NDArray[np.int_]  # class numbers 0 .. K - 1

RANK = 1e-3  # directions with less than this share of the largest variance count as empty
GROUPS = 20  # of the jackknife: all of one group are left out together


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """Class means and within-class variances in the eigenbasis of the pooled covariance.

    Attributes
    ----------
    means : shape (K, d), class means.
    variances : shape (d,), within-class variances, largest first, shrunk as an inverse needs it.
    counts : shape (K,), samples a class.
    plain_variances : shape (d,), the same before shrinkage, for what is linear in the covariance.
    freedom : number of samples behind the covariance, less the means that were estimated.
    """

    means: Array
    variances: Array
    counts: Array
    plain_variances: Array
    freedom: float = np.inf

    @property
    def d_eff(self) -> float:
        """(tr S)^2 / tr(S^2): the dimension of a spherical noise with as much spread."""
        return float(self.variances.sum() ** 2 / (self.variances**2).sum())

    def without_empty(self) -> ClassStatistics:
        """Only directions that can be whitened. (A metric that does not whiten needs the means in the others too.)"""
        kept = self.variances > RANK * self.variances[0]
        return replace(
            self, means=self.means[:, kept], variances=self.variances[kept], plain_variances=self.plain_variances[kept]
        )


@dataclass(frozen=True, eq=False)
class Pairs:
    """Effective (m, d) of every pair of classes in one metric, and the half differences of their means.

    ``length`` is |h|^2, debiased, so it may be negative; ``m`` is 0 then.
    """

    first: Codes
    second: Codes
    length: Array
    m: Array
    d: Array
    halves: Array
    variances: Array


@dataclass(frozen=True)
class Separation:
    """Debiased squared separation m^2 (in units of the noise), its 95 % jackknife interval, and dimensions.

    For more than two classes m^2 is the mean over pairs.
    """

    m_squared: float
    low: float
    high: float
    d: int
    d_eff: float
    n: int
    heavy_tails: bool

    @property
    def distinguishable(self) -> bool:
        """Whether the interval of m^2 lies above 0."""
        return self.low > 0

    def __str__(self) -> str:
        text = f"m^2 = {self.m_squared:.3g} (95 % interval {self.low:.3g} to {self.high:.3g})"
        text += f" in {self.d} dimensions, effectively {self.d_eff:.1f}, from {self.n} samples"
        if self.heavy_tails:
            text += "; heavy tails, so estimated on normal scores"
        return text if self.distinguishable else f"{text}: separation not distinguishable from 0"


def estimate_separation(X: ArrayLike, y: ArrayLike, *, alpha: float = 0.0, seed: int = 0) -> Separation:
    """Debiased squared half distance of the classes in units of the noise, with a grouped-jackknife interval.

    Parameters
    ----------
    X : shape (n, d).
    y : shape (n,), at least two classes of at least two samples.
    alpha : 0 for Mahalanobis' distance, ``inf`` for the distance in X as it is, over the mean variance.
    seed : of the division in the groups that the jackknife leaves out in turn. (A bootstrap would not do: it repeats
        samples, which the debiasing would count as signal.)

    Raises
    ------
    ValueError : one class only, a class of one sample, values that are not finite.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1], 500)
    >>> X = rng.normal(size=(1000, 20))
    >>> X[:, 0] += 2.0 * y - 1.0
    >>> found = estimate_separation(X, y)
    >>> found.low < 1.0 < found.high
    True
    """
    X, y = np.asarray(X, dtype=float), np.asarray(y)
    if X.ndim != 2 or len(X) != len(y):
        raise ValueError(f"X has shape {X.shape} and y {y.shape}; they must be (n, d) and (n,)")
    if not np.isfinite(X).all():
        raise ValueError(f"X holds {np.count_nonzero(~np.isfinite(X))} values that are not finite; impute them first")
    labels, codes = np.unique(y, return_inverse=True)
    counts = np.bincount(codes)
    if len(labels) < 2 or counts.min() < 2:
        given = dict(zip(labels.tolist(), counts.tolist(), strict=True))
        raise ValueError(f"samples a class: {given}; at least two classes of at least two samples are needed")
    heavy = has_heavy_tails(X, codes)
    X = normal_scores(X) if heavy else X
    statistics = class_statistics(X, codes)
    value = mean_m_squared(statistics, alpha)
    left = [mean_m_squared(class_statistics(X[keep], codes[keep]), alpha) for keep in leave_out(codes, GROUPS, seed)]
    error, quantile = jackknife_error(np.array(left)), stats.t.ppf(0.975, len(left) - 1)
    low, high = value - quantile * error, value + quantile * error
    rank = len(statistics.without_empty().variances)
    return Separation(max(value, 0.0), float(low), float(high), rank, statistics.d_eff, len(X), heavy)


def class_statistics(X: Array, codes: Codes) -> ClassStatistics:
    """Means and variances, the pooled within-class covariance shrunk by Ledoit and Wolf. ``codes`` are 0 .. K - 1.

    Labelled samples only: their residuals are independent of their means. (The covariance of many unlabelled inputs
    less that of the few class means is not, and where chance makes the means differ it would find no noise.)
    """
    counts = np.bincount(codes).astype(float)
    K, d, freedom = len(counts), X.shape[1], max(len(X) - len(counts), 1)
    X = X / (np.abs(X).max() or 1.0)  # all that is made of them is free of units, and squares stay finite
    means = np.stack([X[codes == k].mean(axis=0) for k in range(K)])
    residuals = X - means[codes]
    shrinkage = ledoit_wolf_shrinkage(residuals, assume_centered=True)
    if d > len(X) + K:  # work in the span of the samples: the other directions hold no variance and no mean
        span = np.linalg.qr(np.concatenate([residuals, means]).T)[0]
        residuals, means = residuals @ span, means @ span
    values, basis = np.linalg.eigh(residuals.T @ residuals / freedom)
    values, means = np.maximum(values[::-1], 0.0), means @ basis[:, ::-1]
    values, means = np.pad(values, (0, d - len(values))), np.pad(means, ((0, 0), (0, d - len(values))))
    variances = (1 - shrinkage) * values + shrinkage * values.mean()
    if variances[0] == 0:  # every feature is constant within the classes
        return ClassStatistics(np.zeros((K, 1)), np.ones(1), counts, np.ones(1))
    return ClassStatistics(means, variances, counts, values, float(freedom))


def pairs_in_metric(statistics: ClassStatistics, alpha: float) -> Pairs:
    """Effective (m, d) of all pairs in the metric 1 / (s^2 + alpha s_0^2), s_0^2 the mean variance."""
    statistics = statistics if np.isinf(alpha) else statistics.without_empty()
    s2 = statistics.variances
    if np.isinf(alpha):
        scale, v = np.ones_like(s2), statistics.plain_variances
        # The square of a sample covariance has too large a trace, by tr(S)^2 / freedom to first order.
        freedom = statistics.freedom
        square = (v**2).sum() - v.sum() ** 2 / freedom
        square = max(square, v.sum() ** 2 / len(v)) * (1.0 if np.isinf(freedom) else freedom / (freedom + 1))
    else:
        scale = 1 / (s2 + alpha * s2.mean())
        v = s2 * scale
        square = (v**2).sum()
    first, second = np.triu_indices(len(statistics.counts), 1)
    halves = (statistics.means[first] - statistics.means[second]) / 2 * np.sqrt(scale)
    q = (1 / statistics.counts[first] + 1 / statistics.counts[second]) / 4
    length = (halves**2).sum(axis=1) - q * v.sum()
    spread = (halves**2) @ v - q * square
    # Shrinkage would hide a large variance along the means' difference, which limits the rule however many labels.
    plain = statistics.plain_variances * scale
    spread = np.maximum(spread, (halves**2) @ plain - q * square)
    # One ratio h'Vh / |h|^2 for all pairs: that of each pair's two noisy numbers would be biased, and m and d with it.
    # It cannot be less than the smallest variance allows, whatever chance makes of it.
    seen = length > 0
    ratio = max(spread[seen].sum() / length[seen].sum(), v.min(), 1e-3 * v.mean()) if seen.any() else v.mean()
    m = np.sqrt(np.where(seen, length / ratio, 0.0))
    d = np.full(len(length), square / ratio**2 if seen.any() else v.sum() ** 2 / square)
    return Pairs(first, second, length, m, np.clip(d, 1.0, None), halves, v)


def mean_m_squared(statistics: ClassStatistics, alpha: float = 0.0) -> float:
    """Debiased squared half distance over the mean variance, mean over pairs; below 0 when chance exceeds signal."""
    pairs = pairs_in_metric(statistics, alpha)
    return float(pairs.length.mean() / pairs.variances.mean())


def leave_out(codes: Codes, groups: int, seed: int) -> list[Codes]:
    """For each of ``groups`` groups, balanced over classes, the samples that remain; a class keeps two at least."""
    order = np.random.default_rng(seed).permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    group = np.empty(len(codes), dtype=int)
    for k in np.unique(codes):
        members = order[codes[order] == k]
        group[members] = (np.arange(len(members)) + k) % groups if len(members) > 2 else -1
    return [np.flatnonzero(group != g) for g in range(groups) if (group == g).any()]


def jackknife_error(left: Array) -> Array:
    """Standard error from the estimates, along the first axis, that leave one group out each."""
    g = len(left)
    return np.sqrt((g - 1) / g * ((left - left.mean(axis=0)) ** 2).sum(axis=0))


def has_heavy_tails(X: Array, codes: Codes) -> bool:
    """Whether the within-class residuals of the median feature have an excess kurtosis above 3 (t with 6 degrees)."""
    residuals = X - np.stack([X[codes == k].mean(axis=0) for k in range(codes.max() + 1)])[codes]
    residuals = residuals[:, residuals.std(axis=0) > 1e-12 * np.abs(X).max(initial=1.0)]
    if residuals.shape[1] == 0 or len(X) < 20:
        return False
    return bool(np.median(stats.kurtosis(residuals, axis=0)) > 3)


def normal_scores(X: Array) -> Array:
    """Each feature's ranks as quantiles of a normal distribution: what outliers do not move."""
    ranks = stats.rankdata(X, axis=0)
    return stats.norm.ppf((ranks - 0.5) / len(X)) * (np.ptp(X, axis=0) > 0)
