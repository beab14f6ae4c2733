"""Exact first and second moments of ``sign(gradient)`` for a linear model on Gaussian features.

With residual ``r = u^T delta + noise`` and features ``u ~ N(0, K)``, the pair ``(r, u_i)`` is Gaussian with correlation
``rho_i = (K delta)_i / sqrt(P K_ii)``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaln


def expected_sign(rho: ArrayLike, batch: int = 1) -> NDArray[np.float64]:
    """``E sign(mean_b r_b u_bi)``, exact for every batch size.

    ``r u`` is ``(1+rho)/2`` times a chi-square minus ``(1-rho)/2`` times another, so the sign of a sum of B of them is
    that of a Beta(B/2, B/2) variable minus ``(1-rho)/2``: ``2 I_{(1+rho)/2}(B/2, B/2) - 1``. For B = 1 this is
    ``(2/pi) arcsin(rho)``.

    Parameters
    ----------
    rho : correlations of residual and feature, any shape, in [-1, 1].
    batch : B, samples averaged before the sign.

    Examples
    --------
    >>> expected_sign(0.5).round(6) == np.round(2 / np.pi * np.arcsin(0.5), 6)
    np.True_
    """
    half = batch / 2
    return np.asarray(2 * betainc(half, half, (1 + np.asarray(rho, dtype=float)) / 2) - 1)


def drift_gain(batch: int = 1) -> float:
    """Slope of `expected_sign` at ``rho = 0``: ``2^(2-B) / Beta(B/2, B/2)``; ``2/pi`` at B = 1, ``sqrt(2B/pi)`` at
    large B.
    """
    return float(np.exp((2 - batch) * np.log(2) - betaln(batch / 2, batch / 2)))


def sign_covariance(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """``E sign(u) sign(u)^T = (2/pi) arcsin(corr(K))``, the covariance K_s of signSGD's noise; ones on the diagonal.

    It is exact for a batch of one at every point, and for a larger batch where the model has no signal left to learn.
    """
    scale = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(scale, scale)
    np.fill_diagonal(correlation, 1.0)
    return np.asarray(2 / np.pi * np.arcsin(np.clip(correlation, -1, 1)))
