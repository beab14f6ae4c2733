"""The few coordinates that the search runs in, and the way to and from the weights that the user sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cameraready.methods.relu_landscape.order_parameters import Stats, loss_from_statistics
from cameraready.methods.relu_landscape.search import Problem

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Coordinates:
    """Weights = scale * (coordinates in the span @ basis), plus what is orthogonal to all teachers.

    ``basis`` (rank, d) is an orthonormal basis of the teachers' span, ``scale`` the teachers' root mean square norm.
    Critical points lie in the span, and the loss is homogeneous of degree two, so tolerances are set once, at scale 1.
    ``problem`` is the loss in these coordinates with the orthogonal axes appended.
    """

    basis: Floats
    scale: float
    problem: Problem

    @classmethod
    def of(cls, V: Floats, n_orthogonal: int | None, K: int) -> Coordinates:
        """Coordinates for the teacher ``V``; n_orthogonal=None leaves out those that d has no room for."""
        svd = np.linalg.svd(V, full_matrices=False)
        rank = int((1e-10 * svd.S[0] < svd.S).sum())
        # The identity is its own basis: no rounding in the weights of orthonormal teachers, nor in what is proved.
        basis = np.eye(len(V)) if np.array_equal(V, np.eye(len(V))) else svd.Vh[:rank]
        scale = float(np.sqrt((V**2).sum() / len(V)))
        unit = V @ basis.T / scale
        energy = 2 * float(loss_from_statistics(np.zeros((1, 1)), np.zeros((1, len(V))), unit @ unit.T))
        extra = min(K, V.shape[1] - rank) if n_orthogonal is None else n_orthogonal
        return cls(basis, scale, Problem(np.pad(unit, ((0, 0), (0, extra))), rank, energy))

    def inside(self, W: Floats) -> Floats:
        """Coordinates in the span (K, rank) of weights (K, d), which may be padded with zeros on the right."""
        return W[:, : self.basis.shape[1]] @ self.basis.T / self.scale

    def outside(self, W: Floats) -> Floats:
        """What of the weights is orthogonal to the teachers, (K, d), in units of ``scale``."""
        return W / self.scale - self._padded(self.inside(W), W.shape[1])

    def searched(self, W: Floats) -> Floats:
        """Coordinates (K, rank + n_orthogonal) of weights (K, d).

        What lies outside the span matters through its Gram matrix alone, which the orthogonal axes can hold.
        """
        rest = self.outside(W)
        values, vectors = np.linalg.eigh(rest @ rest.T)
        axes = (vectors * np.sqrt(np.clip(values, 0, None)))[:, ::-1]
        room = self.problem.V.shape[1] - self.problem.rank
        return np.hstack([self.inside(W), np.pad(axes, ((0, 0), (0, max(0, room - len(W)))))[:, :room]])

    def weights(self, inner: Floats, d: int | None = None) -> Floats:
        """Weights (K, d) of coordinates in the span (K, rank)."""
        return self.scale * self._padded(inner, d or self.basis.shape[1])

    def stats(self, inner: Floats) -> Stats:
        """Order parameters of searched or span coordinates, in the user's units."""
        V = self.problem.V[:, : inner.shape[1]] * self.scale
        W = inner * self.scale
        return Stats(W @ W.T, W @ V.T, V @ V.T)

    def _padded(self, inner: Floats, d: int) -> Floats:
        return np.pad(inner @ self.basis, ((0, 0), (0, d - self.basis.shape[1])))
