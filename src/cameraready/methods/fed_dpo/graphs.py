"""Communication graphs and their mixing matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cameraready.methods.fed_dpo.theory import consensus_contraction


def metropolis(graph: Any) -> np.ndarray:
    """Metropolis weights W_ij = 1 / (1 + max(deg_i, deg_j)) of an undirected graph.

    Nodes 0, ..., n - 1 are clients 0, ..., n - 1; with other names, clients are in the graph's order of nodes.

    Parameters
    ----------
    graph : networkx.Graph; loops are ignored.

    Returns
    -------
    Symmetric, doubly stochastic array of shape (n, n).

    Examples
    --------
    >>> import networkx as nx
    >>> metropolis(nx.path_graph(3)).round(3).tolist()
    [[0.667, 0.333, 0.0], [0.333, 0.333, 0.333], [0.0, 0.333, 0.667]]
    """
    if graph.is_directed():
        raise ValueError("the graph is directed; a symmetric W needs an undirected one (graph.to_undirected())")
    names = range(len(graph)) if set(graph) == set(range(len(graph))) else list(graph)
    index = {name: i for i, name in enumerate(names)}
    W = np.zeros((len(names), len(names)))
    for a, b in graph.edges():  # without a multigraph's keys
        if a != b:
            weight = 1 / (1 + max(_degree(graph, a), _degree(graph, b)))
            W[index[a], index[b]] = W[index[b], index[a]] = weight
    W[np.diag_indices_from(W)] = 1 - W.sum(axis=1)
    return W


def exponential_graph(n: int) -> Any:
    """Each node linked to those 1, 2, 4, ... places ahead: degree of order log n, gap of order 1 / log n."""
    import networkx as nx

    return nx.circulant_graph(n, [2**k for k in range(max(1, (n - 1).bit_length())) if 2**k < n])


def spectral_gap(W: ArrayLike) -> float:
    """1 - rho, rho = max(|lambda_2|, |lambda_n|) of a symmetric doubly stochastic W.

    Examples
    --------
    >>> spectral_gap(np.full((4, 4), 0.25))
    1.0
    """
    return 1 - consensus_contraction(check_mixing(W))


def mixing_matrices(graph: Any, n: int, *, allow_disconnected: bool = False) -> list[np.ndarray]:
    """One W, or a sequence that is used in turn, from graphs or matrices; refused unless fit for ``n`` nodes.

    Raises
    ------
    ValueError : another size, a matrix that is not symmetric, non-negative and stochastic, or nodes that no path of
        the graphs' union joins (the components are named), unless ``allow_disconnected``.
    """
    if isinstance(graph, str):
        raise TypeError(f"graph={graph!r}; give a networkx.Graph or a mixing matrix, networkx.cycle_graph({n}) say")
    if isinstance(graph, list | tuple) and not graph:
        raise ValueError("no graph in the sequence; give at least one")
    several = isinstance(graph, list | tuple) and (hasattr(graph[0], "edges") or np.ndim(graph[0]) == 2)
    matrices = [
        metropolis(one) if hasattr(one, "edges") else check_mixing(one) for one in (graph if several else [graph])
    ]
    for W in matrices:
        if len(W) != n:
            raise ValueError(f"the graph has {len(W)} nodes and there are {n} clients; give each client one node")
    union = sum(W > 0 for W in matrices)
    if not allow_disconnected and len(parts := _components(union)) > 1:
        raise ValueError(
            f"the graph is in {len(parts)} pieces, {'; '.join(map(str, parts[:4]))}: they never agree. "
            "Add edges, or pass allow_disconnected=True"
        )
    return matrices


def check_mixing(W: ArrayLike) -> np.ndarray:
    """W as an array, if it is symmetric, non-negative and doubly stochastic."""
    W = np.asarray(W, dtype=float)
    if W.ndim != 2 or W.shape[0] != W.shape[1]:
        raise ValueError(f"W has shape {W.shape}; a square matrix is needed")
    if not np.isfinite(W).all() or W.min() < -1e-12:
        raise ValueError(f"W has entries below 0 or not finite (least {W.min():g}); weights are non-negative")
    if (error := np.abs(W - W.T).max()) > 1e-9:
        raise ValueError(f"W differs from its transpose by up to {error:g}; use metropolis(graph) for a symmetric one")
    if (error := np.abs(W.sum(axis=1) - 1).max()) > 1e-9:
        raise ValueError(f"W's rows sum to 1 up to {error:g} only; use metropolis(graph) for a stochastic one")
    return W


def without(W: np.ndarray, away: Sequence[int]) -> np.ndarray:
    """W when some nodes are away: their neighbours keep those weights for themselves. Still doubly stochastic."""
    W = W.copy()
    for i in away:
        others = np.arange(len(W)) != i
        W[others, others] += W[others, i]
        W[i], W[:, i], W[i, i] = 0, 0, 1
    return W


def _degree(graph: Any, node: Any) -> int:
    return sum(other != node for other in graph[node])


def _components(links: np.ndarray) -> list[list[int]]:
    from scipy.sparse import csgraph, csr_array

    count, label = csgraph.connected_components(csr_array(links), directed=False)
    return [np.flatnonzero(label == c).tolist() for c in range(count)]
