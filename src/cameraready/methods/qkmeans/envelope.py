"""The envelope of rejection sampling: an upper bound of every row's distance, drawn from in O(log n)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .points import Centers, Points


class Envelope:
    """q(x) = D^2(x, S_r), the squared distance to the first r centres, never below D^2(x, S) for S that holds them.

    A row drawn with probability w(x) q(x) / sum(w q) and accepted with probability D^2(x, S) / q(x) follows the
    k-means++ law w(x) D^2(x, S) / phi(S) exactly, whatever r is. `outlier_quantile` caps q and D^2 alike.
    """

    def __init__(self, distances: NDArray, weights: NDArray | None, outlier_quantile: float | None) -> None:
        self.distances = distances
        self.weights = weights
        self.outlier_quantile = outlier_quantile
        self.n_centers = 1
        self._accumulate()

    def _accumulate(self) -> None:
        bound = self.distances
        self.cap = np.inf
        if self.outlier_quantile is not None and bound.any():
            # Of the positive ones: where most rows repeat a centre the quantile of all is zero.
            self.cap = float(np.quantile(bound[bound > 0], self.outlier_quantile))
            bound = np.minimum(bound, self.cap)
        # Float64 sums: float32 ones stop growing near 10^7 rows.
        if self.weights is None:
            self.cumulative = np.cumsum(bound, dtype=np.float64)
        else:
            self.cumulative = np.cumsum(self.weights * bound, dtype=np.float64)
        self.total = float(self.cumulative[-1])

    def propose(self, rng: np.random.Generator, size: int) -> tuple[NDArray, NDArray]:
        """Draw `size` rows from the envelope: their indices and their (capped) bounds q."""
        uniforms = rng.random(size)
        order = np.argsort(uniforms)  # in order of place the search, and the reads, go through memory once
        indices = np.empty(size, dtype=np.int64)
        indices[order] = draw_rows(self.cumulative, uniforms[order])
        return indices, np.minimum(self.distances[indices], self.cap)

    def refresh(self, points: Points, centers: Centers) -> None:
        """Lower the envelope to the distance to all the centres there are."""
        points.lower(self.distances, centers, self.n_centers)
        self.n_centers = centers.count
        self._accumulate()


def draw_rows(cumulative: NDArray, uniforms: NDArray) -> NDArray:
    """The rows at `uniforms` in [0, 1): drawn in proportion to their mass, whose cumulative sums are given."""
    # side="right" never lands on a row of zero mass; the minimum guards the last row against rounding.
    rows = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")
    return np.minimum(rows, np.searchsorted(cumulative, cumulative[-1], side="left"))


def refresh_work(
    *, rate: float, draws: int, n: int, k: int, m: int, refreshed: int, eps: float, query_work: int | None = None
) -> tuple[float, float]:
    """Predicted distance computations to go from m to k centres (without a refresh, with one now).

    The proposals per acceptance grow as s^eps, and each looks at the centres since the last refresh:
    work = integral over s from m to k of rate (s / m)^eps (s - r + overhead), times the draws per centre.
    With `query_work` (hash index) a proposal costs that, whatever s is.
    """
    linear = (k ** (1 + eps) - m ** (1 + eps)) / ((1 + eps) * m**eps)
    quadratic = (k ** (2 + eps) - m ** (2 + eps)) / ((2 + eps) * m**eps)
    renewal = n * (m - refreshed + PASS_OVERHEAD)
    if query_work is not None:
        query = draws * (query_work + PROPOSAL_OVERHEAD) * linear
        return rate * query, query + renewal
    keep = draws * rate * (quadratic + (PROPOSAL_OVERHEAD - refreshed) * linear)
    return keep, draws * (quadratic + (PROPOSAL_OVERHEAD - m) * linear) + renewal


# What drawing one proposal and streaming one row cost besides distances, in distances; measured at D = 16 to 192.
PROPOSAL_OVERHEAD = 64
PASS_OVERHEAD = 64


def best_refresh_size(n: int, k: int, eps: float) -> int:
    """m0 minimising n m0 + k^(2+eps) m0^(-eps) / (2+eps), the distances of one refresh at m0 and of the rejection.

    Setting the derivative to zero gives m0 = (eps k^(2+eps) / ((2+eps) n))^(1/(1+eps)), clipped to [1, k-1].
    """
    optimum = (eps * k ** (2 + eps) / ((2 + eps) * n)) ** (1 / (1 + eps))
    return int(np.clip(round(optimum), 1, max(1, k - 1)))
