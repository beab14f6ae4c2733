"""The table of critical points that a search found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from cameraready.coverage import NotCovered
from cameraready.methods.relu_landscape.certificate import Certificate
from cameraready.methods.relu_landscape.families import Family


@dataclass(frozen=True)
class CriticalPoint:
    """One class of critical points: a representative W (K, d), its Q (K, K) and R (K, M), and how often it was hit."""

    W: NDArray[np.float64]
    Q: NDArray[np.float64]
    R: NDArray[np.float64]
    count: int
    family: Family
    certificate: Certificate

    @property
    def loss(self) -> float:
        return self.certificate.loss

    @property
    def is_minimum(self) -> bool:
        """Proved, explained or at least numerically a minimum."""
        if self.certificate.status == "numerical":
            return self.certificate.lambda_min > -1e-7
        return self.certificate.status in ("certified minimum", "degenerate minimum")


@dataclass(frozen=True)
class MinimaTable:
    """Classes of critical points in order of loss; ``table[["loss", "count"]]`` reads columns as in a data frame."""

    points: tuple[CriticalPoint, ...]
    zero_reachable: bool  # K >= M, so that the least loss is known to be 0

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a class: loss, count, family, layout, lambda_min, status, distinct_q, distinct_r."""
        rows = [
            {
                "loss": point.loss,
                "count": point.count,
                "family": point.family.name,
                "layout": point.family.layout,
                "lambda_min": point.certificate.lambda_min,
                "status": point.certificate.status,
                "distinct_q": point.family.distinct_q,
                "distinct_r": point.family.distinct_r,
            }
            for point in self.points
        ]
        return pd.DataFrame(rows)

    def __getitem__(self, columns: str | list[str]) -> Any:
        return self.frame[columns]

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[CriticalPoint]:
        return iter(self.points)

    def __str__(self) -> str:
        return self.frame.to_string()

    @property
    def n_starts(self) -> int:
        return sum(point.count for point in self.points)

    def spurious_count(self) -> int:
        """How many starts ended in a minimum (or any other critical point) that is not global.

        Raises
        ------
        NotCovered : K < M, where the least loss is not known.
        """
        if not self.zero_reachable:
            raise NotCovered("with fewer students than teachers (K < M) the least loss is unknown; compare the losses")
        return sum(point.count for point in self.points if point.family.name != "global")

    def spurious_fraction(self) -> float:
        """Share of the starts that did not reach zero loss."""
        return self.spurious_count() / self.n_starts

    def spurious_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Wilson interval of the spurious fraction."""
        interval = stats.binomtest(self.spurious_count(), self.n_starts).proportion_ci(confidence, method="wilson")
        return float(interval.low), float(interval.high)
