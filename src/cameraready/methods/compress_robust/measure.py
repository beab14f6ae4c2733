"""What a study measures of one model: accuracy with and without an attack, and what its layers' norms are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from torch import Tensor, nn
from torch.nn import functional

from cameraready.methods.compress_robust.attacks import logits_of
from cameraready.methods.compress_robust.layer_table import layer_table
from cameraready.methods.compress_robust.pgd import pgd


def measure(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: Mapping[str, Sequence[float]],
    bounds: tuple[float, float] = (0.0, 1.0),
    restarts: int = 1,
    seed: int = 0,
) -> list[dict[str, object]]:
    """One row a norm and eps: accuracies, loss gap, and the factors of the layers' norms; see `Sweep`."""
    y = y.long()
    logits = logits_of(model, x)
    clean, loss = float((logits.argmax(1) == y).double().mean()), float(functional.cross_entropy(logits.double(), y))
    layers = layer_table(model, x)
    hidden = layers.iloc[:-1]
    rows = []
    for norm, radii in eps.items():
        tail, k = ("", "k") if norm == "2" else ("_inf", "k_rows")
        factors = {f"log_{part}": _log_sum(layers[f"{part}{tail}"]) for part in ("energy", "concentration", "spread")}
        factors["log_product"] = _log_sum(layers["opnorm_2" if norm == "2" else "opnorm_inf"])
        factors["kept"] = float(hidden[k].mean())
        factors["stable_rank"] = float(hidden["stable_rank"].mean())
        for radius in radii:
            moved = pgd(model, x, y, norm=norm, eps=radius, bounds=bounds, restarts=restarts, seed=seed)
            answer = logits_of(model, moved)
            adv = float((answer.argmax(1) == y).double().mean())
            gap = float(functional.cross_entropy(answer.double(), y)) - loss
            relative = adv / clean if clean > 0 else math.nan
            accuracies = {"clean": clean, "adv": adv, "relative": relative, "loss_gap": gap}
            rows.append({"norm": norm, "eps": radius, **accuracies, **factors})
    return rows


def _log_sum(values: pd.Series) -> float:
    with np.errstate(divide="ignore"):
        return float(np.log(values).sum(skipna=False))
