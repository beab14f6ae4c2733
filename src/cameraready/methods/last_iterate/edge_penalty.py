"""The penalty that ties neighbouring tasks, and its proximal maps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .graph import TaskGraph, read_graph


@dataclass(frozen=True, init=False)
class EdgePenalty:
    """g(W) = sum over edges e = (u, v) of lam a_e ||w_u - w_v||_p.

    Parameters
    ----------
    graph : anything `read_graph` takes: adjacency, networkx graph, edge list.
    lam : strength, at least 0.
    p : 2 ties whole models (network lasso), 1 ties coefficient by coefficient (graph-guided fused lasso).

    Examples
    --------
    >>> import numpy as np
    >>> penalty = EdgePenalty([(0, 1), (1, 2)], lam=0.5)
    >>> W = np.array([[0.0], [1.0], [5.0]])
    >>> penalty.value(W)
    2.5
    >>> penalty.prox_edge(W, 1, step=1.0).ravel()
    array([0. , 1.5, 4.5])
    >>> penalty.prox_full(W, step=2.0).ravel()
    array([1., 1., 4.])
    """

    graph: TaskGraph
    lam: float
    p: int

    def __init__(self, graph: Any, lam: float = 1.0, p: int = 2) -> None:
        if not 0 <= lam < float("inf"):
            raise ValueError(f"lam={lam} must be finite and at least 0; 0 leaves the tasks separate")
        if p not in (1, 2):
            raise ValueError(f"p={p} is not covered; pass 2 (network lasso) or 1 (fused lasso)")
        object.__setattr__(self, "graph", read_graph(graph))
        object.__setattr__(self, "lam", float(lam))
        object.__setattr__(self, "p", int(p))

    @cached_property
    def strengths(self) -> NDArray[np.float64]:
        """lam a_e of every edge, (m,)."""
        return self.lam * self.graph.weights

    @cached_property
    def curvature(self) -> float:
        """Bound of the largest eigenvalue of D D': the largest sum of the degrees of two neighbours."""
        edges = self.graph.edges
        degree = np.bincount(edges.ravel(), minlength=self.graph.n_tasks)
        return float((degree[edges[:, 0]] + degree[edges[:, 1]]).max()) if len(edges) else 1.0

    def sizes(self, W: NDArray) -> NDArray[np.float64]:
        """||w_u - w_v||_p of every edge, (m,)."""
        edges = self.graph.edges
        difference = W[edges[:, 0]] - W[edges[:, 1]]
        return np.abs(difference).sum(axis=1) if self.p == 1 else np.sqrt(np.einsum("ed,ed->e", difference, difference))

    def value(self, W: ArrayLike) -> float:
        """g(W) for W of shape (K, d)."""
        return float(self.strengths @ self.sizes(self._checked(W)))

    def prox_edge(self, W: ArrayLike, edge: int, step: float) -> NDArray[np.float64]:
        """argmin over V of step lam a_e ||v_u - v_v||_p + 1/2 ||V - W||^2, for the edge with this number.

        The mean m of the two rows stays, the difference s shrinks: for p=2, s max(0, 1 - 2 tau/||s||); for p=1,
        elementwise soft-thresholding at 2 tau; tau = step lam a_e. Only the two rows change.
        """
        from .kernels import edge_prox

        W = self._checked(W).copy()
        if not 0 <= edge < len(self.strengths):
            raise ValueError(f"edge={edge}; the graph has edges 0 to {len(self.strengths) - 1}")
        u, v = self.graph.edges[edge]
        edge_prox(W, u, v, step * self.strengths[edge], self.p, W.shape[1])
        return W

    def prox_full(
        self, W: ArrayLike, step: float, *, tol: float = 1e-12, max_iter: int = 100_000
    ) -> NDArray[np.float64]:
        """argmin over V of step g(V) + 1/2 ||V - W||^2.

        Parameters
        ----------
        W : array (K, d).
        step : at least 0.
        tol : on ||V - argmin||, relative to the size of W; guaranteed by the duality gap, down to rounding.
        max_iter : of the accelerated dual ascent.

        Raises
        ------
        RuntimeError : not reached in ``max_iter`` iterations.
        """
        from .kernels import full_prox

        W = self._checked(W).copy()
        if not 0 <= step < float("inf"):
            raise ValueError(f"step={step} must be finite and at least 0")
        if len(self.strengths) == 0:
            return W
        # A gap is a difference of numbers of the size of the penalty; below their rounding it says nothing.
        scale = max(float(np.abs(W - W.mean(axis=0)).max()), 1e-300)
        rounding = 1e-14 * (step * self.value(W) / scale**2 + 1.0)
        dual = np.zeros((len(self.strengths), W.shape[1]))
        bounds = step * self.strengths / scale
        W /= scale
        gap = full_prox(
            W, dual, self.graph.edges, bounds, self.p, W.shape[1], self.curvature, max(tol**2 / 2, rounding), max_iter
        )
        if not gap <= max(tol**2 / 2, rounding):
            raise RuntimeError(
                f"the prox reached a gap of {gap:.1e} in max_iter={max_iter} iterations; raise it or tol"
            )
        return W * scale

    def _checked(self, W: ArrayLike) -> NDArray[np.float64]:
        W = np.asarray(W, dtype=np.float64)
        if W.ndim != 2 or len(W) != self.graph.n_tasks:
            raise ValueError(
                f"W has shape {W.shape}; the graph has {self.graph.n_tasks} tasks, so pass ({self.graph.n_tasks}, d)"
            )
        return W
