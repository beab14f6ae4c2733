"""Seeding by rejection: the loop of the method, from the first centre to the last."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from .diagnostics import AcceptanceCurve, SeedingStats, fit_exponent
from .envelope import Envelope, draw_rows, refresh_work
from .greedy import ReferenceSample, n_candidates
from .points import Centers, Points
from .rejection import accept_candidates, accept_centers
from .search import ApproximateSearch, ExactSearch

PRIOR_EPS, PRIOR_ERROR = 0.25, 0.15  # until the acceptances tell: data of intrinsic dimension 8
FIRST_REFRESH = 8
REFRESH_GROWTH = 1.5  # centres at a refresh over those at the one before, at least
ENTRIES_PER_BATCH = 1 << 24  # bounds the memory of dense rows of a very wide (sparse) data set


@dataclass(frozen=True)
class Settings:
    """How to seed; `qkmeans_plusplus` documents the fields."""

    rho: float = 0.25
    engine: str = "exact"
    greedy: bool = False
    refresh: str | tuple[int, ...] = "auto"
    outlier_quantile: float | None = None
    max_batch: int = 2048


class Seeding:
    """One seeding of `points`: k-means++ by rejection sampling from an envelope."""

    def __init__(
        self, points: Points, n_clusters: int, *, settings: Settings, weights: NDArray | None, rng: np.random.Generator
    ) -> None:
        self.points, self.k, self.settings, self.rng = points, n_clusters, settings, rng
        self.centers = Centers(n_clusters, points)
        self.curve = AcceptanceCurve()
        self.distances = dict.fromkeys(("pass", "refresh", "nearest", "scan", "reference"), 0)
        self.seconds: dict[str, float] = defaultdict(float)
        self.refresh_sizes: list[int] = []
        self.proposals = 0
        self.rate = 1.0  # proposals per acceptance, smoothed
        self.slow_batches = 0
        self.fruitless = 0  # proposals since the last acceptance
        with self._stage("pass"):
            if weights is None:
                first = rng.integers(points.n, size=1)
            else:
                first = draw_rows(np.cumsum(weights, dtype=np.float64), rng.random(1))
            self.centers.append(points.rows(first), first)
            with np.errstate(over="ignore", invalid="ignore"):  # refused below
                distances = points.distances_to(self.centers.rows[0])
            distances[first] = 0
            self.envelope = Envelope(distances, weights, settings.outlier_quantile)
            self.distances["pass"] += points.n
        largest = float(self.envelope.distances.max())
        limit = float(np.finfo(points.dtype).max) / 16  # two rows may be twice as far apart, and products add up
        if not largest < limit:
            raise ValueError(
                f"X has rows at a squared distance of {largest:.3g}, beyond {limit:.3g}, which {points.dtype} cannot "
                f"compute with; scale X down{', or pass float64' if points.dtype == np.float32 else ''}"
            )
        if settings.engine == "ann":
            self.search = ApproximateSearch(points, self.centers, rho=settings.rho, largest_bound=largest, rng=rng)
        else:
            self.search = ExactSearch(points, self.centers)
        self.reference: ReferenceSample | None = None
        self.draws = 1
        if settings.greedy and n_clusters > 1 and self.envelope.total > 0:
            with self._stage("reference"):
                self.draws = n_candidates(n_clusters)
                self.reference = ReferenceSample(points, self.envelope, self.centers, n_clusters, rng)
        self.candidates = np.empty((self.draws, points.dim), dtype=points.dtype)
        self.candidate_indices = np.empty(self.draws, dtype=np.int64)
        self.n_found = 0

    def run(self) -> tuple[NDArray, SeedingStats]:
        """Choose the centres; returns their indices (k,) and the statistics."""
        while self.centers.count < self.k and self.envelope.total > 0:
            if self._refresh_is_due():
                self._refresh()
            else:
                self._batch()
        found = self.centers.count
        if found < self.k:
            warnings.warn(
                f"X has only {found} distinct rows of positive weight, n_clusters={self.k}; rows are repeated",
                ConvergenceWarning,
                stacklevel=4,
            )
            self.centers.indices[:] = np.resize(self.centers.indices[:found], self.k)
        return self.centers.indices, self._stats()

    def _batch(self) -> None:
        """Draw proposals and walk them: exactly as if each had been drawn, and tested, after the one before."""
        goal = self._next_size()
        wanted = (goal - self.centers.count) * self.draws - self.n_found
        largest = min(self.search.largest_batch(self.rate), self.settings.max_batch, self._affordable_rows())
        size = int(np.clip(wanted * self.rate * 1.1 + 1, min(32, largest), largest))
        with self._stage("propose"):
            indices, bounds = self.envelope.propose(self.rng, size)
            thresholds = self.rng.random(size) * bounds
        with self._stage("nearest"):
            alive, rows = self.search.survivors(indices, thresholds, bounds)
        before = self.centers.count
        with self._stage("scan"):
            walk = self._walk if self.reference is None else self._walk_greedily
            accepted, walked = walk(rows, thresholds[alive], indices[alive], goal)
        tried = size if walked == len(alive) and self.centers.count < goal else int(alive[walked - 1]) + 1
        # A centre drawn again must be rejected though the hash index may miss it: its bound is known to be zero.
        self.envelope.distances[self.centers.indices[before : self.centers.count]] = 0
        self.proposals += tried
        self.curve.add(np.sqrt(before * self.centers.count), accepted, tried, self.envelope.total)
        self.rate = max(1.0, (tried + 4 * self.rate) / (accepted + 4))
        self.slow_batches = self.slow_batches + 1 if 64 * accepted < tried else 0
        self.fruitless = 0 if accepted else self.fruitless + tried

    def _walk(self, rows: NDArray, thresholds: NDArray, indices: NDArray, goal: int) -> tuple[int, int]:
        centers, count = self.centers, self.centers.count
        positions = np.empty(len(rows), dtype=np.int64)
        accepted, walked, computed = accept_centers(rows, thresholds, goal, centers.rows, count, positions)
        self.distances["scan"] += computed
        chosen = positions[:accepted]
        centers.append(rows[chosen], indices[chosen])
        return accepted, walked

    def _walk_greedily(self, rows: NDArray, thresholds: NDArray, indices: NDArray, goal: int) -> tuple[int, int]:
        centers, first = self.centers, self.centers.count
        positions = np.empty(self.draws, dtype=np.int64)
        accepted = position = 0
        while centers.count < goal:
            wanted = self.draws - self.n_found
            found, position, computed = accept_candidates(
                rows, thresholds, position, wanted, centers.rows, first, centers.count, positions
            )
            self.distances["scan"] += computed
            accepted += found
            span = slice(self.n_found, self.n_found + found)
            self.candidates[span] = rows[positions[:found]]
            self.candidate_indices[span] = indices[positions[:found]]
            self.n_found += found
            if self.n_found < self.draws:
                break
            best = self.reference.choose(self.candidates)
            centers.append(self.candidates[best : best + 1], self.candidate_indices[best : best + 1])
            self.n_found = 0
        return accepted, position

    def _next_size(self) -> int:
        """The number of centres at which the batches must pause."""
        sizes = self.settings.refresh
        if sizes == "auto":
            return min(self.k, FIRST_REFRESH) if self.centers.count < FIRST_REFRESH else self.k
        if sizes == "off":
            return self.k
        return min([size for size in sizes if size > self.centers.count], default=self.k)

    def _refresh_is_due(self) -> bool:
        m, refreshed = self.centers.count, self.envelope.n_centers
        if m == refreshed:
            return False
        # Whatever the setting: where duplicates are all that is left, only a refresh can tell.
        if self.fruitless > 4 * self.points.n + 4096:
            return True
        if self.settings.refresh != "auto":
            return self.settings.refresh != "off" and m in self.settings.refresh
        if self.slow_batches >= 4:
            return True
        if m < max(FIRST_REFRESH, REFRESH_GROWTH * refreshed):
            return False
        keep, renew = refresh_work(
            rate=self.rate,
            draws=self.draws,
            n=self.points.n,
            k=self.k,
            m=m,
            refreshed=refreshed,
            eps=self._expected_exponent(),
            query_work=self.search.work_per_query,
        )
        return renew < keep

    def _expected_exponent(self) -> float:
        """The exponent seen so far, weighed against the prior: from a few acceptances alone it may be anything."""
        eps, error = fit_exponent(self.curve.table())
        if np.isnan(eps):
            return PRIOR_EPS
        share = PRIOR_ERROR**2 / (PRIOR_ERROR**2 + error**2)
        return float(np.clip(share * eps + (1 - share) * PRIOR_EPS, 0.02, 2.0))

    def _refresh(self) -> None:
        with self._stage("refresh"):
            self.distances["refresh"] += self.points.n * (self.centers.count - self.envelope.n_centers)
            self.envelope.refresh(self.points, self.centers)
            self.search.restart(float(self.envelope.distances.max()))
        self.refresh_sizes.append(self.centers.count)
        self.rate, self.slow_batches, self.fruitless = 1.0, 0, 0

    def _affordable_rows(self) -> int:
        return max(32, ENTRIES_PER_BATCH // self.points.dim)

    def _stats(self) -> SeedingStats:
        self.distances["nearest"] = self.search.distances_computed
        self.distances["reference"] = 0 if self.reference is None else self.reference.distances_computed
        curve = self.curve.table()
        # An approximate search accepts rows it should not: its acceptances overestimate the potential.
        eps, se = fit_exponent(curve) if self.search.name == "exact" else (float("nan"), float("nan"))
        return SeedingStats(
            proposals=self.proposals,
            distances_computed=sum(self.distances.values()),
            distances=self.distances,
            refresh_sizes=tuple(self.refresh_sizes),
            acceptance_curve=curve,
            eps_hat=eps,
            eps_se=se,
            wall_seconds=dict(self.seconds),
            engine=self.search.name,
            greedy=self.reference is not None,
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = perf_counter()
        yield
        self.seconds[name] += perf_counter() - start
