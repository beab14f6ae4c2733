"""Graphs for the claims: features reduced without labels, and anomalies by class or by injection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch._dynamo  # noqa: F401  (the first optimiser that is made imports it: preloaded, it costs no trial a second)
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import normalize

from cameraready.methods.demo.graph import NodeGraph, read_graph
from cameraready.methods.demo.injection import CONTEXTUAL, STRUCTURAL, inject_anomalies
from cameraready.methods.demo.open_set import OpenSetSplit, open_set_split

COMPONENTS = 96
TRAIN_ANOMALIES = 30
SMALLEST_CLASS = 50


def reduced(graph: Any) -> NodeGraph:
    """Rows of length 1, then 96 singular vectors where there are more columns."""
    plain = read_graph(graph)
    x = normalize(sp.csr_array(plain.x))
    if x.shape[1] > COMPONENTS:
        x = TruncatedSVD(COMPONENTS, random_state=0).fit_transform(x)
    return NodeGraph(plain.adjacency, np.asarray(x.toarray() if sp.issparse(x) else x, dtype=np.float32))


def by_injection(graph: Any, known: str, *, seed: int) -> tuple[NodeGraph, OpenSetSplit]:
    """Both kinds injected, each into at most 5 % of the nodes in groups of ten; one of them is known."""
    whole = reduced(graph)
    cliques = max(1, int(0.05 * whole.n) // 10)
    made = inject_anomalies(whole, cliques=cliques, rng=np.random.default_rng([seed, 1]))
    total = 10 * cliques
    kinds = {"contextual": CONTEXTUAL, "structural": STRUCTURAL}
    split = open_set_split(
        made.kind,
        [CONTEXTUAL, STRUCTURAL],
        kinds[known],
        n_anomaly=min(TRAIN_ANOMALIES, total // 2),
        val=(0.01, min(TRAIN_ANOMALIES, total // 6)),
        seed=seed,
    )
    return made.graph, split


def by_class(graph: Any, known: str, *, seed: int) -> tuple[NodeGraph, OpenSetSplit]:
    """The two smallest classes of at least 50 nodes are anomalies, each cut at random to 5 % of the nodes.

    One of them is known. That a class is anomalous because it is small is the protocol's proxy.
    """
    rng = np.random.default_rng([seed, 2])
    y = np.asarray(graph.labels)
    sizes = np.bincount(y[y >= 0], minlength=1)
    large = np.flatnonzero(sizes >= SMALLEST_CLASS)
    if len(large) < 3:
        raise ValueError(
            f"{len(large)} classes have at least {SMALLEST_CLASS} nodes; the task needs 3, two as anomalies"
        )
    anomalies = large[np.argsort(sizes[large], kind="stable")[:2]]
    kept = y >= 0
    for kind in anomalies:
        members = rng.permutation(np.flatnonzero(y == kind))
        kept[members[int(0.05 * len(y)) :]] = False
    nodes = np.flatnonzero(kept)
    whole = reduced(graph)
    part = NodeGraph(sp.csr_array(whole.adjacency[nodes][:, nodes]), whole.x[nodes])
    chosen = anomalies[["smallest class", "second smallest"].index(known)]
    n_known = int((y[nodes] == chosen).sum())
    split = open_set_split(
        y[nodes],
        anomalies,
        chosen,
        n_anomaly=min(TRAIN_ANOMALIES, n_known // 2),
        val=(0.01, min(30, n_known // 4)),
        seed=seed,
    )
    return part, split


def random_graph(n: int, *, degree: int, d: int, rng: np.random.Generator) -> tuple[NodeGraph, NDArray[np.int64]]:
    """n nodes with ``degree`` random links each, Gaussian features; labels as in the protocol, 50 + 5 % of n."""
    ends = rng.integers(0, n, size=(2, n * degree // 2))
    x = rng.normal(size=(n, d)).astype(np.float32)
    labels = np.full(n, -1)
    order = rng.permutation(n)
    labels[order[:50]] = 1
    labels[order[50 : 50 + n // 20]] = 0
    x[order[:50], 0] += 2
    return read_graph(SimpleNamespace(x=x, edge_index=ends)), labels
