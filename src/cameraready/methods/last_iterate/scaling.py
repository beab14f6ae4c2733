"""Units: the solver sees standardised columns and targets, the user gets coefficients in theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.preprocessing import StandardScaler


@dataclass(frozen=True)
class Scaling:
    """x' = (x - center)/spread column by column, y' = (y - y_center)/y_spread.

    The problem is the same: with y in units of ``y_spread`` the loss is in units of its square, lam therefore in units
    of ``y_spread``, and differences of intercepts do not feel a common shift. ``standardize`` decides in which
    coordinates coefficients are compared along edges; centring moves the intercept to the middle of the data.
    """

    center: NDArray[np.float64]
    spread: NDArray[np.float64]
    y_center: float
    y_spread: float

    def rows(self, X: Any, *, intercept: bool) -> sparse.csr_array:
        """CSR matrix of the scaled columns, followed by a column of ones for the intercept."""
        if sparse.issparse(X):
            scaled = sparse.csr_array(X, dtype=np.float64) @ sparse.diags_array(1 / self.spread)
        else:
            scaled = sparse.csr_array(_dense_rows((X - self.center) / self.spread))
        if not intercept:
            return sparse.csr_array(scaled)
        ones = sparse.csr_array(np.ones((X.shape[0], 1)))
        return sparse.csr_array(sparse.hstack([scaled, ones], format="csr"))

    def targets(self, y: NDArray) -> NDArray[np.float64]:
        return (y - self.y_center) / self.y_spread

    def to_user(self, W: NDArray, *, intercept: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Coefficients (K, d) and intercepts (K,) in the user's units."""
        d = len(self.spread)
        coef = self.y_spread * W[:, :d] / self.spread
        constant = self.y_spread * W[:, d] + self.y_center if intercept else np.zeros(len(W))
        return coef, constant - coef @ self.center

    def to_solver(self, coef: NDArray, intercepts: NDArray, *, intercept: bool) -> NDArray[np.float64]:
        """The inverse of `to_user`."""
        W = coef * self.spread / self.y_spread
        if not intercept:
            return W
        return np.column_stack([W, (intercepts + coef @ self.center - self.y_center) / self.y_spread])


def fit_scaling(X: Any, y: NDArray, *, standardize: bool, intercept: bool, scale_target: bool) -> Scaling:
    """Means and standard deviations of columns and target; sparse columns are scaled, not centred.

    A constant column keeps its values. Without an intercept nothing is centred, since it would change the model.

    Raises
    ------
    ValueError : numbers so large that their squares are not finite.
    """
    d = X.shape[1]
    center, spread, y_center, y_spread = np.zeros(d), np.ones(d), 0.0, 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        if standardize:
            centred = intercept and not sparse.issparse(X)
            scaler = StandardScaler(with_mean=centred).fit(X)
            center, spread = (scaler.mean_ if centred else center), scaler.scale_
        if scale_target:
            y_center = float(y.mean()) if intercept else 0.0
            y_spread = float(np.sqrt(np.mean((y - y_center) ** 2)))
    if not (np.isfinite(spread).all() and np.isfinite([y_center, y_spread]).all()):
        raise ValueError("X or y holds numbers whose squares overflow; give them in other units, below 1e150")
    constant = y_spread <= 1e-12 * np.abs(y).max(initial=0)
    return Scaling(center, spread, y_center, 1.0 if constant else y_spread)


def _dense_rows(X: NDArray) -> sparse.csr_array:
    """Every entry stored, zeros too: no search for them, and rows of equal length."""
    n, d = X.shape
    index = np.int32 if n * d < 2**31 else np.int64
    indices = np.tile(np.arange(d, dtype=index), n)
    return sparse.csr_array(
        (np.ascontiguousarray(X).ravel(), indices, np.arange(0, n * d + 1, d, dtype=index)), shape=(n, d)
    )
