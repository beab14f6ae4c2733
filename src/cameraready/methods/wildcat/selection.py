"""From keys and values of flattened heads to a weighted coreset: bins, pivots, Nystrom weights.

Everything here works on ``m`` heads at once (batch and heads flattened) and in float32 or float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cameraready.methods.wildcat.pivots import RESIDUAL_FLOOR, PivotedCholesky, pivoted_cholesky
from cameraready.methods.wildcat.temperature import constant_tau, masked_mean


@dataclass(frozen=True)
class KeySet:
    """Keys (m, n, E), and what a softmax may add to them: bias (m, n) on the logits, valid (m, n) against padding,
    and item weights (m, n) when the "keys" are themselves a coreset."""

    keys: Tensor
    bias: Tensor | None = None
    valid: Tensor | None = None
    weights: Tensor | None = None


@dataclass(frozen=True)
class Selection:
    """A coreset of ``b`` bins times ``r`` keys for each of ``m`` heads, with the residuals that bound its error.

    ``index``, ``used``: (m, b*r) places of the kept keys; ``values`` (m, b*r, d_v), ``weights`` (m, b*r, 1): ``W V``
    and ``W 1``.
    ``bin_mean`` (m, b, E), ``query_shift`` (m, b, E) or None, ``tau`` (m, b), ``log_sum_root_residual`` (m, b) is
    ``log sum_l sqrt(res_l)`` and ``log_max_root_residual`` (m, b) ``log max_l sqrt(res_l)``,
    ``res_l = d_l exp(2 a_l)``. ``residual`` (m,): ``sqrt(sum res / sum res at start)``.
    """

    index: Tensor
    used: Tensor
    values: Tensor
    weights: Tensor
    bin_mean: Tensor
    query_shift: Tensor | None
    tau: Tensor
    log_sum_root_residual: Tensor
    log_max_root_residual: Tensor
    residual: Tensor


def auto_bins(n: int, rank: int) -> int:
    """Bins of about 64 pivots and at least 512 keys: selection then costs ``64^2 n`` at every rank."""
    return max(1, min(rank // 64, n // 512))


def is_gaussian_bias(keys: Tensor, bias: Tensor, scale: float) -> bool:
    """Whether ``bias = -scale |k|^2 / 2 + const``: attention is then Gaussian kernel smoothing."""
    offset = torch.linalg.vector_norm(keys.detach(), dim=-1).square().mul_(scale / 2).add_(bias)
    spread = offset.amax(-1) - offset.amin(-1)  # infinite or NaN with such a bias, and then not small
    return bool((spread <= 1e-4 * bias.abs().amax().clamp_min(1)).all())


def select(
    source: KeySet,
    values: Tensor,
    *,
    rank: int,
    scale: float,
    bins: int = 1,
    query_norm: Tensor | None = None,
    query_shift: Tensor | None = None,
    tau: Tensor | float | None = None,
    tol: float | None = None,
    block: int = 16,
    generator: torch.Generator | None = None,
) -> Selection:
    """Choose and weigh at most ``rank`` keys of every head.

    ``query_shift`` (m, E) is subtracted from the queries when their share of the temperature split is judged:
    ``<q, k> = <q - u, k> + <u, k>`` moves ``u`` into the keys' biases exactly. ``query_norm`` (m,) is then the largest
    ``|q - u|``. ``tau`` None means ``sqrt(c Rk / Rq)``, or 1 where the biases make attention Gaussian smoothing.

    Steps: recentre each bin, split the temperature, pivot (RPC), and weigh: ``W_G = G_SS^-1 G_S``, then
    ``W_sl = W_G,sl exp(a_l - a_s)`` back from the Gaussian to the exponential kernel (with biases). Only ``W V`` and
    ``W 1`` are formed: with the factor ``F`` and ``L = F_S^T``, ``W [V, 1] = L^-T (F [V, 1])`` up to these scalings.

    Gradients flow to ``values``; and to the keys for fixed pivots and temperature, when they require one.
    """
    m, n, _ = source.keys.shape
    bins = max(1, min(bins, n, rank))
    length = math.ceil(n / bins)
    keys = _to_bins(source.keys, bins, length)
    valid = None
    if source.valid is not None or bins * length != n:
        given = source.valid if source.valid is not None else torch.ones(m, n, dtype=torch.bool, device=keys.device)
        valid = _to_bins(given, bins, length)
    bias = None if source.bias is None else _to_bins(source.bias, bins, length)
    values = _to_bins(values, bins, length)
    weights = None if source.weights is None else _to_bins(source.weights, bins, length)

    mean = masked_mean(keys, valid)
    points = keys - mean
    if source.bias is not None and tau is None and is_gaussian_bias(source.keys, source.bias, scale):
        # exp(b<q,k> - b|k|^2/2) is the Gaussian kernel of q and k. Moving both by the bin's mean keeps it one.
        tau, shift = 1.0, mean
    else:
        shift = None if query_shift is None else query_shift.repeat_interleave(bins, 0).unsqueeze(1)
    if shift is not None:
        moved = scale * (points * shift).sum(-1)
        bias = moved if bias is None else bias + moved
    norm = torch.linalg.vector_norm(points, dim=-1)
    with torch.no_grad():
        temperature = _temperature(norm, valid, query_norm, tau, bins)
    # The method's two quantities a key: x = sqrt(beta) (k - mean) / tau, and a = |x|^2 / 2 + c.
    factor = math.sqrt(scale) / temperature
    points = points * factor.view(-1, 1, 1) if points.requires_grad else points.mul_(factor.view(-1, 1, 1))
    half_square = (norm * factor.unsqueeze(-1)).square() / 2
    log_norm = half_square if bias is None else half_square + bias
    if valid is not None:
        log_norm = log_norm.masked_fill(~valid, -math.inf)
    with torch.no_grad():
        fit = pivoted_cholesky(
            points.detach(), log_norm.detach(), rank=max(1, rank // bins), half_square=half_square.detach(), tol=tol,
            block=block, generator=generator,
        )  # fmt: skip
    weigh = _differentiable_weighing if torch.is_grad_enabled() and points.requires_grad else _weigh
    weighted = weigh(points, log_norm, fit, values, weights)
    return _assemble(m, bins, length, fit, weighted, log_norm.detach(), mean.detach(), shift, temperature)


def _to_bins(x: Tensor, bins: int, length: int) -> Tensor:
    """(m, n, ...) -> (m * bins, length, ...); the tail of the last bin is padded with zeros (False)."""
    missing = bins * length - x.shape[1]
    if missing:
        x = torch.cat([x, x.new_zeros(x.shape[0], missing, *x.shape[2:])], 1)
    return x.reshape(x.shape[0] * bins, length, *x.shape[2:])


def _temperature(
    norm: Tensor, valid: Tensor | None, query_norm: Tensor | None, tau: Tensor | float | None, bins: int
) -> Tensor:
    """``tau`` of every bin, (m * bins,)."""
    if isinstance(tau, Tensor):
        return tau.repeat_interleave(bins)
    if tau is not None:
        return norm.new_full((norm.shape[0],), float(tau))
    key_norm = (norm if valid is None else norm.masked_fill(~valid, 0.0)).amax(-1)
    query_norm = key_norm if query_norm is None else query_norm.to(norm.dtype).repeat_interleave(bins)
    return constant_tau(key_norm, query_norm)


def _pivot_log_norm(log_norm: Tensor, fit: PivotedCholesky) -> Tensor:
    """``a_s`` of the pivots; +inf in unused slots, so that ``exp(a_l - a_s)`` is zero there."""
    return torch.gather(log_norm, 1, fit.pivots).masked_fill(~fit.used, math.inf)


def _weigh(
    points: Tensor, log_norm: Tensor, fit: PivotedCholesky, values: Tensor, weights: Tensor | None
) -> Tensor:
    """``[W V | W w]`` (m, r, d_v + 1) from the Cholesky factor, which is overwritten."""
    factor = fit.factor
    rank = factor.shape[1]
    largest_exponent = 80.0 if factor.dtype == torch.float32 else 700.0
    at_pivot = _pivot_log_norm(log_norm.detach(), fit)
    # RPC draws large residuals first, so f_sl exp(a_l - a_s) stays moderate even where exp(a_l) overflows. A few rows
    # at a time: the exponentials need no second array of the factor's size.
    buffer = torch.empty_like(factor[:, :16])
    for start in range(0, rank, 16):
        rows = slice(start, min(start + 16, rank))
        exponent = buffer[:, : rows.stop - start]
        torch.sub(log_norm.detach().unsqueeze(1), at_pivot[:, rows].unsqueeze(-1), out=exponent)
        factor[:, rows].mul_(exponent.clamp_(max=largest_exponent).exp_())
    core = torch.gather(factor, 2, fit.pivots.unsqueeze(1).expand(-1, rank, -1))
    # Unused slots get a unit diagonal; rounding must not let a used one vanish.
    diagonal = torch.diagonal(core, dim1=1, dim2=2)
    diagonal.copy_(torch.where(fit.used, diagonal.clamp_min(math.sqrt(RESIDUAL_FLOOR[factor.dtype])), 1.0))
    total = factor.sum(-1, keepdim=True) if weights is None else torch.bmm(factor, weights.unsqueeze(-1))
    projected = torch.cat([torch.bmm(factor, values), total], -1)
    return torch.linalg.solve_triangular(core.triu(), projected, upper=True)


def _differentiable_weighing(
    points: Tensor, log_norm: Tensor, fit: PivotedCholesky, values: Tensor, weights: Tensor | None
) -> Tensor:
    """The same product in closed form, so that autograd sees how ``W`` depends on the keys for these pivots."""
    chosen = torch.gather(points, 1, fit.pivots.unsqueeze(-1).expand(-1, -1, points.shape[-1]))
    cross = (-0.5 * torch.cdist(chosen, points, compute_mode="donot_use_mm_for_euclid_dist").square()).exp()
    inner = chosen @ chosen.transpose(1, 2)
    square = torch.diagonal(inner, dim1=1, dim2=2)
    core = (inner - square.unsqueeze(1) / 2 - square.unsqueeze(2) / 2).exp()
    both = fit.used.unsqueeze(1) & fit.used.unsqueeze(2)
    identity = torch.eye(core.shape[-1], dtype=core.dtype, device=core.device)
    core = torch.where(both, core, identity) + RESIDUAL_FLOOR[core.dtype] * identity
    coefficients = torch.cholesky_solve(cross, torch.linalg.cholesky(core))
    at_pivot = torch.gather(log_norm, 1, fit.pivots)
    shift = torch.where(
        fit.used.unsqueeze(-1) & (log_norm > -math.inf).unsqueeze(1),
        log_norm.unsqueeze(1) - at_pivot.unsqueeze(-1),
        -math.inf,
    )
    coefficients = coefficients * shift.exp()
    total = (
        coefficients.sum(-1, keepdim=True) if weights is None else torch.bmm(coefficients, weights.unsqueeze(-1))
    )
    return torch.cat([torch.bmm(coefficients, values), total], -1)


def _assemble(
    m: int,
    bins: int,
    length: int,
    fit: PivotedCholesky,
    weighted: Tensor,
    log_norm: Tensor,
    mean: Tensor,
    shift: Tensor | None,
    tau: Tensor,
) -> Selection:
    """Bins back to heads, and the residual summaries."""
    rank = fit.pivots.shape[1]
    offset = torch.arange(bins, device=tau.device).view(1, bins, 1) * length
    index = (fit.pivots.reshape(m, bins, rank) + offset).view(m, bins * rank)
    used = fit.used.reshape(m, bins * rank)
    if index.shape[1]:
        # An unused slot repeats a used key with weight 0: it then cannot change the row maximum of the logits.
        first = used.to(torch.int8).argmax(-1, keepdim=True)
        index = torch.where(used, index, index.gather(1, first))
    # The floor stands for the rounding error that a residual of exactly zero may hide.
    log_root = fit.residual.clamp_min(RESIDUAL_FLOOR[tau.dtype]).log() / 2 + log_norm
    start = torch.logsumexp(2 * log_norm.view(m, -1), -1)
    end = torch.logsumexp((fit.residual.log() + 2 * log_norm).nan_to_num(nan=-math.inf).view(m, -1), -1)
    return Selection(
        index=index,
        used=used,
        values=weighted[..., :-1].reshape(m, bins * rank, -1),
        weights=weighted[..., -1:].reshape(m, bins * rank, 1),
        bin_mean=mean.view(m, bins, -1),
        query_shift=None if shift is None else shift.detach().view(m, bins, -1),
        tau=tau.view(m, bins),
        log_sum_root_residual=torch.logsumexp(log_root, -1).view(m, bins),
        log_max_root_residual=log_root.amax(-1).view(m, bins),
        residual=torch.where(torch.isfinite(start), ((end - start) / 2).exp(), torch.zeros_like(start)),
    )
