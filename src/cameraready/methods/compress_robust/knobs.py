"""The ways in which a network becomes compressible, each with one number to turn."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cameraready.methods.compress_robust.compression import low_rank, prune_rows
from cameraready.methods.compress_robust.layers import LowRank, hidden_layers
from cameraready.methods.compress_robust.regularisers import GroupLasso, NuclearNorm
from cameraready.methods.compress_robust.training import is_chain

Masks = dict[str, Tensor]


@dataclass(frozen=True)
class Knob:
    """One way to compress; a level of None is the network as it is.

    Parameters
    ----------
    name : shown in tables and charts.
    build : (fresh model, level, all levels) -> model to train; of one shape at all levels, they train at once.
    masks : (model, level) -> parameter name to 0 / 1 values that hold during training.
    penalty : weights (models, h, p) -> (models,); the level is its strength.
    finish : (trained model, level) -> compressed model.
    fine_tunes : whether training goes on after ``finish``, with the rows that it set to zero kept so.
    sets : "lr" or "weight_decay", if the level is that setting of the recipe.
    """

    name: str
    build: Callable[[nn.Module, float, Sequence[float]], nn.Module] | None = None
    masks: Callable[[nn.Module, float], Masks] | None = None
    penalty: Callable[[Tensor], Tensor] | None = None
    finish: Callable[[nn.Module, float], nn.Module] | None = None
    fine_tunes: bool = False
    sets: str = ""


def _factored(model: nn.Module, level: float, levels: Sequence[float]) -> nn.Module:
    """Layers of rank ``level`` in the shape of the largest: what is zero on both sides of the cut has no gradient."""
    rank = int(level)
    padded = low_rank(model, rank=max(int(other) for other in levels if other is not None), full_too=True)
    with torch.no_grad():
        for layer in hidden_layers(padded):
            if isinstance(layer.module, LowRank):
                layer.module.first.weight[rank:] = 0
                layer.module.second.weight[:, rank:] = 0
    return padded


def _narrowed(model: nn.Module, level: float, levels: Sequence[float]) -> nn.Module:
    """A chain of Linear layers with only the neurons that some level has, which is the same network and less work."""
    if not is_chain(model) or any(isinstance(child, LowRank) for child in model):
        return model
    widest = max(int(other) for other in levels if other is not None)
    narrow, into = copy.deepcopy(model), None
    *hidden, last = [child for child in narrow if isinstance(child, nn.Linear)]
    for child in [*hidden, last]:
        kept = child.out_features if child is last else min(widest, child.out_features)
        into = child.in_features if into is None else into
        child.weight = nn.Parameter(child.weight.detach()[:kept, :into].clone())
        if child.bias is not None:
            child.bias = nn.Parameter(child.bias.detach()[:kept].clone())
        child.in_features, child.out_features, into = into, kept, kept
    return narrow


def _first_rows(model: nn.Module, level: float) -> Masks:
    """Masks that leave ``level`` neurons of each hidden layer active."""
    return _row_masks(model, lambda weight: torch.arange(len(weight), device=weight.device) < level)


def zero_rows(model: nn.Module) -> Masks:
    """Masks that keep at zero the rows that are zero now."""
    return _row_masks(model, lambda weight: weight.flatten(1).abs().amax(dim=1) > 0)


def _row_masks(model: nn.Module, active: Callable[[Tensor], Tensor]) -> Masks:
    masks = {}
    for layer in hidden_layers(model):
        mask = active(layer.weight).to(layer.weight)
        masks[f"{layer.name}.weight"] = mask.reshape(-1, *[1] * (layer.weight.ndim - 1))
        if layer.module.bias is not None:
            masks[f"{layer.name}.bias"] = mask
    return masks


def _truncated(model: nn.Module, level: float) -> nn.Module:
    return low_rank(model, rank=level if isinstance(level, float) and level <= 1 else int(level))


KNOBS: dict[str, Knob] = {
    "group_lasso": Knob("group lasso", penalty=GroupLasso.of),
    "nuclear_norm": Knob("nuclear norm", penalty=NuclearNorm.of),
    "rank": Knob("rank", build=_factored),
    "active_neurons": Knob("active neurons", build=_narrowed, masks=_first_rows),
    "prune_rows": Knob("pruned rows", finish=lambda model, level: prune_rows(model, keep=level), fine_tunes=True),
    "svd": Knob("SVD truncation", finish=_truncated),
    "weight_decay": Knob("weight decay", sets="weight_decay"),
    "lr": Knob("learning rate", sets="lr"),
}
