"""Greedy seeding without passes over the data: candidates are compared on a fixed reference sample."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .envelope import Envelope, draw_rows
from .points import Centers, Points, squared_distance


def n_candidates(n_clusters: int) -> int:
    """Candidates a round, 2 + floor(ln k), as in scikit-learn."""
    return 2 + int(math.log(n_clusters))


class ReferenceSample:
    """A weighted sample of the rows that estimates the potential phi(S) = sum_x w(x) D^2(x, S) of any set of centres.

    R = max(8192, 16k) rows drawn with probability p(x) = q(x) / (2 sum q) + 1 / (2n), each with the importance weight
    w(x) / (R p(x)), make the estimate unbiased; a data set of at most R rows is taken whole, and phi is then exact.
    The draw is systematic (equal steps through the cumulative p), so that few rows come twice.
    Their distances are kept up to date, so that a round costs at most R * candidates distances, whatever n is.
    """

    def __init__(
        self, points: Points, envelope: Envelope, centers: Centers, n_clusters: int, rng: np.random.Generator
    ) -> None:
        size = max(8192, 16 * n_clusters)
        weights = np.ones(points.n) if envelope.weights is None else envelope.weights
        if points.n <= size:
            indices = np.arange(points.n)
            importance = weights
        else:
            cumulative = envelope.cumulative * (0.5 / envelope.total)
            cumulative += np.linspace(0.5 / points.n, 0.5, points.n)
            places = (np.arange(size) + rng.random()) / size
            indices = draw_rows(cumulative, places)
            bound = weights[indices] * np.minimum(envelope.distances[indices], envelope.cap)
            importance = weights[indices] / (size * (0.5 * bound / envelope.total + 0.5 / points.n))
        # A row whose distance the envelope caps counts with the capped one, or outliers would win every round.
        distances = envelope.distances[indices]
        capped = np.divide(envelope.cap, distances, out=np.ones_like(distances), where=distances > envelope.cap)
        self.importance = (importance * capped).astype(points.dtype)
        self.points, self.centers = points, centers
        self.distances, self.nearest = points.nearest(indices, centers, 0)
        self.distances_computed = len(indices)
        self.rows, self.norms = points.factor(indices)

    def choose(self, candidates: NDArray) -> int:
        """The candidate row (of (L, D)) with the smallest potential; the distances are then those with it a centre."""
        if isinstance(self.rows, np.ndarray):
            return self._choose_nearby(candidates)
        candidate_norms = np.einsum("ij,ij->i", candidates, candidates)
        new = self.points.products(self.rows, candidates)
        new *= -2
        new += self.norms[:, None]
        new += candidate_norms
        np.minimum(new, self.distances[:, None], out=new)
        np.maximum(new, 0, out=new)
        best = int(np.argmin(self.importance @ new))
        self.distances = np.ascontiguousarray(new[:, best])
        self.distances_computed += new.size
        return best

    def _choose_nearby(self, candidates: NDArray) -> int:
        """The same, skipping the rows that the triangle inequality shows to gain nothing."""
        m = self.centers.count
        squares = self.centers.norms[:m, None] + np.einsum("ij,ij->i", candidates, candidates)
        from_centers = squares - 2 * (self.centers.rows[:m] @ candidates.T)
        gains = np.zeros(len(candidates))
        computed = _add_gains(
            self.rows,
            self.importance,
            self.distances,
            self.nearest,
            candidates,
            from_centers,
            from_centers.min(axis=1),
            gains,
        )
        best = int(np.argmax(gains))
        reach = np.ascontiguousarray(from_centers[:, best])
        _update(self.rows, self.distances, self.nearest, candidates[best], reach, m)
        self.distances_computed += computed + from_centers.size
        return best


@njit(nogil=True, cache=True)
def _add_gains(
    rows, importance, distances, nearest, candidates, from_centers, smallest, gains
):  # pragma: no cover (compiled)
    """gains[l] += sum_x w(x) max(0, D^2(x, S) - |x - c_l|^2); returns the distances computed.

    With a the nearest centre of x, |x - c| >= |c - a| - |x - a|: where |c - a|^2 >= 4 D^2(x, S), x gains nothing.
    """
    computed = 0
    for i in range(rows.shape[0]):
        reach = 4 * distances[i]
        center = nearest[i]
        if smallest[center] >= reach:
            continue
        for c in range(candidates.shape[0]):
            if from_centers[center, c] < reach:
                computed += 1
                gain = distances[i] - squared_distance(rows[i], candidates[c])
                if gain > 0:
                    gains[c] += importance[i] * gain
    return computed


@njit(nogil=True, cache=True)
def _update(rows, distances, nearest, chosen, from_centers, number):  # pragma: no cover (compiled)
    """Make `chosen` centre `number`: lower the distances of the rows that it is nearest to."""
    for i in range(rows.shape[0]):
        if from_centers[nearest[i]] < 4 * distances[i]:
            distance = squared_distance(rows[i], chosen)
            if distance < distances[i]:
                distances[i] = distance
                nearest[i] = number
