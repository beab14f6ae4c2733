"""How the labels of tasks go together in the training table: conditional rates and phi coefficients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_PAIRS = 20  # molecules with both labels, below which two tasks say nothing about each other


@dataclass(frozen=True)
class LabelStatistics:
    """Pairwise statistics of n_tasks label columns.

    Attributes
    ----------
    rates : (n_tasks, n_tasks, 2)
        ``rates[t, p, a]`` = P(y_p = 1 | y_t = a); NaN where fewer than 20 molecules have both labels.
    marginal : (n_tasks,)
        P(y_p = 1), smoothed.
    phi : (n_tasks, n_tasks)
        Correlation of labels, 0 on the diagonal and below 20 common molecules; each row divided by its sum of
        absolute values.
    """

    rates: NDArray[np.float64]
    marginal: NDArray[np.float64]
    phi: NDArray[np.float64]

    @classmethod
    def of(cls, labels: NDArray[np.int8]) -> LabelStatistics:
        """From labels (n, n_tasks) of 1, 0 and -1 (unknown)."""
        ones, zeros = (labels == 1).astype(np.float64), (labels == 0).astype(np.float64)
        # pairs[a][b][t, p]: molecules with y_t = a and y_p = b
        pairs = np.array([[zeros.T @ zeros, zeros.T @ ones], [ones.T @ zeros, ones.T @ ones]])
        total = pairs.sum(axis=(0, 1))
        enough = total >= MIN_PAIRS
        marginal = (ones.sum(axis=0) + 0.5) / (ones.sum(axis=0) + zeros.sum(axis=0) + 1)
        given = pairs.sum(axis=1)  # [a, t, p]
        rates = (pairs[:, 1] + marginal) / (given + 1)  # one pseudo-molecule at the task's own rate
        rates = np.where(enough & (given.min(axis=0) > 0), rates, np.nan)
        spread = np.sqrt(np.prod([pairs.sum(axis=1)[0], pairs.sum(axis=1)[1], *pairs.sum(axis=0)], axis=0))
        covariance = pairs[1, 1] * pairs[0, 0] - pairs[1, 0] * pairs[0, 1]
        phi = np.where(enough & (spread > 0), covariance / np.maximum(spread, 1e-12), 0.0)
        np.fill_diagonal(phi, 0.0)
        weight = np.abs(phi).sum(axis=1, keepdims=True)
        return cls(rates.transpose(1, 2, 0), marginal, phi / np.where(weight > 0, weight, 1.0))

    def prior(self, target: int | None = None) -> NDArray[np.float64]:
        """theta[p, a] (n_tasks, 2): the mean rate of y_p = 1 given y_t' = a, over all tasks t' but p and `target`."""
        rates = self.rates.copy()
        tasks = np.arange(len(rates))
        rates[tasks, tasks] = np.nan
        if target is not None:
            rates[target] = np.nan
        known = ~np.isnan(rates)
        n = known.sum(axis=0)
        mean = np.where(known, rates, 0.0).sum(axis=0) / np.maximum(n, 1)
        return np.where(n > 0, mean, self.marginal[:, None])
