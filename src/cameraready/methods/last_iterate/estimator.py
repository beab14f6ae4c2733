"""scikit-learn estimators: one linear model a task, tied along a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_y, check_consistent_length, validate_data

from .network_lasso import NetworkLasso

_PARAMETERS = """graph : adjacency (scipy sparse, or dense and square; tasks 0 to K-1), networkx graph, edge list
        (m, 2) or (m, 3) with weights, or "complete", "chain", "ring" over the sorted labels
        in ``task``. None: one task.
    lam : strength of the ties; 0 fits every task alone, a large one all tasks of a component together.
    p : 2 ties whole models, 1 ties coefficient by coefficient.
    loss : only the estimator's own, None.
    solver, schedule, batch_size, sampling : see `Settings`.
    max_iter : steps T. One step reads ``batch_size`` rows and moves at most three tasks' models ("rip").
    eta0 : step size in units of 1/(L sqrt(T)); "auto" tunes it by doubling on short pilot runs (5 % of T each).
    l2 : ridge, l2/2 ||w_t||^2, on the coefficients of tasks with rows; not on intercepts.
    fit_intercept, penalise_intercept : whether there are intercepts, and whether the graph ties them too.
    standardize : compare coefficients in units of the columns' standard deviations, and intercepts at the columns'
        means (sparse columns are not centred).
    tol : None, or stop once the certified gap is at most tol times the objective.
    polish : finish by contracting fused groups and solving the smooth rest; decides ``groups_`` exactly.
    averaging : return the average of the iterates instead of the last (it never fuses; for comparison).
    certify : compute ``gap_``, in time n D^2 and memory K D^2 (beyond 2e7 numbers it is objective_).
    fuse_tol : tasks whose models differ by less than this, relative to the largest coefficient, are one group.
    task_column : name of the column of a DataFrame X that holds the task.
    random_state : seed."""


class NetworkLassoRegressor(RegressorMixin, NetworkLasso):
    """Many linear regressions, one a task, tied along the edges of a graph.

    Minimises 1/(2n) sum_i (y_i - x_i . w_{t_i})^2 + l2/2 sum_t ||w_t||^2 + lam sum_(u,v) a_uv ||w_u - w_v||_p by
    stochastic proximal steps whose last iterate is the answer.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    coef_ : array (K, d), one row a task, in the order of ``tasks_``.
    intercept_ : array (K,)
    tasks_ : array (K,), the graph's node labels.
    groups_ : list of lists of labels; the tasks of a group share one model. Largest first.
    gap_ : float, proven bound of objective_ - optimum; NaN without a certificate.
    objective_ : float
    history_ : DataFrame with iteration, objective, seconds.
    n_iter_ : int, steps taken.
    eta0_ : float, the step size used.
    sigma_star_sq_ : float, E||grad f_i(w)||^2 at the solution, in the standardised coordinates.
    converged_ : bool, False after an interrupt or where ``tol`` was not reached.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> store = rng.integers(6, size=600)
    >>> price = rng.normal(size=(600, 1))
    >>> sales = np.where(store < 3, 2.0, -1.0) * price[:, 0] + 0.1 * rng.normal(size=600)
    >>> neighbours = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    >>> model = NetworkLassoRegressor(neighbours, lam=0.02, polish=True, random_state=0).fit(price, sales, task=store)
    >>> model.groups_
    [[0, 1, 2], [3, 4, 5]]
    >>> model.coef_.ravel().round(1)
    array([ 2.,  2.,  2., -1., -1., -1.])
    """

    _loss = "squared"

    def fit(self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None) -> NetworkLassoRegressor:
        """Fit to X (n, d) dense or CSR, y (n,) and task (n,): the label of each row's task.

        Raises
        ------
        ValueError : labels that are no node of the graph, several tasks without a graph, NaN, bad settings.
        """
        return self._fit_from(X, y, task, None)

    def _fit_from(self, X: Any, y: Any, task: Any, start: Any) -> NetworkLassoRegressor:
        self._validate_params()
        X, task = self._split_task(X, task)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        self._fit(X, np.asarray(y, dtype=np.float64), task, start)
        return self

    def predict(self, X: ArrayLike, task: ArrayLike | None = None) -> NDArray[np.float64]:
        """Predictions (n,) for rows X (n, d) of the tasks ``task`` (n,)."""
        return self._scores(X, task)

    def score(self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None) -> float:
        """R^2 of the predictions."""
        return float(r2_score(y, self.predict(X, task)))


class NetworkLassoClassifier(ClassifierMixin, NetworkLasso):
    """Many logistic regressions, one a task, tied along the edges of a graph; two classes.

    As `NetworkLassoRegressor` with the loss log(1 + exp(-y x . w)), y = -1 or 1.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    classes_ : array (2,)
    coef_, intercept_, tasks_, groups_, gap_, objective_, history_, n_iter_, eta0_, sigma_star_sq_, converged_
        As in `NetworkLassoRegressor`; scores are log-odds of ``classes_[1]``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> ward, dose = rng.integers(4, size=800), rng.normal(size=(800, 1))
    >>> cured = rng.random(800) < 1 / (1 + np.exp(-np.where(ward < 2, 3.0, -3.0) * dose[:, 0]))
    >>> model = NetworkLassoClassifier("chain", lam=0.02, polish=True, random_state=0).fit(dose, cured, task=ward)
    >>> model.groups_
    [[0, 1], [2, 3]]
    """

    _loss = "logistic"

    def fit(self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None) -> NetworkLassoClassifier:
        """Fit to X (n, d) dense or CSR, two classes y (n,), and task (n,): the label of each row's task.

        Raises
        ------
        ValueError : labels that are no node of the graph, several tasks without a graph, NaN, other than two classes.
        """
        return self._fit_from(X, y, task, None)

    def _fit_from(self, X: Any, y: Any, task: Any, start: Any) -> NetworkLassoClassifier:
        self._validate_params()
        X, task = self._split_task(X, task)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64)
        y = _check_y(y, estimator=self)
        check_consistent_length(X, y)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) > 2:
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {type_of_target(y)}: it has "
                f"{len(self.classes_)} classes; wrap the estimator in sklearn's OneVsRestClassifier"
            )
        if len(self.classes_) < 2:
            raise ValueError(f"y has 1 class, {self.classes_[0]!r}; two are needed")
        self._fit(X, np.where(y == self.classes_[1], 1.0, -1.0), task, start)
        return self

    def decision_function(self, X: ArrayLike, task: ArrayLike | None = None) -> NDArray[np.float64]:
        """Log-odds of ``classes_[1]``, (n,)."""
        return self._scores(X, task)

    def predict_proba(self, X: ArrayLike, task: ArrayLike | None = None) -> NDArray[np.float64]:
        """Probabilities (n, 2) of ``classes_``."""
        positive = expit(self._scores(X, task))
        return np.column_stack([1 - positive, positive])

    def predict(self, X: ArrayLike, task: ArrayLike | None = None) -> NDArray:
        """Classes (n,)."""
        positive = self._scores(X, task) > 0
        return self.classes_[positive.astype(int)]

    def score(self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None) -> float:
        """Share of correct predictions."""
        return float(np.mean(self.predict(X, task) == np.asarray(y)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


for _class in (NetworkLassoRegressor, NetworkLassoClassifier):
    _class.__doc__ = (_class.__doc__ or "").replace("{parameters}", _PARAMETERS)
