"""What is known about the error: a-posteriori from the residuals, a-priori from the Taylor tail of the kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cameraready.methods.wildcat.selection import Selection


def log_entry_bound(selection: Selection, query: Tensor, scale: float, *, total: bool = False) -> Tensor:
    """Log of the error bound on the unnormalised attention matrix ``A_il = exp(scale <q_i, k_l> + c_l)``.

    Cauchy-Schwarz in the feature space: for key ``l`` of a bin with mean ``m``,
    ``|A_il - A_hat_il| <= exp(scale <q_i, m> + scale tau^2 |q_i - u|^2 / 2) sqrt(res_l)``, ``u`` the query shift
    (0 without one).

    Parameters
    ----------
    query : Tensor (m, L, E)
    total : bool, default False
        Bound the sum over keys instead of the largest entry.

    Returns
    -------
    Tensor (m, L)
    """
    shifted = scale * query @ selection.bin_mean.transpose(1, 2)
    square = query.square().sum(-1, keepdim=True)
    if selection.query_shift is not None:
        shift = selection.query_shift
        square = square - 2 * query @ shift.transpose(1, 2) + shift.square().sum(-1).unsqueeze(1)
        square = square.clamp_min(0)
    exponent = shifted + scale / 2 * selection.tau.square().unsqueeze(1) * square
    root = selection.log_sum_root_residual if total else selection.log_max_root_residual
    exponent = exponent + root.unsqueeze(1)
    return torch.logsumexp(exponent, -1) if total else exponent.amax(-1)


def output_bound(
    selection: Selection, query: Tensor, denominator: Tensor, row_max: Tensor, value_range: Tensor, scale: float
) -> Tensor:
    """Bound on every output coordinate's error, (m, L), before or after clamping.

    With values centred to ``[-h, h]``, ``O - O_hat = ((num - num_hat) - O (den - den_hat)) / den_hat`` gives
    ``|O - O_hat| <= 2 h sum_l |A_il - A_hat_il| / den_hat``; it is never more than the values' range ``2 h``.

    Parameters
    ----------
    denominator, row_max : Tensor (m, L, 1)
        From :func:`~cameraready.methods.wildcat.attend.partial_attention`.
    value_range : Tensor (m,)
        Largest of ``vmax - vmin`` over the coordinates.
    """
    log_denominator = (denominator.log() + row_max).squeeze(-1)
    relative = (log_entry_bound(selection, query, scale, total=True) - log_denominator).exp()
    # A non-positive denominator proves nothing: its log is NaN, and the bound the range itself.
    relative = relative.nan_to_num(nan=1.0, posinf=1.0).clamp_max(1.0)
    return relative * value_range.unsqueeze(-1)


@dataclass(frozen=True)
class Guarantee:
    """An a-priori rank: ``rank`` features of Taylor degree ``degree`` leave at most ``remainder`` in every entry.

    ``useful`` says whether the rank is below the sequence length; if not, exact attention is the better choice.
    """

    rank: int
    degree: int
    remainder: float
    useful: bool


def guaranteed_rank(
    error: float, *, key_norm: float, query_norm: float, head_dim: int, n: int, scale: float | None = None
) -> Guarantee:
    """Rank at which the exponential kernel's spectral tail on a ball is surely below ``error``.

    Polynomials of degree ``s`` in ``E`` variables span ``binom(E + s, s)`` dimensions, and the Taylor remainder of
    ``exp(t)``, ``t <= x = scale Rq Rk``, is at most ``x^(s+1) / (s+1)! e^x``.

    Parameters
    ----------
    error : float
        Wanted bound on an entry of ``A``, > 0.
    key_norm, query_norm : float
        Radii ``Rk`` (after recentring) and ``Rq``.
    head_dim, n : int
        ``E`` and the number of keys.
    scale : float, optional
        ``beta``; default ``1 / sqrt(E)``.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    Examples
    --------
    >>> guaranteed_rank(1e-3, key_norm=1.0, query_norm=1.0, head_dim=4, n=65536, scale=1.0)
    Guarantee(rank=210, degree=6, remainder=0.00053934..., useful=True)
    """
    if not error > 0:
        raise ValueError(f"error={error} is not positive; pass the entry error to reach, such as 1e-3")
    if head_dim < 1 or n < 1:
        raise ValueError(f"head_dim={head_dim} and n={n} must both be at least 1")
    if key_norm < 0 or query_norm < 0:
        raise ValueError(f"key_norm={key_norm} and query_norm={query_norm} are radii; pass values >= 0")
    x = (1 / math.sqrt(head_dim) if scale is None else scale) * key_norm * query_norm
    degree, log_remainder = 0, -math.inf
    while x > 0:
        log_remainder = (degree + 1) * math.log(x) - math.lgamma(degree + 2) + x
        if log_remainder <= math.log(error):
            break
        degree += 1
    rank = math.comb(head_dim + degree, degree)
    return Guarantee(rank, degree, math.exp(log_remainder), rank < n)
