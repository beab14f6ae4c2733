"""The objective: many linear models, one for each task, tied by a graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from .edge_penalty import EdgePenalty
from .kernels import LINEAR, LOGISTIC, SQUARED, mean_loss, row_margins, row_squares, rows_by_task

LOSSES = {"squared": SQUARED, "logistic": LOGISTIC, "linear": LINEAR}
CURVATURE = {"squared": 1.0, "logistic": 0.25, "linear": 0.0}


@dataclass(frozen=True)
class Problem:
    """F(W) = 1/n sum_i phi(x_i . w_{t_i}, y_i) + l2/2 sum_t ||w_t||^2 + sum_e lam a_e ||w_u - w_v||_p.

    Parameters
    ----------
    X : CSR matrix (n, D).
    y : (n,) targets; +-1 for the logistic loss.
    task : (n,) rows of W.
    penalty : the graph's, on the first ``width`` columns.
    loss : "squared" 1/2 (m - y)^2, "logistic" log(1 + exp(-y m)), or "linear" y m.
    l2 : ridge on the first ``ridge_width`` columns of the tasks that have rows.
    width, ridge_width : default D.
    """

    X: sparse.csr_array
    y: NDArray[np.float64]
    task: NDArray[np.int64]
    penalty: EdgePenalty
    loss: str = "squared"
    l2: float = 0.0
    width: int | None = None
    ridge_width: int | None = None

    def __post_init__(self) -> None:
        X = sparse.csr_array(self.X, dtype=np.float64)
        if self.loss not in LOSSES:
            raise ValueError(f"loss={self.loss!r} is not covered; convex smooth losses that are: {', '.join(LOSSES)}")
        if not 0 <= self.l2 < float("inf"):
            raise ValueError(f"l2={self.l2} must be finite and at least 0")
        if not len(self.y) == len(self.task) == X.shape[0] > 0:
            raise ValueError(
                f"X has {X.shape[0]} rows, y {len(self.y)}, task {len(self.task)}; they must agree, at least 1"
            )
        D, K = X.shape[1], self.penalty.graph.n_tasks
        y = np.ascontiguousarray(self.y, dtype=np.float64)
        task = np.ascontiguousarray(self.task, dtype=np.int64)
        width = D if self.width is None else int(self.width)
        ridge_width = D if self.ridge_width is None else int(self.ridge_width)
        # The compiled loops trust these.
        if task.min() < 0 or task.max() >= K:
            raise ValueError(
                f"task holds {task.min()} to {task.max()}; pass rows of W, 0 to {K - 1}, as TaskGraph.positions does"
            )
        if not np.isfinite(y).all() or not np.isfinite(row_squares(X.data, X.indptr)).all():
            raise ValueError("X or y holds NaN, infinity, or rows too large to square; drop them or scale X")
        if self.loss == "logistic" and not (np.abs(y) == 1).all():
            raise ValueError(f"y holds {y[np.abs(y) != 1][0]}; the logistic loss takes -1 and 1")
        if not (0 <= width <= D and 0 <= ridge_width <= D):
            raise ValueError(f"width={width} and ridge_width={ridge_width} must be 0 to {D}, the columns of X")
        for name, value in (("X", X), ("y", y), ("task", task), ("width", width), ("ridge_width", ridge_width)):
            object.__setattr__(self, name, value)

    @property
    def shape(self) -> tuple[int, int]:
        """(K, D) of W."""
        return self.penalty.graph.n_tasks, self.X.shape[1]

    @cached_property
    def rows_of_task(self) -> NDArray[np.int64]:
        return np.bincount(self.task, minlength=self.shape[0])

    @cached_property
    def ridge(self) -> NDArray[np.float64]:
        """l2 n / n_t of every task: f_i carries it, so that the mean over i is l2 for every task with rows."""
        counts = self.rows_of_task
        return np.where(counts > 0, self.l2 * len(self.y) / np.maximum(counts, 1), 0.0)

    @cached_property
    def smoothness(self) -> NDArray[np.float64]:
        """L_i of every f_i, (n,)."""
        return CURVATURE[self.loss] * row_squares(self.X.data, self.X.indptr) + self.ridge[self.task]

    @cached_property
    def design(self) -> sparse.csr_array:
        """(n, K D): row i holds x_i in the columns of its task, so that margins are ``design @ W.ravel()``."""
        n, (K, D) = len(self.y), self.shape
        X = self.X
        index = np.int32 if K * D < 2**31 and X.nnz < 2**31 else np.int64
        columns = (np.repeat(self.task, np.diff(X.indptr)) * D + X.indices).astype(index)
        return sparse.csr_array((X.data, columns, X.indptr.astype(index)), shape=(n, K * D))

    def margins(self, W: NDArray) -> NDArray[np.float64]:
        """x_i . w_{t_i}, (n,)."""
        return row_margins(W, self.X.data, self.X.indices, self.X.indptr, self.task)

    def losses(self, margins: NDArray) -> NDArray[np.float64]:
        """phi of every row, (n,)."""
        if self.loss == "squared":
            return 0.5 * (margins - self.y) ** 2
        if self.loss == "logistic":
            return np.logaddexp(0.0, -self.y * margins)
        return self.y * margins

    def loss_gradients(self, margins: NDArray) -> NDArray[np.float64]:
        """phi' of every row, (n,)."""
        if self.loss == "squared":
            return margins - self.y
        if self.loss == "logistic":
            return -self.y * expit(-self.y * margins)
        return self.y

    def sum_by_task(self, values: NDArray) -> NDArray[np.float64]:
        """sum over the rows i of each task of values_i x_i, (K, D)."""
        return self._by_task(values, 1)

    def squares_by_task(self) -> NDArray[np.float64]:
        """sum over the rows i of each task of the squares of x_i, (K, D)."""
        return self._by_task(np.ones(len(self.y)), 2)

    def _by_task(self, values: NDArray, power: int) -> NDArray[np.float64]:
        X = self.X
        return rows_by_task(values, X.data, X.indices, X.indptr, self.task, power, *self.shape)

    def smooth(self, W: NDArray) -> tuple[float, NDArray[np.float64]]:
        """f(W), the loss with its ridge, and its gradient (K, D)."""
        margins = self.margins(W)
        value = float(self.losses(margins).mean())
        gradient = self.sum_by_task(self.loss_gradients(margins) / len(self.y))
        if self.l2:
            r = self.ridge_width
            ridged = (self.rows_of_task > 0)[:, None] * W[:, :r]
            value += 0.5 * self.l2 * float(np.einsum("td,td->", ridged, ridged))
            gradient[:, :r] += self.l2 * ridged
        return value, gradient

    def objective(self, W: NDArray, *, rows: NDArray | None = None) -> float:
        """F(W); with ``rows`` the loss is the mean over those only."""
        chosen = np.empty(0, dtype=np.int64) if rows is None else rows
        X = self.X
        value = float(mean_loss(W, X.data, X.indices, X.indptr, self.y, self.task, LOSSES[self.loss], chosen))
        if self.l2:
            value += 0.5 * self.l2 * float((W[self.rows_of_task > 0, : self.ridge_width] ** 2).sum())
        return value + self.penalty.value(W[:, : self.width])

    def noise(self, W: NDArray, *, scale: NDArray | None = None) -> float:
        """E ||grad f_i(W)||^2; at the optimum this is sigma*^2, which replaces bounded variance.

        ``scale`` (n,) = 1/(n p_i) for rows drawn with probabilities p_i; default uniform.
        """
        slopes = self.loss_gradients(self.margins(W))
        total = slopes**2 * row_squares(self.X.data, self.X.indptr)
        if self.l2:
            r = self.ridge_width
            ridged = self.ridge[:, None] * W[:, :r]
            total += 2 * slopes * (self.X[:, :r].multiply(ridged[self.task])).sum(axis=1)
            total += np.einsum("td,td->t", ridged, ridged)[self.task]
        return float(total.mean() if scale is None else (scale * total).mean())
