"""Finding a Linear-ReLU-Linear block in a torch model, and what it receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cameraready.methods.stable_minima.curvature import evaluating

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ReluBlock:
    """f(x) = V ReLU(W x - b) + c on the inputs ``X`` (n, d) that the block receives.

    W (width, d), b (width,), V (outputs, width), c (outputs,). ``has_b``, ``has_c``: whether the biases exist.
    ``whole`` : the model is this block and nothing else, with every weight trainable; otherwise ``why_not`` says why.
    """

    W: Floats
    b: Floats
    V: Floats
    c: Floats
    X: Floats
    has_b: bool
    has_c: bool
    whole: bool
    why_not: str = ""

    def predict(self, X: Floats) -> Floats:
        """f(x) of each row, (n, outputs)."""
        return np.maximum(X @ self.W.T - self.b, 0.0) @ self.V.T + self.c


def find_blocks(model: nn.Module) -> dict[str, tuple[nn.Linear, nn.Linear]]:
    """Every Linear, ReLU, Linear in a row inside a `Sequential`, by the name of the first layer."""
    found, others = {}, []
    for prefix, module in model.named_modules():
        if not isinstance(module, nn.Sequential):
            continue
        named = list(module.named_children())
        for (name, first), (_, middle), (_, last) in zip(named, named[1:], named[2:], strict=False):
            if not (isinstance(first, nn.Linear) and isinstance(last, nn.Linear)):
                continue
            if isinstance(middle, nn.ReLU):
                found[f"{prefix}.{name}" if prefix else name] = (first, last)
            else:
                others.append(type(middle).__name__)
    if not found:
        if others:
            raise ValueError(f"the layers are separated by {', '.join(sorted(set(others)))}; the report needs nn.ReLU")
        raise ValueError(
            "model has no Sequential with Linear, ReLU, Linear in a row; pass the pair (first, second) of Linear "
            "layers between which your forward applies a ReLU, with the first layer's inputs as X"
        )
    return found


def read_block(model: Any, X: Any, *, block: str | None = None) -> ReluBlock:
    """The block of a model on the inputs X, or of a pair of `nn.Linear` whose own inputs are X."""
    X = as_tensor(X)
    if isinstance(model, (tuple, list)):
        if len(model) != 2 or not all(isinstance(layer, nn.Linear) for layer in model):
            raise ValueError("a pair of layers must be two nn.Linear; there is a ReLU between them")
        first, second = model
        model = nn.Sequential(first, nn.ReLU(), second)
        inputs, whole, why_not = X, False, "a pair of layers was given, so what surrounds them is unknown"
    elif not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; expected a torch.nn.Module or a pair of nn.Linear")
    else:
        blocks = find_blocks(model)
        if block is None and len(blocks) > 1:
            raise ValueError(
                f"model has {len(blocks)} blocks; choose one with block=, of {', '.join(map(repr, blocks))}"
            )
        if block is not None and block not in blocks:
            raise ValueError(f"block={block!r} is not one of {', '.join(map(repr, blocks))}")
        first, second = blocks[block or next(iter(blocks))]
        inputs, whole, why_not = _capture(model, first, second, X)
    if second.in_features != first.out_features:
        raise ValueError(f"the first layer has {first.out_features} outputs, the second takes {second.in_features}")
    if inputs.shape[-1] != first.in_features:
        raise ValueError(f"X has {inputs.shape[-1]} columns, the first layer takes {first.in_features}")
    rows = _array(inputs.reshape(-1, inputs.shape[-1]))
    if len(rows) < 2:
        raise ValueError(f"X has {len(rows)} row; the report needs at least 2")
    for name, values in (
        ("X", rows),
        ("the weights", _array(first.weight)),
        ("the output weights", _array(second.weight)),
    ):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} hold {np.count_nonzero(~np.isfinite(values))} values that are not finite")
    return ReluBlock(
        W=_array(first.weight),
        b=-_array(first.bias) if first.bias is not None else np.zeros(first.out_features),
        V=_array(second.weight),
        c=_array(second.bias) if second.bias is not None else np.zeros(second.out_features),
        X=rows,
        has_b=first.bias is not None,
        has_c=second.bias is not None,
        whole=whole,
        why_not=why_not,
    )


def _capture(model: nn.Module, first: nn.Linear, second: nn.Linear, X: Tensor) -> tuple[Tensor, bool, str]:
    """What the first layer receives when the model sees X, and whether the model is the block alone."""
    seen: list[Tensor] = []
    handle = first.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].detach()))
    reference = first.weight
    X = X.to(device=reference.device, dtype=reference.dtype) if X.is_floating_point() else X.to(reference.device)
    try:
        with evaluating(model), torch.no_grad():
            answer = model(X)
            block = second(torch.relu(first(seen[-1]))) if seen else None
    finally:
        handle.remove()
    if block is None:
        raise ValueError("the block is not run when the model sees X; choose another with block=")
    mine = {id(p) for layer in (first, second) for p in layer.parameters()}
    if any(id(p) not in mine for p in model.parameters() if p.requires_grad):
        return seen[-1], False, "the block is part of a larger network; the inequality is of a two-layer one"
    if not all(p.requires_grad for layer in (first, second) for p in layer.parameters()):
        return seen[-1], False, "some of the block's weights are frozen; the inequality needs all of them to train"
    same = isinstance(answer, Tensor) and answer.numel() == block.numel()
    if not same or not torch.allclose(answer.reshape(-1), block.reshape(-1), rtol=1e-3, atol=1e-4):
        return seen[-1], False, "the model changes the block's output before the loss"
    if block.ndim != 2:
        return seen[-1], False, "the block is applied to several rows of each example"
    return seen[-1], True, ""


def as_tensor(value: Any) -> Tensor:
    """A tensor as it is; a copy of anything that numpy reads, which may be read-only or a data frame."""
    return value if isinstance(value, Tensor) else torch.tensor(np.asarray(value))


def _array(value: Tensor) -> Floats:
    return value.detach().double().cpu().numpy()
