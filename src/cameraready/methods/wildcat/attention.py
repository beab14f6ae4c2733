"""``wildcat_attention``: the call of ``scaled_dot_product_attention``, answered by a weighted coreset of keys."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cameraready.methods.wildcat.attend import normalise, ones_for, partial_attention
from cameraready.methods.wildcat.bounds import output_bound
from cameraready.methods.wildcat.causal import causal_attention
from cameraready.methods.wildcat.coreset import value_range
from cameraready.methods.wildcat.exact import Outcome, exact_outcome, replace_rows
from cameraready.methods.wildcat.inputs import (
    check_attention,
    check_bias,
    check_rank,
    check_selection,
    default_scale,
    flatten_heads,
    group_queries,
    padding_mask,
    working_dtype,
)
from cameraready.methods.wildcat.selection import KeySet, Selection, Weighing, auto_bins, select
from cameraready.methods.wildcat.temperature import query_statistics
from cameraready.methods.wildcat.tuning import tuned_tau


@dataclass(frozen=True)
class WildCatInfo:
    """What a call did and what is known about its error. Heads are those of ``key``.

    Attributes
    ----------
    rank : Tensor (..., H)
        Keys kept in each head; all of them where the head was computed exactly.
    residual : Tensor (..., H)
        Root of the share of the keys' feature energy that the coreset does not explain, in [0, 1].
    fallback_rows : Tensor (..., H)
        Query rows computed exactly because their denominator vanished.
    fallback_heads : Tensor (..., H), bool
        Heads whose residual exceeded ``tol`` and that ``fallback`` answered.
    bound : Tensor (..., Hq, L)
        A-posteriori bound on the error of every coordinate of an output row: rigorous, and often far from tight. In
        the causal mode, where compressions are nested, it is the range of the values.
    seconds : float
        Wall-clock time of the call.
    """

    rank: Tensor
    residual: Tensor
    fallback_rows: Tensor
    fallback_heads: Tensor
    bound: Tensor
    seconds: float


def wildcat_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    key_bias: Tensor | None = None,
    rank: int | Literal["auto"] = 128,
    tol: float | None = None,
    bins: int | Literal["auto"] = "auto",
    weighing: Weighing = "joint",
    tau: float | Literal["constant", "tuned"] = "constant",
    recentre_queries: bool = True,
    fallback: Literal["exact", "uniform"] | None = "exact",
    chunk: int = 512,
    block: int = 16,
    generator: torch.Generator | None = None,
    return_info: bool = False,
) -> Tensor | tuple[Tensor, WildCatInfo]:
    """Softmax attention in near-linear time: ``O((n_q + n) r (E + d_v) + n r^2 / bins^2)``.

    Keys are recentred, ``rank`` of them are chosen by randomly pivoted Cholesky and weighed so that their features
    reproduce those of all keys as well as possible; queries attend to these alone.

    Parameters
    ----------
    query, key, value : Tensor (..., H, L, E), (..., H, S, E), (..., H, S, d_v)
        As for :func:`torch.nn.functional.scaled_dot_product_attention`. Half precision is computed in float32.
    attn_mask : Tensor broadcastable to (..., H, L, S), bool, optional
        Key padding only: the same for every query; True keeps a key.
    dropout_p : float
        Must be 0.
    is_causal : bool, default False
        Query ``i`` sees keys ``<= i``: exactly within its chunk, through the coreset before it.
    scale : float, optional
        Default ``1 / sqrt(E)``.
    enable_gqa : bool, default False
        Query heads may be a multiple of key heads.
    key_bias : Tensor broadcastable to (..., H, S), optional
        Added to the logits of each key (kernel smoothing, log-counts). With ``-scale |k|^2 / 2`` attention is Gaussian
        kernel smoothing and the selection that of Gaussian-kernel Nystrom.
    rank : int or "auto", default 128
        Keys kept for each head. "auto" doubles it from 64 until ``tol`` is met (at most ``S / 4``).
    tol : float, optional
        Wanted residual (see :class:`WildCatInfo`): a head stops early when it is reached; one that ends above it is
        answered by ``fallback``.
    bins : int or "auto"
        Contiguous parts of the keys in which pivots are chosen separately; "auto" gives about 32 to each.
    weighing : {"joint", "bins"}
        With several bins: "joint" lets the pivots of all bins stand for every key, which costs one more pass over the
        keys and is often several times more accurate; "bins" weighs each bin for itself, as the paper does.
    tau : {"constant", "tuned"} or float
        Temperature split. "tuned" searches it for each head at the cost of a few small compressions.
    recentre_queries : bool, default True
        Move the mean query into key biases before selection, so that pivots are keys a typical query attends to. An
        exact identity, like the recentring of keys; not in the paper. False gives the paper's selection.
    fallback : {"exact", "uniform"} or None
        For heads above ``tol``: exact attention, ``rank`` uniformly drawn keys, or nothing.
    chunk : int, default 512
        Chunk length of the causal mode.
    block : int, default 16
        Pivots proposed in one round; changes speed only.
    generator : torch.Generator, optional
        On the device of the inputs; makes the result reproducible.
    return_info : bool, default False
        Also return a :class:`WildCatInfo`.

    Returns
    -------
    Tensor (..., H, L, d_v), and the info if asked for.

    Raises
    ------
    TypeError, ValueError
        On mismatched, complex or empty inputs, ``rank < 1``, or an unknown option.
    NotImplementedError
        For dropout, float masks, and masks that differ between queries.

    Notes
    -----
    Gradients flow to queries and values, and to keys for fixed pivots and temperature (which key is chosen is not
    differentiable). Reference: Schroeder and Mackey, "WildCat: Near-Linear Attention in Theory and
    Practice", ICML 2026.

    Examples
    --------
    >>> q = k = v = torch.randn(1, 2, 2048, 16)
    >>> out, info = wildcat_attention(q, k, v, rank=128, return_info=True)
    >>> out.shape, info.rank.tolist()
    (torch.Size([1, 2, 2048, 16]), [[128, 128]])
    """
    began = time.perf_counter()
    check_attention(query, key, value, enable_gqa)
    check_bias(key_bias, key)
    _check_options(dropout_p, attn_mask, is_causal, rank, tol, bins, weighing, tau, fallback, chunk, block)
    scale = default_scale(query.shape[-1], scale)
    lead, n = key.shape[:-2], key.shape[-2]
    dtype = working_dtype(query.dtype)
    valid = padding_mask(attn_mask, query, key)
    bias = None if key_bias is None else key_bias.to(dtype).expand(*lead, n).reshape(-1, n)
    keys, values = flatten_heads(key).to(dtype), flatten_heads(value).to(dtype)
    queries = group_queries(query, lead).to(dtype) if keys.shape[0] else query.new_zeros(0, 0, query.shape[-1])
    source = KeySet(keys, bias, valid)
    groups = query.shape[-3] // key.shape[-3] if enable_gqa and query.dim() >= 3 and query.numel() else 1

    if queries.numel() == 0 or (rank != "auto" and rank >= n):
        outcome = exact_outcome(queries, source, values, scale=scale, is_causal=is_causal, groups=groups)
    elif is_causal:
        outcome = causal_attention(
            queries, source, values, groups=groups, rank=rank, scale=scale, chunk=chunk, bins=bins, weighing=weighing,
            tau=tau, recentre_queries=recentre_queries, block=block, generator=generator,
        )  # fmt: skip
    else:
        outcome = _bidirectional(
            queries, source, values, rank=rank, scale=scale, tol=tol, bins=bins, weighing=weighing, tau=tau,
            fallback=fallback, block=block, recentre_queries=recentre_queries, generator=generator,
            want_bound=return_info,
        )  # fmt: skip
    output = outcome.output.reshape(*query.shape[:-1], value.shape[-1]).to(query.dtype)
    if not return_info:
        return output
    info = WildCatInfo(
        rank=outcome.rank.reshape(lead),
        residual=outcome.residual.reshape(lead),
        fallback_rows=outcome.fallback_rows.reshape(lead),
        fallback_heads=outcome.fallback_heads.reshape(lead),
        bound=outcome.bound.reshape(query.shape[:-1]),
        seconds=time.perf_counter() - began,
    )
    return output, info


def _bidirectional(
    queries: Tensor,
    source: KeySet,
    values: Tensor,
    *,
    rank: int | Literal["auto"],
    scale: float,
    tol: float | None,
    bins: int | Literal["auto"],
    weighing: Weighing,
    tau: float | str,
    fallback: str | None,
    block: int,
    recentre_queries: bool,
    generator: torch.Generator | None,
    want_bound: bool,
) -> Outcome:
    n = source.keys.shape[1]
    shift, query_norm = query_statistics(queries, recentre_queries)

    def selection_of(rank: int) -> Selection:
        temperature = None if tau == "constant" else tau
        if tau == "tuned":
            temperature = tuned_tau(
                queries, source, values, rank=rank, scale=scale, query_norm=query_norm, query_shift=shift,
                generator=generator,
            )  # fmt: skip
        return select(
            source, values, rank=rank, scale=scale, bins=auto_bins(n, rank) if bins == "auto" else bins,
            weighing=weighing, query_norm=query_norm, query_shift=shift, tau=temperature, tol=tol, block=block,
            generator=generator,
        )  # fmt: skip

    if rank == "auto":
        budget, most = 64, max(1, n // 4)
        chosen = selection_of(min(budget, most))
        while budget < most and bool((chosen.residual > tol).any()):
            budget *= 2
            chosen = selection_of(min(budget, most))
    else:
        chosen = selection_of(rank)

    keys = torch.gather(source.keys, 1, chosen.index.unsqueeze(-1).expand(-1, -1, source.keys.shape[-1]))
    bias = None if source.bias is None else torch.gather(source.bias, 1, chosen.index)
    low, high = value_range(values.detach(), source.valid)
    partial = partial_attention(queries, keys, chosen.values, chosen.weights, scale=scale, bias=bias)
    output, vanished = normalise(partial, low, high)
    bound = None
    if want_bound:
        width = (high - low).amax(-1).squeeze(-1)
        bound = output_bound(chosen, queries.detach(), partial.denominator.detach(), partial.row_max, width, scale)
    kept = chosen.used.sum(-1)

    over = torch.zeros_like(kept, dtype=torch.bool)
    if tol is not None and fallback is not None:
        over = chosen.residual > tol
    if bool(over.any()):
        if fallback == "exact":
            vanished = vanished | over.unsqueeze(-1)
            kept = torch.where(over, n, kept)
        else:
            output = _uniform_heads(output, over, queries, source, values, chosen.index.shape[1], scale, generator)
            bound = None if bound is None else torch.where(over.unsqueeze(-1), width.unsqueeze(-1), bound)
    if bool(vanished.any()):
        output = replace_rows(output, vanished, queries, source, values, scale=scale)
        bound = None if bound is None else bound.masked_fill(vanished, 0.0)
    rows = (vanished & ~over.unsqueeze(-1)).sum(-1)
    return Outcome(output, kept, chosen.residual, rows, over, bound)


def _uniform_heads(
    output: Tensor,
    heads: Tensor,
    queries: Tensor,
    source: KeySet,
    values: Tensor,
    rank: int,
    scale: float,
    generator: torch.Generator | None,
) -> Tensor:
    """The marked heads answered by ``rank`` keys drawn without replacement (equal weights cancel)."""
    index = heads.nonzero().squeeze(-1)
    odds = torch.ones_like(source.keys[index, :, 0]) if source.valid is None else source.valid[index].to(output.dtype)
    # A head may have fewer unpadded keys than `rank`; the padded ones drawn then are hidden by the bias.
    drawn = torch.multinomial((odds + 1e-30), rank, generator=generator)
    bias = torch.where(odds.gather(1, drawn) > 0, 0.0, -torch.inf).to(output.dtype)
    if source.bias is not None:
        bias = bias + source.bias[index].gather(1, drawn)
    keys = source.keys[index].gather(1, drawn.unsqueeze(-1).expand(-1, -1, source.keys.shape[-1]))
    kept_values = values[index].gather(1, drawn.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
    low, high = value_range(values.detach()[index], None if source.valid is None else source.valid[index])
    partial = partial_attention(queries[index], keys, kept_values, ones_for(kept_values), scale=scale, bias=bias)
    return output.index_copy(0, index, normalise(partial, low, high)[0])


def _check_options(
    dropout_p: float,
    attn_mask: Tensor | None,
    is_causal: bool,
    rank: int | str,
    tol: float | None,
    bins: int | str,
    weighing: str,
    tau: float | str,
    fallback: str | None,
    chunk: int,
    block: int,
) -> None:
    if dropout_p:
        raise NotImplementedError(f"dropout_p={dropout_p}: WildCat is for inference; pass 0")
    if is_causal and attn_mask is not None and attn_mask.dim() >= 2 and attn_mask.shape[-2] > 1:
        raise ValueError("attn_mask and is_causal=True cannot both be given; a key-padding mask of one row can")
    if rank != "auto":
        check_rank(rank)
    elif tol is None:
        raise ValueError('rank="auto" needs a target; pass tol=, such as 0.05')
    if tol is not None and not 0 < tol < 1:
        raise ValueError(f"tol={tol} is a relative residual; pass a number between 0 and 1")
    if is_causal and (tol is not None or rank == "auto" or tau == "tuned"):
        raise NotImplementedError(
            "tol, rank='auto' and tau='tuned' are not available with is_causal=True; pass a fixed rank and tau"
        )
    check_selection(bins, weighing, tau, tau_names=("constant", "tuned"))
    if fallback not in ("exact", "uniform", None):
        raise ValueError(f'fallback={fallback!r}; pass "exact", "uniform" or None')
    if chunk < 1 or block < 1:
        raise ValueError(f"chunk={chunk} and block={block} must both be at least 1")
