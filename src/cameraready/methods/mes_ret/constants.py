"""The strategy constants of CMA-ES for one dimension and one population size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class Constants:
    """Weights and learning rates; the names are those of Hansen's tutorial."""

    weights: np.ndarray  # (mu,), positive, descending, sum 1
    mu_eff: float
    c_sigma: float
    d_sigma: float
    c_c: float
    c_1: float
    c_mu: float
    chi: float  # E ||N(0, I)||

    @property
    def mu(self) -> int:
        return len(self.weights)


@lru_cache(maxsize=4096)
def strategy_constants(n: int, popsize: int, *, diagonal: bool = False) -> Constants:
    """Constants for ``n`` variables and ``popsize`` samples, positive weights only.

    w_i ∝ ln((popsize + 1)/2) - ln i for i up to popsize/2. ``diagonal`` multiplies c_1 and c_mu by (n + 2)/3, since a
    diagonal covariance has n numbers to learn instead of n(n + 1)/2 (Ros and Hansen, 2008).

    Examples
    --------
    >>> round(strategy_constants(10, 20).mu_eff, 6)
    5.938804
    """
    mu = popsize // 2
    weights = math.log((popsize + 1) / 2) - np.log(np.arange(1, mu + 1))
    weights /= weights.sum()
    mu_eff = 1 / float(np.sum(weights**2))
    c_sigma = (mu_eff + 2) / (n + mu_eff + 5)
    faster = (n + 2) / 3 if diagonal else 1.0
    c_1 = min(1.0, faster * 2 / ((n + 1.3) ** 2 + mu_eff))
    return Constants(
        weights=weights,
        mu_eff=mu_eff,
        c_sigma=c_sigma,
        d_sigma=1 + c_sigma + 2 * max(0.0, math.sqrt((mu_eff - 1) / (n + 1)) - 1),
        c_c=(4 + mu_eff / n) / (4 + n + 2 * mu_eff / n),
        c_1=c_1,
        c_mu=min(1 - c_1, faster * 2 * (mu_eff - 2 + 1 / mu_eff) / ((n + 2) ** 2 + mu_eff)),
        chi=math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2)),
    )
