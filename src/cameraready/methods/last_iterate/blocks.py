"""What one step draws: a single edge, or a matching, with the probability of every edge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray


@dataclass(frozen=True)
class Blocks:
    """Blocks of edges that share no task; block b is ``edges[start[b]:start[b + 1]]``.

    ``probabilities`` (B,) is how often each block is drawn, ``inclusion`` (m,) how often each edge is in the drawn one.
    """

    start: NDArray[np.int64]
    edges: NDArray[np.int64]
    probabilities: NDArray[np.float64] | None  # None: uniform
    inclusion: NDArray[np.float64]

    @property
    def number(self) -> int:
        return len(self.start) - 1


def single_edges(strengths: NDArray, *, by_strength: bool = False) -> Blocks:
    """One edge a step, uniformly or in proportion to lam a_e (which gives the steps the least variance)."""
    m = len(strengths)
    probabilities = strengths / strengths.sum() if by_strength else None
    inclusion = np.full(m, 1.0 / m) if probabilities is None else probabilities
    return Blocks(np.arange(m + 1), np.arange(m), probabilities, inclusion)


def matchings(edges: NDArray, n_tasks: int, rng: np.random.Generator, *, at_least: int = 64) -> Blocks:
    """A pool of maximal matchings, one of which is drawn uniformly at every step.

    The pool grows until every edge is in it; the probability of an edge is then a known fraction, so that the weight
    1/pi of its prox is exact. (A probability estimated from separate draws would bias the fixed point.) The edges that
    the pool has least often come first in the next greedy matching, ties in random order.
    """
    m = len(edges)
    counts = np.zeros(m, dtype=np.int64)
    pool: list[NDArray] = []
    while len(pool) < at_least or counts.min() == 0:
        order = np.lexsort((rng.random(m), counts))
        chosen = _greedy_matching(edges, order, n_tasks)
        counts[chosen] += 1
        pool.append(chosen)
    start = np.concatenate([[0], np.cumsum([len(block) for block in pool])])
    return Blocks(start, np.concatenate(pool), None, counts / len(pool))


@njit(cache=True)
def _greedy_matching(edges, order, n_tasks):
    taken = np.zeros(n_tasks, dtype=np.bool_)
    chosen = np.empty(len(order), dtype=np.int64)
    found = 0
    for e in order:
        u, v = edges[e, 0], edges[e, 1]
        if not taken[u] and not taken[v]:
            taken[u] = taken[v] = True
            chosen[found] = e
            found += 1
    return chosen[:found].copy()
