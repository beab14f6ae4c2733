"""One training loop for all networks with a linear head; removed concepts stay removed in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

LossOf = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Schedule:
    """How long, and at what rates, the head and everything below it are trained."""

    epochs: int
    lr: float = 1e-3
    head_lr: float = 1e-2
    batch_size: int = 64
    head_only_epochs: int = 0
    non_negative_head: bool = False

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch_size < 1 or self.lr < 0 or self.head_lr < 0:
            raise ValueError(
                f"epochs={self.epochs}, batch_size={self.batch_size}, lr={self.lr}, head_lr={self.head_lr}: "
                "none may be negative, and a batch holds at least one image"
            )


def seeded(seed: int | None) -> torch.Generator:
    """A generator on the CPU, so that a seed means the same on every device; None is a fresh one each time."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator


def train(
    network: nn.Module,
    n: int,
    loss: LossOf,
    *,
    schedule: Schedule,
    removed: Sequence[int] = (),
    seed: int | None = 0,
) -> None:
    """Adam on ``loss(rows, generator)`` over shuffled batches of 0 ... n - 1, in place.

    Columns ``removed`` of the head are set to 0 after every step: the optimizer would otherwise revive them.

    Raises
    ------
    ValueError : the loss stops being a number.
    """
    generator = seeded(seed)
    head = list(network.head.parameters())
    below = [p for p in network.parameters() if not any(p is q for q in head)]
    frozen = [p for p in (*head, *below) if not p.requires_grad]
    groups = [{"params": head, "lr": schedule.head_lr}]
    if schedule.lr > 0 and below:
        groups.append({"params": below, "lr": schedule.lr})
    for parameter in network.parameters():  # of nothing else is a gradient needed
        parameter.requires_grad_(any(parameter is p for group in groups for p in group["params"]))
    optimizer = torch.optim.Adam(groups)
    network.train(schedule.lr > 0)
    zeroed = list(removed)
    for epoch in range(schedule.epochs):
        if len(groups) > 1:
            optimizer.param_groups[1]["lr"] = 0.0 if epoch < schedule.head_only_epochs else schedule.lr
        for rows in torch.randperm(n, generator=generator).split(schedule.batch_size):
            value = loss(rows, generator)
            if not torch.isfinite(value):
                raise ValueError(
                    f"the training loss is {value.item()} in epoch {epoch}; lower lr={schedule.lr} and "
                    f"head_lr={schedule.head_lr}"
                )
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            with torch.no_grad():
                if schedule.non_negative_head:
                    network.head.weight.clamp_(min=0)
                network.head.weight[:, zeroed] = 0
    network.requires_grad_(True)
    for parameter in frozen:
        parameter.requires_grad_(False)
    network.eval()
