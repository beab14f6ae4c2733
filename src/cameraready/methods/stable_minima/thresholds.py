"""At which curvature an optimiser's full-batch step becomes unstable on a quadratic."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cameraready.coverage import NotCovered

ADAM = (torch.optim.Adam, torch.optim.AdamW)  # the second is a kind of the first only in recent torch


def stability_threshold(
    kind: str, optimizer: torch.optim.Optimizer | None, lr: float | None = None
) -> float | NotCovered:
    """lambda_max at the edge of stability.

    ===========================  ==========================================
    gradient descent             2 / eta
    SGD, momentum beta           (2 + 2 beta) / eta
    SGD, Nesterov                (2 + 2 beta) / ((1 + 2 beta) eta)
    Adam, of D^-1/2 H D^-1/2     (2 + 2 beta1) / ((1 - beta1) eta)
    ===========================  ==========================================

    SGD's weight decay adds to the curvature and is subtracted from the threshold.
    """
    if optimizer is None and lr is None:
        return NotCovered("no learning rate was given; pass lr= or optimizer=")
    if optimizer is None:
        if kind == "adam":
            return NotCovered("the preconditioned threshold needs the optimizer")
        if not lr > 0:
            raise ValueError(f"lr={lr} must be positive")
        return 2 / lr
    groups = optimizer.param_groups
    if len({float(group["lr"]) for group in groups}) > 1:
        return NotCovered("the optimizer's parameter groups have different learning rates")
    group = groups[0]
    eta = float(group["lr"])
    if eta == 0:
        return NotCovered("the learning rate is 0")
    if isinstance(optimizer, ADAM):
        if group["weight_decay"] and not isinstance(optimizer, torch.optim.AdamW):
            return NotCovered("Adam with weight decay in the gradient; AdamW's decay is outside of it")
        if kind != "adam":
            return NotCovered("Adam's stability is decided by the preconditioned Hessian; use kind='adam'")
        beta = float(group["betas"][0])
        return (2 + 2 * beta) / ((1 - beta) * eta)
    if isinstance(optimizer, torch.optim.SGD):
        beta = float(group["momentum"])
        if group["dampening"]:
            return NotCovered("momentum with dampening")
        nesterov = 1 + 2 * beta if group["nesterov"] else 1.0
        return (2 + 2 * beta) / (nesterov * eta) - float(group["weight_decay"])
    return NotCovered(f"no threshold is known for {type(optimizer).__name__}; gradient descent, SGD and Adam have one")


def adam_scale(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Tensor:
    """D^-1/2 of Adam, D = sqrt(second moment / (1 - beta2^t)) + epsilon, one entry a trainable parameter."""
    if not isinstance(optimizer, ADAM):
        given = "none" if optimizer is None else type(optimizer).__name__
        raise ValueError(f"kind='adam' needs the Adam or AdamW optimizer of this model, got {given}")
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    parts = []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        state = optimizer.state.get(p)
        if not state:
            raise ValueError(f"the optimizer has no second moment of {name!r} yet; take at least one step with it")
        group = groups[id(p)]
        moment = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
        corrected = moment / (1 - group["betas"][1] ** float(state["step"]))
        parts.append(
            (corrected.sqrt() + group["eps"]).rsqrt().reshape(-1).to(torch.promote_types(p.dtype, torch.float32))
        )
    return torch.cat(parts)
