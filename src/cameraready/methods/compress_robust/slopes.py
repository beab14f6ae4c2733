"""Lipschitz constants of activations and reshapings, as modules, functions and tensor methods."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

# The largest slope of each activation; those of GELU and SiLU are rounded up.
SLOPES: dict[type[nn.Module], float] = {
    **dict.fromkeys([nn.ReLU, nn.ReLU6, nn.Tanh, nn.Hardtanh, nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.CELU], 1.0),
    **dict.fromkeys([nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d], 1.0),
    nn.Softshrink: 1.0,
    nn.Sigmoid: 0.25,
    nn.GELU: 1.13,
    nn.SiLU: 1.1,
    nn.Mish: 1.09,
}
FUNCTION_SLOPES: dict[Any, float] = {
    **dict.fromkeys([torch.relu, functional.relu, functional.relu6, torch.tanh, functional.tanh, torch.abs], 1.0),
    **dict.fromkeys([functional.hardtanh, functional.softplus, torch.flatten, torch.reshape, torch.squeeze], 1.0),
    **dict.fromkeys([torch.unsqueeze, torch.permute, torch.transpose, torch.clamp, functional.softsign], 1.0),
    torch.sigmoid: 0.25,
    functional.sigmoid: 0.25,
    functional.gelu: 1.13,
    functional.silu: 1.1,
}
METHOD_SLOPES: dict[str, float] = {
    **dict.fromkeys(["relu", "relu_", "tanh", "abs", "clamp", "clamp_", "flatten", "reshape", "view", "squeeze"], 1.0),
    **dict.fromkeys(["unsqueeze", "permute", "transpose", "contiguous", "float", "double", "to"], 1.0),
    "sigmoid": 0.25,
}
POOL_FUNCTIONS: dict[Any, type[nn.Module]] = {
    functional.max_pool1d: nn.MaxPool1d,
    functional.max_pool2d: nn.MaxPool2d,
    torch.max_pool2d: nn.MaxPool2d,
    functional.avg_pool1d: nn.AvgPool1d,
    functional.avg_pool2d: nn.AvgPool2d,
    functional.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}


def slope_of(module: nn.Module) -> float | None:
    """The Lipschitz constant of an activation in evaluation mode; None for a module without a known one."""
    if isinstance(module, nn.LeakyReLU):
        return max(1.0, abs(module.negative_slope))
    if isinstance(module, nn.RReLU):
        return max(1.0, abs(module.upper))
    if isinstance(module, nn.ELU):
        return max(1.0, module.alpha)
    if isinstance(module, nn.PReLU):
        return max(1.0, float(module.weight.abs().max()))
    return SLOPES.get(type(module))
