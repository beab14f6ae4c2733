"""Recentring of keys and the temperature split between queries and keys.

``exp(beta <q, k>) = <phi(tau q), phi(k / tau)>`` for every ``tau``: a large one makes keys easy to compress and queries
heavy, a small one the reverse.
"""

from __future__ import annotations

import torch
from torch import Tensor

# tau^2 = TAU_CONSTANT * max|k| / max|q|: the constant of the authors' released code.
TAU_CONSTANT = 3.94582


def masked_mean(keys: Tensor, valid: Tensor | None) -> Tensor:
    """Mean key of each head, (..., 1, E), over the keys that are not padding."""
    if valid is None:
        return keys.mean(-2, keepdim=True)
    weight = valid.unsqueeze(-1).to(keys.dtype)
    return (keys * weight).sum(-2, keepdim=True) / weight.sum(-2, keepdim=True).clamp_min(1)


def largest_norm(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """``max_l |x_l|`` over the second-last axis of (..., n, E); shape (...)."""
    norm = torch.linalg.vector_norm(x, dim=-1)
    if valid is not None:
        norm = norm.masked_fill(~valid, 0.0)
    return norm.amax(-1) if norm.shape[-1] else norm.new_zeros(norm.shape[:-1])


def constant_tau(key_norm: Tensor, query_norm: Tensor, c: Tensor | float = TAU_CONSTANT) -> Tensor:
    """``tau = sqrt(c Rk / Rq)``; 1 where either radius is zero, infinite or NaN."""
    tau = (c * key_norm / query_norm).sqrt()
    return torch.where(torch.isfinite(tau) & (tau > 0), tau, torch.ones_like(tau))


def query_statistics(queries: Tensor, recentre: bool) -> tuple[Tensor | None, Tensor]:
    """Mean query (m, E), or None, and the largest norm of the queries minus it, (m,). No gradient."""
    queries = queries.detach()
    if not recentre:
        return None, largest_norm(queries)
    mean = queries.mean(1)
    # |q - u|^2 from its terms: a copy of all queries minus their mean would cost more than the norms.
    square = torch.linalg.vector_norm(queries, dim=-1).square()
    square = square - 2 * (queries @ mean.unsqueeze(-1)).squeeze(-1) + mean.square().sum(-1, keepdim=True)
    return mean, square.amax(-1).clamp_min(0).sqrt()
