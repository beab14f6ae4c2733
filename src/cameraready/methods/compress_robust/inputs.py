"""What an audit needs of a model and its data, checked before work starts."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real

import torch
from torch import Tensor, nn

RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)


def check_examples(model: nn.Module, x: Tensor, y: Tensor, *, bounds: tuple[float, float] | None = None) -> None:
    """Refuse what makes an attack or a certificate meaningless.

    Raises
    ------
    TypeError : not a module, not tensors, labels that are not integers.
    ValueError : a model in training mode, no examples, labels out of range or of another length, inputs that are not
        finite or outside ``bounds``, logits that are not finite or not (n, classes).
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; pass a torch.nn.Module")
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise TypeError(f"x and y are {type(x).__name__} and {type(y).__name__}; pass tensors")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(f"labels of dtype {y.dtype}; pass class indices as integers")
    if not x.is_floating_point():
        raise TypeError(f"inputs of dtype {x.dtype}; attacks move them by fractions: pass floats, scaled to `bounds`")
    check_mode(model)
    if not len(x) or y.shape != (len(x),):
        raise ValueError(f"{len(x)} inputs and labels of shape {tuple(y.shape)}; pass n >= 1 of each, labels (n,)")
    if not torch.isfinite(x).all():
        raise ValueError(f"{int((~torch.isfinite(x)).sum())} input values are not finite")
    if bounds is not None:
        low, high = check_bounds(bounds)
        if float(x.min()) < low - 1e-6 or float(x.max()) > high + 1e-6:
            seen = f"inputs from {float(x.min()):.4g} to {float(x.max()):.4g} are outside bounds=({low:g}, {high:g})"
            raise ValueError(f"{seen}; give the range of your inputs, and put normalisation inside the model")
    logits = _logits(model, x[:64])
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] < 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the model returns {shape}; expected logits (n, classes) of two or more classes")
    if not torch.isfinite(logits).all():
        raise ValueError(f"{int((~torch.isfinite(logits)).sum())} logits are not finite; the model cannot be attacked")
    if model.training and not torch.equal(_logits(model, x[:64]), logits):
        raise ValueError("the model is in training mode and answers at random; call model.eval()")
    if int(y.min()) < 0 or int(y.max()) >= logits.shape[1]:
        seen = f"labels from {int(y.min())} to {int(y.max())}"
        raise ValueError(f"{seen}; the model has {logits.shape[1]} classes, 0 to {logits.shape[1] - 1}")


def check_differentiable(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Refuse a model whose logits do not depend differentiably on its input (rounding, argmax, detached parts)."""
    probe = x[:8].detach().clone().requires_grad_(True)
    logits = model(probe)
    way_out = "gradient attacks cannot see it; use method='square', which needs no gradient"
    if not logits.requires_grad:
        raise ValueError(f"the logits are cut off from the input (a non-differentiable or detached step); {way_out}")
    [gradient] = torch.autograd.grad(logits.sum(), probe, allow_unused=True)
    if gradient is None:
        raise ValueError(f"the logits are cut off from the input (a non-differentiable or detached step); {way_out}")
    if not torch.isfinite(gradient).all():
        raise ValueError("the gradient of the logits by the input is not finite; the model cannot be attacked")


def check_mode(model: nn.Module) -> None:
    """Refuse a model in training mode: its dropout and batch statistics would be attacked, not the model."""
    loud = [name or "model" for name, module in model.named_modules() if module.training and _matters(module)]
    if loud:
        raise ValueError(f"{loud[0]!r} is in training mode; call model.eval(), or pass force_eval=True to `audit`")


def check_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """(low, high) as floats, low < high."""
    low, high = (float(value) for value in bounds)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"bounds={bounds}; pass the finite range of the inputs, low < high, for images mostly (0, 1)")
    return low, high


def check_norm_and_eps(norm: str, eps: float) -> None:
    """Refuse an unknown norm, and a radius that is negative, not finite, or not a number."""
    if norm not in ("inf", "2"):
        raise ValueError(f"norm={norm!r}; choose 'inf' or '2'")
    if not isinstance(eps, Real) or isinstance(eps, bool) or not 0 <= eps < math.inf:
        raise ValueError(f"eps={eps!r}; a radius is a finite number of at least 0, such as 8/255")


def collect(
    loader: Iterable[tuple[Tensor, Tensor]], *, limit: int, device: str | torch.device
) -> tuple[Tensor, Tensor]:
    """The first ``limit`` examples of a loader of (inputs, labels) batches, on the device."""
    xs, ys, n = [], [], 0
    for batch in loader:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise ValueError(f"the loader yields {type(batch).__name__}; expected (inputs, labels) batches")
        xs.append(torch.as_tensor(batch[0]))
        ys.append(torch.as_tensor(batch[1]))
        n += len(xs[-1])
        if n >= limit:
            break
    if not n:
        raise ValueError("the loader is empty; pass at least one example")
    return torch.cat(xs)[:limit].to(device), torch.cat(ys)[:limit].to(device)


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """The model with parameters that need no gradient, so that attacks compute only the input's; restored after."""
    needed = [p for p in model.parameters() if p.requires_grad]
    for p in needed:
        p.requires_grad_(False)
    try:
        yield model
    finally:
        for p in needed:
            p.requires_grad_(True)


def analysed_copy(model: nn.Module, device: str | torch.device) -> nn.Module:
    """The model itself where it can be attacked as it is; a float32 copy where its weights are in half precision."""
    halves = {torch.float16, torch.bfloat16}
    if any(p.dtype in halves for p in model.parameters()):
        return copy.deepcopy(model).float().to(device)
    return model.to(device)


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            return model(x)
    except (RuntimeError, TypeError, IndexError) as error:
        taken = f"inputs of shape {tuple(x.shape)} and dtype {x.dtype}"
        raise ValueError(f"the model does not take {taken}: {str(error).strip()[:200]}") from error


def _matters(module: nn.Module) -> bool:
    if isinstance(module, RANDOM):
        return getattr(module, "p", 1) > 0
    return isinstance(module, nn.modules.batchnorm._BatchNorm)
