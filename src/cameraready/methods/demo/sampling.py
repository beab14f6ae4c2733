"""Neighbour sampling on a CSR matrix: no compiled extension, and a cost that does not depend on a hub's degree."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray


def sample_neighbours(
    adjacency: sp.csr_array, nodes: NDArray[np.int64], *, fanout: int | None, rng: np.random.Generator
) -> tuple[NDArray[np.int64], sp.csr_array]:
    """Draw up to ``fanout`` neighbours of each node, without replacement.

    Parameters
    ----------
    adjacency : shape (n, n)
    nodes : shape (m,), distinct
    fanout : None takes all neighbours.

    Returns
    -------
    sources : shape (k,), distinct nodes; the first m are ``nodes``
    weights : csr_array, shape (m, k)
        The drawn edges with their weights; row i belongs to ``nodes[i]``, column j to ``sources[j]``.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> star = sp.csr_array(np.array([[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]], dtype=np.float32))
    >>> sources, weights = sample_neighbours(star, np.array([0]), fanout=2, rng=np.random.default_rng(0))
    >>> len(sources), weights.nnz
    (3, 2)
    """
    start, degree = adjacency.indptr[nodes].astype(np.int64), np.diff(adjacency.indptr)[nodes].astype(np.int64)
    taken = degree if fanout is None else np.minimum(degree, fanout)
    row = np.repeat(np.arange(len(nodes)), taken)
    # Where everything is taken: positions 0, 1, ..., degree - 1 of the row.
    position = np.arange(taken.sum()) - np.repeat(np.cumsum(taken) - taken, taken)
    if fanout is not None and (crowded := np.flatnonzero(degree > fanout)).size:
        position[np.isin(row, crowded)] = _floyd(degree[crowded], fanout, rng).ravel()
    edge = start[row] + position
    neighbours = adjacency.indices[edge].astype(np.int64)
    others = np.setdiff1d(neighbours, nodes)
    sources = np.concatenate([nodes, others])
    order = np.argsort(sources, kind="stable")
    column = order[np.searchsorted(sources, neighbours, sorter=order)]
    weights = sp.csr_array((adjacency.data[edge], (row, column)), shape=(len(nodes), len(sources)))
    return sources, weights


def _floyd(sizes: NDArray[np.int64], k: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """k distinct positions out of each size > k, uniformly: Floyd's algorithm, all rows at a time."""
    chosen = np.full((len(sizes), k), -1, dtype=np.int64)
    for j in range(k):
        top = sizes - k + j
        draw = rng.integers(0, top + 1)
        taken = (chosen == draw[:, None]).any(axis=1)
        chosen[:, j] = np.where(taken, top, draw)
    return chosen
