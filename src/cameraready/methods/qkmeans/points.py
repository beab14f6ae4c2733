"""Rows of a data set, dense or sparse, as the seeding reads them: gathered, shifted, multiplied, never copied whole."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import ThreadpoolController

# Blocks of rows and of products that stay in the cache. Fixed: results must not depend on the number of threads.
ROWS_PER_TASK = 512
PASS_ENTRIES = 1 << 18
PRODUCT_ENTRIES = 1 << 19

# Below this part of the squared norms a product has lost most of its digits, and the difference is taken directly.
CANCELLATION = {np.dtype(np.float32): 1e-3, np.dtype(np.float64): 1e-9}


@lru_cache(maxsize=1)
def blas() -> ThreadpoolController:
    """The process's BLAS libraries; looked up once, which takes milliseconds."""
    return ThreadpoolController()


def default_n_threads() -> int:
    """As many threads as BLAS may use now, hence OPENBLAS_NUM_THREADS and `threadpool_limits` are obeyed."""
    return max((library["num_threads"] for library in blas().info() if library["user_api"] == "blas"), default=1)


class Threads:
    """Runs tasks on `n_threads` threads, each with single-threaded BLAS; a context manager."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads

    def __enter__(self) -> Threads:
        self._limit = blas().limit(limits=1, user_api="blas")
        self._limit.__enter__()
        self._pool = ThreadPoolExecutor(self.n_threads) if self.n_threads > 1 else None
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._limit.__exit__(*error)

    def map(self, task: Callable[[slice], None], spans: list[slice]) -> None:
        """Run `task` on every span and raise what it raises."""
        if self._pool is None or len(spans) < 2:
            for span in spans:
                task(span)
        else:
            list(self._pool.map(task, spans))


class Centers:
    """The centres chosen so far, in the order chosen, in the shifted coordinates of `Points`."""

    def __init__(self, n_clusters: int, points: Points) -> None:
        self.rows = np.empty((n_clusters, points.dim), dtype=points.dtype)
        self.norms = np.empty(n_clusters, dtype=points.dtype)
        self.indices = np.empty(n_clusters, dtype=np.int64)
        self.count = 0

    def append(self, rows: NDArray, indices: NDArray) -> None:
        """Add centres: `rows` (m, D) in shifted coordinates and their `indices` (m,) in the data."""
        span = slice(self.count, self.count + len(indices))
        self.rows[span] = rows
        self.norms[span] = np.einsum("ij,ij->i", rows, rows)
        self.indices[span] = indices
        self.count = span.stop


class Points:
    """A dense (n, D) array. Rows are shifted by a robust centre as they are read: products of far-from-origin rows
    would lose all digits, and a centred copy would double the memory."""

    def __init__(self, X: NDArray, threads: Threads) -> None:
        self.X, self.threads = X, threads
        self.n, self.dim = X.shape
        self.rows_per_pass = int(np.clip(PASS_ENTRIES // self.dim, ROWS_PER_TASK, 8192))
        self.dtype = X.dtype
        # The median of a few rows and not the mean: it needs no pass, and one giant outlier does not move it.
        spread = np.linspace(0, self.n - 1, min(self.n, 1024)).astype(np.int64)
        self.shift = np.median(X[spread], axis=0).astype(self.dtype)

    def rows(self, indices: NDArray | slice) -> NDArray:
        """Shifted dense rows, C-contiguous."""
        if isinstance(indices, slice):
            return np.ascontiguousarray(self.X[indices] - self.shift)
        rows = np.ascontiguousarray(self.X[indices])
        rows -= self.shift
        return rows

    def factor(self, rows: NDArray | slice) -> tuple[NDArray, NDArray]:
        """Rows ready to be multiplied by centres, and their squared norms."""
        block = self.rows(rows)
        return block, np.einsum("ij,ij->i", block, block)

    def products(self, factor: NDArray, centers: NDArray) -> NDArray:
        """Inner products x.c of a `factor`'s rows and of centres (m, D)."""
        return factor @ centers.T

    def distances_to(self, center: NDArray) -> NDArray:
        """Squared distance of every row to one centre, (n,): the one pass over the data."""
        distances = np.empty(self.n, dtype=self.dtype)

        def task(span: slice) -> None:
            difference = self.rows(span) - center
            distances[span] = np.einsum("ij,ij->i", difference, difference)

        self.threads.map(task, split(self.n, self.rows_per_pass))
        return distances

    def nearest(self, indices: NDArray, centers: Centers, first: int) -> tuple[NDArray, NDArray]:
        """Squared distance and index of the nearest of `centers[first:]` for the rows at `indices`."""
        distances = np.empty(len(indices), dtype=self.dtype)
        nearest = np.empty(len(indices), dtype=np.int64)
        operands = self._operands(centers, first, PRODUCT_ENTRIES // ROWS_PER_TASK)

        def task(span: slice) -> None:
            distances[span], nearest[span] = self._nearest(indices[span], centers, operands)

        self.threads.map(task, split(len(indices), ROWS_PER_TASK))
        return distances, nearest

    def lower(self, distances: NDArray, centers: Centers, first: int) -> None:
        """Take the distances to `centers[first:]` into `distances` (n,), in place: one pass over the data."""
        operands = self._operands(centers, first, PRODUCT_ENTRIES // self.rows_per_pass)

        def task(span: slice) -> None:
            new, _ = self._nearest(span, centers, operands)
            np.minimum(distances[span], new, out=distances[span])

        self.threads.map(task, split(self.n, self.rows_per_pass))

    def _operands(self, centers: Centers, first: int, size: int) -> list[tuple[int, NDArray, NDArray]]:
        """Blocks (first centre, transposed centres, squared norms) of `size` centres from `centers[first:]`."""
        spans = [slice(first + s.start, first + s.stop) for s in split(centers.count - first, size)]
        return [(span.start, self._transposed(centers.rows[span]), centers.norms[span]) for span in spans]

    def _transposed(self, centers: NDArray) -> NDArray:
        return centers.T

    def _nearest(self, rows: NDArray | slice, centers: Centers, operands: list) -> tuple[NDArray, NDArray]:
        block, norms = self.factor(rows)
        low = np.full(len(norms), np.finfo(self.dtype).max, dtype=self.dtype)
        nearest = np.zeros(len(norms), dtype=np.int64)
        for first, operand, center_norms in operands:
            keep_nearest(np.ascontiguousarray(block @ operand), center_norms, first, low, nearest)
        distances = np.maximum(low + norms, 0)
        doubtful = np.flatnonzero(distances < CANCELLATION[self.dtype] * norms)
        if len(doubtful):
            absolute = doubtful + rows.start if isinstance(rows, slice) else rows[doubtful]
            difference = self.rows(absolute) - centers.rows[nearest[doubtful]]
            distances[doubtful] = np.einsum("ij,ij->i", difference, difference)
        return distances, nearest


class SparsePoints(Points):
    """A CSR (n, D) matrix. It isn't shifted, which would fill it; only the rows that become centres are made dense."""

    def __init__(self, X: sparse.csr_matrix, threads: Threads) -> None:
        self.X, self.threads = X, threads
        self.n, self.dim = X.shape
        self.rows_per_pass = ROWS_PER_TASK
        self.dtype = X.dtype

    def rows(self, indices: NDArray | slice) -> NDArray:
        return self.X[indices].toarray()

    def factor(self, rows: NDArray | slice) -> tuple[sparse.csr_matrix, NDArray]:
        block = self.X[rows]
        return block, np.asarray(block.multiply(block).sum(axis=1), dtype=self.dtype).ravel()

    def products(self, factor: sparse.csr_matrix, centers: NDArray) -> NDArray:
        return factor @ self._transposed(centers)

    def _transposed(self, centers: NDArray) -> NDArray:
        return np.ascontiguousarray(centers.T)  # what scipy would do again for every block

    def distances_to(self, center: NDArray) -> NDArray:
        centers = Centers(1, self)
        centers.append(center[None], np.zeros(1, dtype=np.int64))
        distances = np.full(self.n, np.finfo(self.dtype).max, dtype=self.dtype)
        self.lower(distances, centers, 0)
        return distances


def split(length: int, size: int) -> list[slice]:
    """Slices of `size` that cover range(length)."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


@njit(nogil=True, cache=True, fastmath=True)
def squared_distance(a, b):  # pragma: no cover (compiled)
    """|a - b|^2 of two rows, in their precision."""
    distance = a[0] - a[0]
    for d in range(a.shape[0]):
        difference = a[d] - b[d]
        distance += difference * difference
    return distance


@njit(nogil=True, cache=True, fastmath=True)
def keep_nearest(products, center_norms, first, low, nearest):  # pragma: no cover (compiled)
    """low[i] <- min(low[i], min_j |c_j|^2 - 2 x_i.c_j), with the centre in `nearest`, from the products x_i.c_j.

    The minimum of 64 columns is a vector operation, the position isn't: it is looked for in one chunk only.
    """
    n_rows, n_centers = products.shape
    for i in range(n_rows):
        best_chunk = -1
        best = low[i]
        for start in range(0, n_centers, 64):
            stop = min(start + 64, n_centers)
            smallest = center_norms[start] - products[i, start] - products[i, start]
            for j in range(start + 1, stop):
                value = center_norms[j] - products[i, j] - products[i, j]
                smallest = min(smallest, value)
            if smallest < best:
                best = smallest
                best_chunk = start
        if best_chunk >= 0:
            low[i] = best
            closest = np.inf
            for j in range(best_chunk, min(best_chunk + 64, n_centers)):
                value = center_norms[j] - products[i, j] - products[i, j]
                if value < closest:
                    closest = value
                    nearest[i] = first + j
