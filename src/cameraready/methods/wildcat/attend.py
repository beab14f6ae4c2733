"""Softmax attention over a weighted set of keys: ``(A_S (W V)) / (A_S (W 1))``, in mergeable parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Exact attention sums positive terms, so a denominator at or below this (in units of the largest term) is an artefact
# of negative weights.
SMALLEST_DENOMINATOR = 1e-20
_CHUNK_ENTRIES = 1 << 19


@dataclass(frozen=True)
class Partial:
    """Unnormalised attention: ``numerator`` (m, L, d_v) and ``denominator`` (m, L, 1), both times ``exp(-row_max)``;
    ``row_max`` is (m, L, 1)."""

    numerator: Tensor
    denominator: Tensor
    row_max: Tensor

    def merge(self, other: Partial) -> Partial:
        """Attention over the union of two key sets, as flash attention merges its blocks."""
        row_max = torch.maximum(self.row_max, other.row_max)
        mine, theirs = (self.row_max - row_max).exp(), (other.row_max - row_max).exp()
        return Partial(
            self.numerator * mine + other.numerator * theirs,
            self.denominator * mine + other.denominator * theirs,
            row_max,
        )


def partial_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    weights: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
) -> Partial:
    """Numerator and denominator of weighted attention.

    Parameters
    ----------
    query, keys : Tensor (m, L, E), (m, r, E)
    values, weights : Tensor (m, r, d_v), (m, r, 1)
        ``W V`` and ``W 1``; for plain keys ``V`` and ones.
    bias : Tensor (m, r), optional
        Added to the logits.
    visible : Tensor (L, r) or (m, L, r), bool, optional
        Which keys a query sees (causal mask).
    """
    m, length, _ = query.shape
    rank, width = keys.shape[1], values.shape[2]
    if rank == 0:
        lowest = torch.finfo(query.dtype).min
        none = query.new_zeros(m, length, 1)
        return Partial(none.expand(-1, -1, width), none, query.new_full((m, length, 1), lowest))
    transposed = (keys * scale).transpose(1, 2)
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in (query, keys, values, weights))
    lowest = torch.finfo(query.dtype).min
    if tracked or visible is not None:
        logits = torch.bmm(query, transposed)
        if bias is not None:
            logits = logits + bias.unsqueeze(1)
        if visible is not None:
            logits = logits.masked_fill(~visible, -torch.inf)
        row_max = logits.detach().amax(-1, keepdim=True).clamp_min(lowest)
        terms = (logits - row_max).exp()
        return Partial(torch.bmm(terms, values), torch.bmm(terms, weights), row_max)
    # Without a graph, a block of queries at a time: the logits never leave the processor's cache.
    numerator = query.new_empty(m, length, width)
    denominator, row_max = query.new_empty(m, length, 1), query.new_empty(m, length, 1)
    rows = max(16, _CHUNK_ENTRIES // max(1, m * rank))
    if query.is_cuda:
        rows *= 64
    buffer = query.new_empty(m, min(rows, length), rank)
    for start in range(0, length, rows):
        block = slice(start, min(start + rows, length))
        logits = buffer[:, : block.stop - start]
        torch.bmm(query[:, block], transposed, out=logits)
        if bias is not None:
            logits.add_(bias.unsqueeze(1))
        torch.amax(logits, -1, keepdim=True, out=row_max[:, block])
        if bias is not None:
            row_max[:, block].clamp_(min=lowest)  # all keys hidden: -inf - -inf would be NaN
        logits.sub_(row_max[:, block]).exp_()
        torch.bmm(logits, values, out=numerator[:, block])
        torch.bmm(logits, weights, out=denominator[:, block])
    return Partial(numerator, denominator, row_max)


def normalise(partial: Partial, vmin: Tensor, vmax: Tensor) -> tuple[Tensor, Tensor]:
    """Output (m, L, d_v), clamped to the range of the values, and the rows (m, L) whose denominator vanished.

    Attention is a convex combination of values, so every coordinate lies in ``[vmin, vmax]`` (m, 1, d_v).
    """
    blind = partial.row_max <= torch.finfo(partial.row_max.dtype).min  # a row that sees no key at all
    vanished = (partial.denominator <= SMALLEST_DENOMINATOR) & ~blind
    divisor = torch.where(vanished | blind, torch.ones_like(partial.denominator), partial.denominator)
    if torch.is_grad_enabled() and partial.numerator.requires_grad:
        output = (partial.numerator / divisor).clamp(min=vmin, max=vmax).masked_fill(blind, 0.0)
    else:
        output = partial.numerator.div_(divisor)  # the numerator is not needed any more
        output.clamp_(min=vmin, max=vmax).masked_fill_(blind, 0.0)
    return output, vanished.squeeze(-1)


def ones_for(values: Tensor) -> Tensor:
    """Weights (m, n, 1) of keys that stand for themselves."""
    return values.new_ones(*values.shape[:-1], 1)
