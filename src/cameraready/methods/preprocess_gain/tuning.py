"""The same inner tuning for the raw and for every processed classifier: a regularised rival is the honest one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, ShuffleSplit, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC, LinearSVC

_GRIDS: tuple[tuple[type, dict[str, list[Any]]], ...] = (
    (LogisticRegression, {"C": [1e-3, 1e-1, 10.0]}),
    (RidgeClassifier, {"alpha": [0.1, 10.0, 1000.0]}),
    (LinearSVC, {"C": [1e-4, 1e-2, 1.0]}),
    (SVC, {"C": [0.1, 1.0, 10.0]}),
    (MLPClassifier, {"alpha": [1e-4, 1e-1, 10.0]}),
    (KNeighborsClassifier, {"n_neighbors": [1, 3, 5]}),
)


def regularisation_grid(classifier: Any) -> dict[str, list[Any]]:
    """What is tuned by default: the regularisation of the classifier, by its name inside a pipeline; {} if unknown.

    Examples
    --------
    >>> regularisation_grid(LogisticRegression())
    {'C': [0.001, 0.1, 10.0]}
    """
    model, prefix = classifier, ""
    while isinstance(model, Pipeline):
        prefix, model = f"{prefix}{model.steps[-1][0]}__", model[-1]
    if isinstance(model, LinearDiscriminantAnalysis) and model.solver != "svd" and model.shrinkage != "auto":
        return {f"{prefix}shrinkage": [0.01, 0.1, 0.5, 0.9]} if model.shrinkage is not None else {}
    for kind, grid in _GRIDS:
        if isinstance(model, kind):
            return {prefix + name: values for name, values in grid.items()}
    return {}


def with_tuning(
    classifier: Any, grid: Mapping[str, list[Any]] | None, *, scoring: str, n_splits: int, seed: int
) -> Any:
    """A clone that chooses from ``grid`` by its own cross-validation inside each fit; the search of a user stays.

    ``n_splits=1`` holds out a third of the training set once instead.
    """
    if isinstance(classifier, GridSearchCV | RandomizedSearchCV) or not grid:
        return clone(classifier)
    splits: Any = StratifiedKFold(n_splits, shuffle=True, random_state=seed) if n_splits > 1 else None
    splits = splits or ShuffleSplit(1, test_size=1 / 3, random_state=seed)
    return GridSearchCV(clone(classifier), dict(grid), scoring=scoring, cv=splits, error_score="raise")
