"""The settings of predictive differential training, and what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from cameraready.methods.pdt.horizon import KINDS, Kind
from cameraready.methods.pdt.masks import CRITERIA, Criterion

Mode = Literal["paper", "differential"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """See `PredictiveDifferential`, which documents each."""

    snapshot_every: int
    horizon: int
    history: int
    interval: int
    start: int
    rank: str | int | float
    mode: Mode
    mask: Criterion
    scheduler: Kind
    rho_max: float
    guard_steps: int
    snapshot_dtype: torch.dtype | None
    param_filter: Callable[[Tensor], bool] | None
    seed: int

    def __post_init__(self) -> None:
        _whole("snapshot_every", self.snapshot_every, 1, "the optimizer steps of an epoch, len(loader), are usual")
        _whole("horizon", self.horizon, 1, "5 epochs are usual")
        _whole("history", self.history, 3, "DMD needs two moves at least; 5 is usual")
        _whole("interval", self.interval, 1, "1 predicts after every epoch")
        _whole("start", self.start, 0, "5 epochs are usual")
        _whole("guard_steps", self.guard_steps, 0, "0 switches the guard off, 20 is usual")
        _whole("seed", self.seed, 0, "it only matters for mask='random'")
        _one_of("mode", self.mode, ("paper", "differential"))
        _one_of("mask", self.mask, CRITERIA)
        _one_of("scheduler", self.scheduler, KINDS)
        check_rank(self.rank, largest=self.history - 1, reason=f"history={self.history} snapshots allow")
        if not 0 < self.rho_max < math.inf:
            raise ValueError(f"rho_max={self.rho_max} must be positive and finite; 1.0 forbids forecasts that grow")
        floats = (None, torch.float64, torch.float32, torch.bfloat16, torch.float16)
        if self.snapshot_dtype not in floats:
            raise ValueError(f"snapshot_dtype={self.snapshot_dtype}; choose torch.float32 or torch.bfloat16, or None")
        if self.param_filter is not None and not callable(self.param_filter):
            raise TypeError(f"param_filter={self.param_filter!r} is not a function of a parameter that returns a bool")

    @property
    def guarded_steps(self) -> int:
        """The guard decides before the next prediction at the latest."""
        return min(self.guard_steps, self.snapshot_every)


def check_rank(rank: str | int | float, *, largest: int, reason: str) -> None:
    """Refuse a rank that is neither "ght", nor a whole number up to ``largest``, nor a share of energy."""
    if rank == "ght":
        return
    if isinstance(rank, str | bool) or not isinstance(rank, int | float):
        raise ValueError(f"rank={rank!r}; choose 'ght', a whole number, or a share of the energy between 0 and 1")
    if isinstance(rank, int) and not 1 <= rank <= largest:
        raise ValueError(f"rank={rank} is not between 1 and the {largest} that {reason}")
    if isinstance(rank, float) and not 0 < rank < 1:
        raise ValueError(f"rank={rank} as a share of the energy must be between 0 and 1; a rank is a whole number")


def _whole(name: str, value: Any, least: int, advice: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is not a whole number; {advice}")
    if value < least:
        raise ValueError(f"{name}={value} is below {least}; {advice}")


def _one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r}; choose one of {', '.join(repr(choice) for choice in choices)}")
