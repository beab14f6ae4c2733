"""Signs that an attack failed because the gradient is hidden, not because the model is robust."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from cameraready.methods.compress_robust.attacks import attack, predictions
from cameraready.methods.compress_robust.compressibility import Norm
from cameraready.methods.compress_robust.inputs import check_examples, frozen
from cameraready.methods.compress_robust.universal import noise_on_surface

SLACK = 0.02  # accuracy by which a weaker attack may seem the stronger one: two points, chance on a thousand examples
DEAD = 0.05  # share of examples without any gradient from which this is reported
NOISE_DRAWS = 5


@dataclass(frozen=True)
class MaskingCheck:
    """One check: whether it passed, and what was measured."""

    name: str
    passed: bool
    detail: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.passed else 'LOOK'}  {self.name}: {self.detail}"


@torch.enable_grad()
def masking_checks(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    norm: Norm,
    eps: float,
    bounds: tuple[float, float] = (0.0, 1.0),
    attacked: float | None = None,
    surrogate: nn.Module | None = None,
    black_box: bool = False,
    seed: int = 0,
) -> tuple[MaskingCheck, ...]:
    """Compare white-box PGD with attacks that should be weaker, and with one that should be stronger.

    Parameters
    ----------
    attacked : accuracy under the attack whose strength is in question; by default PGD, 20 steps and 5 restarts.
    surrogate : another model of the same task, to transfer attacks from; by default this model with weights moved at
        random by a tenth, which has gradients of its own where the model's vanish.
    black_box : also run Square (1000 queries), which needs no gradient; takes longest.
    """
    check_examples(model, x, y, bounds=bounds)
    y = y.long()
    if attacked is None:
        attacked = attack(model, x, y, norm=norm, eps=eps, bounds=bounds, seed=seed).accuracy
    checks = [_gradients(model, x, y)]

    longer = attack(model, x, y, norm=norm, eps=eps, bounds=bounds, steps=80, restarts=2, seed=seed + 1).accuracy
    detail = f"accuracy {attacked:.1%}, with 80 steps and 2 restarts from elsewhere {longer:.1%}"
    checks.append(MaskingCheck("more steps change little", abs(longer - attacked) <= SLACK, detail))

    noisy = min(
        _accuracy(model, (x + noise_on_surface(x, norm=norm, eps=eps, seed=seed + i)).clamp(*bounds), y)
        for i in range(NOISE_DRAWS)
    )
    detail = f"accuracy {attacked:.1%} under attack, {noisy:.1%} under the worst of {NOISE_DRAWS} random noises"
    checks.append(MaskingCheck("random noise is weaker", noisy >= attacked - SLACK, detail))

    other = _moved_weights(model, seed) if surrogate is None else surrogate
    moved = attack(other, x, y, norm=norm, eps=eps, bounds=bounds, restarts=2, seed=seed).adversarial
    transfer = _accuracy(model, moved, y)
    detail = f"accuracy {attacked:.1%} under attack, {transfer:.1%} under attacks made on another model"
    checks.append(MaskingCheck("transferred attacks are weaker", transfer >= attacked - SLACK, detail))

    wide = (bounds[1] - bounds[0]) * (1.0 if norm == "inf" else x[0].numel() ** 0.5)
    huge = attack(model, x, y, norm=norm, eps=wide, bounds=bounds, restarts=2, seed=seed).accuracy
    detail = f"accuracy {huge:.1%} at eps {wide:.3g}, where every input is in reach"
    checks.append(MaskingCheck("an unlimited attack always wins", huge <= SLACK, detail))

    if black_box:
        square = attack(model, x, y, norm=norm, eps=eps, bounds=bounds, method="square", seed=seed).accuracy
        detail = f"accuracy {attacked:.1%} under attack, {square:.1%} under Square, which sees no gradient"
        checks.append(MaskingCheck("a black-box attack is weaker", square >= attacked - SLACK, detail))
    return tuple(checks)


def _gradients(model: nn.Module, x: Tensor, y: Tensor) -> MaskingCheck:
    with frozen(model):
        point = x.detach().clone().requires_grad_(True)
        logits = model(point)
        [gradient] = torch.autograd.grad(functional.cross_entropy(logits.double(), y, reduction="sum"), point)
    dead = float((gradient.flatten(1).abs().amax(dim=1) == 0).double().mean())
    detail = f"{dead:.1%} of the examples have a loss whose gradient is exactly zero"
    return MaskingCheck("gradients are there", dead <= DEAD, detail)


def _moved_weights(model: nn.Module, seed: int, size: float = 0.1) -> nn.Module:
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in other.parameters():
            if p.is_floating_point() and p.ndim >= 2:
                noise = torch.randn(p.shape, generator=generator).to(p)
                p.add_(noise * (size * p.norm() / max(float(noise.norm()), 1e-30)))
    return other


def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((predictions(model, x) == y).double().mean())
