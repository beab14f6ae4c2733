"""The risk at which a constant learning rate stops making progress, in closed form, and the rate for a wanted risk."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq


def sign_floor(rate: float, total: float, irreducible: float, gain: float) -> float:
    """signSGD's floor: ``2 kappa (P - P_inf) / sqrt(P) = eta S``, S = sum_i sqrt(K_ii).

    The trace of the stationary second moment with ``diag(K)^(1/2)``: correlations drop out because every ``(K_s)_ii``
    is one. For a batch of one, ``kappa = 2/pi``: ``sqrt(P)`` solves ``s^2 - (pi/4) eta S s - P_inf = 0``.

    Parameters
    ----------
    rate : eta. total : S. irreducible : P_inf. gain : kappa, see `drift_gain`.
    """
    half = rate * total / (4 * gain)
    with np.errstate(over="ignore"):
        return float((half + np.hypot(half, np.sqrt(irreducible))) ** 2)


def sign_rate(risk: float, total: float, irreducible: float, gain: float) -> float:
    """The learning rate whose `sign_floor` is ``risk``."""
    return float(2 * gain * (risk - irreducible) / (total * np.sqrt(risk)))


def sgd_amplification(rate: float, eigenvalues: NDArray[np.float64], batch: int) -> float:
    """``sum_i (g l_i / B) / (2 - (1 + 1/B) g l_i)``: the share of the risk that is SGD's own noise; inf if unstable."""
    damping = 2 - (1 + 1 / batch) * rate * eigenvalues
    if np.any(damping <= 0):
        return np.inf
    return float(np.sum(rate * eigenvalues / batch / damping))


def sgd_stability_limit(eigenvalues: NDArray[np.float64], batch: int) -> float:
    """The largest learning rate at which SGD's risk stays bounded, exact for Gaussian features.

    The root of `sgd_amplification` = 1. (``2 / (lam_max + tr K)``, often quoted for B = 1, is too large when a single
    eigenvalue dominates: with one feature the limit is ``2 / (3 K)``.)
    """
    highest = 2 / ((1 + 1 / batch) * eigenvalues.max())
    return float(
        brentq(lambda share: min(sgd_amplification(share * highest, eigenvalues, batch), 1e9) - 1, 0, 1) * highest
    )


def sgd_floor(rate: float, eigenvalues: NDArray[np.float64], irreducible: float, batch: int) -> float:
    """SGD's floor, ``P_inf / (1 - amplification)``; inf at and above the stability limit."""
    amplification = sgd_amplification(rate, eigenvalues, batch)
    return irreducible / (1 - amplification) if amplification < 1 else np.inf


def sgd_rate(risk: float, eigenvalues: NDArray[np.float64], irreducible: float, batch: int) -> float:
    """The learning rate whose `sgd_floor` is ``risk``."""
    wanted = 1 - irreducible / risk
    limit = sgd_stability_limit(eigenvalues, batch)
    return float(brentq(lambda rate: min(sgd_amplification(rate, eigenvalues, batch), 1e9) - wanted, 0, limit))
