"""One door to all attacks: what was found within eps of each example, and how many predictions it changed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cameraready.methods.compress_robust.compressibility import Norm
from cameraready.methods.compress_robust.inputs import (
    check_bounds,
    check_differentiable,
    check_examples,
    check_norm_and_eps,
    frozen,
)
from cameraready.methods.compress_robust.libraries import art_attack, foolbox_attack
from cameraready.methods.compress_robust.pgd import BATCH, pgd, project

AUTOATTACK = ("apgd-ce", "apgd-dlr", "square")
METHODS = ("pgd", "foolbox-pgd", "deepfool", *AUTOATTACK, "autoattack")
STEPS = {"pgd": 20, "foolbox-pgd": 20, "deepfool": 50, "apgd-ce": 100, "apgd-dlr": 100, "square": 1000}
RESTARTS = {"pgd": 5, "apgd-ce": 1, "apgd-dlr": 1, "square": 1}


@dataclass(frozen=True)
class AttackResult:
    """What an attack found.

    Attributes
    ----------
    adversarial : (n, ...), inside the bounds and, where an eps was given, within it.
    success : (n,), True where the prediction at ``adversarial`` is not the label.
    distance : (n,), of the adversarial from the input, in the attack's norm.
    """

    method: str
    norm: Norm
    eps: float | None
    adversarial: Tensor
    success: Tensor
    distance: Tensor

    @property
    def accuracy(self) -> float:
        """Share of examples still classified as their label."""
        return float((~self.success).double().mean())

    def __str__(self) -> str:
        size = "without a limit" if self.eps is None else f"eps {self.eps:.4g}"
        return f"{self.method}, l_{self.norm}, {size}: accuracy {self.accuracy:.1%} on {len(self.success)} examples"


@torch.enable_grad()
def attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    norm: Norm,
    eps: float | None,
    method: str = "pgd",
    bounds: tuple[float, float] = (0.0, 1.0),
    steps: int | None = None,
    restarts: int | None = None,
    seed: int = 0,
) -> AttackResult:
    """Attack every example; those already misclassified count as success and are left as they are.

    Parameters
    ----------
    model : torch classifier in evaluation mode, inputs (n, ...) to logits (n, classes), with its normalisation inside.
    x, y : inputs (n, ...) inside ``bounds``, class indices (n,).
    norm : "inf" or "2".
    eps : radius in units of the input; None only for "deepfool", which then looks for the least perturbation.
    method : "pgd" (ours), "foolbox-pgd", "deepfool", "apgd-ce", "apgd-dlr", "square", or "autoattack", the last three
        in turn on what is left.
    bounds : range of valid inputs; attacks never leave it.
    steps, restarts : by default 20 and 5 (pgd), 50 (deepfool), 100 and 1 (apgd), 1000 queries (square).
    seed : of all random starts.

    Raises
    ------
    ValueError : training mode, labels out of range, inputs outside the bounds or not finite, eps below 0, logits that
        are not finite, a model without a gradient (for gradient attacks), apgd-dlr on two classes.
    ImportError : a library that is missing, with the command that installs it.

    Examples
    --------
    >>> from torch import nn
    >>> model = nn.Linear(2, 2, bias=False).eval()
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> print(attack(model, torch.tensor([[0.6, 0.4]]), torch.tensor([0]), norm="inf", eps=0.11))
    pgd, l_inf, eps 0.11: accuracy 0.0% on 1 examples
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r}; choose one of {', '.join(METHODS)}")
    if eps is None and method != "deepfool":
        raise ValueError(f"eps=None with method={method!r}; only 'deepfool' looks for the least perturbation")
    check_norm_and_eps(norm, 0.0 if eps is None else eps)
    for name, count in {"steps": steps, "restarts": restarts}.items():
        if count is not None and count < 1:
            raise ValueError(f"{name}={count}; at least one is needed")
    check_examples(model, x, y, bounds=check_bounds(bounds))
    if method != "square":
        check_differentiable(model, x, y)
    x, y = x.detach(), y.long()
    adversarial, standing = x.clone(), predictions(model, x) == y
    for part in AUTOATTACK if method == "autoattack" else (method,):
        left = standing.nonzero()[:, 0]
        if part == "apgd-dlr" and method == "autoattack" and logits_of(model, x[:1]).shape[1] < 3:
            continue
        if not len(left) or eps == 0:
            break
        found = _run(part, model, x[left], y[left], norm, eps, bounds, steps, restarts, seed)
        found = _kept_inside(found, x[left], norm, eps, bounds)
        won = predictions(model, found) != y[left]
        keep = won if method == "autoattack" else torch.ones_like(won)
        adversarial[left[keep]] = found[keep]
        standing[left] = ~won
    difference = (adversarial - x).flatten(1)
    distance = difference.abs().amax(dim=1) if norm == "inf" else difference.norm(dim=1)
    return AttackResult(method, norm, eps, adversarial, ~standing, distance)


def predictions(model: nn.Module, x: Tensor) -> Tensor:
    """The predicted classes, (n,)."""
    return logits_of(model, x).argmax(dim=1)


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    """The logits, batch by batch and without a gradient."""
    with torch.no_grad():
        return torch.cat([model(part) for part in x.split(BATCH)])


def _run(
    method: str,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    norm: Norm,
    eps: float | None,
    bounds: tuple[float, float],
    steps: int | None,
    restarts: int | None,
    seed: int,
) -> Tensor:
    steps = STEPS[method] if steps is None else steps
    restarts = RESTARTS.get(method, 1) if restarts is None else restarts
    if method == "pgd":
        return pgd(model, x, y, norm=norm, eps=eps, bounds=bounds, steps=steps, restarts=restarts, seed=seed)
    with frozen(model):
        if method in ("foolbox-pgd", "deepfool"):
            return foolbox_attack(model, x, y, method=method, norm=norm, eps=eps, bounds=bounds, steps=steps, seed=seed)
        return art_attack(
            model, x, y, method=method, norm=norm, eps=eps, bounds=bounds, steps=steps, restarts=restarts, seed=seed
        )


def _kept_inside(found: Tensor, x: Tensor, norm: Norm, eps: float | None, bounds: tuple[float, float]) -> Tensor:
    """A library's rounding, or the dummy pixels of Square, must not buy it more than eps."""
    found = torch.where(torch.isfinite(found), found, x)
    if eps is not None:
        found = x + project(found - x, norm=norm, eps=eps)
    return found.clamp(*bounds)
