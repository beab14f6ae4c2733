"""Continuous groups: all rotations about the centre, and rigid rotations of a cloud of labelled points."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from cameraready.methods.max_kernel.closed_forms import pairwise_sq_distance
from cameraready.methods.max_kernel.groups import Centre, Generator, Group
from cameraready.methods.max_kernel.listed import _about

_N_RANDOM = 4


class Rotations(Group):
    """All orthogonal maps of R^d about the centre: ``d(x, x') = | ||z|| - ||z'|| |``.

    The objective depends on the distance to the centre alone.
    """

    canonical_is_isometric = True

    def __init__(self, dim: int, *, center: Centre | None = None) -> None:
        super().__init__(dim, math.inf, center=center)

    def generators(self) -> Iterator[Generator]:
        for number, matrix in enumerate(random_rotations(self.dim, _N_RANDOM, reflections=True)):
            yield Generator(f"random rotation {number}", _about(self.center, matrix))

    def _canonical(self, Z: Tensor) -> Tensor:
        radius = torch.linalg.vector_norm(Z, dim=-1, keepdim=True)
        return torch.nn.functional.pad(radius, (0, self.dim - 1))

    def _sq_distance(self, Z1: Tensor, Z2: Tensor, chunk_bytes: int) -> Tensor:
        return pairwise_sq_distance(*(torch.linalg.vector_norm(Z, dim=-1, keepdim=True) for Z in (Z1, Z2)))


class PointCloudRotations(Group):
    """Rigid rotations of ``n_points`` labelled points in R^p about the centre (Kabsch's best superposition).

    A design lists point after point. Multiply by ``BlockPermutations(n_points, p)`` for identical points.

    Parameters
    ----------
    n_points, point_dim : int
    reflections : bool
        Also allow improper rotations (mirror images). Default False.
    """

    def __init__(
        self, n_points: int, point_dim: int, *, reflections: bool = False, center: Centre | None = None
    ) -> None:
        super().__init__(n_points * point_dim, math.inf, center=center)
        self.n_points, self.point_dim, self.reflections = n_points, point_dim, reflections

    def generators(self) -> Iterator[Generator]:
        matrices = random_rotations(self.point_dim, _N_RANDOM, reflections=self.reflections)
        for number, matrix in enumerate(matrices):
            yield Generator(
                f"random rotation {number} of the cloud",
                _about(self.center, torch.block_diag(*[matrix] * self.n_points)),
            )

    def _sq_distance(self, Z1: Tensor, Z2: Tensor, chunk_bytes: int) -> Tensor:
        A = Z1.unflatten(-1, (self.n_points, self.point_dim))
        B = Z2.unflatten(-1, (self.n_points, self.point_dim))
        with torch.no_grad():  # the best rotation is held fixed (envelope theorem)
            U, _, Vh = torch.linalg.svd(torch.einsum("...ima,...jmb->...ijab", A, B))
            if not self.reflections:
                U = torch.cat([U[..., :-1], U[..., -1:] * torch.det(U @ Vh).sign()[..., None, None]], dim=-1)
            rotation = U @ Vh
        turned = torch.einsum("...ijab,...jmb->...ijma", rotation, B)
        return (A.unsqueeze(-3) - turned).square().sum((-1, -2))


def random_rotations(dim: int, number: int, *, reflections: bool) -> Tensor:
    """Haar-distributed orthogonal matrices from a fixed seed, ``(number, d, d)``.

    Their determinants are 1; with ``reflections``, every second one is -1.
    """
    pick = torch.Generator().manual_seed(0)
    Q, R = torch.linalg.qr(torch.randn(number, dim, dim, dtype=torch.float64, generator=pick))
    Q = Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    wanted = torch.ones(number, dtype=Q.dtype)
    if reflections:
        wanted[::2] = -1.0
    Q[..., 0] *= (torch.det(Q) * wanted).sign().unsqueeze(-1)
    return Q
