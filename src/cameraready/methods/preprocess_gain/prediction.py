"""Predicted accuracy and gain at any number of labels, from estimated separations, with jackknife intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import ndtri

from cameraready.coverage import NotCovered
from cameraready.methods.preprocess_gain.coverage import PluginRule
from cameraready.methods.preprocess_gain.plugin_accuracy import Array, class_accuracies
from cameraready.methods.preprocess_gain.separation import (
    ClassStatistics,
    Codes,
    class_statistics,
    estimate_separation,
    has_heavy_tails,
    jackknife_error,
    leave_out,
    normal_scores,
    pairs_in_metric,
)

_VOTES = 1000  # Gaussian draws of the votes among more than two classes
_GROUPS = 10  # of the jackknife of predictions
RAW = "raw"


@dataclass(frozen=True)
class Prediction:
    """Predicted accuracies on a grid of labels, and gains over raw with 95 % intervals; all of shape (n_grid,)."""

    accuracy: Array
    gain: Array
    low: Array
    high: Array


def predict_gains(
    features: Mapping[str, Array],
    codes: Codes,
    rule: PluginRule,
    n: ArrayLike,
    *,
    balanced: bool,
    seed: int = 0,
) -> dict[str, Prediction | NotCovered]:
    """For each set of features the prediction, or why there is none. ``features["raw"]`` is the reference.

    Parameters
    ----------
    features : name to array of shape (n_samples, d); rows belong together.
    codes : shape (n_samples,), classes 0 .. K - 1.
    rule : of the classifier.
    n : numbers of labels to predict at, shared out as in ``codes``.
    balanced : mean over classes, or over samples.
    seed : of the jackknife's groups.
    """
    n = np.atleast_1d(np.asarray(n, dtype=float))
    kept = leave_out(codes, _GROUPS, seed)
    curves: dict[str, Array | NotCovered] = {}
    for name, Z in features.items():
        Z = normal_scores(Z) if has_heavy_tails(Z, codes) else Z
        # A rule that may choose its metric needs a separation that is seen in one end of the choice, not in both.
        seen = [estimate_separation(Z, codes, alpha=alpha, seed=seed) for alpha in {rule.alphas[0], rule.alphas[-1]}]
        if not any(separation.distinguishable for separation in seen):
            curves[name] = NotCovered(f"{name} features: {max(seen, key=lambda separation: separation.low)}")
            continue
        parts = [class_statistics(Z, codes), *(class_statistics(Z[rows], codes[rows]) for rows in kept)]
        shares = parts[0].counts / parts[0].counts.sum()
        whole, best = accuracy_curve(parts[0], rule, n, shares=shares, balanced=balanced)
        left = np.stack(
            [accuracy_curve(part, rule, n, shares=shares, balanced=balanced, best=best)[0] for part in parts[1:]]
        )
        for part, curve in zip(parts[1:], left, strict=True):  # a part with too few samples for that metric has its own
            if np.isnan(curve).any():
                own = accuracy_curve(part, rule, n, shares=shares, balanced=balanced)[0]
                curve[np.isnan(curve)] = own[np.isnan(curve)]
        curves[name] = np.concatenate([whole[None], left])
    raw = curves[RAW]
    if isinstance(raw, NotCovered):
        return dict.fromkeys(curves, raw)
    quantile = stats.t.ppf(0.975, max(len(kept) - 1, 1))
    found: dict[str, Prediction | NotCovered] = {}
    for name, curve in curves.items():
        if isinstance(curve, NotCovered):
            found[name] = curve
            continue
        gains = curve - raw
        error = quantile * jackknife_error(gains[1:])
        found[name] = Prediction(curve[0], gains[0], gains[0] - error, gains[0] + error)
    return found


def accuracy_curve(
    statistics: ClassStatistics,
    rule: PluginRule,
    n: Array,
    *,
    shares: Array,
    balanced: bool = True,
    best: Codes | None = None,
) -> tuple[Array, Codes]:
    """Predicted accuracy at each n, in the best of the rule's metrics, and which metric that is.

    The classifier estimates its covariance from the same n samples. In the limit of large n and d that costs the
    factor f = 1 - tr(V^2) / (n - K) in the squared score (V as in `separation`; alpha = 0 gives Fisher's
    1 - d / (n - K)), and only metrics with tr(V) < n - K can be had by a ridge term of at least 0.

    ``best``, if given, fixes the metric at each n instead of choosing it. NaN where no metric can be had.
    """
    K = len(statistics.counts)
    counts = np.maximum(n[:, None] * shares, 1.0)
    weights = np.full(K, 1 / K) if balanced else shares
    curves, variances = np.full((len(rule.alphas), len(n)), np.nan), statistics.without_empty().variances
    for index, alpha in enumerate(rule.alphas):
        wanted = np.arange(len(n)) if best is None else np.flatnonzero(best == index)
        v = np.zeros(1) if np.isinf(alpha) else variances / (variances + alpha * variances.mean())
        freedom = n[wanted] - K
        wanted = wanted[(freedom > v.sum()) | np.isinf(alpha)]
        if len(wanted) == 0:
            continue
        f = 1 - (v**2).sum() / (n[wanted] - K) if np.isfinite(alpha) else np.ones(len(wanted))
        curves[index, wanted] = _class_accuracy(statistics, alpha, counts[wanted], f) @ weights
    if best is None:
        best = np.where(np.isnan(curves), -np.inf, curves).argmax(axis=0)
    return curves[best, np.arange(len(n))], best


def _class_accuracy(statistics: ClassStatistics, alpha: float, counts: Array, f: Array) -> Array:
    """Accuracy on each class, shape (n_grid, K), for ``counts`` of that shape."""
    pairs = pairs_in_metric(statistics, alpha)
    a, b = pairs.first, pairs.second
    root = np.sqrt(f)[:, None]
    d = np.maximum(pairs.d * f[:, None], 1.0)
    first, second = class_accuracies(pairs.m * root, d, counts[:, a], counts[:, b])
    K = len(statistics.counts)
    if K == 2:
        return np.stack([first[:, 0], second[:, 0]], axis=1)
    p = np.ones((len(counts), K, K))
    p[:, a, b], p[:, b, a] = first, second
    signed = np.zeros((K, K, len(pairs.variances)))
    signed[a, b], signed[b, a] = pairs.halves, -pairs.halves
    return np.stack([_votes(p[:, k], signed[k], pairs.variances, k) for k in range(K)], axis=1)


def _votes(p: Array, halves: Array, variances: Array, k: int) -> Array:
    """Share of samples of class k that win against every other class, from the pairwise accuracies p (n_grid, K).

    The scores against two other classes share the sample: their correlation is that of the two differences of means.
    """
    others = np.delete(np.arange(len(halves)), k)
    scaled = halves[others] * np.sqrt(variances)
    scaled /= np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1e-300)
    correlation = scaled @ scaled.T
    values, vectors = np.linalg.eigh(correlation)
    draws = np.random.default_rng(0).standard_normal((_VOTES, len(others)))
    draws = np.concatenate([draws, -draws]) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    limits = ndtri(np.clip(p[:, others], 1e-12, 1 - 1e-12))
    return (draws < limits[:, None, :]).all(axis=2).mean(axis=1)
