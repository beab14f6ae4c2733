"""What a seeding tells about itself: its work, and the quantisation exponent read off its acceptances."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WINDOWS_PER_OCTAVE = 4
FIRST_SIZE = 16  # the power law of the cost is read off from this many centres on


class Exponent(NamedTuple):
    """Quantisation exponent: the cost of the best k centres falls like k^-eps."""

    eps: float
    se: float
    curve: NDArray


@dataclass(frozen=True)
class SeedingStats:
    """Work and diagnostics of one seeding.

    Attributes
    ----------
    proposals : int
        Rows drawn from the envelope.
    distances_computed : int
        Distances (inner products of length D) in all; `distances` splits them by stage: "pass", "refresh", "nearest",
        "scan", "reference".
    refresh_sizes : tuple of int
        Numbers of centres at which the envelope was refreshed.
    acceptance_curve : array (windows, 4)
        Columns m (geometric mean of the number of centres), accepted, tried, potential phi(S_m) estimated by
        accepted / tried * sum(q).
    eps_hat, eps_se : float
        Quantisation exponent from the acceptances with its standard error; nan below 32 centres
        and for the "ann" engine, which accepts rows it should not.
    intrinsic_dim_ : float
        2 / eps_hat.
    wall_seconds : dict
        Seconds by stage.
    engine : str
        "exact" or "ann".
    greedy : bool
    """

    proposals: int
    distances_computed: int
    distances: dict[str, int]
    refresh_sizes: tuple[int, ...]
    acceptance_curve: NDArray
    eps_hat: float
    eps_se: float
    wall_seconds: dict[str, float]
    engine: str
    greedy: bool

    @property
    def intrinsic_dim_(self) -> float:
        return 2 / self.eps_hat if self.eps_hat > 0 else float("nan")


@dataclass
class AcceptanceCurve:
    """Acceptances counted in windows of the number of centres, four to an octave; a refresh starts a new one."""

    windows: list[list[float]] = field(default_factory=list)
    _key: tuple = ()

    def add(self, m: float, accepted: int, tried: int, total: float) -> None:
        """Count `accepted` of `tried` proposals with m centres, drawn from an envelope of mass `total`."""
        key = (int(WINDOWS_PER_OCTAVE * np.log2(m)), total)
        if key != self._key:
            self.windows.append([0.0, 0, 0, total])
            self._key = key
        window = self.windows[-1]
        window[0] += tried * np.log(m)
        window[1] += accepted
        window[2] += tried

    def table(self) -> NDArray:
        """Columns m, accepted, tried, estimated potential; windows without an acceptance are left out."""
        rows = [
            (np.exp(log_m / tried), accepted, tried, accepted / tried * total)
            for log_m, accepted, tried, total in self.windows
            if accepted
        ]
        return np.array(rows).reshape(-1, 4)


def fit_exponent(curve: NDArray) -> tuple[float, float]:
    """Weighted regression of log phi(S_m) on log m over m >= 16: (eps, standard error).

    In a window, accepted / tried estimates phi(S_m) / sum(q) without bias; its logarithm has the binomial variance
    (1 - p) / accepted. Where the cost isn't an exact power of m the points scatter more than that: the excess,
    estimated by the method of moments, is added to every variance, so that the many acceptances at large m don't
    decide alone.
    """
    used = curve[(curve[:, 0] >= FIRST_SIZE) & (curve[:, 1] >= 2)]
    if len(used) < 3 or np.ptp(np.log(used[:, 0])) < np.log(1.5):
        return float("nan"), float("nan")
    x, y = np.log(used[:, 0]), np.log(used[:, 3])
    accepted, tried = used[:, 1], used[:, 2]
    design = np.stack([np.ones_like(x), x], axis=1)
    # The variances take p from a first fit: its own p would give a window that was lucky the more weight.
    coefficients, _ = _weighted_least_squares(design, y, accepted)
    p = np.exp(design @ coefficients) * (accepted / tried) / used[:, 3]
    variance = np.maximum(1 - p, 1 / tried) / accepted
    coefficients, covariance = _weighted_least_squares(design, y, 1 / variance)
    # E[sum w r^2] = (points - 2) + excess * (sum w - tr((X'WX)^-1 X'W^2 X)) for the weights w = 1 / variance.
    weight = 1 / variance
    misfit = np.sum(weight * (y - design @ coefficients) ** 2)
    sensitivity = weight.sum() - np.trace(covariance @ (design.T * weight**2) @ design)
    excess = max(0.0, (misfit - (len(used) - 2)) / sensitivity)
    coefficients, covariance = _weighted_least_squares(design, y, 1 / (variance + excess))
    return float(-coefficients[1]), float(np.sqrt(covariance[1, 1]))


def _weighted_least_squares(design: NDArray, y: NDArray, weight: NDArray) -> tuple[NDArray, NDArray]:
    """Coefficients and their covariance where y has the variances 1 / weight."""
    covariance = np.linalg.inv((design.T * weight) @ design)
    return covariance @ (design.T @ (weight * y)), covariance
