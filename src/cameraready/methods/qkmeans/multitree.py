"""A peer without a library: fast k-means++ on randomly shifted grid trees (Cohen-Addad et al.: NeurIPS 2020)."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

TREES = 3
LEVELS = 20


def multitree(X: NDArray, n_clusters: int, random_state: int) -> NDArray:
    """Seeds drawn by the squared distance in three tree embeddings, whose minimum stands for the distance itself.

    A tree halves a randomly shifted cube level by level; two rows that part in a cell of side s are sqrt(D) s apart in
    it. A new centre changes only the rows of the cells that held none, so that all k centres take O(n log) updates.
    """
    rng = np.random.default_rng(random_state)
    n = len(X)
    largest = 2 * np.sqrt(((X - X[0]) ** 2).sum(axis=1).max())  # no two rows are farther apart
    origin = X.min(axis=0)
    orders, starts, stops = [], [], []
    for _ in range(TREES):
        cells = np.empty((LEVELS, n), dtype=np.uint64)
        multipliers = rng.integers(1, 2**63, size=X.shape[1], dtype=np.uint64) | np.uint64(1)
        _cells(X, origin - rng.random(X.shape[1]) * largest, 2 * largest, multipliers, cells)
        order = np.lexsort(cells[::-1])
        start, stop = _ranges(cells[:, order])
        orders.append(order)
        starts.append(start)
        stops.append(stop)
    squares = X.shape[1] * (2 * largest / 2.0 ** np.arange(LEVELS)) ** 2
    uniforms = rng.random(n_clusters)
    chosen = _sample(np.array(orders), np.array(starts), np.array(stops), squares, uniforms)
    return X[chosen]


@njit(nogil=True, cache=True)
def _cells(X, origin, side, multipliers, cells):  # pragma: no cover (compiled)
    """A hash of every row's cell in the grid of side `side` / 2^level."""
    for level in range(cells.shape[0]):
        scale = (1 << level) / side
        for i in range(X.shape[0]):
            key = np.uint64(0)
            for d in range(X.shape[1]):
                key += np.uint64(np.int64((X[i, d] - origin[d]) * scale)) * multipliers[d]
            cells[level, i] = key


@njit(nogil=True, cache=True)
def _ranges(cells):  # pragma: no cover (compiled)
    """First and last-but-one position of every row's cell, (levels, n), for rows in the order of the tree."""
    levels, n = cells.shape
    start = np.zeros((levels, n), dtype=np.int32)
    stop = np.full((levels, n), n, dtype=np.int32)
    for level in range(levels):
        for i in range(1, n):
            new = cells[level, i] != cells[level, i - 1] or (level > 0 and start[level - 1, i] == i)
            start[level, i] = i if new else start[level, i - 1]
        for i in range(n - 2, -1, -1):
            stop[level, i] = i + 1 if start[level, i + 1] == i + 1 else stop[level, i + 1]
    return start, stop


@njit(nogil=True, cache=True)
def _sample(orders, starts, stops, squares, uniforms):  # pragma: no cover (compiled)
    """Draw rows by their squared tree distance to those drawn, kept in a tree of sums."""
    trees, levels, n = starts.shape
    positions = np.empty((trees, n), dtype=np.int64)
    for tree in range(trees):
        for i in range(n):
            positions[tree, orders[tree, i]] = i
    marked = np.zeros((trees, levels, n), dtype=np.bool_)
    leaves = 1
    while leaves < n:
        leaves *= 2
    sums = np.zeros(2 * leaves)
    for i in range(n):
        sums[leaves + i] = squares[0]
    for node in range(leaves - 1, 0, -1):
        sums[node] = sums[2 * node] + sums[2 * node + 1]
    chosen = np.empty(len(uniforms), dtype=np.int64)
    for c in range(len(uniforms)):
        target = uniforms[c] * sums[1]
        node = 1
        while node < leaves:
            node *= 2
            if target >= sums[node]:
                target -= sums[node]
                node += 1
        row = min(node - leaves, n - 1)
        chosen[c] = row
        _lower(sums, leaves + row, 0.0)
        for tree in range(trees):
            position = positions[tree, row]
            for level in range(levels - 1, -1, -1):
                first = starts[tree, level, position]
                if marked[tree, level, first]:
                    break
                marked[tree, level, first] = True
                for i in range(first, stops[tree, level, position]):
                    _lower(sums, leaves + orders[tree, i], squares[level])
    return chosen


# Typed, hence compiled at import: numba then sets itself up once, and not in every trial that is forked.
@njit("void(float64[::1], int64, float64)", nogil=True, cache=True)
def _lower(sums, node, value):  # pragma: no cover (compiled)
    if value < sums[node]:
        sums[node] = value
        node //= 2
        while node >= 1:
            sums[node] = sums[2 * node] + sums[2 * node + 1]
            node //= 2
