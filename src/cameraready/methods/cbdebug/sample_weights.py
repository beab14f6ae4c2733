"""Sample weights under which the class says nothing about the undesired concepts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cameraready.methods.cbdebug.inputs import check_length, checked_weights, class_codes

LEAST_SHARE = 0.05  # of n: below this effective sample size the weights rest on a handful of images
WINSORISED = 0.995
LEAST_OVERLAP = 0.7  # 1 / number of classes where the class can be told from the concepts without error
MAX_FIT_ROWS = 20_000  # boosting gains nothing from more rows here; predictions are made for all


@dataclass(frozen=True)
class SampleWeights:
    """One weight an image, mean 1.

    Attributes
    ----------
    weights : float array (n,)
    n_eff : effective sample size (sum u)^2 / sum u^2, between 1 and n.
    method : "permutation", "ipw" or "uniform": what was used in the end.
    note : what was out of the ordinary, such as another method than the asked one.
    overlap : share of independent pairs (y, v) that the images cover: the mean of P(y) P(v) / P(y, v) before it is made
        1. Near 1 is good; with two classes, 0.5 says that class and concepts never part, and no weight can part them.
    """

    weights: NDArray[np.float64]
    n_eff: float
    method: str
    note: str = ""
    overlap: float = 1.0

    def __str__(self) -> str:
        text = f"{self.method} weights: effective sample size {self.n_eff:.0f} of {len(self.weights)}"
        return f"{text} ({self.note})" if self.note else text


def permutation_weights(
    y: ArrayLike,
    V: ArrayLike,
    *,
    n_permutations: int = 5,
    n_splits: int = 5,
    n_trees: int = 200,
    random_state: int | None = 0,
) -> SampleWeights:
    """Weights P(y)P(v) / P(y, v), by telling real pairs from permuted ones.

    Pairs (y_i, v_i) are class 0 and (y_pi(i), v_i) class 1; with p the out-of-fold probability of class 1, the weight
    is p / (1 - p), averaged over permutations. Both copies of i are in the same fold: apart, the fold that holds one
    would be predicted by a model that has seen the other's v_i.

    Parameters
    ----------
    y : (n,) class labels.
    V : (n,) or (n, m) activations of the undesired concepts, continuous or binary.
    n_permutations, n_splits : 5 and 5 as in the paper.
    n_trees : at most this many boosted trees (paper: 200); early stopping keeps the probabilities calibrated.
    random_state : seed of permutations, folds and boosting.

    Returns
    -------
    SampleWeights
        Winsorised at the 99.5th percentile. Where the effective sample size is under 5 % of n, those of `ipw_weights`
        instead, with a warning. Uniform where V is constant. Above 25,000 samples each booster is fitted on 20,000.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.repeat([0, 1], 500)
    >>> v = np.where(np.arange(1000) % 10 < 9, y, 1 - y)   # v agrees with y in nine of ten
    >>> found = permutation_weights(y, v)
    >>> bool(found.weights[v != y].mean() > 5 * found.weights[v == y].mean())
    True
    """
    codes, values = _checked(y, V)
    n = len(codes)
    if n_permutations < 1 or n_splits < 2 or n_trees < 1:
        raise ValueError(
            f"n_permutations={n_permutations}, n_splits={n_splits}, n_trees={n_trees}; "
            "at least 1, 2 and 1 are needed (5, 5, 200 are usual)"
        )
    if n < n_splits:
        raise ValueError(f"n_splits={n_splits} is larger than the {n} samples")
    if np.ptp(values, axis=0).max() == 0:
        return SampleWeights(np.ones(n), float(n), "uniform", "the flagged concepts are constant")
    rng = np.random.default_rng(random_state)
    total = np.zeros(n)
    for _ in range(n_permutations):
        shuffled = codes[rng.permutation(n)]
        real, permuted = _columns(codes, values), _columns(shuffled, values)
        seed = int(rng.integers(2**31))
        for seen, held_out in KFold(n_splits, shuffle=True, random_state=seed).split(values):
            if len(seen) > MAX_FIT_ROWS:
                seen = rng.choice(seen, MAX_FIT_ROWS, replace=False)
            booster = HistGradientBoostingClassifier(
                max_iter=n_trees, max_leaf_nodes=8, early_stopping=True, n_iter_no_change=10, random_state=seed
            )
            booster.fit(np.concatenate([real[seen], permuted[seen]]), np.repeat([0, 1], len(seen)))
            p = booster.predict_proba(real[held_out])[:, 1].clip(0.01, 0.99)
            total[held_out] += p / (1 - p)
    found = _finished(total / n_permutations, "permutation")
    if found.n_eff >= LEAST_SHARE * n:
        return found
    warnings.warn(
        f"permutation weights rest on {found.n_eff:.0f} of {n} images: class and flagged concepts hardly differ. "
        "Using propensity weights; images that break the pattern would help more",
        stacklevel=2,
    )
    other = ipw_weights(y, V, random_state=random_state)
    return replace(other, note="; ".join(filter(None, ("permutation weights had collapsed", other.note))))


def ipw_weights(y: ArrayLike, V: ArrayLike, *, n_splits: int = 5, random_state: int | None = 0) -> SampleWeights:
    """Stabilised inverse propensity weights P(y) / P(y | v), P(y | v) by cross-fitted logistic regression.

    The same target as `permutation_weights`, with less variance, and right where log-odds are linear in v.

    Examples
    --------
    >>> print(ipw_weights([0, 0, 1, 1] * 25, [0.0, 1.0] * 50))
    ipw weights: effective sample size 100 of 100
    """
    codes, values = _checked(y, V)
    n, counts = len(codes), np.bincount(codes)
    if np.ptp(values, axis=0).max() == 0:
        return SampleWeights(np.ones(n), float(n), "uniform", "the flagged concepts are constant")
    splits = min(n_splits, int(counts.min()))
    if splits < 2:
        raise ValueError(f"class number {int(counts.argmin())} has one sample; cross-fitting needs two or more")
    folds = StratifiedKFold(splits, shuffle=True, random_state=random_state)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    propensity = cross_val_predict(model, values, codes, cv=folds, method="predict_proba")
    chosen = propensity[np.arange(n), codes].clip(0.01, None)
    return _finished(counts[codes] / n / chosen, "ipw")


def augment_probability(weights: ArrayLike, *, gamma: float = 2.0) -> NDArray[np.float64]:
    """((u_max - u_i) / (u_max - u_min))^gamma: how likely each image is altered, most where its kind abounds.

    Zero for all where the weights are equal: then no image is over-represented.

    Examples
    --------
    >>> augment_probability([0.5, 1.0, 1.5]).tolist()
    [1.0, 0.25, 0.0]
    """
    if not gamma > 0:
        raise ValueError(f"gamma={gamma} is not positive; 2 is the paper's")
    u = checked_weights(weights, len(np.asarray(weights)))
    width = np.ptp(u)
    return np.asarray(((u.max() - u) / width) ** gamma) if width > 0 else np.zeros(len(u))


def _checked(y: ArrayLike, V: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    values: Any = np.asarray(V, dtype=float)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(f"V has shape {values.shape}; pass (n,) or (n, m) activations of the undesired concepts")
    if not np.isfinite(values).all():
        raise ValueError(f"V holds {np.count_nonzero(~np.isfinite(values))} values that are not finite")
    check_length("y", y, len(values))  # type: ignore[arg-type]
    return class_codes(y, len(values))[1], values


def _columns(codes: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Class, concepts and their products, so that a split on a product is a split inside one class."""
    one_hot = np.eye(codes.max() + 1)[codes]
    products = (one_hot[:, :, None] * values[:, None, :]).reshape(len(codes), -1)
    return np.concatenate([one_hot, values, products], axis=1)


def _finished(raw: NDArray[np.float64], method: str) -> SampleWeights:
    overlap, note = float(raw.mean()), ""
    if overlap < LEAST_OVERLAP:
        note = f"they cover {overlap:.0%} of independent pairs of class and concepts"
        warnings.warn(
            f"the images cover only {overlap:.0%} of independent pairs of class and flagged concepts: weights cannot "
            "part what hardly ever parts; add images that break the pattern",
            stacklevel=3,
        )
    u = np.minimum(raw, np.quantile(raw, WINSORISED))
    u = u / u.mean()
    return SampleWeights(u, float(u.sum() ** 2 / (u**2).sum()), method, note, min(overlap, 1.0))
