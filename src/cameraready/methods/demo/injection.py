"""Anomalies of known kinds put into a graph: contextual and structural ones, as benchmarks of the field do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cameraready.methods.demo.graph import NodeGraph

NORMAL, CONTEXTUAL, STRUCTURAL = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Injected:
    """A graph and what each node is: 0 untouched, 1 contextual, 2 structural."""

    graph: NodeGraph
    kind: NDArray[np.int64]


def inject_anomalies(
    graph: NodeGraph, *, cliques: int, clique_size: int = 10, candidates: int = 50, rng: np.random.Generator
) -> Injected:
    """Make ``cliques * clique_size`` nodes structural anomalies, and as many others contextual ones.

    Structural: the nodes of a group are all joined with one another. Contextual: a node takes the features of the most
    distant of ``candidates`` random nodes. No node is both.

    References
    ----------
    Liu et al. (2022), "BOND: Benchmarking Unsupervised Outlier Node Detection on Static Attributed Graphs".
    """
    count = cliques * clique_size
    if cliques < 1 or clique_size < 2 or 2 * count > graph.n // 2:
        raise ValueError(
            f"{cliques} cliques of {clique_size} and {count} contextual nodes among {graph.n}: "
            "pass at least one clique of two, and at most a quarter of the nodes for each kind"
        )
    chosen = rng.choice(graph.n, size=2 * count, replace=False)
    kind = np.zeros(graph.n, dtype=np.int64)
    kind[chosen[:count]], kind[chosen[count:]] = STRUCTURAL, CONTEXTUAL

    groups = chosen[:count].reshape(cliques, clique_size)
    inside = ~np.eye(clique_size, dtype=bool)
    rows = np.broadcast_to(groups[:, :, None], (*groups.shape, clique_size))[:, inside].ravel()
    columns = np.broadcast_to(groups[:, None, :], (*groups.shape, clique_size))[:, inside].ravel()
    joined = sp.csr_array((np.ones(len(rows), dtype=np.float32), (rows, columns)), shape=graph.adjacency.shape)

    x = graph.x.copy()
    for node in chosen[count:]:
        others = rng.choice(graph.n, size=min(candidates, graph.n), replace=False)
        distance = np.linalg.norm(graph.x[others] - graph.x[node], axis=1)
        x[node] = graph.x[others[distance.argmax()]]
    return Injected(NodeGraph(sp.csr_array(graph.adjacency.maximum(joined)), x), kind)
