"""Compressing a trained model: whole rows set to zero, layers cut to a rank, and how much to keep of each layer."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import nn

from cameraready.methods.compress_robust.compressibility import as_matrix, curve, row_norms, singular_values
from cameraready.methods.compress_robust.layers import LowRank, hidden_layers, own_module


def prune_rows(model: nn.Module, *, keep: float | int) -> nn.Module:
    """A copy of the model with only the strongest rows (neurons, filters) of each hidden layer; the others are zero.

    Parameters
    ----------
    keep : share in (0, 1], or number of rows of each layer. Rows are ranked by l2 norm; the biases of the others are
        zero too. The last layer, whose rows are the classes, is left whole.

    Raises
    ------
    ValueError : keep out of range, a model without a hidden layer.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> small = prune_rows(model, keep=0.25)
    >>> int((small[0].weight.abs().sum(dim=1) > 0).sum())
    2
    """
    small = _copy(model)
    with torch.no_grad():
        for layer in hidden_layers(small):
            last, norms = own_module(layer), row_norms(as_matrix(layer.weight), 2)
            mask = torch.zeros(len(norms)).to(layer.weight)
            mask[norms.argsort(descending=True)[: _count(keep, len(norms), layer.name)]] = 1
            last.weight.mul_(mask.reshape(-1, *[1] * (last.weight.ndim - 1)))
            if last.bias is not None:
                last.bias.mul_(mask)
    return small


def low_rank(model: nn.Module, *, rank: float | int, full_too: bool = False) -> nn.Module:
    """A copy of the model whose hidden layers are the nearest ones of this rank, as two thinner layers (`LowRank`).

    Parameters
    ----------
    rank : number, or share in (0, 1] of each layer's full rank; a layer of no larger rank is left as it is, and so are
        the last layer and grouped convolutions.
    full_too : cut layers of no larger rank, too, at their full rank, which changes nothing that they compute.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> small = low_rank(model, rank=2)
    >>> small[0].rank, int(torch.linalg.matrix_rank(small[0].weight))
    (2, 2)
    """
    small = _copy(model)
    for layer in hidden_layers(small):
        full = min(len(layer.weight), layer.weight[0].numel())
        kept = _count(rank, full, layer.name) if isinstance(rank, float) else _at_least_one(rank)
        plain = not isinstance(layer.module, LowRank) and getattr(layer.module, "groups", 1) == 1
        if plain and (kept < full or full_too):
            parent, _, name = layer.name.rpartition(".")
            setattr(small.get_submodule(parent), name, _factorised(layer.module, min(kept, full)))
    return small


def _factorised(module: nn.Module, rank: int) -> LowRank:
    """The nearest layer of this rank, sqrt(S) on either side of the cut; a convolution's second half is 1 x 1."""
    weight, bias = module.weight.detach(), module.bias
    u, s, vh = torch.linalg.svd(as_matrix(weight), full_matrices=False)
    root = s[:rank].sqrt()
    b, a = (u[:, :rank] * root).to(weight), (root[:, None] * vh[:rank]).to(weight)
    where = {"device": weight.device, "dtype": weight.dtype}
    if weight.ndim == 2:
        first = nn.Linear(weight.shape[1], rank, bias=False, **where)
        second = nn.Linear(rank, weight.shape[0], bias=bias is not None, **where)
    else:
        kind, settings = type(module), ("stride", "padding", "dilation", "padding_mode")
        copied = {name: getattr(module, name) for name in settings}
        first = kind(module.in_channels, rank, module.kernel_size, bias=False, **copied, **where)
        second = kind(rank, module.out_channels, 1, bias=bias is not None, **where)
    with torch.no_grad():
        first.weight.copy_(a.reshape(first.weight.shape))
        second.weight.copy_(b.reshape(second.weight.shape))
        if bias is not None:
            second.bias.copy_(bias)
    both = LowRank(first, second)
    return both.train(module.training)


@dataclass(frozen=True)
class LayerTarget:
    """How many entries (rows, or singular directions) to keep of one layer, and its norm if they were even."""

    name: str
    k: int
    least: int
    parameters: int
    norm_if_even: float


def layer_targets(
    model: nn.Module, *, budget: float | int, norm: str = "2", tolerance: float = 0.5
) -> list[LayerTarget]:
    """Choose k for each hidden layer so that the product of even norms is least within a parameter budget.

    A layer whose energy is even over k entries has the norm ||nu||_1 / k (l_inf) or ||W||_F / sqrt(k) (l_2), so one
    more entry lowers the log of the product by log((k + 1) / k), halved for l_2. From the least k that leave out at
    most ``tolerance``, entries go one at a time to the layer where this is most per parameter. The terms have
    decreasing returns, so the greedy choice is the best for its own number of parameters.

    Parameters
    ----------
    budget : parameters of the hidden layers, as a number or as a share in (0, 1] of those they have.
    norm : "2": an entry is a singular direction of h + p parameters; "inf": a row of p.
    tolerance : share of the norm that the least k may leave out (`CompressibilityCurve.k_at`).

    Raises
    ------
    ValueError : a budget below what the least k need, with that number.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2))
    >>> targets = layer_targets(model, budget=300, norm="inf", tolerance=0.9)
    >>> sum(t.parameters for t in targets) <= 300
    True
    """
    if norm not in ("inf", "2"):
        raise ValueError(f"norm={norm!r}; choose 'inf' or '2'")
    layers = hidden_layers(model) or _no_hidden(model)
    power = 1.0 if norm == "inf" else 0.5
    names, ks, most, costs, energies, sizes = [], [], [], [], [], 0
    for layer in layers:
        matrix = as_matrix(layer.weight)
        h, p = matrix.shape
        values = row_norms(matrix, 1) if norm == "inf" else singular_values(matrix)
        seen = curve(values, q=1 / power)
        names.append(layer.name)
        ks.append(seen.k_at(tolerance))
        most.append(len(values))
        costs.append(p if norm == "inf" else h + p)
        energies.append(float(torch.linalg.vector_norm(values, ord=1 / power)))
        sizes += h * p
    total = budget * sizes if isinstance(budget, float) and budget <= 1 else float(budget)
    least = list(ks)
    needed = sum(k * cost for k, cost in zip(ks, costs, strict=True))
    if not needed <= total < math.inf:
        raise ValueError(
            f"budget={budget} is {total:.0f} parameters; the least k need {needed}, or raise tolerance={tolerance}"
        )
    left = total - needed
    while True:
        open_ = [i for i in range(len(ks)) if ks[i] < most[i] and costs[i] <= left]
        if not open_:
            break
        best = max(open_, key=lambda i: math.log1p(1 / ks[i]) / costs[i])
        ks[best] += 1
        left -= costs[best]
    return [
        LayerTarget(name, k, low, k * cost, energy / k**power)
        for name, k, low, cost, energy in zip(names, ks, least, costs, energies, strict=True)
    ]


def _copy(model: nn.Module) -> nn.Module:
    """A copy of a model whose hidden layers can all be changed."""
    for layer in hidden_layers(model) or _no_hidden(model):
        own_module(layer)
    return copy.deepcopy(model)


def _count(keep: float | int, total: int, name: str) -> int:
    if isinstance(keep, bool) or (isinstance(keep, float) and not 0 < keep <= 1) or keep <= 0:
        raise ValueError(f"keep={keep!r}; pass a share in (0, 1] or a number of at least 1")
    if isinstance(keep, float):
        return max(1, round(keep * total))
    if keep > total:
        raise ValueError(f"keep={keep} of the {total} rows of layer {name!r}; pass at most {total}, or a share")
    return keep


def _at_least_one(rank: int) -> int:
    if isinstance(rank, bool) or rank < 1:
        raise ValueError(f"rank={rank!r}; pass a number of at least 1, or a share in (0, 1]")
    return rank


def _no_hidden(model: nn.Module) -> list:
    raise ValueError(f"{type(model).__name__} has no hidden layer to compress; its last layer's rows are the classes")
