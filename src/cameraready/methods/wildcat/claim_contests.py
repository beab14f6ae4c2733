"""Fast attentions against each other: errors and times of many sizes, and the best answer within a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cameraready.methods.wildcat import peers, wildcat_attention
from cameraready.methods.wildcat.claim_inputs import AttentionInput

SDPA = "SDPA (torch)"
SIZES = (64, 128, 256, 512, 1024, 2048)
Runs = dict[str, list[tuple[float, float]]]  # name -> (seconds, error) of every size


def relative_error(got: Tensor, exact: Tensor) -> float:
    """Frobenius norm of the difference, relative to that of the exact answer."""
    return float((got - exact).norm() / exact.norm())


def wildcat(x: AttentionInput, **options: Any) -> Callable[[], Tensor]:
    """The paper's selection (queries not recentred) with these knobs."""
    return lambda: wildcat_attention(
        x.query, x.key, x.value, scale=x.scale, key_bias=x.bias, recentre_queries=False, **options
    )[0]


def exact(x: AttentionInput) -> Callable[[], Tensor]:
    """SDPA on the same input."""
    q, k, v, bias = _heads(x)
    return lambda: peers.exact(q, k, v, x.scale, bias)


def measure(trial: Any, reference: Tensor, contestants: dict[Any, Callable[[], Tensor]], limit: float) -> list[Any]:
    """(seconds, error) of contestants in order of size, until no larger one can stay within ``limit`` seconds."""
    found = []
    for name, run in contestants.items():
        timing = trial.alternate({name: run}, repeats=1)[name]
        if timing.seconds < limit / 8:  # so short a time is easily disturbed
            timing = trial.alternate({name: run}, repeats=3)[name]
        found.append((timing.seconds, relative_error(timing.value, reference)))
        if timing.seconds > 0.75 * limit:
            break
    return found


def peer_runs(trial: Any, x: AttentionInput, reference: Tensor, limit: float) -> Runs:
    """Every peer at every size that takes no longer than ``limit`` seconds."""
    q, k, v, bias = _heads(x)
    draws = torch.Generator().manual_seed(trial.seed)
    return {
        name: measure(
            trial, reference, {s: lambda p=peer, s=s: p(q, k, v, x.scale, bias, s, draws) for s in SIZES}, limit
        )
        for name, peer in peers.PEERS.items()
    }


def best_within(runs: Sequence[tuple[float, float]], seconds: float, trivial: float) -> float:
    """Smallest error within the time; who has no answer by then may answer the mean value."""
    return min([error for taken, error in runs if taken <= seconds], default=trivial)


def mean_value_error(x: AttentionInput, reference: Tensor) -> float:
    """Error of answering every query by the mean value."""
    return relative_error(_heads(x)[2].mean(1, keepdim=True).expand_as(reference), reference)


def third_best_log_ratio(ours: Sequence[float], rivals: Sequence[float]) -> float:
    """Third smallest of ``log(error / best rival's error)`` over the time budgets: below 0 if three of four are won."""
    return sorted(math.log(mine / rival) for mine, rival in zip(ours, rivals, strict=True))[2]


def _heads(x: AttentionInput) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    q, k, v = (t.flatten(0, 1) for t in (x.query, x.key, x.value))
    return q, k, v, None if x.bias is None else x.bias.flatten(0, 1)
