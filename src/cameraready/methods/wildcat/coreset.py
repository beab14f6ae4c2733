"""``compress_kv``: keys and values shrunk once to a weighted coreset, and attention over it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from cameraready.methods.wildcat.attend import normalise, partial_attention
from cameraready.methods.wildcat.inputs import (
    check_bias,
    check_key_value,
    check_rank,
    check_selection,
    default_scale,
    flatten_heads,
    group_queries,
    working_dtype,
)
from cameraready.methods.wildcat.selection import KeySet, Weighing, auto_bins, select


@dataclass(frozen=True)
class CompressedKV:
    """A weighted coreset that answers for the keys and values it was made from.

    Attention is ``(A_S values) / (A_S weights)``, ``A_S = exp(scale <q, keys + key_mean> + key_bias)``.

    Attributes
    ----------
    keys : Tensor (..., r, E)
        Kept keys, minus ``key_mean``.
    values : Tensor (..., r, d_v)
        ``W V``.
    weights : Tensor (..., r)
        ``W 1``; may be negative; 0 in a slot not needed.
    key_mean : Tensor (..., 1, E)
    vmin, vmax : Tensor (..., 1, d_v)
        Range of the original values, to which outputs are clamped.
    key_bias : Tensor (..., r) or None
        Logit bias of the kept keys.
    """

    keys: Tensor
    values: Tensor
    weights: Tensor
    key_mean: Tensor
    vmin: Tensor
    vmax: Tensor
    key_bias: Tensor | None = None

    def __len__(self) -> int:
        return self.keys.shape[-2]

    @property
    def nbytes(self) -> int:
        """Bytes held by the tensors."""
        fields = (self.keys, self.values, self.weights, self.key_mean, self.vmin, self.vmax, self.key_bias)
        return sum(x.numel() * x.element_size() for x in fields if x is not None)

    def merge(self, other: CompressedKV) -> CompressedKV:
        """The coreset of both key sets together (no further error: sums of attention terms add up)."""
        if self.keys.shape[:-2] != other.keys.shape[:-2] or self.keys.shape[-1] != other.keys.shape[-1]:
            raise ValueError(
                f"other.keys has shape {tuple(other.keys.shape)}, which does not match {tuple(self.keys.shape)} "
                "outside the second-last axis; merge coresets of the same heads"
            )
        bias = None
        if self.key_bias is not None or other.key_bias is not None:
            bias = torch.cat([_bias_or_zero(self), _bias_or_zero(other)], -1)
        return CompressedKV(
            keys=torch.cat([self.keys, other.keys + (other.key_mean - self.key_mean)], -2),
            values=torch.cat([self.values, other.values], -2),
            weights=torch.cat([self.weights, other.weights], -1),
            key_mean=self.key_mean,
            vmin=torch.minimum(self.vmin, other.vmin),
            vmax=torch.maximum(self.vmax, other.vmax),
            key_bias=bias,
        )

    def extend(self, key: Tensor, value: Tensor) -> CompressedKV:
        """Append plain keys and values, each with weight 1 (new tokens of a KV cache)."""
        check_key_value(key, value)
        return self.merge(keep_all(key.to(self.keys.dtype), value.to(self.values.dtype), self.key_mean))


def _bias_or_zero(ckv: CompressedKV) -> Tensor:
    return torch.zeros_like(ckv.weights) if ckv.key_bias is None else ckv.key_bias


def keep_all(key: Tensor, value: Tensor, key_mean: Tensor, key_bias: Tensor | None = None) -> CompressedKV:
    """The trivial coreset: every key, weight 1."""
    empty = value.shape[-2] == 0
    big = torch.finfo(value.dtype).max
    return CompressedKV(
        keys=key - key_mean,
        values=value,
        weights=value.new_ones(value.shape[:-1]),
        key_mean=key_mean,
        vmin=value.new_full((*value.shape[:-2], 1, value.shape[-1]), big) if empty else value.amin(-2, keepdim=True),
        vmax=value.new_full((*value.shape[:-2], 1, value.shape[-1]), -big) if empty else value.amax(-2, keepdim=True),
        key_bias=key_bias,
    )


def compress_kv(
    key: Tensor,
    value: Tensor,
    rank: int,
    *,
    scale: float | None = None,
    query_norm: Tensor | float | None = None,
    query_mean: Tensor | None = None,
    bins: int | Literal["auto"] = 1,
    weighing: Weighing = "joint",
    weights: Tensor | None = None,
    key_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    tau: float | Literal["constant"] = "constant",
    tol: float | None = None,
    block: int = 16,
    generator: torch.Generator | None = None,
) -> CompressedKV:
    """Compress keys and values of every head to at most ``rank`` weighted keys.

    Randomly pivoted Cholesky chooses keys ``S``; Nystrom weights ``W = H_SS^-1 H_S`` make them stand for all keys, and
    only ``W V`` and ``W 1`` are kept. Cost ``O(r^2 n / b^2 + r n (E + d_v))`` for ``b`` bins.

    Parameters
    ----------
    key, value : Tensor (..., n, E), (..., n, d_v)
    rank : int
        Keys kept for each head. With ``rank >= n`` all are kept, exactly.
    scale : float, optional
        Factor of the logits; default ``1 / sqrt(E)``.
    query_norm : Tensor (...) or float, optional
        Largest norm of the queries that will come (minus ``query_mean``, if given); default: that of the keys. Pass
        real norms where queries are larger.
    query_mean : Tensor (..., E), optional
        Mean of these queries: keys that a typical query attends to are then preferred.
    bins : int or "auto", default 1
        Contiguous parts in which ``rank / bins`` keys each are chosen: faster, a little less accurate.
    weighing : {"joint", "bins"}
        With several bins: whether a kept key stands for all keys or, cheaper and less accurate, for those of its bin.
    weights : Tensor (..., n), optional
        Weights of the keys, when they are themselves a coreset with ``value = W V`` (recompression).
    key_bias : Tensor (..., n), optional
        Added to the logits of each key.
    key_mask : Tensor (..., n), bool, optional
        False for padding.
    tau : "constant" or float
        Temperature split; see :mod:`~cameraready.methods.wildcat.temperature`.
    tol : float, optional
        Stop a head early once its root residual has fallen below ``tol`` times its start.
    block : int, default 16
        Pivots proposed in one round; changes speed only.
    generator : torch.Generator, optional
        Makes the pivots reproducible.

    Raises
    ------
    TypeError, ValueError
        On complex or mismatched tensors, an empty head dimension, or ``rank < 1``.

    Examples
    --------
    >>> key, value = torch.randn(2, 4096, 8), torch.randn(2, 4096, 8)
    >>> ckv = compress_kv(key, value, 128, bins=2)
    >>> len(ckv), ckv.values.shape
    (128, torch.Size([2, 128, 8]))
    >>> weighted_attention(torch.randn(2, 10, 8), ckv).shape
    torch.Size([2, 10, 8])
    """
    check_key_value(key, value)
    check_rank(rank)
    check_selection(bins, weighing, tau, tau_names=("constant",))
    check_bias(key_bias, key)
    n = key.shape[-2]
    scale = default_scale(key.shape[-1], scale)
    dtype = working_dtype(key.dtype)
    lead = key.shape[:-2]
    mean = key.to(dtype).mean(-2, keepdim=True) if n else key.new_zeros(*lead, 1, key.shape[-1], dtype=dtype)
    spread = [None if x is None else x.expand(key.shape[:-1]) for x in (key_bias, key_mask, weights)]
    if rank >= n:
        kept = keep_all(key.to(dtype), value.to(dtype), mean, spread[0])
        if spread[1] is not None:
            blocked = torch.zeros_like(kept.weights).masked_fill(~spread[1], -math.inf)
            kept = replace(kept, key_bias=blocked + _bias_or_zero(kept))
        if spread[2] is not None:
            kept = replace(kept, weights=spread[2].to(dtype))
        return kept
    bias, mask, item_weights = (None if x is None else flatten_heads(x.unsqueeze(-1)).squeeze(-1) for x in spread)
    keys, values = flatten_heads(key).to(dtype), flatten_heads(value).to(dtype)
    source = KeySet(
        keys,
        None if bias is None else bias.to(dtype),
        mask,
        None if item_weights is None else item_weights.to(dtype),
    )
    if query_norm is not None:
        query_norm = torch.as_tensor(query_norm, dtype=dtype, device=key.device).expand(lead).reshape(-1)
    if query_mean is not None:
        query_mean = query_mean.to(dtype).expand(*lead, key.shape[-1]).reshape(-1, key.shape[-1])
    chosen = select(
        source, values, rank=rank, scale=scale, bins=auto_bins(n, rank) if bins == "auto" else bins,
        weighing=weighing, query_norm=query_norm, query_shift=query_mean,
        tau=None if tau == "constant" else float(tau), tol=tol, block=block, generator=generator,
    )  # fmt: skip
    kept = torch.gather(keys, 1, chosen.index.unsqueeze(-1).expand(-1, -1, keys.shape[-1]))
    low, high = value_range(values, mask)

    def unflatten(x: Tensor) -> Tensor:
        return x.reshape(*lead, *x.shape[1:])

    return CompressedKV(
        keys=unflatten(kept) - mean,
        values=unflatten(chosen.values),
        weights=unflatten(chosen.weights.squeeze(-1)),
        key_mean=mean,
        vmin=unflatten(low),
        vmax=unflatten(high),
        key_bias=None if bias is None else unflatten(torch.gather(source.bias, 1, chosen.index)),
    )


def value_range(values: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each coordinate, (m, 1, d_v) each, over the keys that are not padding."""
    if valid is None:
        return values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    # A head without a single key answers zeros, as SDPA does: its hidden keys do not count, and its range is [0, 0].
    hidden, empty = ~valid.unsqueeze(-1), ~valid.any(1)[:, None, None]
    return (
        values.masked_fill(hidden, torch.inf).amin(1, keepdim=True).masked_fill(empty, 0.0),
        values.masked_fill(hidden, -torch.inf).amax(1, keepdim=True).masked_fill(empty, 0.0),
    )


def weighted_attention(query: Tensor, ckv: CompressedKV, scale: float | None = None) -> Tensor:
    """Softmax attention of ``query`` over a compressed key-value set.

    Parameters
    ----------
    query : Tensor (..., L, E)
        May have a multiple of the coreset's heads (grouped queries).
    ckv : CompressedKV
    scale : float, optional
        Factor of the logits; use the one given to :func:`compress_kv`. Default ``1 / sqrt(E)``.

    Returns
    -------
    Tensor (..., L, d_v), in the dtype of ``query``. A row whose denominator vanishes (negative weights) is answered by
    the keys of positive weight alone: the original keys that an exact answer would need are gone.
    """
    if query.shape[-1] != ckv.keys.shape[-1]:
        raise ValueError(
            f"query {tuple(query.shape)} has another head dimension than the compressed keys, {ckv.keys.shape[-1]}"
        )
    scale = default_scale(query.shape[-1], scale)
    grouped = group_queries(query, ckv.keys.shape[:-2]).to(ckv.keys.dtype)
    keys, values = flatten_heads(ckv.keys + ckv.key_mean), flatten_heads(ckv.values)
    weights = flatten_heads(ckv.weights.unsqueeze(-1))
    bias = None if ckv.key_bias is None else flatten_heads(ckv.key_bias.unsqueeze(-1)).squeeze(-1)
    low, high = flatten_heads(ckv.vmin), flatten_heads(ckv.vmax)
    partial = partial_attention(grouped, keys, values, weights, scale=scale, bias=bias)
    output, vanished = normalise(partial, low, high)
    if bool(vanished.any()):
        positive = (weights > 0).to(weights.dtype)
        partial = partial_attention(grouped, keys, values * positive, weights * positive, scale=scale, bias=bias)
        safe, _ = normalise(partial, low, high)
        output = torch.where(vanished.unsqueeze(-1), safe, output)
    return output.reshape(*query.shape[:-1], values.shape[-1]).to(query.dtype)
