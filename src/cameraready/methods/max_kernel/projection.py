"""Functions of a symmetric matrix through its eigenvalues, with gradients that survive repeated eigenvalues."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_EQUAL = 1e-10


class SpectralMap(torch.autograd.Function):
    """``f(K) = V diag(f(lam)) V^T`` for symmetric ``K = V diag(lam) V^T``.

    The derivative is the Daleckii-Krein formula ``dK -> V (F o (V^T dK V)) V^T`` with the divided differences
    ``F_ij = (f(lam_i) - f(lam_j)) / (lam_i - lam_j)`` and ``f'`` where eigenvalues coincide. Backward through
    `torch.linalg.eigh` would divide by ``lam_i - lam_j`` alone and return NaN there.
    """

    @staticmethod
    def forward(ctx: Any, K: Tensor, eigenvalues: Tensor, V: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
        ctx.save_for_backward(eigenvalues, V, values, slopes)
        return (V * values.unsqueeze(-2)) @ V.transpose(-1, -2)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        eigenvalues, V, values, slopes = ctx.saved_tensors
        Vt = V.transpose(-1, -2)
        spread = eigenvalues.unsqueeze(-1) - eigenvalues.unsqueeze(-2)
        equal = spread.abs() <= _EQUAL
        quotient = (values.unsqueeze(-1) - values.unsqueeze(-2)) / torch.where(equal, 1.0, spread)
        F = torch.where(equal, slopes.unsqueeze(-1).expand_as(spread), quotient)
        grad = V @ (F * (Vt @ grad_outputs[0] @ V)) @ Vt
        return 0.5 * (grad + grad.transpose(-1, -2)), None, None, None, None


def psd_projection(K: Tensor) -> Tensor:
    """The positive semi-definite matrix nearest to K in Frobenius norm, ``V diag(max(lam, 0)) V^T``.

    Parameters
    ----------
    K : tensor of shape ``(..., n, n)``
        Its symmetric part is projected.

    Returns
    -------
    tensor of shape ``(..., n, n)``
        Differentiable in K, also where eigenvalues repeat.

    Examples
    --------
    >>> import torch
    >>> from cameraready.methods.max_kernel import psd_projection
    >>> (psd_projection(torch.diag(torch.tensor([1.0, -2.0]))) + 0.0).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    K = 0.5 * (K + K.transpose(-1, -2))
    with torch.no_grad():
        eigenvalues, V = torch.linalg.eigh(K)
    return SpectralMap.apply(K, eigenvalues, V, eigenvalues.clamp_min(0.0), (eigenvalues > 0).to(K))


def inverse_root(K: Tensor, eigenvalues: Tensor, V: Tensor, *, eig_tol: float) -> Tensor:
    """``(K_+)^{-1/2}`` on the eigenpairs with ``lam > eig_tol * lam_max``, zero on the others; shape ``(..., n, n)``.

    ``eigenvalues`` and ``V`` are those of K; the gradient flows to K.
    """
    kept = eigenvalues > eig_tol * eigenvalues[..., -1:]
    safe = torch.where(kept, eigenvalues, 1.0)
    values = torch.where(kept, safe.rsqrt(), 0.0)
    return SpectralMap.apply(K, eigenvalues, V, values, torch.where(kept, -0.5 * values / safe, 0.0))
