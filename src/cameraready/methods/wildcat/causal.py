"""The causal mode: every chunk of queries sees its own chunk exactly and all chunks before it as one coreset."""

from __future__ import annotations

import torch
from torch import Tensor

from cameraready.methods.wildcat.attend import Partial, normalise, ones_for, partial_attention
from cameraready.methods.wildcat.coreset import value_range
from cameraready.methods.wildcat.exact import Outcome, replace_rows
from cameraready.methods.wildcat.selection import KeySet, Weighing, auto_bins, select
from cameraready.methods.wildcat.temperature import query_statistics


def causal_attention(
    queries: Tensor,
    source: KeySet,
    values: Tensor,
    *,
    groups: int,
    rank: int,
    scale: float,
    chunk: int,
    bins: int | str,
    weighing: Weighing,
    tau: float | str,
    recentre_queries: bool,
    block: int,
    generator: torch.Generator | None,
) -> Outcome:
    """Causal attention in ``O(n (chunk + rank))`` memory traffic; query ``i`` sees keys ``<= i``.

    After each chunk the prefix coreset is compressed again together with the chunk. Values ``W V`` and weights ``W 1``
    are linear in what they stand for, so nested compressions compose exactly: ``W_2 (W_1 V) = (W_2 W_1) V``.

    Parameters
    ----------
    queries : Tensor (m, groups * L, E)
        Query heads that share a key head one after another.
    source, values : KeySet, Tensor (m, S, d_v)
        Keys beyond the last query are never seen; queries beyond the last key see all of them.
    """
    m, _, width = queries.shape
    n = source.keys.shape[1]
    queries = queries.reshape(m, groups, -1, width)
    length = queries.shape[2]
    shift, query_norm = query_statistics(queries.reshape(m, -1, width), recentre_queries)
    prefix = _Prefix(
        source.keys[:, :0], values[:, :0], ones_for(values[:, :0]), None if source.bias is None else source.bias[:, :0]
    )
    outputs, fallback_rows = [], torch.zeros(m, dtype=torch.long, device=queries.device)
    residual = queries.new_zeros(m)
    for start in range(0, min(n, length), chunk):
        stop = min(start + chunk, n, length)
        # The last chunk takes along every query that has no key of its own.
        end = length if stop == min(n, length) else stop
        here = _slice(source, start, stop)
        own = values[:, start:stop]
        ask = queries[:, :, start:end].reshape(m, -1, width)
        visible = torch.ones(end - start, stop - start, dtype=torch.bool, device=ask.device).tril()
        visible = visible.repeat(groups, 1)
        if here.valid is not None:
            visible = visible & here.valid.unsqueeze(1)
        partial = partial_attention(ask, here.keys, own, ones_for(own), scale=scale, bias=here.bias, visible=visible)
        if prefix.keys.shape[1]:
            partial = prefix.attend(ask, scale).merge(partial)
        # The clamp may use all values seen so far: a row's own range would cost a cumulative maximum.
        low, high = value_range(values.detach()[:, :stop], None if source.valid is None else source.valid[:, :stop])
        output, vanished = normalise(partial, low, high)
        if bool(vanished.any()):
            output = _replace_causal(output, vanished, ask, source, values, start, stop, groups, scale)
            fallback_rows += vanished.sum(-1)
        outputs.append(output.reshape(m, groups, end - start, -1))
        if end < length:
            prefix, spent = prefix.absorb(
                here, own, rank=rank, scale=scale, bins=bins, weighing=weighing, tau=tau, query_norm=query_norm,
                query_shift=shift, block=block, generator=generator,
            )  # fmt: skip
            residual = torch.maximum(residual, spent)
    output = torch.cat(outputs, 2).reshape(m, groups * length, -1)
    low, high = value_range(values.detach(), source.valid)
    bound = (high - low).amax(-1).expand(m, groups * length)
    kept = torch.full((m,), min(rank, n), device=output.device)
    return Outcome(output, kept, residual, fallback_rows, torch.zeros_like(kept, dtype=torch.bool), bound)


class _Prefix:
    """A coreset of everything before the current chunk: keys, ``W V``, ``w`` (m, r, 1) and bias (m, r)."""

    def __init__(self, keys: Tensor, values: Tensor, weights: Tensor, bias: Tensor | None):
        self.keys, self.values, self.weights, self.bias = keys, values, weights, bias

    def attend(self, queries: Tensor, scale: float) -> Partial:
        return partial_attention(queries, self.keys, self.values, self.weights, scale=scale, bias=self.bias)

    def absorb(
        self,
        here: KeySet,
        own: Tensor,
        *,
        rank: int,
        scale: float,
        bins: int | str,
        weighing: Weighing,
        tau: float | str,
        query_norm: Tensor,
        query_shift: Tensor | None,
        block: int,
        generator: torch.Generator | None,
    ) -> tuple[_Prefix, Tensor]:
        """The coreset of prefix and chunk together, and the residual of this compression (m,)."""
        keys = torch.cat([self.keys, here.keys], 1)
        values = torch.cat([self.values, own], 1)
        weights = torch.cat([self.weights, ones_for(own)], 1)
        bias = None if here.bias is None else torch.cat([self.bias, here.bias], 1)
        valid = None
        if here.valid is not None:
            valid = torch.cat([here.valid.new_ones(self.keys.shape[:2]), here.valid], 1)
        if keys.shape[1] <= rank and valid is None:
            return _Prefix(keys, values, weights, bias), keys.new_zeros(keys.shape[0])
        n = keys.shape[1]
        chosen = select(
            KeySet(keys, bias, valid, weights.squeeze(-1)), values, rank=rank, scale=scale,
            bins=auto_bins(n, rank) if bins == "auto" else bins, weighing=weighing, query_norm=query_norm,
            query_shift=query_shift, tau=None if tau == "constant" else float(tau), block=block, generator=generator,
        )  # fmt: skip
        kept = torch.gather(keys, 1, chosen.index.unsqueeze(-1).expand(-1, -1, keys.shape[-1]))
        bias = None if bias is None else torch.gather(bias, 1, chosen.index)
        return _Prefix(kept, chosen.values, chosen.weights, bias), chosen.residual


def _slice(source: KeySet, start: int, stop: int) -> KeySet:
    def cut(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[:, start:stop]

    return KeySet(source.keys[:, start:stop], cut(source.bias), cut(source.valid))


def _replace_causal(
    output: Tensor,
    vanished: Tensor,
    ask: Tensor,
    source: KeySet,
    values: Tensor,
    start: int,
    stop: int,
    groups: int,
    scale: float,
) -> Tensor:
    """Rows whose denominator vanished, answered exactly: one call a position, as each sees another key set."""
    span = ask.shape[1] // groups
    for offset in vanished.reshape(vanished.shape[0], groups, span).any(1).any(0).nonzero().flatten().tolist():
        here = torch.zeros_like(vanished).reshape(vanished.shape[0], groups, span)
        here[:, :, offset] = True
        last = min(start + offset + 1, stop)
        rows = vanished & here.reshape(vanished.shape)
        output = replace_rows(output, rows, ask, _slice(source, 0, last), values[:, :last], scale=scale)
    return output
