"""Nystrom weights ``W = H_SS^-1 H_S`` of chosen keys, as the product ``W [V, 1]`` that attention needs.

In the Gaussian normalisation ``H_sl = e^(a_s) G_sl e^(a_l)``, where ``a`` includes biases; with ``W_G = G_SS^-1 G_S``
this makes ``W_sl = W_G,sl e^(a_l - a_s)``. Both functions return ``[W V | W w]`` (m, r, d_v + 1), ``w`` being 1 or the
keys' own weights.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cameraready.methods.wildcat.attend import Partial, ones_for, partial_attention
from cameraready.methods.wildcat.pivots import RESIDUAL_FLOOR, PivotedCholesky

KEYS_AT_ONCE = 2048


def weigh_by_factor(log_norm: Tensor, fit: PivotedCholesky, values: Tensor, weights: Tensor | None) -> Tensor:
    """From the Cholesky factor ``F``, which is overwritten: ``W [V, 1] = L^-T (F [V, 1])``, ``L = F_S^T``, up to the
    scalings. No kernel entry is formed again."""
    factor = fit.factor
    assert factor is not None
    rank = factor.shape[1]
    largest_exponent = 80.0 if factor.dtype == torch.float32 else 700.0
    log_norm = log_norm.detach()
    # +inf in unused slots makes exp(a_l - a_s) zero there.
    at_pivot = torch.gather(log_norm, 1, fit.pivots).masked_fill(~fit.used, math.inf)
    # RPC draws large residuals first, so f_sl exp(a_l - a_s) stays moderate even where exp(a_l) overflows. A few rows
    # at a time: the exponentials need no second array of the factor's size.
    buffer = torch.empty_like(factor[:, :16])
    for start in range(0, rank, 16):
        rows = slice(start, min(start + 16, rank))
        exponent = buffer[:, : rows.stop - start]
        torch.sub(log_norm.unsqueeze(1), at_pivot[:, rows].unsqueeze(-1), out=exponent)
        factor[:, rows].mul_(exponent.clamp_(max=largest_exponent).exp_())
    core = torch.gather(factor, 2, fit.pivots.unsqueeze(1).expand(-1, rank, -1))
    # Unused slots get a unit diagonal; rounding must not let a used one vanish.
    diagonal = torch.diagonal(core, dim1=1, dim2=2)
    diagonal.copy_(torch.where(fit.used, diagonal.clamp_min(math.sqrt(RESIDUAL_FLOOR[factor.dtype])), 1.0))
    total = factor.sum(-1, keepdim=True) if weights is None else torch.bmm(factor, weights.unsqueeze(-1))
    projected = torch.cat([torch.bmm(factor, values), total], -1)
    return torch.linalg.solve_triangular(core.triu(), projected, upper=True)


def weigh_by_kernel(
    points: Tensor, log_norm: Tensor, half_square: Tensor, fit: PivotedCholesky, values: Tensor, weights: Tensor | None
) -> Tensor:
    """From the kernel between pivots and keys, ``e^(-a_s) G_SS^-1 (G_S [e^a V, e^a w])``; differentiable.

    ``G_S [e^a V, e^a w]`` is unnormalised attention of the pivots over all keys: ``O(r n (E + d_v))``, without the
    ``r^2 n`` of a factor. The small system is solved in double precision, as pivots of different bins may nearly agree.
    """
    chosen = torch.gather(points, 1, fit.pivots.unsqueeze(-1).expand(-1, -1, points.shape[-1]))
    own_half, own_norm = torch.gather(half_square, 1, fit.pivots), torch.gather(log_norm, 1, fit.pivots)
    weights = ones_for(values) if weights is None else weights.unsqueeze(-1)
    # G_sl e^(a_l) = exp(<x_s, x_l> - |x_s|^2 / 2 + c_l), c the biases; by parts of the keys that fit the cache.
    biases = None if log_norm is half_square else log_norm - half_square
    sums: Partial | None = None
    for start in range(0, points.shape[1], KEYS_AT_ONCE):
        here = slice(start, start + KEYS_AT_ONCE)
        part = partial_attention(
            chosen, points[:, here], values[:, here], weights[:, here], scale=1.0,
            bias=None if biases is None else biases[:, here],
        )  # fmt: skip
        sums = part if sums is None else sums.merge(part)
    assert sums is not None
    unused = ~fit.used
    lead = (sums.row_max.squeeze(-1) - own_half).double().masked_fill(unused, -math.inf)
    top = lead.detach().amax(-1, keepdim=True)
    right = torch.cat([sums.numerator, sums.denominator], -1).double() * (lead - top).exp().unsqueeze(-1)
    wide = chosen.double()
    square = wide.square().sum(-1) / 2
    core = (wide @ wide.transpose(1, 2) - square.unsqueeze(1) - square.unsqueeze(2)).exp()
    rank = core.shape[-1]
    identity = torch.eye(rank, dtype=core.dtype, device=core.device)
    core = torch.where(unused.unsqueeze(1) | unused.unsqueeze(2), identity, core)
    # What single precision hides in the right-hand side, and what rounding can take from the factorisation.
    jitter = RESIDUAL_FLOOR[points.dtype] + rank**2 * torch.finfo(core.dtype).eps
    factor, failed = torch.linalg.cholesky_ex(core + jitter * identity)
    solved = torch.cholesky_solve(right, factor).masked_fill((failed != 0)[:, None, None], math.nan)
    growth = (top - own_norm).clamp(max=700.0).exp().masked_fill(unused, 0.0)
    return (solved * growth.unsqueeze(-1)).to(points.dtype)
