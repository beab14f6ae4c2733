"""Rows of a torch tensor: the same reads as `Points`, on the tensor's device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from .points import CANCELLATION, Centers, Points, Threads, split


class TorchPoints(Points):
    """An (n, D) float tensor. Products and minima run on its device; the envelope and the scan on the CPU."""

    def __init__(self, X: torch.Tensor, threads: Threads) -> None:
        self.X, self.threads = X, threads
        self.n, self.dim = X.shape
        self.rows_per_pass = 65536
        self.dtype = np.dtype(str(X.dtype).removeprefix("torch."))
        spread = torch.linspace(0, self.n - 1, min(self.n, 1024), device=X.device).long()
        self.shift = X[spread].median(dim=0).values

    def _block(self, rows: NDArray | slice) -> torch.Tensor:
        if not isinstance(rows, slice):
            rows = torch.as_tensor(rows, device=self.X.device)
        return self.X[rows] - self.shift

    def _on_device(self, array: NDArray) -> torch.Tensor:
        return torch.as_tensor(array, device=self.X.device)

    def rows(self, indices: NDArray | slice) -> NDArray:
        return np.ascontiguousarray(self._block(indices).numpy(force=True))

    def factor(self, rows: NDArray | slice) -> tuple[torch.Tensor, NDArray]:
        block = self._block(rows)
        return block, block.square().sum(dim=1).numpy(force=True)

    def products(self, factor: torch.Tensor, centers: NDArray) -> NDArray:
        return (factor @ self._on_device(centers).T).numpy(force=True)

    def distances_to(self, center: NDArray) -> NDArray:
        target = self._on_device(center)
        parts = [(self._block(span) - target).square().sum(dim=1) for span in split(self.n, self.rows_per_pass)]
        return torch.cat(parts).numpy(force=True).copy()

    def _operands(self, centers: Centers, first: int, size: int) -> list:
        span = slice(first, centers.count)
        return [(first, self._on_device(centers.rows[span]), self._on_device(centers.norms[span]))]

    def _nearest(self, rows: NDArray | slice, centers: Centers, operands: list) -> tuple[NDArray, NDArray]:
        first, targets, target_norms = operands[0]
        block = self._block(rows)
        norms = block.square().sum(dim=1)
        low, nearest = torch.addmm(target_norms, block, targets.T, alpha=-2).min(dim=1)
        distances = (low + norms).clamp_(min=0)
        doubtful = torch.nonzero(distances < CANCELLATION[self.dtype] * norms).ravel()
        distances[doubtful] = (block[doubtful] - targets[nearest[doubtful]]).square().sum(dim=1)
        return distances.numpy(force=True), (nearest + first).numpy(force=True)
