"""Power-law random features: the model of the theory, reduced to d dimensions without ever holding the sketch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr, solve_triangular

from cameraready.methods.signsgd_scaling.regression import GaussianRegression, check_whole

DEFAULT_RATIO = 6
BLOCK_ROWS = 4096
RELATIVE_RANK = 1e-13


def check_decays(alpha: float, beta: float) -> None:
    """Refuse decays for which the risk of doing nothing is infinite.

    Raises
    ------
    ValueError : alpha <= 0, or 2 alpha + 2 beta <= 1.
    """
    if not 0 < alpha < np.inf:
        raise ValueError(f"alpha={alpha} must be positive: feature variances are j^(-2 alpha)")
    if not (2 * alpha + 2 * beta > 1 and beta < np.inf):
        raise ValueError(
            f"alpha={alpha}, beta={beta}: 2 alpha + 2 beta = {2 * alpha + 2 * beta:g} must exceed 1, or the target "
            "has infinite variance"
        )


class PLRF(GaussianRegression):
    """Power-law random features: ``x_j ~ N(0, j^(-2 alpha))``, target ``sum_j j^(-beta) x_j``, features ``W^T x``.

    Parameters
    ----------
    alpha : decay of the features; beta : decay of the target. 2 alpha + 2 beta > 1.
    d : number of features (model size).
    v : dimension of x, 6 d by default; with 2 alpha <= 1 only v/d matters and the risk depends on it.
    seed : draws the sketch W (v, d), entries N(0, 1/d).

    Attributes
    ----------
    K, theta_star, P_inf : covariance of the features, best coefficients, and the risk that they leave.

    Notes
    -----
    ``diag(j^-alpha) W`` and ``diag(j^-alpha) b`` pass through a QR factorisation block by block: memory is O(d^2) for
    any v, and P_inf is the square of the last diagonal entry, without cancellation.

    Examples
    --------
    >>> model = PLRF(alpha=0.7, beta=0.3, d=100)
    >>> curve = model.predict_risk("signsgd", lr=2e-3, steps=10_000)
    >>> bool(model.P_inf < curve["risk_mean"].iloc[-1] < model.initial_risk)
    True
    """

    def __init__(self, alpha: float, beta: float, d: int, v: int | None = None, seed: int = 0) -> None:
        check_decays(alpha, beta)
        check_whole(d=d)
        v = DEFAULT_RATIO * d if v is None else v
        check_whole(v=v)
        if v < d:
            raise ValueError(f"v={v} is smaller than d={d}; the features are a sketch of more dimensions: pass v >= d")
        self.alpha, self.beta, self.v, self.seed = alpha, beta, int(v), seed
        root, theta, irreducible = _reduce(alpha, beta, int(d), int(v), np.random.default_rng(seed))
        self._set(root, theta, irreducible)


def _reduce(
    alpha: float, beta: float, d: int, v: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """``root`` (d, d), ``theta*`` (d,) and P_inf of the sketched regression."""
    stacked = np.empty((0, d + 1))
    for first in range(0, v, BLOCK_ROWS):
        j = np.arange(first + 1, min(first + BLOCK_ROWS, v) + 1, dtype=float)
        sketch = rng.standard_normal((len(j), d)) / np.sqrt(d)
        block = np.column_stack([sketch * j[:, None] ** -alpha, j ** (-alpha - beta)])
        stacked = qr(np.vstack([stacked, block]), mode="r", overwrite_a=True)[0][: d + 1]
    root, image = stacked[:d, :d], stacked[:d, d]
    irreducible = float(stacked[d, d] ** 2) if len(stacked) > d else 0.0
    diagonal = np.abs(np.diag(root))
    if diagonal.min() > RELATIVE_RANK * diagonal.max():
        theta = solve_triangular(root, image)
    else:
        theta = np.linalg.lstsq(root, image, rcond=RELATIVE_RANK)[0]
    return root, theta, irreducible
