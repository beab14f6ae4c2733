"""Exact attention on flattened heads: the path for small inputs and the fallback of single heads and rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cameraready.methods.wildcat.coreset import value_range
from cameraready.methods.wildcat.selection import KeySet


@dataclass(frozen=True)
class Outcome:
    """Attention of ``m`` flattened heads with the facts that :class:`WildCatInfo` reports; ``bound`` (m, L) or None."""

    output: Tensor
    rank: Tensor
    residual: Tensor
    fallback_rows: Tensor
    fallback_heads: Tensor
    bound: Tensor | None


def key_logits_mask(source: KeySet) -> Tensor | None:
    """Bias and padding as one float mask (m, 1, n)."""
    mask = source.bias
    if source.valid is not None:
        hidden = torch.zeros(source.valid.shape, dtype=source.keys.dtype, device=source.keys.device)
        hidden = hidden.masked_fill(~source.valid, -torch.inf)
        mask = hidden if mask is None else mask + hidden
    return None if mask is None else mask.unsqueeze(1)


def exact_attention(
    queries: Tensor, source: KeySet, values: Tensor, *, scale: float, is_causal: bool = False, groups: int = 1
) -> Tensor:
    """``softmax(scale Q K^T + mask) V`` by SDPA; queries (m, groups * L, E) of ``groups`` heads a key head."""
    mask = key_logits_mask(source)
    if not is_causal:
        mask = None if mask is None else mask.unsqueeze(0)
        return F.scaled_dot_product_attention(queries[None], source.keys[None], values[None], mask, scale=scale)[0]
    m, _, width = queries.shape
    split = queries.reshape(m, groups, -1, width)
    keys, values = (x.unsqueeze(1).expand(-1, groups, -1, -1) for x in (source.keys, values))
    if mask is not None:
        visible = torch.ones(split.shape[2], keys.shape[2], dtype=torch.bool, device=keys.device).tril()
        mask = mask.masked_fill(~visible, -torch.inf).unsqueeze(1)
    output = F.scaled_dot_product_attention(split, keys, values, mask, is_causal=mask is None, scale=scale)
    return output.reshape(m, -1, output.shape[-1])


def exact_outcome(
    queries: Tensor, source: KeySet, values: Tensor, *, scale: float, is_causal: bool, groups: int
) -> Outcome:
    """Everything computed exactly: residual and bound zero."""
    m, n, _ = source.keys.shape
    length = queries.shape[1]
    if queries.numel():
        output = exact_attention(queries, source, values, scale=scale, is_causal=is_causal, groups=groups)
    else:
        output = queries.new_zeros(m, length, values.shape[-1])
    zeros = torch.zeros(m, dtype=torch.long, device=queries.device)
    return Outcome(output, zeros + n, zeros.to(queries.dtype), zeros, zeros.bool(), queries.new_zeros(m, length))


def replace_rows(
    output: Tensor, rows: Tensor, queries: Tensor, source: KeySet, values: Tensor, *, scale: float
) -> Tensor:
    """Output with the marked query rows (m, L) answered exactly, head by head."""
    output = output.clone()
    for head in rows.any(-1).nonzero().flatten().tolist():
        which = rows[head].nonzero().flatten()
        part = slice(head, head + 1)
        one = KeySet(
            source.keys[part],
            None if source.bias is None else source.bias[part],
            None if source.valid is None else source.valid[part],
        )
        low, high = value_range(values.detach()[part], one.valid)
        answer = exact_attention(queries[part][:, which], one, values[part], scale=scale)
        output[head, which] = torch.minimum(torch.maximum(answer, low), high)[0]
    return output
