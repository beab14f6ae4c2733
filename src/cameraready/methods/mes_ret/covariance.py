"""Covariance matrices of many tasks of one dimension, full or diagonal, as one batch of tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

SMALLEST_EIGENVALUE = 1e-20


def product(a: Tensor, b: Tensor) -> Tensor:
    """Products of matrices, (k, l, m) times (k, m, n).

    On the CPU numpy multiplies one pair at a time: torch's batched product rounds a pair's entries differently with
    other pairs beside it, and a task's run would depend on which tasks run with it.
    """
    if a.device.type == "cpu":
        return torch.from_numpy(np.matmul(a.numpy(), b.numpy()))
    return a @ b


def eigh(C: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of symmetric matrices (k, n, n); on the CPU each as if it were alone, as above."""
    if C.device.type == "cpu":
        return tuple(torch.from_numpy(each) for each in np.linalg.eigh(C.numpy()))
    return torch.linalg.eigh(C)


class FullCovariance:
    """``C`` of shape (tasks, n, n) with its eigenvectors ``B`` and the square roots ``D`` of its eigenvalues."""

    diagonal = False

    def __init__(self, tasks: int, n: int, *, device: str, dtype: torch.dtype) -> None:
        self.C = torch.eye(n, device=device, dtype=dtype).repeat(tasks, 1, 1)
        self.B = self.C.clone()
        self.D = torch.ones(tasks, n, device=device, dtype=dtype)
        self.age = torch.zeros(tasks, device=device, dtype=dtype)  # generations since the last decomposition

    def color(self, rows: Tensor, z: Tensor) -> Tensor:
        """C^(1/2) z = B D z for standard normal ``z`` of shape (k, m, n)."""
        return product(z * self.D[rows, None, :], self.B[rows].mT)

    def whiten(self, rows: Tensor, y: Tensor) -> Tensor:
        """C^(-1/2) y = B D^(-1) Bᵀ y for ``y`` of shape (k, n)."""
        B = self.B[rows]
        return product(product(y[:, None, :], B) / self.D[rows, None, :], B.mT)[:, 0, :]

    def update(self, rows: Tensor, keep: Tensor, c_1: float, path: Tensor, c_mu: float, weighted: Tensor) -> None:
        """C = keep C + c_1 p pᵀ + c_mu Σ w y yᵀ; ``weighted`` are the sqrt(w_i) y_i, of shape (k, mu, n)."""
        C = self.C[rows].mul_(keep[:, None, None])
        C.add_(c_1 * path[:, :, None] * path[:, None, :]).add_(c_mu * product(weighted.mT, weighted))
        self.C[rows] = (C + C.mT) / 2
        self.age[rows] += 1
        # Decomposed once in 1/((c_1 + c_mu) n 10) generations: more often changes nothing that is seen.
        due = rows[self.age[rows] * (c_1 + c_mu) * path.shape[1] * 10 >= 1]
        if len(due):
            self._decompose(due)

    def _decompose(self, rows: Tensor) -> None:
        C = self.C[rows]
        sound = torch.isfinite(C).all(-1).all(-1)
        if not sound.all():  # such a task is stopped by its caller
            rows, C = rows[sound], C[sound]
        eigenvalues, self.B[rows] = eigh(C)
        self.D[rows] = eigenvalues.clamp_min(SMALLEST_EIGENVALUE).sqrt()
        self.age[rows] = 0

    def variances(self, rows: Tensor) -> Tensor:
        """diag C, of shape (k, n)."""
        return torch.diagonal(self.C[rows], dim1=-2, dim2=-1)

    def reset(self, rows: Tensor) -> None:
        eye = torch.eye(self.D.shape[1], device=self.D.device, dtype=self.D.dtype)
        self.C[rows], self.B[rows], self.D[rows], self.age[rows] = eye, eye, 1.0, 0.0


class DiagonalCovariance:
    """The diagonals ``C`` of shape (tasks, n): sep-CMA-ES."""

    diagonal = True

    def __init__(self, tasks: int, n: int, *, device: str, dtype: torch.dtype) -> None:
        self.C = torch.ones(tasks, n, device=device, dtype=dtype)

    def color(self, rows: Tensor, z: Tensor) -> Tensor:
        return z * self.C[rows, None, :].sqrt()

    def whiten(self, rows: Tensor, y: Tensor) -> Tensor:
        return y / self.C[rows].sqrt()

    def update(self, rows: Tensor, keep: Tensor, c_1: float, path: Tensor, c_mu: float, weighted: Tensor) -> None:
        C = keep[:, None] * self.C[rows] + c_1 * path**2 + c_mu * (weighted**2).sum(1)
        self.C[rows] = C.clamp_min(SMALLEST_EIGENVALUE)

    def variances(self, rows: Tensor) -> Tensor:
        return self.C[rows]

    def reset(self, rows: Tensor) -> None:
        self.C[rows] = 1.0
