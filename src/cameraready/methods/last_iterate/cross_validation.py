"""The strength of the ties by cross-validation, along a warm-started path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, indexable

from .estimator import NetworkLassoRegressor

PATH = tuple(float(lam) for lam in np.geomspace(1.0, 1e-4, 9))


def _has(name: str) -> Any:
    return available_if(
        lambda self: hasattr(NetworkLassoRegressor() if self.estimator is None else self.estimator, name)
    )


class NetworkLassoCV(MetaEstimatorMixin, BaseEstimator):
    """Chooses ``lam`` for a `NetworkLassoRegressor` or `NetworkLassoClassifier`.

    Parameters
    ----------
    estimator : the model with all its other settings; default `NetworkLassoRegressor()`.
    lams : strengths to try, default 1 to 1e-4 in half decades, times the target's standard deviation for regression.
    cv : folds (shuffled rows, so that every task stays in training), or a scikit-learn splitter.
    random_state : seed of the folds, and of the runs where the estimator has none of its own.

    Attributes
    ----------
    lam_ : float, the strength with the least mean error.
    best_estimator_ : the model with that strength, fitted to all rows.
    cv_errors_ : DataFrame, one row a strength, one column a fold: mean squared error, or log loss.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> task, X = rng.integers(4, size=200), rng.normal(size=(200, 2))
    >>> y = X[:, 0] + 0.5 * rng.normal(size=200)
    >>> model = NetworkLassoRegressor("complete", max_iter=20_000)
    >>> search = NetworkLassoCV(model, cv=3, random_state=0)
    >>> search.fit(X, y, task=task).lam_ > 0.01
    True
    """

    def __init__(self, estimator: Any = None, *, lams: Any = None, cv: Any = 5, random_state: Any = None) -> None:
        self.estimator = estimator
        self.lams = lams
        self.cv = cv
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None) -> NetworkLassoCV:
        """Fit the path on every fold, then the best strength on all rows."""
        model = NetworkLassoRegressor() if self.estimator is None else self.estimator
        if not hasattr(model, "_fit_from"):
            raise TypeError(f"estimator={model!r}: pass a NetworkLassoRegressor or NetworkLassoClassifier")
        X, task = model._split_task(X, task)
        classifies = is_classifier(model)
        rng = check_random_state(self.random_state)
        if model.random_state is None:
            model = clone(model).set_params(random_state=int(rng.randint(2**31 - 1)))
        # Validates X and y, and the settings, with the estimator's own messages.
        first = clone(model).set_params(max_iter=1, eta0=1.0, task_column=None, certify=False, tol=None, polish=False)
        first._fit_from(X, y, task, None)
        self.n_features_in_ = first.n_features_in_
        if hasattr(first, "feature_names_in_"):
            self.feature_names_in_ = first.feature_names_in_
        X, y, task = indexable(X, y, task)
        y = np.asarray(y)
        folds = self._splitter(y, classifies, int(rng.randint(2**31 - 1)))
        lams = self._strengths(1.0 if classifies else float(np.std(y.astype(float))) or 1.0)
        graph = first.task_graph_
        errors = np.empty((len(lams), 0))
        for train, test in folds.split(np.zeros(len(y)), y):
            path = self._path(model, graph, lams, *(_rows(part, train) for part in (X, y, task)))
            held = [_error(one, *(_rows(part, test) for part in (X, y, task))) for one in path]
            errors = np.column_stack([errors, held])
        self.cv_errors_ = pd.DataFrame(errors, index=pd.Index(lams, name="lam")).rename_axis(columns="fold")
        best = int(errors.mean(axis=1).argmin())
        self.lam_ = float(lams[best])
        self.best_estimator_ = self._path(model, graph, lams[: best + 1], X, y, task)[-1]
        if classifies:
            self.classes_ = self.best_estimator_.classes_
        return self

    def _strengths(self, unit: float) -> NDArray[np.float64]:
        lams = np.array(PATH) * unit if self.lams is None else np.atleast_1d(np.asarray(self.lams, dtype=float))
        if lams.ndim != 1 or len(lams) == 0 or not np.isfinite(lams).all() or (lams < 0).any():
            raise ValueError(f"lams={self.lams!r}: pass at least one finite strength, none negative")
        return np.sort(lams)[::-1]

    def _splitter(self, y: Any, classifies: bool, seed: int) -> Any:
        if not isinstance(self.cv, (int, np.integer)):
            return check_cv(self.cv, y, classifier=classifies)
        if not 2 <= self.cv <= len(y):
            raise ValueError(f"cv={self.cv} is not between 2 and the n_samples = {len(y)} rows")
        return (StratifiedKFold if classifies else KFold)(int(self.cv), shuffle=True, random_state=seed)

    @staticmethod
    def _path(model: Any, graph: Any, lams: NDArray, X: Any, y: Any, task: Any) -> list[Any]:
        """From the strongest ties to the weakest, each started at the model before."""
        fitted: list[Any] = []
        for lam in lams:
            one = clone(model).set_params(lam=float(lam), task_column=None, graph=graph)
            start = (fitted[-1].coef_, fitted[-1].intercept_) if fitted else None
            fitted.append(one._fit_from(X, y, task, start))
        return fitted

    def _call(self, name: str, X: Any, task: Any) -> NDArray:
        check_is_fitted(self)
        X, task = (self.estimator or self.best_estimator_)._split_task(X, task)
        return getattr(self.best_estimator_, name)(X, task)

    def predict(self, X: ArrayLike, task: ArrayLike | None = None) -> NDArray:
        """Of the best model."""
        return self._call("predict", X, task)

    @_has("predict_proba")
    def predict_proba(self, X: ArrayLike, task: ArrayLike | None = None) -> NDArray:
        """Of the best model."""
        return self._call("predict_proba", X, task)

    @_has("decision_function")
    def decision_function(self, X: ArrayLike, task: ArrayLike | None = None) -> NDArray:
        """Of the best model."""
        return self._call("decision_function", X, task)

    def score(self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None) -> float:
        """R^2 or share of correct predictions of the best model."""
        check_is_fitted(self)
        X, task = (self.estimator or self.best_estimator_)._split_task(X, task)
        return self.best_estimator_.score(X, y, task)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = (NetworkLassoRegressor() if self.estimator is None else self.estimator).__sklearn_tags__()
        tags.estimator_type, tags.regressor_tags, tags.classifier_tags = (
            inner.estimator_type,
            inner.regressor_tags,
            inner.classifier_tags,
        )
        tags.target_tags, tags.input_tags = inner.target_tags, inner.input_tags
        return tags


def _rows(part: Any, index: NDArray) -> Any:
    if part is None:
        return None
    if hasattr(part, "iloc"):
        return part.iloc[index]
    if hasattr(part, "tocsr"):
        return part.tocsr()[index]
    return np.asarray(part)[index]


def _error(model: Any, X: Any, y: NDArray, task: Any) -> float:
    if is_classifier(model):
        return float(log_loss(y, model.predict_proba(X, task), labels=model.classes_))
    return float(mean_squared_error(y, model.predict(X, task)))
