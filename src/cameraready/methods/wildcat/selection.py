"""From keys and values of flattened heads to a weighted coreset: bins, temperature, pivots, weights.

Everything here works on ``m`` heads at once (batch and heads flattened) and in float32 or float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from cameraready.methods.wildcat.pivots import RESIDUAL_FLOOR, PivotedCholesky, pivoted_cholesky
from cameraready.methods.wildcat.temperature import constant_tau, masked_mean
from cameraready.methods.wildcat.weighing import weigh_by_factor, weigh_by_kernel

Weighing = Literal["joint", "bins"]


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
    """A coreset of ``R`` keys for each of ``m`` heads, with the residuals that bound its error.

    ``index``, ``used``: (m, R) places of the kept keys; ``values`` (m, R, d_v), ``weights`` (m, R, 1): ``W V`` and
    ``W 1``. The rest is told for each of ``b`` parts that were weighed separately (1 if weighed jointly):
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
    """Bins of about 32 pivots and at least 512 keys: choosing then costs ``32^2 n`` at every rank."""
    return max(1, min(rank // 32, n // 512))


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
    weighing: Weighing = "joint",
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

    Steps: recentre, split the temperature, choose pivots in each bin (RPC), and weigh. With ``weighing="bins"`` every
    bin is a problem of its own (the paper); with "joint" bins only share the work of choosing, and all pivots stand for
    all keys: ``W = H_SS^-1 H_S`` once for the head.

    Gradients flow to ``values``; and to the keys for fixed pivots and temperature, when they require one.
    """
    m, n, _ = source.keys.shape
    bins = max(1, min(bins, n, rank))
    parts = bins if weighing == "bins" else 1
    keys, values, bias, weights, valid = _split(source, values, parts)
    mean = masked_mean(keys, valid)
    points = keys - mean
    if source.bias is not None and tau is None and is_gaussian_bias(source.keys, source.bias, scale):
        # exp(b<q,k> - b|k|^2/2) is the Gaussian kernel of q and k. Moving both by the mean keeps it one.
        tau, shift = 1.0, mean
    else:
        shift = None if query_shift is None else query_shift.repeat_interleave(parts, 0).unsqueeze(1)
    if shift is not None:
        moved = scale * (points * shift).sum(-1)
        bias = moved if bias is None else bias + moved
    norm = torch.linalg.vector_norm(points, dim=-1)
    with torch.no_grad():
        temperature = _temperature(norm, valid, query_norm, tau, parts)
    # The method's two quantities a key: x = sqrt(beta) (k - mean) / tau, and a = |x|^2 / 2 + c.
    factor = math.sqrt(scale) / temperature
    points = points * factor.view(-1, 1, 1) if points.requires_grad else points.mul_(factor.view(-1, 1, 1))
    half_square = (norm * factor.unsqueeze(-1)).square() / 2
    log_norm = half_square if bias is None else half_square + bias
    if valid is not None:
        log_norm = log_norm.masked_fill(~valid, -math.inf)
    with torch.no_grad():
        fit = _choose(
            points.detach(), log_norm.detach(), half_square.detach(), bins=bins // parts, rank=max(1, rank // bins),
            tol=tol, block=block, generator=generator,
        )  # fmt: skip
    if fit.factor is None or (torch.is_grad_enabled() and points.requires_grad):
        weighted = weigh_by_kernel(points, log_norm, half_square, fit, values, weights)
    else:
        weighted = weigh_by_factor(log_norm, fit, values, weights)
    return _assemble(m, fit, weighted, log_norm.detach(), mean.detach(), shift, temperature)


def _split(
    source: KeySet, values: Tensor, parts: int
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Keys, values, bias, weights and valid of every part, as problems of their own."""
    m, n, _ = source.keys.shape
    length = math.ceil(n / parts)
    valid = source.valid
    if valid is None and parts * length != n:
        valid = torch.ones(m, n, dtype=torch.bool, device=source.keys.device)

    def cut(x: Tensor | None) -> Tensor | None:
        return None if x is None else _to_bins(x, parts, length)

    keys, values = _to_bins(source.keys, parts, length), _to_bins(values, parts, length)
    return keys, values, cut(source.bias), cut(source.weights), cut(valid)


def _choose(points: Tensor, log_norm: Tensor, half_square: Tensor, *, bins: int, **options: Any) -> PivotedCholesky:
    """Pivots of every problem, chosen in ``bins`` parts of it; with more than one, no factor of the whole is left."""
    if bins == 1:
        return pivoted_cholesky(points, log_norm, half_square=half_square, **options)
    m, n, _ = points.shape
    length = math.ceil(n / bins)
    fit = pivoted_cholesky(
        _to_bins(points, bins, length), _to_bins(log_norm, bins, length, fill=-math.inf),
        half_square=_to_bins(half_square, bins, length), **options,
    )  # fmt: skip
    offset = torch.arange(bins, device=points.device).view(1, bins, 1) * length
    pivots = fit.pivots.view(m, bins, -1) + offset
    # More pivots explain no less: the bins' residuals bound the joint one.
    residual = fit.residual.view(m, -1)[:, :n]
    return PivotedCholesky(pivots.view(m, -1), fit.used.reshape(m, -1), None, residual)


def _to_bins(x: Tensor, bins: int, length: int, *, fill: float = 0.0) -> Tensor:
    """(m, n, ...) -> (m * bins, length, ...); the tail of the last bin is padded with ``fill``."""
    missing = bins * length - x.shape[1]
    if missing:
        x = torch.cat([x, x.new_full((x.shape[0], missing, *x.shape[2:]), fill)], 1)
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


def _assemble(
    m: int, fit: PivotedCholesky, weighted: Tensor, log_norm: Tensor, mean: Tensor, shift: Tensor | None, tau: Tensor
) -> Selection:
    """Parts back to heads, and the residual summaries."""
    parts, length = log_norm.shape[0] // max(m, 1), log_norm.shape[1]
    rank = fit.pivots.shape[1]
    offset = torch.arange(parts, device=tau.device).view(1, parts, 1) * length
    index = (fit.pivots.reshape(m, parts, rank) + offset).view(m, parts * rank)
    used = fit.used.reshape(m, parts * rank)
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
        values=weighted[..., :-1].reshape(m, parts * rank, -1),
        weights=weighted[..., -1:].reshape(m, parts * rank, 1),
        bin_mean=mean.view(m, parts, -1),
        query_shift=None if shift is None else shift.detach().view(m, parts, -1),
        tau=tau.view(m, parts),
        log_sum_root_residual=torch.logsumexp(log_root, -1).view(m, parts),
        log_max_root_residual=log_root.amax(-1).view(m, parts),
        residual=torch.where(torch.isfinite(start), ((end - start) / 2).exp(), torch.zeros_like(start)),
    )
