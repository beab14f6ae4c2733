"""Training many models of one shape side by side: their parameters are stacked, and one pass runs them all."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional

from cameraready.methods.compress_robust.layers import LowRank, layers_of
from cameraready.methods.compress_robust.pgd import project, random_start

Penalty = Callable[[Tensor], Tensor]  # weights (models, h, p) -> (models,)


@dataclass(frozen=True)
class Recipe:
    """How every model of a study is trained.

    Parameters
    ----------
    lr, weight_decay : of AdamW; the decay multiplies all trained parameters by 1 - lr * weight_decay a step.
    steps, batch_size : 800 steps of 32 are about twenty passes over a thousand examples.
    adversarial_eps : l_inf radius of PGD adversarial training; None trains on clean inputs.
    adversarial_steps : of that PGD, each of 2 eps over their number: from a random start all of the ball is in reach.
    bounds : of the inputs, for adversarial training.
    """

    lr: float = 1e-3
    weight_decay: float = 0.01
    steps: int = 800
    batch_size: int = 32
    adversarial_eps: float | None = None
    adversarial_steps: int = 5
    bounds: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        for name in ("lr", "steps", "batch_size", "adversarial_steps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}; it must be positive")
        if self.weight_decay < 0 or (self.adversarial_eps is not None and not self.adversarial_eps > 0):
            raise ValueError(f"weight_decay={self.weight_decay}, adversarial_eps={self.adversarial_eps}; not negative")


class Stack:
    """Models of one shape as one: parameters and buffers with a leading dimension, (models, ...)."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.models = list(models)
        self.skeleton = copy.deepcopy(self.models[0]).to("meta")
        state, buffers = stack_module_state(self.models)
        trained = {name for name, p in self.models[0].named_parameters() if p.requires_grad}
        self.parameters = {name: p.detach().clone().requires_grad_(name in trained) for name, p in state.items()}
        self.buffers = {name: b.detach().clone() for name, b in buffers.items()}
        self.layers = [layer.name for layer in layers_of(self.models[0])]
        self.is_chain = is_chain(self.models[0])
        self.factored = {layer.name for layer in layers_of(self.models[0]) if isinstance(layer.module, LowRank)}

    def __len__(self) -> int:
        return len(self.models)

    def __call__(self, x: Tensor, *, training: bool = False) -> Tensor:
        """Logits (models, n, classes) of inputs (models, n, ...)."""
        if self.is_chain and (x.ndim == 3 or isinstance(self.models[0][0], nn.Flatten)):
            return self._chain(x)  # batched matrix products, without vmap's overhead
        self.skeleton.train(training)

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(self.skeleton, (parameters, buffers), (x,))

        return vmap(one, randomness="different")(self.parameters, self.buffers, x)

    def _chain(self, x: Tensor) -> Tensor:
        """With examples as columns, W x, so that gradients come out in the layout of W."""
        x = x.flatten(2).mT
        for name, module in self.models[0].named_children():
            if isinstance(module, LowRank):
                x = self._linear(f"{name}.second", self._linear(f"{name}.first", x))
            elif isinstance(module, nn.Linear):
                x = self._linear(name, x)
            elif not isinstance(module, nn.Flatten):
                x = module(x)
        return x.mT

    def _linear(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.parameters[f"{name}.weight"], self.parameters.get(f"{name}.bias")
        return weight @ x if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, x)

    @property
    def trained(self) -> list[Tensor]:
        return [p for p in self.parameters.values() if p.requires_grad]

    def weight(self, layer: str) -> Tensor:
        """The layer's matrices, (models, h, p)."""
        if layer in self.factored:
            first, second = self.parameters[f"{layer}.first.weight"], self.parameters[f"{layer}.second.weight"]
            return second.flatten(2) @ first.flatten(2)
        return self.parameters[self._key(layer)].flatten(2)

    def norms(self) -> dict[str, Tensor]:
        """Frobenius norm of each layer, (models,)."""
        with torch.no_grad():
            return {layer: self._norm(layer) for layer in self.layers}

    def _norm(self, layer: str) -> Tensor:
        if layer not in self.factored:
            return torch.linalg.vector_norm(self.weight(layer), dim=(1, 2))
        first, second = (self.parameters[f"{layer}.{half}.weight"].flatten(2) for half in ("first", "second"))
        return (first @ first.mT * (second.mT @ second)).sum(dim=(1, 2)).clamp(min=0).sqrt()  # of second @ first

    def rescale_(self, energies: dict[str, Tensor]) -> None:
        """Put each layer's Frobenius norm back to the given one, in place; a zero layer stays."""
        with torch.no_grad():
            for layer, now in self.norms().items():
                ratio = energies[layer] / now.clamp(min=1e-30)
                if layer in self.factored:
                    for half in ("first", "second"):
                        _scale_(self.parameters[f"{layer}.{half}.weight"], ratio.sqrt())
                else:
                    _scale_(self.parameters[self._key(layer)], ratio)

    def unstack(self) -> list[nn.Module]:
        """The models, each with its own trained parameters, in evaluation mode."""
        with torch.no_grad():
            for i, model in enumerate(self.models):
                state = {name: value[i] for name, value in {**self.parameters, **self.buffers}.items()}
                model.load_state_dict(state, strict=False)
                model.eval()
        return self.models

    def _key(self, layer: str) -> str:
        return "weight" if f"{layer}.weight" not in self.parameters else f"{layer}.weight"


def is_chain(model: nn.Module) -> bool:
    """Whether the model is a plain sequence of Linear layers, on vectors, and activations without state."""
    simple = (nn.Linear, nn.ReLU, nn.Tanh, nn.LeakyReLU, nn.Identity, nn.Flatten)
    return isinstance(model, nn.Sequential) and all(
        type(child) in simple or (isinstance(child, LowRank) and isinstance(child.first, nn.Linear)) for child in model
    )


def fit(
    stack: Stack,
    x: Tensor,
    y: Tensor,
    *,
    recipe: Recipe,
    seeds: Sequence[int],
    penalty: Penalty | None = None,
    strengths: Tensor | None = None,
    energies: dict[str, Tensor] | None = None,
    masks: dict[str, Tensor] | None = None,
    decays: Sequence[float] | None = None,
    rates: Sequence[float] | None = None,
) -> Stack:
    """Train every model of the stack in place; models of one seed see the same examples in the same order.

    Where models differ in rate or decay, AdamW has a group for each, of slices of the stack's parameters.

    Parameters
    ----------
    x, y : training data (n, ...), (n,).
    seeds : one a model.
    penalty, strengths : strengths (models,) times the sum over all layers but the last of penalty(weights) is added.
    energies : Frobenius norms (models,) of the layers that are restored after every step (`Stack.norms`).
    masks : parameter name to 0 / 1 values that it is multiplied by after every step.
    decays, rates : weight decay and learning rate of each model, in place of the recipe's.
    """
    each = [slice(None)] if rates is None and decays is None else range(len(stack))
    slices = [[p.detach()[i] for p in stack.trained] for i in each]
    rates, decays = rates or [recipe.lr] * len(slices), decays or [recipe.weight_decay] * len(slices)
    groups = zip(slices, rates, decays, strict=True)
    optimiser = torch.optim.AdamW([{"params": a, "lr": b, "weight_decay": c} for a, b, c in groups], fused=True)
    generators = {seed: torch.Generator().manual_seed(seed) for seed in seeds}
    noise = torch.Generator(device=x.device).manual_seed(sum(generators))
    _enforce(stack, energies, masks)
    for _ in range(recipe.steps):
        drawn = {seed: torch.randint(len(x), (recipe.batch_size,), generator=g) for seed, g in generators.items()}
        rows = torch.stack([drawn[seed] for seed in seeds]).to(x.device)
        inputs, labels = x[rows], y[rows]
        if recipe.adversarial_eps is not None:
            inputs = _attacked(stack, inputs, labels, recipe, noise)
        loss = _losses(stack(inputs, training=True), labels)
        if penalty is not None:
            loss = loss + strengths * sum(penalty(stack.weight(layer)) for layer in stack.layers[:-1])
        gradients = torch.autograd.grad(loss.sum(), stack.trained)
        for i, parts in zip(each, slices, strict=True):
            for part, gradient in zip(parts, gradients, strict=True):
                part.grad = gradient[i].contiguous()  # the fused step takes strides for granted
        optimiser.step()
        _enforce(stack, energies, masks)
    return stack


def _enforce(stack: Stack, energies: dict[str, Tensor] | None, masks: dict[str, Tensor] | None) -> None:
    with torch.no_grad():
        for name, mask in (masks or {}).items():
            stack.parameters[name].mul_(mask)  # the last layer needs none: what a masked neuron sends there is zero
    if energies is not None:
        stack.rescale_(energies)


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each model, (models,)."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape).mean(1)


def _attacked(stack: Stack, x: Tensor, y: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """The inputs (models, n, ...) moved by l_inf PGD, each against its own model."""
    eps, low_high = recipe.adversarial_eps, recipe.bounds
    flat = x.flatten(0, 1)
    point = (flat + random_start(flat, norm="inf", eps=eps, generator=generator)).clamp(*low_high)
    move = 2 * eps / recipe.adversarial_steps
    for _ in range(recipe.adversarial_steps):
        point = point.detach().requires_grad_(True)
        [gradient] = torch.autograd.grad(_losses(stack(point.view(x.shape)), y).sum(), point)
        with torch.no_grad():
            point = (flat + project(point - flat + move * gradient.sign(), norm="inf", eps=eps)).clamp(*low_high)
    return point.detach().view(x.shape)


def _scale_(parameter: Tensor, factors: Tensor) -> None:
    parameter.mul_(factors.to(parameter).reshape(-1, *[1] * (parameter.ndim - 1)))
