"""Penalties and proximal steps on a model's layers, for the user's own training loop.

Each works on weight matrices (..., h, p): leading dimensions are models that train side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cameraready.methods.compress_robust.layers import LowRank, hidden_layers, own_module


@dataclass(frozen=True)
class Penalty:
    """strength * sum over layers of ``of(weight)``; all layers but the last, whose rows are the classes."""

    strength: float

    def __post_init__(self) -> None:
        if not 0 <= self.strength < math.inf:
            raise ValueError(f"strength={self.strength}; it is finite and not negative")

    def __call__(self, model: nn.Module) -> Tensor:
        return self.strength * sum(self.of(weight) for weight in hidden_weights(model))


class GroupLasso(Penalty):
    """strength * sum over layers and rows of ||w_row||_2, whose minimisers have whole rows at zero.

    Parameters
    ----------
    strength : of the penalty; 1e-3 to 1e-2 prunes small networks under AdamW.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2))
    >>> _ = model[0].weight.data.copy_(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    >>> GroupLasso(0.1)(model).item()
    0.5
    """

    @staticmethod
    def of(weight: Tensor) -> Tensor:
        """Sum of the row norms of (..., h, p), shape (...), with the derivative 0 at a zero row."""
        return torch.linalg.vector_norm(weight, dim=-1).sum(dim=-1)

    def proximal_(self, model: nn.Module, *, lr: float) -> None:
        """One proximal step in place: every row is shortened by lr * strength, to zero where it is shorter."""
        with torch.no_grad():
            for weight in _matrices(model):
                length = weight.norm(dim=-1, keepdim=True)
                weight.mul_((1 - lr * self.strength / length.clamp(min=1e-30)).clamp(min=0))


class NuclearNorm(Penalty):
    """strength * sum over layers of the sum of singular values, whose minimisers have low rank."""

    @staticmethod
    def of(weight: Tensor) -> Tensor:
        """Nuclear norm of (..., h, p), shape (...)."""
        return torch.linalg.matrix_norm(weight, ord="nuc")

    def proximal_(self, model: nn.Module, *, lr: float) -> None:
        """One proximal step in place: every singular value is lowered by lr * strength, at most to zero."""
        with torch.no_grad():
            for weight in _matrices(model):
                u, s, vh = torch.linalg.svd(weight, full_matrices=False)
                weight.copy_(u * (s - lr * self.strength).clamp(min=0) @ vh)


@dataclass(frozen=True)
class SpreadControl(Penalty):
    """strength * sum over layers of (log s_k + orthogonality of the top-k rows): evens out what compression keeps.

    s_k is the spread of `decompose`: the largest row norm (l_inf) or singular value (l_2) over the mean, or root mean
    square, of the k largest. Neither term moves when a layer is scaled, so energy is left alone.

    Parameters
    ----------
    strength : of the penalty.
    k : entries that are kept, or a sequence with one k a hidden layer, such as `layer_targets` gives.
    norm : "inf" for the rows' l1 norms, "2" for singular values.
    orthogonality : weight of the mean squared cosine between different rows of the k longest.
    """

    k: int | Sequence[int]
    norm: str = "2"
    orthogonality: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in ("inf", "2"):
            raise ValueError(f"norm={self.norm!r}; choose 'inf' or '2'")
        for k in [self.k] if isinstance(self.k, int) else self.k:
            if k < 1:
                raise ValueError(f"k={k}; at least one entry is kept")

    def __call__(self, model: nn.Module) -> Tensor:
        """The penalty on all layers but the last."""
        weights = hidden_weights(model)
        ks = [self.k] * len(weights) if isinstance(self.k, int) else list(self.k)
        if len(ks) != len(weights):
            raise ValueError(
                f"{len(ks)} values of k for {len(weights)} hidden layers; pass one a layer, or one for all"
            )
        return self.strength * sum(self.of(weight, k) for weight, k in zip(weights, ks, strict=True))

    def of(self, weight: Tensor, k: int) -> Tensor:
        """log s_k + orthogonality of (..., h, p), shape (...)."""
        k = min(k, *weight.shape[-2:]) if self.norm == "2" else min(k, weight.shape[-2])
        lengths = weight.norm(dim=-1)
        order = lengths.topk(k, dim=-1).indices
        rows = weight.gather(-2, order[..., None].expand(*order.shape, weight.shape[-1]))
        unit = rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        cosines = unit @ unit.mT
        # Of the k^2 squared cosines the k on the diagonal are 1.
        overlap = (cosines.square().sum(dim=(-2, -1)) - k) / max(k * (k - 1), 1)
        return log_spread(weight, k, self.norm) + self.orthogonality * overlap


def log_spread(weight: Tensor, k: int, norm: str) -> Tensor:
    """log s_k of (..., h, p), shape (...); see `decompose`."""
    if norm == "inf":
        top = weight.abs().sum(dim=-1).topk(k, dim=-1).values
        return top[..., 0].clamp(min=1e-30).log() - top.mean(dim=-1).clamp(min=1e-30).log()
    top = torch.linalg.svdvals(weight)[..., :k]
    return top[..., 0].clamp(min=1e-30).log() - top.square().mean(dim=-1).clamp(min=1e-30).log() / 2


def hidden_weights(model: nn.Module) -> list[Tensor]:
    """The matrices (h, p) of all layers but the last, with their gradients; a `LowRank` as its product."""
    layers = hidden_layers(model)
    if not layers:
        raise ValueError(f"{type(model).__name__} has no hidden layer; its last layer's rows are the classes")
    for layer in layers:
        if not isinstance(layer.module.weight, Tensor):
            raise ValueError(f"layer {layer.name!r} is quantised and cannot be trained; start from floats")
    return [layer.module.weight.flatten(1) for layer in layers]


def _matrices(model: nn.Module) -> list[Tensor]:
    """Views of the weights of the hidden Linear layers and convolutions, to change in place."""
    layers = hidden_layers(model)
    for layer in layers:
        if isinstance(layer.module, LowRank):
            raise ValueError(f"layer {layer.name!r} is two factors, and has no weight to change in place")
    return [own_module(layer).weight.data.flatten(1) for layer in layers]
