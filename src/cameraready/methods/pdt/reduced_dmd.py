"""Dynamic mode decomposition from the inner products of the snapshots alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
NEGLIGIBLE = 1e-6  # singular values below this share of the largest one are rounding


@dataclass(frozen=True)
class ReducedDMD:
    """A fitted linear map, in the coordinates U = X V S^-1 of the first snapshots X.

    Attributes
    ----------
    operator : array of shape (rank, rank)
        A~ = U^T Y V S^-1; in coordinates, one snapshot is ``operator @`` the one before.
    eigenvalues : complex array of length ``rank``
        Those of A~ as fitted, before ``rho_max`` has scaled it.
    basis : array of shape (n_snapshots - 1, rank)
        V S^-1.
    state : array of length ``rank``
        U^T times the last snapshot.
    """

    operator: Array
    eigenvalues: NDArray[np.complex128]
    basis: Array
    state: Array

    @property
    def rank(self) -> int:
        return len(self.state)

    @property
    def rho(self) -> float:
        """Spectral radius: above 1 the fitted dynamics grow."""
        return float(np.abs(self.eigenvalues).max())

    def moved(self, steps: int) -> Array:
        """Coefficients over X of U (A~^steps - I) U^T x: how far the last snapshot x moves in ``steps`` steps."""
        return np.asarray(self.basis @ (np.linalg.matrix_power(self.operator, steps) @ self.state - self.state))

    def summed(self, steps: int) -> Array:
        """Coefficients over X of U (A~ + ... + A~^steps) U^T x: the sum of the next ``steps`` snapshots."""
        total, state = np.zeros_like(self.state), self.state
        for _ in range(steps):
            state = self.operator @ state
            total += state
        return np.asarray(self.basis @ total)


def reduce(products: Array, *, n_parameters: int, rank: str | int | float, rho_max: float | None) -> ReducedDMD | None:
    """Fit DMD to snapshots z_1 ... z_m that are known by ``products[i, j] = z_i . z_j``.

    With X = [z_1 ... z_{m-1}] and Y = [z_2 ... z_m], the eigenvectors of X^T X are V and its eigenvalues S^2, and
    everything else follows from X^T Y. The N x m matrix and its singular vectors are never formed.

    Parameters
    ----------
    products : array of shape (m, m)
    n_parameters : N, of which the optimal threshold depends a little.
    rank : as for `choose_rank`.
    rho_max : scale A~ so that its spectral radius is at most this; None leaves it as it is.

    Returns
    -------
    None where nothing moves (all products are 0) or a product is not finite.
    """
    if not np.isfinite(products).all():
        return None
    squares, vectors = np.linalg.eigh(products[:-1, :-1])
    singular_values = np.sqrt(np.maximum(squares[::-1], 0.0))
    if singular_values[0] == 0.0:
        return None
    kept = choose_rank(singular_values, rank, n_parameters=n_parameters)
    basis = vectors[:, ::-1][:, :kept] / singular_values[:kept]
    onto = basis.T @ products[:-1, 1:]  # U^T Y
    operator = onto @ basis
    eigenvalues = np.linalg.eigvals(operator).astype(np.complex128)
    rho = np.abs(eigenvalues).max()
    if rho_max is not None and rho > rho_max:
        operator = operator * (rho_max / rho)
    return ReducedDMD(operator=operator, eigenvalues=eigenvalues, basis=basis, state=onto[:, -1])


def choose_rank(singular_values: Array, rank: str | int | float, *, n_parameters: int) -> int:
    """How many singular values (in falling order) to keep: at least one, and none that is rounding.

    "ght" is the optimal hard threshold of Gavish and Donoho for unknown noise, omega(beta) times the median, where
    the median of an even number is the lower one, as in torch. A whole number is the rank itself; a number below 1 is
    the share of the squared singular values to keep.
    """
    meaningful = int((singular_values > NEGLIGIBLE * singular_values[0]).sum())
    n = len(singular_values)
    if rank == "ght":
        beta = min(n / n_parameters, 1.0)
        omega = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
        wanted = int((singular_values > omega * singular_values[n // 2]).sum())
    elif isinstance(rank, int):
        wanted = rank
    else:
        energy = np.cumsum(singular_values**2) / np.sum(singular_values**2)
        wanted = int(np.searchsorted(energy, float(rank))) + 1
    return max(1, min(wanted, meaningful))
