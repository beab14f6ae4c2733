"""Which proposals survive the centres older than their batch: the nearest-centre engines."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .lsh import LSHIndex, work_per_query
from .points import Centers, Points


class ExactSearch:
    """Every distance to the centres added since the envelope's last refresh (older ones are in the envelope)."""

    name = "exact"
    work_per_query = None  # grows with the centres since the last refresh

    def __init__(self, points: Points, centers: Centers) -> None:
        self.points, self.centers = points, centers
        self.distances_computed = 0
        self.restart(0.0)

    def restart(self, largest_bound: float) -> None:
        """After a refresh: forget the centres so far."""
        self.first = self.centers.count

    def largest_batch(self, rate: float) -> int:
        """Proposals worth drawing together at `rate` proposals an acceptance."""
        return int(min(2048, 0.25 * self.centers.count * rate + 32))

    def survivors(self, indices: NDArray, thresholds: NDArray, bounds: NDArray) -> tuple[NDArray, NDArray]:
        """Positions of the proposals farther than their threshold from every centre, and their (shifted) rows."""
        if self.centers.count == self.first:
            distances = bounds
        else:
            distances, _ = self.points.nearest(indices, self.centers, self.first)
            self.distances_computed += len(indices) * (self.centers.count - self.first)
        alive = np.flatnonzero(thresholds < np.minimum(distances, bounds))
        return alive, self.points.rows(indices[alive])


class ApproximateSearch:
    """The same question asked of an `LSHIndex`: about k^rho inner products; a near centre may be missed."""

    name = "ann"

    def __init__(
        self, points: Points, centers: Centers, *, rho: float, largest_bound: float, rng: np.random.Generator
    ) -> None:
        self.points, self.centers, self.rho, self.rng = points, centers, rho, rng
        self.work_per_query = work_per_query(len(centers.indices), rho)
        self.distances_computed = 0
        self.restart(largest_bound)

    def restart(self, largest_bound: float) -> None:
        """After a refresh: a new index, its coarsest radius the largest bound of the envelope."""
        self.index = LSHIndex(
            self.points.dim,
            len(self.centers.indices),
            rho=self.rho,
            radius=max(float(np.sqrt(largest_bound)), np.finfo(np.float32).tiny),
            rng=self.rng,
            dtype=self.points.dtype,
        )
        self.first = self.entered = self.centers.count

    def largest_batch(self, rate: float) -> int:
        # Those accepted in the batch are compared one by one: no more of them than the tables a query looks into.
        return int(min(2048, 0.25 * self.centers.count * rate + 32, 2 * rate * self.index.n_tables + 32))

    def survivors(self, indices: NDArray, thresholds: NDArray, bounds: NDArray) -> tuple[NDArray, NDArray]:
        if self.entered < self.centers.count:
            new = self.centers.rows[self.entered : self.centers.count]
            self.distances_computed += self.index.add(new, self.entered)
            self.entered = self.centers.count
        rows = self.points.rows(indices)
        distances, work = self.index.nearest(rows, thresholds, self.centers.rows)
        self.distances_computed += work
        silent = np.flatnonzero(np.isinf(distances))
        if len(silent) and self.first < self.entered:
            distances[silent] = self.points.nearest(indices[silent], self.centers, self.first)[0]
            self.distances_computed += len(silent) * (self.entered - self.first)
        alive = np.flatnonzero(thresholds < np.minimum(distances, bounds))
        return alive, rows[alive]
