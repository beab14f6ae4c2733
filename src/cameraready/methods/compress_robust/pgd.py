"""Projected gradient descent on the input, in l_inf and l_2."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from cameraready.methods.compress_robust.compressibility import Norm
from cameraready.methods.compress_robust.inputs import check_bounds, check_norm_and_eps, frozen

STEP = 1 / 5  # of eps, for 20 steps: the walk can cross the ball twice
BATCH = 512


def pgd(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    *,
    norm: Norm,
    eps: float,
    bounds: tuple[float, float] = (0.0, 1.0),
    steps: int = 20,
    restarts: int = 5,
    step: float | None = None,
    seed: int = 0,
) -> Tensor:
    """The worst input that PGD finds within eps of each example and inside ``bounds``.

    Every restart begins at random in the ball, where an l_2 attack has no stationary point to sit on; restarts in
    odd places ascend the margin max_j f_j - f_y instead of cross-entropy, whose gradient vanishes on sure examples.
    Later restarts go on with the examples that still resist.

    Parameters
    ----------
    model : inputs to logits, in evaluation mode.
    x, y : (n, ...) and (n,).
    step : of one move, in units of the input; by default eps / 5.

    Returns
    -------
    Tensor like x: of all iterates the one of the least margin.
    """
    check_norm_and_eps(norm, eps)
    if steps < 1 or restarts < 1:
        raise ValueError(f"steps={steps}, restarts={restarts}; at least one of each")
    low, high = check_bounds(bounds)
    generator = torch.Generator(device=x.device).manual_seed(seed)
    move = eps * STEP if step is None else step
    parts = []
    with frozen(model) if isinstance(model, nn.Module) else nullcontext():
        for a, b in zip(x.split(BATCH), y.split(BATCH), strict=True):
            parts.append(_attack_batch(model, a, b, norm, eps, (low, high), steps, restarts, move, generator))
    return torch.cat(parts)


def margins(logits: Tensor, y: Tensor) -> Tensor:
    """f_y - max over j != y of f_j, (n,); negative where the example is misclassified."""
    others = logits.scatter(1, y[:, None], -math.inf)
    return logits.gather(1, y[:, None])[:, 0] - others.amax(dim=1)


def project(delta: Tensor, *, norm: Norm, eps: float) -> Tensor:
    """Perturbations (n, ...) onto the ball of radius eps."""
    if norm == "inf":
        return delta.clamp(-eps, eps)
    length = _lengths(delta)
    return delta * (eps / length.clamp(min=1e-12)).clamp(max=1.0)


def random_start(x: Tensor, *, norm: Norm, eps: float, generator: torch.Generator) -> Tensor:
    """Perturbations drawn uniformly from the ball, like x."""
    if norm == "inf":
        return (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device) - 1) * eps
    direction = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    u = torch.rand(len(x), generator=generator, dtype=x.dtype, device=x.device)
    radius = eps * u.pow(1 / x[0].numel())
    return direction / _lengths(direction).clamp(min=1e-12) * radius.reshape(-1, *[1] * (x.ndim - 1))


def ascent(gradient: Tensor, *, norm: Norm) -> Tensor:
    """The unit step of steepest ascent: the sign in l_inf, the normalised gradient in l_2."""
    return gradient.sign() if norm == "inf" else gradient / _lengths(gradient).clamp(min=1e-30)


def _attack_batch(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    norm: Norm,
    eps: float,
    bounds: tuple[float, float],
    steps: int,
    restarts: int,
    move: float,
    generator: torch.Generator,
) -> Tensor:
    worst = x.clone()
    with torch.no_grad():
        least = margins(model(x), y)
    going = torch.arange(len(x), device=x.device)
    for restart in range(restarts):
        x0, labels = x[going], y[going]
        point = (x0 + random_start(x0, norm=norm, eps=eps, generator=generator)).clamp(*bounds)
        for t in range(steps + 1):
            point = point.detach().requires_grad_(t < steps)
            logits = model(point)
            margin = margins(logits, labels)
            better = margin.detach() < least[going]
            least[going[better]] = margin.detach()[better]
            worst[going[better]] = point.detach()[better]
            if t == steps:
                break
            loss = -margin.sum() if restart % 2 else functional.cross_entropy(logits, labels, reduction="sum")
            [gradient] = torch.autograd.grad(loss, point)
            with torch.no_grad():
                delta = point - x0 + move * ascent(gradient, norm=norm)
                point = (x0 + project(delta, norm=norm, eps=eps)).clamp(*bounds)
        going = going[least[going] >= 0]
        if not len(going):
            break
    return worst


def _lengths(delta: Tensor) -> Tensor:
    return delta.flatten(1).norm(dim=1).reshape(-1, *[1] * (delta.ndim - 1))
