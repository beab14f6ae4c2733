"""Takes a jump back that did harm."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cameraready.methods.pdt.history import fitted
from cameraready.methods.pdt.layout import Layout
from cameraready.methods.pdt.losses import Losses, is_worse

TOLERATED = 1.5  # times the mean loss before the jump


class Guard:
    """Keeps the weights from before a jump until ``steps`` steps have shown whether the loss bears it.

    ``steps=0`` keeps nothing and never objects.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.drop()

    @property
    def n_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.saved or [])

    def drop(self) -> None:
        self.saved: list[Tensor] | None = None
        self.due, self.before = -1, math.nan

    def arm(self, losses: Losses, *, step: int, device: torch.device) -> None:
        """A jump comes: `jump` fills ``saved``. Without observed losses there is nothing to go by."""
        before = losses.latest_mean(device=device) if self.steps else None
        self.drop()
        if before is None:
            return
        losses.latest.clear()
        self.saved, self.due, self.before = [], step + self.steps, before

    def objects(self, losses: Losses, *, device: torch.device) -> float | None:
        """The mean loss since the jump where it is not to be borne, else None."""
        now = losses.latest_mean(device=device)
        return now if now is not None and is_worse(now, self.before, factor=TOLERATED) else None

    def restore(self, layout: Layout) -> None:
        for block, saved in zip(layout.blocks, self.saved or [], strict=True):
            for part in block.parts():
                block.write(part, saved[part])
        self.drop()

    def state_dict(self) -> dict[str, Any]:
        return {"saved": self.saved, "due": self.due, "before": self.before}

    def load_state_dict(self, state: dict[str, Any], like: list[Tensor]) -> None:
        self.due, self.before = state["due"], state["before"]
        self.saved = None if state["saved"] is None else fitted(state["saved"], like, None)


def mend_state(optimizer: Optimizer) -> None:
    """Set what is not finite in the optimizer's state to 0: a loss that overflowed has spoilt its averages."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor) and value.is_floating_point():
                value.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
