"""Dynamic mode decomposition of weights that were saved along a training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cameraready.methods.pdt.inner_products import products, slices
from cameraready.methods.pdt.reduced_dmd import ReducedDMD, reduce
from cameraready.methods.pdt.settings import check_rank

Snapshot = Sequence[Tensor]


@dataclass(frozen=True, eq=False)
class DMD:
    """The linear dynamics of a sequence of snapshots.

    Attributes
    ----------
    eigenvalues : complex array of length ``rank``, largest first
        Modulus below 1: a direction that dies out, above 1: one that grows.
    rank : of the fitted operator.
    """

    eigenvalues: NDArray[np.complex128]
    rank: int
    _reduced: ReducedDMD
    _snapshots: tuple[tuple[Tensor, ...], ...]
    _differential: bool

    def predict(self, steps: int) -> list[Tensor]:
        """The tensors ``steps`` snapshots after the last one, shaped and typed like it.

        Raises
        ------
        ValueError : ``steps`` below 1.
        """
        if steps < 1:
            raise ValueError(f"steps={steps} is below 1; 1 is the snapshot after the last one")
        moved = self._reduced.summed(steps) if self._differential else self._reduced.moved(steps)
        over_snapshots = np.zeros(len(self._snapshots))
        if self._differential:  # move k is snapshot k + 1 minus snapshot k
            over_snapshots[1:-1] += moved
            over_snapshots[:-2] -= moved
        else:
            over_snapshots[:-1] = moved
        return [self._extrapolate(tensors, over_snapshots) for tensors in zip(*self._snapshots, strict=True)]

    @torch.no_grad()
    def _extrapolate(self, tensors: tuple[Tensor, ...], coefficients: NDArray[np.float64]) -> Tensor:
        last = tensors[-1]
        rows = [tensor.reshape(-1) for tensor in tensors]
        result = torch.empty(last.numel(), dtype=last.dtype, device=last.device)
        precision = torch.promote_types(last.dtype, torch.float32)
        for part in slices(last.numel(), last.device):
            # The coefficients cancel where snapshots are alike, so what is summed are differences from the last one.
            base = rows[-1][part].to(precision)
            total = base * (1.0 + coefficients.sum())
            for row, coefficient in zip(rows[:-1], coefficients[:-1].tolist(), strict=True):
                total.add_(row[part] - base, alpha=coefficient)
            result[part].copy_(total)
        return result.reshape(last.shape)

    def __str__(self) -> str:
        moduli = ", ".join(f"{abs(value):.4g}" for value in self.eigenvalues)
        what = "moves" if self._differential else "snapshots"
        return f"DMD of {len(self._snapshots)} snapshots, fitted to {what}: rank {self.rank}, |eigenvalues| {moduli}"


def fit_dmd(snapshots: Sequence[Snapshot], *, rank: str | int | float = "ght", differential: bool = False) -> DMD:
    """Fit linear dynamics to a model's weights at equally spaced times.

    Parameters
    ----------
    snapshots : at least 3 of them, oldest first; each a sequence of tensors, like ``list(model.parameters())`` cloned.
        They are kept, not copied.
    rank : "ght" (optimal hard threshold of Gavish and Donoho), a whole number, or a share of the energy.
    differential : fit the moves from snapshot to snapshot instead of the snapshots. Weights have a large constant part,
        which then cancels.

    Raises
    ------
    ValueError : fewer than 3 snapshots (4 in differential mode), tensors that do not match, values that are not
        finite, snapshots that are all alike, a rank out of range.

    Notes
    -----
    With X and Y the snapshots without the last and without the first, X = U S V^T: A~ = U^T Y V S^-1, and the forecast
    is x + U (A~^steps - I) U^T x. Only the inner products of the snapshots are formed: time N h^2, and memory beside
    the snapshots does not grow with N.

    Examples
    --------
    >>> fit = fit_dmd([[torch.tensor([1.0, 0.5**t])] for t in range(5)], rank=2)
    >>> fit.eigenvalues.real.round(6)
    array([1. , 0.5])
    >>> fit.predict(1)
    [tensor([1.0000, 0.0312])]
    """
    kept = tuple(tuple(tensor.detach() for tensor in snapshot) for snapshot in snapshots)
    _check(kept, differential)
    check_rank(rank, largest=len(kept) - 1 - differential, reason=f"{len(kept)} snapshots allow")
    matrix = np.zeros((len(kept), len(kept)))
    for tensors in zip(*kept, strict=True):
        rows = [tensor.reshape(-1) for tensor in tensors]
        matrix += products(rows).double().cpu().numpy()
    if not np.isfinite(matrix).all():
        raise ValueError("the snapshots hold values that are not finite; fit to those before the run diverged")
    n_parameters = sum(tensor.numel() for tensor in kept[0])
    if differential:
        matrix = _products_of_moves(kept)
    reduced = reduce(matrix, n_parameters=n_parameters, rank=rank, rho_max=None)
    if reduced is None:
        raise ValueError("the snapshots are all 0, or all alike in differential mode; there are no dynamics to fit")
    order = np.argsort(-np.abs(reduced.eigenvalues), kind="stable")
    return DMD(reduced.eigenvalues[order], reduced.rank, reduced, kept, differential)


def _products_of_moves(snapshots: tuple[tuple[Tensor, ...], ...]) -> NDArray[np.float64]:
    """From the differences themselves: differences of products would keep few digits."""
    n = len(snapshots) - 1
    matrix = np.zeros((n, n))
    for tensors in zip(*snapshots, strict=True):
        rows = [tensor.reshape(-1) for tensor in tensors]
        for part in slices(rows[0].numel(), rows[0].device):
            pieces = [row[part].double() for row in rows]
            moves = [after - before for before, after in pairwise(pieces)]
            matrix += products(moves).cpu().numpy()
    return matrix


def _check(snapshots: tuple[tuple[Tensor, ...], ...], differential: bool) -> None:
    least = 3 + differential
    if len(snapshots) < least:
        raise ValueError(f"{len(snapshots)} snapshots are fewer than the {least} that a fit needs")
    shapes = [[tensor.shape for tensor in snapshot] for snapshot in snapshots]
    if not shapes[0]:
        raise ValueError("the snapshots hold no tensors; pass lists like [p.clone() for p in model.parameters()]")
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(f"snapshot {number} has tensors of shapes {shape}, the first one {shapes[0]}")
