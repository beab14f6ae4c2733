"""signSGD and the warm-up-stable-decay schedule for PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from cameraready.methods.signsgd_scaling.schedule import WSD, Shape


class SignSGD(Optimizer):
    """``theta <- theta - lr sign(m)`` with ``m <- momentum m + (1 - momentum) gradient``.

    Parameters
    ----------
    params : parameters or groups of them.
    lr : learning rate: the distance every coordinate moves in a step.
    momentum : average over gradients before the sign, in [0, 1); 0 by default, which keeps no state.
    weight_decay : decoupled, ``theta <- (1 - lr weight_decay) theta`` before the step; 0 by default.

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
    >>> optimizer = SignSGD([weight], lr=0.1)
    >>> (weight**2).sum().backward(); optimizer.step()
    >>> weight.data
    tensor([ 0.9000, -0.9000])
    """

    def __init__(self, params: Any, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        if not 0 < lr < float("inf"):
            raise ValueError(f"lr={lr} must be positive and finite; 1e-4 to 1e-2 is usual")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum} is not in [0, 1); 0.9 is usual")
        if not 0 <= weight_decay < float("inf"):
            raise ValueError(f"weight_decay={weight_decay} must be at least 0 and finite")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step; returns what ``closure``, if given, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                direction = parameter.grad
                if direction.is_sparse:
                    raise ValueError("SignSGD needs dense gradients; build the embedding with sparse=False")
                if group["momentum"]:
                    state = self.state[parameter]
                    average = state.setdefault("average", torch.zeros_like(parameter))
                    direction = average.mul_(group["momentum"]).add_(direction, alpha=1 - group["momentum"])
                if group["weight_decay"]:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(direction.sign(), alpha=-group["lr"])
        return loss


class WSDLR(LRScheduler):
    """The schedule of `WSD` for any torch optimiser; call ``step()`` after each optimiser step.

    Parameters
    ----------
    optimizer : its learning rates are the peaks.
    total : number of optimiser steps in the run.
    warmup, decay, shape : as for `WSD`.
    last_epoch : as in torch, -1 to start.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total: int,
        *,
        warmup: float = 0.01,
        decay: float = 0.2,
        shape: Shape = "linear",
        last_epoch: int = -1,
    ) -> None:
        if not 1 <= total < float("inf") or total != int(total):
            raise ValueError(f"total={total}; the schedule needs the whole number of optimiser steps, at least 1")
        WSD(warmup=warmup, decay=decay, shape=shape)  # refuses what is no schedule
        # Plain values: torch.load reads the state of a scheduler without trusting any class.
        self.total, self.warmup, self.decay, self.shape = total, warmup, decay, shape
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        schedule = WSD(warmup=self.warmup, decay=self.decay, shape=self.shape)
        share = schedule.multiplier(min(self.last_epoch, self.total - 1), self.total)
        return [base * share for base in self.base_lrs]
