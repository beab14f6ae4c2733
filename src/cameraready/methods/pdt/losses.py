"""Training losses as they come by, kept on their device until somebody asks."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Loss = Tensor | float
SUMMED_AT_ONCE = 256


class Losses:
    """The mean over the epoch so far, and the latest ``window`` values.

    Observing costs a step next to nothing, and nothing is read back from an accelerator before a mean is asked for. In
    a distributed run means are over all ranks, so that every rank takes the same decisions.
    """

    def __init__(self, window: int) -> None:
        self.latest: deque[Loss] = deque(maxlen=max(window, 1))
        self.pending: list[Loss] = []
        self._unsummed: list[Loss] = []
        self._sum: Tensor | float = 0.0
        self._steps = 0

    def observe(self, loss: Any) -> None:
        if isinstance(loss, Tensor):
            if loss.numel() != 1:
                shape = tuple(loss.shape)
                raise ValueError(f"observe(loss) takes one number, got a tensor of shape {shape}; reduce it first")
            loss = loss.detach()
            self.pending.append(loss.reshape(()) if loss.ndim else loss)
        else:
            self.pending.append(float(loss))

    def end_step(self) -> None:
        """Several micro-batches of one optimizer step count as their mean."""
        if not self.pending:
            return
        if len(self.pending) > 1:
            self.pending = [_total(self.pending) / len(self.pending)]
        self.latest.append(self.pending[0])
        self._unsummed.append(self.pending[0])
        self.pending = []
        self._steps += 1
        if len(self._unsummed) >= SUMMED_AT_ONCE:
            self._sum_up()

    def epoch_mean(self, *, device: torch.device) -> float | None:
        """Mean over the steps of the epoch that ends now; None where no loss was observed."""
        self._sum_up()
        total, steps = self._sum, self._steps
        self._sum, self._steps = 0.0, 0
        return _mean(total, steps, device)

    def latest_mean(self, *, device: torch.device) -> float | None:
        return _mean(_total(list(self.latest)), len(self.latest), device)

    def forget(self) -> None:
        self.latest.clear()
        self._unsummed, self._sum, self._steps = [], 0.0, 0

    def _sum_up(self) -> None:
        self._sum = self._sum + _total(self._unsummed)
        self._unsummed = []

    def state_dict(self) -> dict[str, Any]:
        return {
            "latest": [float(value) for value in self.latest],
            "unsummed": [float(value) for value in self._unsummed],
            "sum": float(self._sum),
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.latest.clear()
        self.latest.extend(state["latest"])
        self._unsummed, self._sum, self._steps = list(state["unsummed"]), state["sum"], state["steps"]


def _total(values: list[Loss]) -> Tensor | float:
    """Sum in double precision, in one operation for what is on one device."""
    numbers = [value for value in values if not isinstance(value, Tensor)]
    tensors = [value for value in values if isinstance(value, Tensor)]
    if not tensors:
        return float(sum(numbers))
    device = tensors[-1].device
    if device.type == "cpu":
        return sum(value.item() for value in tensors) + sum(numbers)
    if any(value.device != device for value in tensors):
        tensors = [value.to(device) for value in tensors]
    total = torch.stack(tensors).to(_precision(device)).sum()
    return total + float(sum(numbers)) if numbers else total


def _mean(total: Tensor | float, steps: int, device: torch.device) -> float | None:
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        both = torch.tensor([float(total), steps], dtype=_precision(device), device=device)
        dist.all_reduce(both)
        total, steps = both.tolist()
    return float(total) / steps if steps else None


def _precision(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # Apple's GPUs have no double precision


def is_worse(now: float, before: float, *, factor: float) -> bool:
    """Whether a loss has grown past ``factor`` times what it was (by the same margin where losses are negative)."""
    return not math.isfinite(now) or now > before + (factor - 1) * abs(before)
