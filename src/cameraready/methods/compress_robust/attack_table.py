"""The audit's table of attacks: accuracy and loss under each of them, with intervals and the proved bound."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd
import torch
from scipy.stats import binomtest
from torch import Tensor, nn
from torch.nn import functional

from cameraready.methods.compress_robust.attacks import attack, logits_of
from cameraready.methods.compress_robust.certificates import loss_gap_bound
from cameraready.methods.compress_robust.lipschitz import LipschitzBound
from cameraready.methods.compress_robust.pgd import margins


def attack_table(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: Mapping[str, list[float]],
    bounds: tuple[float, float],
    methods: tuple[str, ...],
    lipschitz: Mapping[str, LipschitzBound],
    seed: int,
) -> tuple[pd.DataFrame, dict[str, Tensor]]:
    """`AuditReport.robustness`, and the strongest adversarial inputs a norm. A radius keeps what smaller ones found."""
    logits = logits_of(model, x)
    clean, loss = float((logits.argmax(dim=1) == y).double().mean()), functional.cross_entropy(logits, y)
    rows, strongest = [], {}
    for p in eps:
        found = {method: x.clone() for method in methods}
        for radius in eps[p]:
            for method in methods:
                standing = (logits_of(model, found[method]).argmax(dim=1) == y).nonzero()[:, 0]
                if len(standing) and radius > 0:
                    result = attack(
                        model, x[standing], y[standing], norm=p, eps=radius, method=method, bounds=bounds, seed=seed
                    )
                    found[method][standing] = result.adversarial
            candidates = dict(found)
            if len(methods) > 1:
                candidates["worst of all"] = _worst(model, y, list(found.values()))
            for method, moved in candidates.items():
                answer = logits_of(model, moved)
                right = int((answer.argmax(dim=1) == y).sum())
                interval = binomtest(right, len(y)).proportion_ci(method="wilson")
                rows.append(
                    {
                        "norm": p,
                        "eps": radius,
                        "attack": method,
                        "clean": clean,
                        "adv": right / len(y),
                        "low": interval.low,
                        "high": interval.high,
                        "relative": right / len(y) / clean if clean > 0 else math.nan,
                        "loss_gap": float(functional.cross_entropy(answer, y) - loss),
                        "loss_gap_bound": loss_gap_bound(lipschitz[p], radius) if p in lipschitz else math.nan,
                    }
                )
            strongest[p] = moved
    return pd.DataFrame(rows), strongest


def _worst(model: nn.Module, y: Tensor, candidates: list[Tensor]) -> Tensor:
    """Of several adversarial inputs for each example the one of the least margin."""
    scores = torch.stack([margins(logits_of(model, moved), y) for moved in candidates])
    best = scores.argmin(dim=0)
    return torch.stack(candidates)[best, torch.arange(len(y), device=y.device)]
