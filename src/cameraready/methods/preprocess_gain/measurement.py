"""Measured gain without leakage: repeated cross-validation in which nothing sees a test input before the test."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from scipy import stats
from sklearn.base import clone
from sklearn.metrics import get_scorer
from sklearn.model_selection import StratifiedKFold

from cameraready.methods.preprocess_gain.inputs import Inputs, transformed
from cameraready.methods.preprocess_gain.plugin_accuracy import Array
from cameraready.methods.preprocess_gain.prediction import RAW
from cameraready.methods.preprocess_gain.separation import Codes
from cameraready.methods.preprocess_gain.tuning import with_tuning


@dataclass(frozen=True, eq=False)
class Measurements:
    """Scores of shape (n_grid, cv * repeats) by processor name, "raw" among them; failures by name, with the reason."""

    scores: Mapping[str, Array]
    failures: Mapping[str, str]
    cv: int


@dataclass(frozen=True)
class Interval:
    """Mean difference with its 95 % interval, its standard error, and that error's part that repeats cannot lower."""

    mean: float
    low: float
    high: float
    error: float
    floor: float


def measure(
    classifier: Any,
    processors: Sequence[tuple[str, Any]],
    inputs: Inputs,
    n_grid: Codes,
    *,
    supervised: frozenset[str],
    grid: Mapping[str, list[Any]],
    metric: str,
    cv: int,
    repeats: int,
    seed: int,
    n_jobs: int | None,
) -> Measurements:
    """Score the tuned classifier raw and behind every processor, at every n, on the same folds and the same labels.

    A processor is fitted in each fold on the fold's training inputs and the pool. Of these inputs, n are labelled
    for the classifier; a ``supervised`` processor gets these n and no more. A processor that raises is left out, with
    its reason; a raw classifier that raises is an error.
    """
    cv = max(2, min(cv, int(np.bincount(inputs.codes).min())))
    tasks = []
    for repeat in range(repeats):
        splits = StratifiedKFold(cv, shuffle=True, random_state=seed + repeat).split(inputs.values, inputs.codes)
        tasks += [
            (train, test, np.random.default_rng([seed, repeat, fold])) for fold, (train, test) in enumerate(splits)
        ]
    rows = Parallel(n_jobs=n_jobs)(
        delayed(_one_fold)(classifier, processors, inputs, n_grid, supervised, grid, metric, *task) for task in tasks
    )
    failures = {name: reason for _, failed in rows for name, reason in failed.items()}
    names = [RAW, *(name for name, _ in processors if name not in failures)]
    return Measurements({name: np.stack([s[name] for s, _ in rows], axis=1) for name in names}, failures, cv)


def corrected_interval(differences: Array, cv: int) -> Interval:
    """Nadeau and Bengio's corrected resampled t interval of paired differences from repeated cross-validation.

    The J differences share data, so their mean has the variance (1/J + test/train) S^2, with test/train = 1/(cv - 1).

    Examples
    --------
    >>> found = corrected_interval(np.array([0.1, 0.2, 0.3, 0.2, 0.2]), cv=5)
    >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
    (0.2, 0.068, 0.332)
    """
    J, spread = len(differences), float(differences.std(ddof=1))
    mean, error = float(differences.mean()), float(np.sqrt(1 / J + 1 / (cv - 1)) * spread)
    margin = float(stats.t.ppf(0.975, J - 1)) * error
    return Interval(mean, mean - margin, mean + margin, error, spread / np.sqrt(cv - 1))


def stratified_subset(codes: Codes, n: int, rng: np.random.Generator) -> Codes:
    """n of the samples with the classes' shares kept to rounding, and at least two of each class (if there are two)."""
    counts = np.bincount(codes)
    exact = counts * n / counts.sum()
    take = np.floor(exact).astype(int)
    take[np.argsort(take - exact)[: n - take.sum()]] += 1
    least = np.minimum(counts, 2)
    take = np.maximum(take, least)
    while take.sum() > n and (take > least).any():
        take[np.where(take > least, take - exact, -np.inf).argmax()] -= 1
    return np.concatenate([rng.permutation(np.flatnonzero(codes == k))[: take[k]] for k in range(len(counts))])


def _one_fold(
    classifier: Any,
    processors: Sequence[tuple[str, Any]],
    inputs: Inputs,
    n_grid: Codes,
    supervised: frozenset[str],
    grid: Mapping[str, list[Any]],
    metric: str,
    train: Codes,
    test: Codes,
    rng: np.random.Generator,
) -> tuple[dict[str, Array], dict[str, str]]:
    """Scores of shape (n_grid,) by name, and reasons of those that raised."""
    scorer, y, codes = get_scorer(metric), inputs.y, inputs.codes
    subsets = [train[stratified_subset(codes[train], n, rng)] for n in n_grid]
    inner_seed = int(rng.integers(2**31))
    scores, failures = {}, {}
    for name, processor in [(RAW, None), *processors]:
        row = []
        try:
            seen = _processed(processor, name in supervised, inputs, train, test, subsets)
            for subset, (Z, Z_test) in zip(subsets, seen, strict=True):
                splits = int(np.clip(np.bincount(codes[subset]).min(), 2, 3))
                model = with_tuning(classifier, grid, scoring=metric, n_splits=splits, seed=inner_seed)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # convergence, and classes missing from a part of very few labels
                    model.fit(inputs.for_classifier(subset, Z), y[subset])
                    row.append(scorer(model, inputs.for_classifier(test, Z_test), y[test]))
        except Exception as error:
            if processor is None:
                raise
            failures[name] = f"{type(error).__name__}: {error}"
            continue
        scores[name] = np.array(row, dtype=float)
    return scores, failures


def _processed(
    processor: Any, uses_labels: bool, inputs: Inputs, train: Codes, test: Codes, subsets: list[Codes]
) -> list[tuple[Array | None, Array | None]]:
    """For each subset its processed rows and those of the test; None where there is no processor."""
    if processor is None:
        return [(None, None)] * len(subsets)
    values = inputs.values
    if uses_labels:
        fitted = [clone(processor).fit(values[subset], inputs.y[subset]) for subset in subsets]
        return [
            (transformed(one, values[subset]), transformed(one, values[test]))
            for one, subset in zip(fitted, subsets, strict=True)
        ]
    fitted = clone(processor).fit(np.concatenate([values[train], inputs.pool]))
    Z, Z_test = transformed(fitted, values[train]), transformed(fitted, values[test])
    return [(Z[np.searchsorted(train, subset)], Z_test) for subset in subsets]
