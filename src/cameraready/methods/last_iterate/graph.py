"""The graph that ties tasks together, read from whatever the user has."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

NAMED = ("complete", "chain", "ring")


@dataclass(frozen=True)
class TaskGraph:
    """An undirected weighted graph without self-loops or repeated edges.

    Parameters
    ----------
    nodes : labels of the tasks, in the order of the rows of W; K of them.
    edges : int array (m, 2) of positions in ``nodes``, ``edges[e, 0] < edges[e, 1]``.
    weights : array (m,), positive.
    """

    nodes: tuple[Hashable, ...]
    edges: NDArray[np.int64]
    weights: NDArray[np.float64]

    @property
    def n_tasks(self) -> int:
        return len(self.nodes)

    def positions(self, task: ArrayLike) -> NDArray[np.int64]:
        """Rows of W that belong to the labels in ``task``, shape (n,).

        Raises
        ------
        ValueError : labels that are no node of the graph.
        """
        place = {node: k for k, node in enumerate(self.nodes)}
        labels, inverse = np.unique(np.asarray(task), return_inverse=True)
        if unknown := [label for label in labels.tolist() if label not in place]:
            shown = ", ".join(map(repr, unknown[:5]))
            raise ValueError(
                f"task holds {len(unknown)} labels that are not nodes of the graph ({shown}); its {len(self.nodes)} "
                f"nodes begin with {self.nodes[0]!r}; add the nodes (isolated ones are allowed) or drop the rows"
            )
        return np.array([place[label] for label in labels.tolist()], dtype=np.int64)[inverse.ravel()]

    def incidence(self) -> sparse.csr_array:
        """D of shape (m, K): row e of D W is w_u - w_v."""
        m = len(self.edges)
        signs = np.tile([1.0, -1.0], m)
        return sparse.csr_array((signs, (np.repeat(np.arange(m), 2), self.edges.ravel())), shape=(m, self.n_tasks))

    def components(self, keep: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Component of every node, (K,), of the graph with the edges ``keep`` only (default: all)."""
        chosen = self.edges if keep is None else self.edges[keep]
        shape = (self.n_tasks, self.n_tasks)
        adjacency = sparse.coo_array((np.ones(len(chosen)), (chosen[:, 0], chosen[:, 1])), shape=shape)
        return connected_components(adjacency, directed=False)[1].astype(np.int64)


def read_graph(graph: Any, *, tasks: Sequence[Hashable] | None = None) -> TaskGraph:
    """Turn the user's graph into a `TaskGraph`.

    Parameters
    ----------
    graph : scipy sparse or square dense adjacency (nodes 0 to K-1), a networkx graph (edge attribute ``weight``,
        default 1), an edge list (m, 2) or (m, 3) with weights, a `TaskGraph`, or "complete", "chain" or "ring" over
        ``tasks`` in sorted order. An edge given several times, or in both directions, counts once, with its largest
        weight.
    tasks : labels seen in the data; only the named graphs need them.

    Raises
    ------
    ValueError : negative or non-finite weights, a shape that is none of these.

    Warns
    -----
    UserWarning : self-loops, which are dropped (they penalise nothing).

    Examples
    --------
    >>> read_graph([("a", "b"), ("b", "c")]).nodes
    ('a', 'b', 'c')
    """
    if isinstance(graph, TaskGraph):
        return graph
    if isinstance(graph, str):
        nodes, ends, weights = _named(graph, tasks)
    elif sparse.issparse(graph):
        nodes, ends, weights = _adjacency(graph)
    elif hasattr(graph, "nodes") and hasattr(graph, "edges"):
        nodes = list(graph.nodes)
        place = {node: k for k, node in enumerate(nodes)}
        found = [(place[u], place[v], data.get("weight", 1.0)) for u, v, data in graph.edges(data=True)]
        ends = np.array([(u, v) for u, v, _ in found], dtype=np.int64).reshape(-1, 2)
        weights = np.array([weight for *_, weight in found], dtype=np.float64)
    else:
        nodes, ends, weights = _array(graph)
    return _clean(tuple(nodes), ends, weights)


def _named(name: str, tasks: Sequence[Hashable] | None) -> tuple[list, NDArray, NDArray]:
    if name not in NAMED or not tasks:
        raise ValueError(f"graph={name!r} is unknown; pass {', '.join(map(repr, NAMED))}, an adjacency or an edge list")
    nodes = sorted(tasks)
    k = len(nodes)
    if name == "complete":
        ends = np.argwhere(np.triu(np.ones((k, k)), 1))
    else:
        ends = np.column_stack([np.arange(k - 1), np.arange(1, k)])
        if name == "ring" and k > 2:
            ends = np.vstack([ends, [0, k - 1]])
    return nodes, ends, np.ones(len(ends))


def _adjacency(matrix: Any) -> tuple[list, NDArray, NDArray]:
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"an adjacency is square, got {matrix.shape}; for an edge list pass columns u, v, weight")
    found = sparse.coo_array(matrix)
    found.eliminate_zeros()
    row, column = found.coords
    return list(range(matrix.shape[0])), np.column_stack([row, column]), np.asarray(found.data, dtype=np.float64)


def _array(graph: Any) -> tuple[list, NDArray, NDArray]:
    rows = list(graph) if not isinstance(graph, np.ndarray) else graph
    square = isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.shape[0] == rows.shape[1]
    # Up to three rows could be edges too; a symmetric array with a zero diagonal is not taken for these.
    if square and (len(rows) > 3 or (np.array_equal(rows, rows.T) and not np.diag(rows).any())):
        return _adjacency(rows)
    widths = {len(row) for row in rows}
    if len(rows) == 0 or not widths <= {2, 3}:
        raise ValueError(
            "an edge list has rows (u, v) or (u, v, weight) and at least one; pass a networkx graph for none"
        )
    us, vs = ([_plain(row[c]) for row in rows] for c in (0, 1))
    nodes = sorted(set(us) | set(vs))
    place = {node: k for k, node in enumerate(nodes)}
    ends = np.array([[place[u], place[v]] for u, v in zip(us, vs, strict=True)], dtype=np.int64)
    weights = np.array([row[2] if len(row) == 3 else 1.0 for row in rows], dtype=np.float64)
    return nodes, ends, weights


def _plain(label: Any) -> Hashable:
    """3.0 in an edge list with weights is the node 3."""
    label = label.item() if hasattr(label, "item") else label
    return int(label) if isinstance(label, float) and label.is_integer() else label


def _clean(nodes: tuple[Hashable, ...], ends: NDArray, weights: NDArray) -> TaskGraph:
    if not nodes:
        raise ValueError("the graph has no node; a model needs at least one task")
    if not np.isfinite(weights).all() or (weights < 0).any():
        worst = weights[~np.isfinite(weights) | (weights < 0)][0]
        raise ValueError(f"an edge has weight {worst}; weights must be finite and at least 0")
    loops = ends[:, 0] == ends[:, 1]
    if loops.any():
        warnings.warn(f"{loops.sum()} self-loops penalise nothing and are dropped", UserWarning, stacklevel=4)
    keep = ~loops & (weights > 0)
    ends, weights = np.sort(ends[keep], axis=1), weights[keep]
    edges, inverse = np.unique(ends, axis=0, return_inverse=True)
    largest = np.zeros(len(edges))
    np.maximum.at(largest, inverse.ravel(), weights)
    return TaskGraph(nodes, edges.reshape(-1, 2).astype(np.int64), largest)
