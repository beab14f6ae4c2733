"""The layers of a torch model that have a weight matrix, whatever their precision, and what is not among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LowRank(nn.Module):
    """A Linear or convolution as two thinner ones in a row: W = B A with rank(W) <= rank; the bias sits in B.

    ``weight`` is the product, so that the layer is analysed as the one matrix that it computes.
    """

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    @property
    def weight(self) -> Tensor:
        """The product B A in the shape of the layer that it replaces."""
        return (self.second.weight.flatten(1) @ self.first.weight.flatten(1)).unflatten(1, self.first.weight.shape[1:])

    @property
    def bias(self) -> Tensor | None:
        return self.second.bias

    @property
    def rank(self) -> int:
        return len(self.first.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


@dataclass(frozen=True)
class Layer:
    """One layer: its name in the model, its module, and its weight as it acts (dequantised), (out, in, *kernel)."""

    name: str
    module: nn.Module
    weight: Tensor

    @property
    def is_convolution(self) -> bool:
        return self.weight.ndim > 2


def weight_of(module: nn.Module) -> Tensor | None:
    """The weight of a Linear, a convolution, their quantised forms, or a `LowRank`; None for other modules."""
    if isinstance(module, (nn.Linear, *CONVOLUTIONS, LowRank)):
        return module.weight.detach()
    kind = f"{type(module).__module__}.{type(module).__name__}"
    if "quantized" in kind and type(module).__name__.startswith(("Linear", "Conv")) and hasattr(module, "weight"):
        weight = module.weight() if callable(module.weight) else module.weight
        return weight.dequantize() if weight.is_quantized else weight.detach()
    return None


def layers_of(model: nn.Module) -> list[Layer]:
    """All layers of the model in its own order; a `LowRank` counts once.

    Raises
    ------
    TypeError : not a torch module, or a compiled one whose layers do not show.
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"model is a {type(model).__name__}; pass a torch.nn.Module that is not compiled to TorchScript"
        )
    return list(_walk(model, ""))


def own_module(layer: Layer) -> nn.Module:
    """The module whose parameter ``weight`` holds the layer's rows, to change in place.

    Raises
    ------
    ValueError : a weight that is no parameter but computed (a mask, a parametrisation) or quantised.
    """
    module = layer.module.second if isinstance(layer.module, LowRank) else layer.module
    if module._parameters.get("weight") is None:
        way_out = "make it permanent first (torch.nn.utils.prune.remove, parametrize.remove_parametrizations)"
        raise ValueError(f"layer {layer.name!r} computes its weight or is quantised; {way_out}, or start from floats")
    return module


def hidden_layers(model: nn.Module) -> list[Layer]:
    """All layers but the last, whose rows are the classes."""
    return layers_of(model)[:-1]


def uncovered(model: nn.Module) -> list[str]:
    """Names of parameters that act as matrices but belong to no layer of `layers_of`."""
    inside = {id(p) for layer in layers_of(model) for p in layer.module.parameters()}
    return [name for name, p in model.named_parameters() if p.ndim >= 2 and id(p) not in inside]


def as_convolution(module: nn.Module) -> nn.Module:
    """The module that carries stride, padding, dilation and groups: a `LowRank`'s are those of its first half."""
    return module.first if isinstance(module, LowRank) else module


def linear_part(module: nn.Module, x: Tensor) -> Tensor:
    """The module without its bias, in the dtype of x."""
    weight = weight_of(module).to(x)
    if weight.ndim == 2:
        return functional.linear(x, weight)
    conv = as_convolution(module)
    if conv.padding_mode != "zeros":
        x = functional.pad(x, conv._reversed_padding_repeated_twice, mode=conv.padding_mode)
        padding: object = 0
    else:
        padding = conv.padding
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[weight.ndim - 3]
    return function(x, weight, None, conv.stride, padding, conv.dilation, conv.groups)


def input_shapes(model: nn.Module, example: Tensor) -> dict[str, tuple[int, ...]]:
    """The shape, without the batch, that each layer receives when the model sees ``example`` (n, ...)."""
    shapes: dict[str, tuple[int, ...]] = {}

    def note(name: str, x: Tensor) -> None:
        shapes.setdefault(name, tuple(x.shape[1:]))

    hooks = [
        layer.module.register_forward_pre_hook(lambda _module, args, name=layer.name: note(name, args[0]))
        for layer in layers_of(model)
    ]
    try:
        with torch.no_grad():
            model(example[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


def _walk(module: nn.Module, name: str) -> Iterator[Layer]:
    weight = weight_of(module)
    if weight is not None:
        yield Layer(name or "model", module, weight)
        return
    for child_name, child in module.named_children():
        yield from _walk(child, f"{name}.{child_name}" if name else child_name)
