"""``tau="tuned"``: the temperature that gives the smallest error on a small sample of the very problem."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cameraready.methods.wildcat.attend import ones_for, partial_attention
from cameraready.methods.wildcat.selection import KeySet, select
from cameraready.methods.wildcat.temperature import constant_tau, largest_norm, masked_mean

_GOLDEN = (math.sqrt(5) - 1) / 2


@torch.no_grad()
def tuned_tau(
    queries: Tensor,
    source: KeySet,
    values: Tensor,
    *,
    rank: int,
    scale: float,
    query_norm: Tensor,
    query_shift: Tensor | None = None,
    sample: int = 64,
    most_keys: int = 1024,
    evaluations: int = 9,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Golden-section search over ``log c`` in [-1, 3], ``tau^2 = c Rk / Rq``, for every head, (m,).

    The objective is the error of ``sample`` queries' outputs over evenly spaced keys, exactly computable there.
    (The worst-case residual bound as an objective prefers temperatures whose real error is up to three times larger:
    it weighs one largest query only.)

    Parameters
    ----------
    queries : Tensor (m, L, E)
    source, values : KeySet, Tensor (m, n, d_v)
    """
    n = source.keys.shape[1]
    stride = max(1, math.ceil(n / most_keys))
    few = KeySet(
        source.keys[:, ::stride],
        None if source.bias is None else source.bias[:, ::stride],
        None if source.valid is None else source.valid[:, ::stride],
    )
    few_values = values[:, ::stride]
    ask = queries[:, :: max(1, queries.shape[1] // sample)][:, :sample]
    rank = max(1, min(rank, few.keys.shape[1] // 4))
    hidden = few.bias
    if few.valid is not None:
        hidden = torch.zeros_like(few.keys[..., 0]) if hidden is None else hidden
        hidden = hidden.masked_fill(~few.valid, -torch.inf)
    full = partial_attention(ask, few.keys, few_values, ones_for(few_values), scale=scale, bias=hidden)
    exact = full.numerator / full.denominator
    key_norm = largest_norm(few.keys - masked_mean(few.keys, few.valid), few.valid)
    seed = int(torch.randint(2**31, (1,), generator=generator, device=queries.device))

    def tau_at(log_c: Tensor) -> Tensor:
        return constant_tau(key_norm, query_norm, log_c.exp())

    def error(log_c: Tensor) -> Tensor:
        # The same draws at every temperature: the search sees a function, not noise.
        draws = torch.Generator(queries.device).manual_seed(seed)
        chosen = select(
            few, few_values, rank=rank, scale=scale, tau=tau_at(log_c), query_shift=query_shift, generator=draws
        )
        keys = torch.gather(few.keys, 1, chosen.index.unsqueeze(-1).expand(-1, -1, few.keys.shape[-1]))
        bias = None if few.bias is None else torch.gather(few.bias, 1, chosen.index)
        part = partial_attention(ask, keys, chosen.values, chosen.weights, scale=scale, bias=bias)
        output = part.numerator / part.denominator.clamp_min(1.0)  # an exact denominator is never below 1
        return (output - exact).square().sum((1, 2)).nan_to_num(nan=torch.inf)

    low, high = key_norm.new_full(key_norm.shape, -1.0), key_norm.new_full(key_norm.shape, 3.0)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = error(left), error(right)
    for _ in range(evaluations - 2):
        go_left = at_left <= at_right
        high, low = torch.where(go_left, right, high), torch.where(go_left, low, left)
        probe = torch.where(go_left, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        value = error(probe)
        left, right = torch.where(go_left, probe, right), torch.where(go_left, left, probe)
        at_left, at_right = torch.where(go_left, value, at_right), torch.where(go_left, at_left, value)
    return tau_at(torch.where(at_left <= at_right, left, right))
