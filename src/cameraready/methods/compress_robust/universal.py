"""Universal adversarial perturbations: one perturbation for all inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from cameraready.methods.compress_robust.attacks import predictions
from cameraready.methods.compress_robust.compressibility import Norm
from cameraready.methods.compress_robust.inputs import (
    check_bounds,
    check_differentiable,
    check_examples,
    check_norm_and_eps,
    collect,
    frozen,
)
from cameraready.methods.compress_robust.pgd import ascent, project, random_start


@dataclass(frozen=True)
class UniversalPerturbation:
    """One perturbation, and what it does to examples that it was not made from.

    Attributes
    ----------
    delta : shape of one input, within eps in the norm.
    crafted_on, tested_on : numbers of examples.
    clean, accuracy : accuracy on the tested examples, without and with delta (clipped to the bounds).
    random : accuracy under a random perturbation of the same size, for comparison.
    """

    norm: Norm
    eps: float
    delta: Tensor
    crafted_on: int
    tested_on: int
    clean: float
    accuracy: float
    random: float

    def __str__(self) -> str:
        head = f"universal perturbation, l_{self.norm}, eps {self.eps:.4g}"
        return f"{head}: accuracy {self.clean:.1%} -> {self.accuracy:.1%} (random {self.random:.1%})"


@torch.enable_grad()
def universal_perturbation(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    *,
    norm: Norm,
    eps: float,
    bounds: tuple[float, float] = (0.0, 1.0),
    steps: int = 100,
    batch_size: int = 256,
    limit: int = 1000,
    seed: int = 0,
) -> UniversalPerturbation:
    """Craft one perturbation on half of the examples by sign ascent, and test it on the other half.

    Parameters
    ----------
    model : in evaluation mode.
    loader : (inputs, labels) batches, or one pair of tensors in a list; the first ``limit`` examples are used.
    norm, eps, bounds : as for `attack`.
    steps : of ascent on a batch's mean loss, with a step that falls linearly from eps / 5; 60 to 200 are usual.

    Raises
    ------
    ValueError : as `attack`; fewer than two examples.
    """
    check_norm_and_eps(norm, eps)
    if steps < 1:
        raise ValueError(f"steps={steps}; at least one is needed")
    parameter = next(model.parameters(), None)
    x, y = collect(loader, limit=limit, device="cpu" if parameter is None else parameter.device)
    check_examples(model, x, y, bounds=check_bounds(bounds))
    check_differentiable(model, x, y)
    if len(x) < 2:
        raise ValueError(f"{len(x)} example; one half is to craft and the other to test, pass at least two")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
    craft, test = order[: len(x) // 2], order[len(x) // 2 :]
    delta = craft_universal(
        model,
        x[craft],
        y[craft].long(),
        norm=norm,
        eps=eps,
        bounds=bounds,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
    )
    return judge_universal(
        model, x[test], y[test], delta, norm=norm, eps=eps, bounds=bounds, crafted_on=len(craft), seed=seed
    )


def craft_universal(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    norm: Norm,
    eps: float,
    bounds: tuple[float, float],
    steps: int,
    batch_size: int = 256,
    seed: int = 0,
) -> Tensor:
    """Ascend the mean cross-entropy of x + delta over random batches; the shape of one input."""
    generator = torch.Generator(device=x.device).manual_seed(seed)
    delta = random_start(x[:1], norm=norm, eps=eps, generator=generator)
    with frozen(model):
        for t in range(steps):
            rows = torch.randint(len(x), (min(batch_size, len(x)),), generator=generator, device=x.device)
            delta = delta.detach().requires_grad_(True)
            loss = functional.cross_entropy(model((x[rows] + delta).clamp(*bounds)), y[rows])
            [gradient] = torch.autograd.grad(loss, delta)
            move = eps / 5 * (1 - t / steps)
            delta = project(delta.detach() + move * ascent(gradient, norm=norm), norm=norm, eps=eps)
    return delta.detach()[0]


def judge_universal(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    delta: Tensor,
    *,
    norm: Norm,
    eps: float,
    bounds: tuple[float, float],
    crafted_on: int,
    seed: int = 0,
) -> UniversalPerturbation:
    """Accuracy of x + delta beside that of x and of x + noise on the ball's surface."""

    def accuracy(moved: Tensor) -> float:
        return float((predictions(model, moved.clamp(*bounds)) == y).double().mean())

    noise = noise_on_surface(x[:1], norm=norm, eps=eps, seed=seed)
    return UniversalPerturbation(
        norm, eps, delta, crafted_on, len(x), accuracy(x), accuracy(x + delta), accuracy(x + noise)
    )


def noise_on_surface(x: Tensor, *, norm: Norm, eps: float, seed: int) -> Tensor:
    """Noise as large as allowed: random signs in l_inf, a random direction in l_2; like x."""
    generator = torch.Generator(device=x.device).manual_seed(seed)
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    return eps * ascent(noise, norm=norm)
