"""What the regressor and the classifier share: tasks, scaling, the fit and what it leaves behind."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from .edge_penalty import EdgePenalty
from .fitting import fit_problem
from .graph import TaskGraph, read_graph
from .polish import fused_edges
from .problem import Problem
from .scaling import Scaling, fit_scaling
from .solver import Settings


class NetworkLasso(BaseEstimator):
    """Base of the estimators; see `NetworkLassoRegressor`."""

    _loss: ClassVar[str]
    _parameter_constraints: ClassVar[dict] = {
        "graph": "no_validation",
        "lam": [Interval(Real, 0, None, closed="left")],
        "p": [Interval(Integral, 1, 2, closed="both")],
        "solver": [StrOptions({"rip", "prox_sgd", "block_rip"})],
        "schedule": [StrOptions({"linear", "constant", "anytime"})],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "eta0": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "sampling": [StrOptions({"uniform", "lipschitz"})],
        "l2": [Interval(Real, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
        "penalise_intercept": ["boolean"],
        "standardize": ["boolean"],
        "tol": [None, Interval(Real, 0, None, closed="neither")],
        "polish": ["boolean"],
        "averaging": ["boolean"],
        "certify": ["boolean"],
        "fuse_tol": [Interval(Real, 0, None, closed="left")],
        "task_column": "no_validation",
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        graph: Any = None,
        lam: float = 1.0,
        p: int = 2,
        *,
        loss: str | None = None,
        solver: str = "rip",
        schedule: str = "linear",
        max_iter: int = 200_000,
        eta0: float | str = "auto",
        batch_size: int = 1,
        sampling: str = "uniform",
        l2: float = 0.0,
        fit_intercept: bool = True,
        penalise_intercept: bool = True,
        standardize: bool = True,
        tol: float | None = None,
        polish: bool = False,
        averaging: bool = False,
        certify: bool = True,
        fuse_tol: float = 1e-3,
        task_column: Any = None,
        random_state: Any = None,
    ) -> None:
        self.graph = graph
        self.lam = lam
        self.p = p
        self.loss = loss
        self.solver = solver
        self.schedule = schedule
        self.max_iter = max_iter
        self.eta0 = eta0
        self.batch_size = batch_size
        self.sampling = sampling
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.penalise_intercept = penalise_intercept
        self.standardize = standardize
        self.tol = tol
        self.polish = polish
        self.averaging = averaging
        self.certify = certify
        self.fuse_tol = fuse_tol
        self.task_column = task_column
        self.random_state = random_state

    def _split_task(self, X: Any, task: Any) -> tuple[Any, Any]:
        """Take the task column out of a DataFrame."""
        if self.task_column is None or task is not None:
            return X, task
        if not hasattr(X, "columns") or self.task_column not in X.columns:
            raise ValueError(
                f"task_column={self.task_column!r} is no column of X; pass a DataFrame that has it, or task="
            )
        return X.drop(columns=[self.task_column]), X[self.task_column]

    def _read_tasks(self, task: Any, n: int) -> tuple[TaskGraph, NDArray[np.int64]]:
        seen = [0] if task is None else pd.unique(task := _task_array(task, n)).tolist()
        if self.graph is None and len(seen) > 1:
            raise ValueError(f"task holds {len(seen)} labels and graph=None ties none; pass a graph, or 'complete'")
        graph = read_graph("complete" if self.graph is None else self.graph, tasks=seen)
        if task is not None:
            return graph, graph.positions(task)
        if graph.n_tasks > 1:
            raise ValueError(f"the graph has {graph.n_tasks} tasks; pass task=, an array with the task of every row")
        return graph, np.zeros(n, dtype=np.int64)

    def _fit(self, X: Any, y: NDArray, task: Any, start: tuple[NDArray, NDArray] | None) -> None:
        """``X`` and ``y`` are validated; ``start`` holds coefficients and intercepts to begin at."""
        allowed = (self._loss, "auto", None)
        if self.loss not in allowed:
            raise ValueError(
                f"loss={self.loss!r}: {type(self).__name__} has the {self._loss} loss; the method needs convex smooth "
                "losses, and others are not covered"
            )
        if self.batch_size > len(y):
            raise ValueError(f"batch_size={self.batch_size} is larger than the {len(y)} rows")
        if self.tol is not None and not self.certify:
            raise ValueError("tol needs the certificate; pass certify=True")
        graph, rows = self._read_tasks(task, len(y))
        squared = self._loss == "squared"
        scaling = fit_scaling(
            X, y, standardize=self.standardize, intercept=self.fit_intercept, scale_target=squared
        )  # fmt: skip
        problem = Problem(
            scaling.rows(X, intercept=self.fit_intercept),
            scaling.targets(y) if squared else y,
            rows,
            EdgePenalty(graph, self.lam / scaling.y_spread, int(self.p)),
            self._loss,
            l2=self.l2,
            width=X.shape[1] + (self.fit_intercept and self.penalise_intercept),
            ridge_width=X.shape[1],
        )
        fitted = fit_problem(
            problem,
            int(self.max_iter),
            settings=Settings(self.solver, self.schedule, 1.0, int(self.batch_size), self.sampling),
            eta0=self.eta0,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            start=None if start is None else scaling.to_solver(*start, intercept=self.fit_intercept),
            tol=self.tol,
            use_average=self.averaging,
            polished=self.polish,
            certified=self.certify,
        )
        self._publish(problem, scaling, fitted)

    def _publish(self, problem: Problem, scaling: Scaling, fitted: Any) -> None:
        unit = scaling.y_spread**2
        graph = problem.penalty.graph
        self.task_graph_ = graph
        self.tasks_ = np.array(graph.nodes)
        self.coef_, self.intercept_ = scaling.to_user(fitted.W, intercept=self.fit_intercept)
        self.n_iter_ = fitted.n_iter
        self.eta0_ = fitted.eta0
        self.history_ = fitted.history.assign(objective=fitted.history["objective"] * unit)
        self.objective_ = float(self.history_["objective"].iloc[-1])
        self.gap_ = unit * fitted.certificate.gap if fitted.certificate is not None else float("nan")
        self.sigma_star_sq_ = problem.noise(fitted.W) * unit
        labels = graph.components(fused_edges(problem, fitted.W, tol=self.fuse_tol) & (problem.penalty.strengths > 0))
        groups = [[graph.nodes[k] for k in np.flatnonzero(labels == g)] for g in range(labels.max() + 1)]
        self.groups_ = sorted(groups, key=len, reverse=True)
        self.converged_ = not fitted.interrupted and fitted.reached
        if fitted.interrupted:
            warnings.warn(
                f"interrupted after {fitted.n_iter} steps; the model is the iterate of that moment (converged_=False)",
                ConvergenceWarning, stacklevel=4,
            )  # fmt: skip
        elif not fitted.reached:
            warnings.warn(
                f"the certified gap {self.gap_:.3g} is above tol={self.tol} times the objective {self.objective_:.3g} "
                f"after max_iter={self.max_iter} steps; raise max_iter, or pass polish=True",
                ConvergenceWarning, stacklevel=4,
            )  # fmt: skip

    def _scores(self, X: Any, task: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        X, task = self._split_task(X, task)
        X = validate_data(self, X, accept_sparse="csr", reset=False, dtype=np.float64)
        if task is None:
            if self.task_graph_.n_tasks > 1:
                raise ValueError(
                    f"the model has {self.task_graph_.n_tasks} tasks; pass task=, an array with every row's task"
                )
            rows = np.zeros(X.shape[0], dtype=np.int64)
        else:
            rows = self.task_graph_.positions(_task_array(task, X.shape[0]))
        if sparse.issparse(X):
            products = np.asarray(X.multiply(self.coef_[rows]).sum(axis=1)).ravel()
        else:
            products = np.einsum("nd,nd->n", X, self.coef_[rows])
        return products + self.intercept_[rows]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _task_array(task: Any, n: int) -> NDArray:
    task = np.asarray(task)
    if task.ndim != 1 or len(task) != n:
        raise ValueError(f"task has shape {task.shape}; pass one label for each of the {n} rows")
    if pd.isna(task).any():
        raise ValueError(f"task is missing in {int(pd.isna(task).sum())} rows; drop or fill them")
    return task
