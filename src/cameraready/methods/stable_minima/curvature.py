"""Products of a torch model's Hessian, Gauss-Newton matrix or preconditioned Hessian with vectors, batch by batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

Kind = Literal["hessian", "gauss_newton", "adam"]
Batch = tuple[Any, Any]
Floats = NDArray[np.float64]
Product = Callable[[list[Tensor]], list[Tensor]]
BATCH_NORM = nn.modules.batchnorm._BatchNorm
KEPT = 10**7  # parameters times examples up to which the graphs of several batches are kept


class Curvature:
    """The mean loss's curvature over some batches, in the parameters that require a gradient.

    Parameters
    ----------
    model, loss_fn : ``loss_fn(model(x), y)`` is the mean loss of a batch, a scalar.
    batches : pairs (x, y).
    kind : "hessian"; "gauss_newton", J' (d2 loss / d output2) J; "adam", D^-1/2 H D^-1/2.
    scale : D^-1/2 as one vector, for "adam".

    Half-precision weights are promoted to float32, for these products only. The gradient's graph is kept between
    products, so that each costs one backward pass; those of several large batches are built anew, to save memory.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        batches: Sequence[Batch],
        *,
        kind: Kind,
        scale: Tensor | None = None,
    ) -> None:
        self.model, self.loss_fn, self.kind, self.scale = model, loss_fn, kind, scale
        everything = dict(model.named_parameters())
        trainable = {name: p for name, p in everything.items() if p.requires_grad}
        self.parameters = {name: _promote(p.detach()).requires_grad_() for name, p in trainable.items()}
        frozen = {name: _promote(p.detach()) for name, p in everything.items() if not p.requires_grad}
        self.constants = {**frozen, **{name: _promote(b) for name, b in model.named_buffers()}}
        first = next(iter(self.parameters.values()))
        self.device, self.dtype = first.device, first.dtype
        self.batches = [tuple(_to(part, self.device, self.dtype) for part in batch) for batch in batches]
        sizes = np.array([_length(batch[1]) for batch in self.batches], dtype=float)
        self.weights = sizes / sizes.sum()
        self.size = sum(p.numel() for p in self.parameters.values())
        self._keep = len(self.batches) == 1 or self.size * sizes.sum() <= KEPT
        self._products: dict[int, Product] = {}

    def outputs(self, batch: Batch) -> Any:
        x = batch[0]
        weights = {**self.parameters, **self.constants}
        if isinstance(x, Mapping):  # as tokenisers return
            return functional_call(self.model, weights, (), dict(x))
        return functional_call(self.model, weights, tuple(x) if isinstance(x, (tuple, list)) else (x,))

    def loss(self, batch: Batch) -> Tensor:
        return self.loss_fn(self.outputs(batch), batch[1])

    def of_batch(self, index: int, vector: Floats) -> Floats:
        """The product with the curvature of one batch's loss."""
        flat = torch.as_tensor(np.ascontiguousarray(vector).reshape(-1), dtype=self.dtype, device=self.device)
        if self.scale is not None:
            flat = flat * self.scale
        product = self._products.get(index)
        if product is None:
            build = _gauss_newton if self.kind == "gauss_newton" else _hessian
            product = build(self, self.batches[index])
            if self._keep:
                self._products[index] = product
        parts = flat.split([p.numel() for p in self.parameters.values()])
        direction = [part.view_as(p) for part, p in zip(parts, self.parameters.values(), strict=True)]
        out = torch.cat([part.reshape(-1) for part in product(direction)])
        return (out if self.scale is None else out * self.scale).detach().double().cpu().numpy()

    def __call__(self, vector: Floats) -> Floats:
        """The product with the curvature of the mean loss over the batches."""
        total = np.zeros(self.size)
        for index, weight in enumerate(self.weights):
            total += weight * self.of_batch(index, vector)
        return total


def _hessian(curvature: Curvature, batch: Batch) -> Product:
    """H d, the gradient of <gradient, d>; torch.func.jvp of the gradient fails on MSELoss and LSTM in torch 2.13."""
    parameters = list(curvature.parameters.values())
    gradient = _derivative(curvature.loss(batch), parameters, create_graph=True)
    return lambda direction: _transposed(gradient, parameters, direction)


def _gauss_newton(curvature: Curvature, batch: Batch) -> Product:
    """J' B J d with B the loss's Hessian in the outputs; J d is the derivative in u of J' u, along d."""
    parameters = list(curvature.parameters.values())
    outputs = curvature.outputs(batch)
    if not isinstance(outputs, Tensor):
        raise ValueError(f"kind='gauss_newton' needs a model that returns a tensor, not a {type(outputs).__name__}")
    u = torch.zeros_like(outputs, requires_grad=True)
    pulled = _derivative(outputs, parameters, along=u, create_graph=True)
    free = outputs.detach().requires_grad_()
    slope = _derivative(curvature.loss_fn(free, batch[1]), [free], create_graph=True)

    def product(direction: list[Tensor]) -> list[Tensor]:
        pushed = _transposed(pulled, [u], direction)
        bent = _transposed(slope, [free], pushed)
        return _derivative(outputs, parameters, along=bent[0], retain_graph=True)

    return product


def _derivative(value: Tensor, variables: list[Tensor], *, along: Tensor | None = None, **graph: bool) -> list[Tensor]:
    found = torch.autograd.grad(value, variables, along, allow_unused=True, materialize_grads=True, **graph)
    return list(found)


def _transposed(values: list[Tensor], variables: list[Tensor], along: list[Tensor]) -> list[Tensor]:
    """The gradient of sum <values, along>; values that depend on nothing add nothing."""
    pairs = [(value, part) for value, part in zip(values, along, strict=True) if value.requires_grad]
    if not pairs:
        return [torch.zeros_like(variable) for variable in variables]
    ends, parts = zip(*pairs, strict=True)
    return list(
        torch.autograd.grad(ends, variables, parts, retain_graph=True, allow_unused=True, materialize_grads=True)
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, each module's own mode restored afterwards; warns where that changes the loss.

    Gradients are on, also inside `torch.no_grad`, and attention uses the kernel that can be differentiated twice.
    """
    modes = {module: module.training for module in model.modules()}
    noisy = sorted(
        {
            type(m).__name__
            for m, on in modes.items()
            if on and isinstance(m, (nn.modules.dropout._DropoutNd, BATCH_NORM))
        }
    )
    if noisy:
        warnings.warn(
            f"the model is in training mode and has {', '.join(noisy)}; it is measured in evaluation mode",
            stacklevel=4,
        )
    model.eval()
    try:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def check_model(model: nn.Module, loss_fn: Any) -> None:
    """Refuse what has no curvature to measure."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("model has no parameter that requires a gradient; call model.requires_grad_(True)")
    for name, p in model.named_parameters():
        if not bool(torch.isfinite(p).all()):
            raise ValueError(f"parameter {name!r} holds {int((~torch.isfinite(p)).sum())} values that are not finite")
    if getattr(loss_fn, "reduction", "mean") != "mean":
        raise ValueError(
            f"loss_fn has reduction={loss_fn.reduction!r}; the meter needs the scalar mean loss, reduction='mean'"
        )


def read_batches(loader: Iterable[Batch], limit: int | None) -> tuple[list[Batch], int, int]:
    """The first ``limit`` batches, and how many examples and batches the loader holds in all (as far as it says)."""
    if isinstance(loader, tuple) and len(loader) == 2 and isinstance(loader[1], (Tensor, np.ndarray)):
        loader = [loader]  # all data as one pair (X, y)
    batches: list[Batch] = []
    for batch in loader:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise TypeError("the loader must yield pairs (x, y); wrap yours in a generator that does")
        batches.append((batch[0], batch[1]))
        if limit is not None and len(batches) == limit:
            break
    if not batches:
        raise ValueError("the loader is empty; it must yield at least one batch (x, y)")
    total = len(loader) if hasattr(loader, "__len__") else -1
    return batches, sum(_length(batch[1]) for batch in batches), total


def _length(y: Any) -> int:
    return len(y) if isinstance(y, (Tensor, np.ndarray)) and y.ndim else 1


def _promote(value: Tensor) -> Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _to(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A tensor on the model's device, floating values in its precision; labels stay whole numbers."""
    if isinstance(value, np.ndarray):
        value = torch.tensor(value)
    if isinstance(value, Tensor):
        return value.to(device=device, dtype=dtype) if value.is_floating_point() else value.to(device)
    if isinstance(value, Mapping):
        return {name: _to(part, device, dtype) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_to(part, device, dtype) for part in value)
    return value
