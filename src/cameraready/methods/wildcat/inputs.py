"""Checks and shapes of the tensors that users pass."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def check_rank(rank: int) -> None:
    """Refuse a rank that is not a positive integer."""
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise TypeError(f"rank={rank!r} is not an integer; pass the number of keys to keep, such as 128")
    if rank < 1:
        raise ValueError(f"rank={rank} keeps no key; pass at least 1")


def check_selection(bins: int | str, weighing: str, tau: float | str, *, tau_names: tuple[str, ...]) -> None:
    """Refuse options of the selection of keys that do not exist."""
    if bins != "auto" and (isinstance(bins, bool) or not isinstance(bins, int) or bins < 1):
        raise ValueError(f'bins={bins!r}; pass a positive integer or "auto"')
    if weighing not in ("joint", "bins"):
        raise ValueError(f'weighing={weighing!r}; pass "joint" or "bins"')
    if isinstance(tau, str):
        if tau not in tau_names:
            raise ValueError(f"tau={tau!r}; pass a positive number or one of {tau_names}")
    elif not tau > 0:
        raise ValueError(f"tau={tau} must be positive")


def check_bias(key_bias: Tensor | None, key: Tensor) -> None:
    """Refuse a bias that is not one number a key."""
    if key_bias is None:
        return
    try:
        key_bias.expand(key.shape[:-1])
    except RuntimeError as error:
        raise ValueError(
            f"key_bias {tuple(key_bias.shape)} does not broadcast to {tuple(key.shape[:-1])}; pass one number a key"
        ) from error


def check_key_value(key: Tensor, value: Tensor) -> None:
    """Refuse keys and values that do not belong together."""
    for name, tensor in (("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; pass a torch.Tensor")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} has dtype {tensor.dtype}; attention is defined for real floating-point tensors")
        if tensor.dim() < 2:
            raise ValueError(f"{name} has {tensor.dim()} dimension(s); pass (..., length, width)")
    if key.shape[-1] == 0:
        raise ValueError("key has a head dimension of 0; pass vectors with at least one coordinate")
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f"key {tuple(key.shape)} and value {tuple(value.shape)} differ before the last axis; pass one value a key"
        )
    if key.device != value.device:
        raise ValueError(f"key is on {key.device}, value on {value.device}; move both to one device")
    if key.dtype != value.dtype:
        raise ValueError(f"key has dtype {key.dtype}, value {value.dtype}; convert one of them")


def check_attention(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Refuse inputs that ``scaled_dot_product_attention`` would refuse."""
    check_key_value(key, value)
    if not isinstance(query, Tensor):
        raise TypeError(f"query is a {type(query).__name__}; pass a torch.Tensor")
    if query.dtype != key.dtype or query.device != key.device:
        raise ValueError(
            f"query ({query.dtype}, {query.device}) and key ({key.dtype}, {key.device}) must share dtype and device"
        )
    if query.dim() != key.dim() or query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"query {tuple(query.shape)} and key {tuple(key.shape)} must have as many axes and the same head dimension"
        )
    if key.shape[-2] == 0 and query.shape[-2] > 0:
        raise ValueError("key has length 0: there is nothing to attend to; pass at least one key")
    if query.shape[:-2] == key.shape[:-2]:
        return
    grouped = (
        enable_gqa
        and query.dim() >= 3
        and query.shape[:-3] == key.shape[:-3]
        and key.shape[-3] > 0
        and query.shape[-3] % key.shape[-3] == 0
    )
    if not grouped:
        raise ValueError(
            f"query {tuple(query.shape)} and key {tuple(key.shape)} differ in batch or heads; make them equal, or pass "
            "enable_gqa=True with query heads a multiple of key heads"
        )


def default_scale(head_dim: int, scale: float | None) -> float:
    """``beta``: the given scale, or ``1 / sqrt(E)``."""
    scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)
    if not math.isfinite(scale) or scale <= 0:
        raise ValueError(f"scale={scale} must be positive and finite; negate the queries for a negative one")
    return scale


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Half precisions are computed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def flatten_heads(x: Tensor) -> Tensor:
    """(..., n, E) -> (m, n, E)."""
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def group_queries(query: Tensor, lead: torch.Size) -> Tensor:
    """Queries of heads that share a key head, one after another: (..., G * Hk, L, E) -> (m, G * L, E)."""
    heads = math.prod(lead)
    if heads == 0 or math.prod(query.shape[:-2]) % heads:
        raise ValueError(f"query {tuple(query.shape)} does not fit key heads {tuple(lead)}; pass a multiple of them")
    return query.reshape(heads, -1, query.shape[-1])


def padding_mask(attn_mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """The key-padding mask (m, n) in a boolean SDPA mask; True keeps a key.

    Raises
    ------
    NotImplementedError
        For float masks (use ``key_bias``) and for masks that differ from query to query.
    """
    if attn_mask is None:
        return None
    if attn_mask.dtype != torch.bool:
        raise NotImplementedError(
            f"attn_mask has dtype {attn_mask.dtype}; only boolean masks are supported (pass key_bias= for a bias a key)"
        )
    lead, n = key.shape[:-2], key.shape[-2]
    try:
        full = attn_mask.expand(*query.shape[:-1], n)
    except RuntimeError as error:
        raise ValueError(
            f"attn_mask {tuple(attn_mask.shape)} does not broadcast to {(*query.shape[:-1], n)}"
        ) from error
    rows = full[..., :1, :]
    if attn_mask.dim() >= 2 and attn_mask.shape[-2] > 1 and not bool((full == rows).all()):
        raise NotImplementedError(
            "attn_mask differs between queries; only key-padding masks are supported (use is_causal=True for a causal "
            "mask, or torch's scaled_dot_product_attention)"
        )
    rows = rows.reshape(math.prod(lead), -1, n)
    if rows.shape[1] > 1 and not bool((rows == rows[:, :1]).all()):
        raise NotImplementedError("attn_mask differs between query heads that share a key head; pass one mask for them")
    return rows[:, 0]
