"""Approximate nearest centre by locality-sensitive hashing, in a time of about k^rho a query."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .points import squared_distance

LEVELS = 12  # radii, each half of the one before: squared distances over 7 decades
CELL = 4.0  # width of a hash cell in radii
NEAR_COLLISION = 0.80  # chance that two points one radius apart share a cell of that width
CANDIDATES_PER_TABLE = 3  # candidates looked at, per table: the classical bound 3L of (c, R)-near neighbour search


def hash_sizes(n_clusters: int, rho: float) -> tuple[int, int, int]:
    """(tables L, half hashes u, projections in each) of an index for `n_clusters` centres.

    L = ceil(k^rho). A table joins M projections with 0.8^M = 1/L, so that a neighbour one radius away shares a bucket
    in one of the L tables with constant probability. They are pairs of u half hashes, u (u - 1) / 2 >= L: a row is
    then projected u M / 2 times and not L M.
    """
    n_tables = math.ceil(n_clusters**rho)
    n_halves = max(2, math.ceil((1 + math.sqrt(1 + 8 * n_tables)) / 2))
    return n_tables, n_halves, max(1, round(0.5 * math.log(n_tables) / math.log(1 / NEAR_COLLISION)))


def work_per_query(n_clusters: int, rho: float) -> int:
    """Inner products of length D for one query, at most."""
    n_tables, n_halves, n_projections = hash_sizes(n_clusters, rho)
    return n_halves * n_projections + CANDIDATES_PER_TABLE * n_tables


class LSHIndex:
    """L = ceil(k^rho) hash tables of p-stable projections, at radii halving from `radius`.

    h(x) = floor((a.x) / (4 R) + b) with a normal and b uniform. At most 3L candidates are looked at, each exactly: the
    distance returned is never below the true one, and where a centre is within R of a row, one within c R is found with
    constant probability; for these projections rho = ln(1/p(R)) / ln(1/p(cR)) is about 1/c, hence rho^-2 in the bound.

    Parameters
    ----------
    dim : int
        Number of features D.
    n_clusters : int
        Largest number of centres the index will hold.
    rho : float
        Exponent of the query time, in (0, 1).
    radius : float
        Largest distance asked for.
    rng : numpy.random.Generator
        Draws the projections.
    dtype : numpy dtype
        Of the rows, float32 or float64.
    """

    def __init__(
        self, dim: int, n_clusters: int, *, rho: float, radius: float, rng: np.random.Generator, dtype: np.dtype
    ) -> None:
        self.n_tables, self.n_halves, n_projections = hash_sizes(n_clusters, rho)
        shape = (dim, self.n_halves * n_projections)
        self.directions = rng.standard_normal(shape, dtype=np.float32).astype(dtype)
        self.offsets = rng.random(shape[1])
        self.radius = radius
        entries = n_clusters * self.n_tables * LEVELS
        # Chained hashing: the entry of centre i in table t at level l has the number (i * L + t) * LEVELS + l.
        number = np.int32 if entries < 2**31 else np.int64
        self.heads = np.full(1 << max(4, entries.bit_length() - 1), -1, dtype=number)
        self.links = np.empty(entries, dtype=number)
        self.seen = np.full(n_clusters, -1, dtype=np.int64)
        self.n_queries = 0

    def add(self, rows: NDArray, first: int) -> int:
        """Enter `rows` as the centres first, first + 1, ...; returns the inner products computed."""
        projections = rows @ self.directions
        _insert(projections, self.offsets, self.radius, self.n_halves, self.n_tables, first, self.heads, self.links)
        return projections.size

    def nearest(self, rows: NDArray, thresholds: NDArray, centers: NDArray) -> tuple[NDArray, int]:
        """Squared distance to a near centre, inf where none is found.

        Parameters
        ----------
        rows : array (b, D)
        thresholds : array (b,)
            Squared distances: whether a centre is closer than this is all that is asked, so the search starts about
            that radius, goes to coarser ones only while no candidate is found, and ends with the first one closer.
        centers : array (k, D)
            Rows entered, by number.

        Returns
        -------
        distances : array (b,), work : int
            The inner products computed (projections and candidates).
        """
        projections = rows @ self.directions
        distances = np.full(len(rows), np.inf, dtype=np.float64)
        limit = CANDIDATES_PER_TABLE * self.n_tables
        candidates = _query(
            projections, self.offsets, self.radius, self.n_halves, self.n_tables, limit, self.n_queries,
            rows, thresholds, centers, self.heads, self.links, self.seen, distances,
        )  # fmt: skip
        self.n_queries += len(rows)
        return distances, projections.size + candidates


@njit(nogil=True, cache=True)
def _half_hashes(projection, offsets, level, radius, halves):  # pragma: no cover (compiled)
    """Mix the cells of every half hash of a projected row at one level (splitmix64's multipliers)."""
    width = CELL * radius / (1 << level)
    n_projections = len(projection) // len(halves)
    for half in range(len(halves)):
        key = np.uint64(half * LEVELS + level + 1) * np.uint64(0x9E3779B97F4A7C15)
        for j in range(half * n_projections, (half + 1) * n_projections):
            cell = np.int64(np.floor(projection[j] / width + offsets[j]))
            key = (key ^ np.uint64(cell)) * np.uint64(0xBF58476D1CE4E5B9)
            key ^= key >> np.uint64(29)
        halves[half] = key


@njit(nogil=True, cache=True)
def _slots(halves, slots, mask):  # pragma: no cover (compiled)
    """The slot in every table: pairs of half hashes (0, 1), (0, 2), (1, 2), (0, 3), ..."""
    table = 0
    for b in range(1, len(halves)):
        for a in range(b):
            if table < len(slots):
                key = (halves[a] * np.uint64(0x94D049BB133111EB)) ^ halves[b]
                key ^= key >> np.uint64(32)
                slots[table] = np.int64(key & np.uint64(mask))
                table += 1


@njit(nogil=True, cache=True)
def _insert(projections, offsets, radius, n_halves, n_tables, first, heads, links):  # pragma: no cover (compiled)
    halves = np.empty(n_halves, dtype=np.uint64)
    slots = np.empty(n_tables, dtype=np.int64)
    for i in range(projections.shape[0]):
        for level in range(LEVELS):
            _half_hashes(projections[i], offsets, level, radius, halves)
            _slots(halves, slots, len(heads) - 1)
            for table in range(n_tables):
                entry = ((first + i) * n_tables + table) * LEVELS + level
                links[entry] = heads[slots[table]]
                heads[slots[table]] = entry


@njit(nogil=True, cache=True)
def _query(
    projections, offsets, radius, n_halves, n_tables, limit, stamp,
    rows, thresholds, centers, heads, links, seen, distances,
):  # pragma: no cover (compiled)  # fmt: skip
    halves = np.empty(n_halves, dtype=np.uint64)
    slots = np.empty(n_tables, dtype=np.int64)
    computed = 0
    for i in range(rows.shape[0]):
        # The finest level whose radius is not below the distance asked for; two finer ones come first, for their
        # buckets are less crowded and hold the nearest centre where it is near (as a duplicate is).
        asked = 0
        while asked < LEVELS - 1 and radius / (1 << (asked + 1)) >= np.sqrt(thresholds[i]):
            asked += 1
        level = min(LEVELS - 1, asked + 2)
        looked_at = 0
        near = False
        while level >= 0 and (level >= asked or looked_at == 0) and looked_at < limit and not near:
            _half_hashes(projections[i], offsets, level, radius, halves)
            _slots(halves, slots, len(heads) - 1)
            for table in range(n_tables):
                entry = heads[slots[table]]
                while entry >= 0 and looked_at < limit and not near:
                    center = entry // (n_tables * LEVELS)
                    # Slots are shared by other buckets now and then: an entry of another table or level is skipped.
                    own = entry % LEVELS == level and (entry // LEVELS) % n_tables == table
                    if own and seen[center] != stamp + i:
                        seen[center] = stamp + i
                        looked_at += 1
                        distances[i] = min(distances[i], squared_distance(rows[i], centers[center]))
                        near = distances[i] <= thresholds[i]
                    entry = links[entry]
                if near or looked_at >= limit:
                    break
            level -= 1
        computed += looked_at
    return computed
