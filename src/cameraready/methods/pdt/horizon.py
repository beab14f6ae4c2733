"""How far to look ahead, and how often, given what the loss did."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Kind = Literal["paper", "adaptive"] | None
KINDS: tuple[str | None, ...] = (*get_args(get_args(Kind)[0]), None)
CLEAN_PREDICTIONS = 3  # after so many in a row, "adaptive" dares more again


@dataclass
class HorizonScheduler:
    """Shortens the horizon, and then predicts more rarely, when the loss of an epoch rises.

    "paper": if the loss rises above that of the epoch before, the horizon falls by 1 down to 3, then the interval
    grows by 1. If it also rises above the one before that, the horizon falls by 2; from 4 it falls to 3 and the
    interval grows by 1; at 3 the interval grows by 2. "adaptive" does the same and recovers: after three predictions
    without a rise the horizon grows by 1 up to where it started, and then the interval falls likewise. None keeps both.
    Losses are compared from the third on, which has two before it.

    Examples
    --------
    >>> scheduler = HorizonScheduler("paper", horizon=5, interval=1)
    >>> for loss in (1.0, 0.9, 0.95):
    ...     scheduler.observe(loss)
    >>> scheduler.horizon, scheduler.interval
    (4, 1)
    """

    kind: Kind
    horizon: int
    interval: int
    losses: list[float] = field(default_factory=list)
    clean: int = 0

    def __post_init__(self) -> None:
        self.first_horizon, self.first_interval = self.horizon, self.interval

    def observe(self, loss: float) -> None:
        """Take the mean training loss of the epoch that just ended."""
        before, last = [math.inf, math.inf, *self.losses][-2:]
        self.losses = [*self.losses[-1:], loss]
        if self.kind is None or math.isinf(before) or loss <= last:
            return
        self.clean = 0
        if loss > before:
            if self.horizon > 4:
                self.horizon -= 2
            elif self.horizon == 4:
                self.horizon, self.interval = 3, self.interval + 1
            else:
                self.interval += 2
        elif self.horizon > 3:
            self.horizon -= 1
        else:
            self.interval += 1

    def predicted(self) -> None:
        """A prediction was made; `observe` or `punish` clears the count if it turns out badly."""
        self.clean += 1
        if self.kind != "adaptive" or self.clean <= CLEAN_PREDICTIONS:
            return
        self.clean = 1  # the one just made, not yet known to be clean
        if self.horizon < self.first_horizon:
            self.horizon += 1
        elif self.interval > self.first_interval:
            self.interval -= 1

    def punish(self) -> None:
        """A prediction had to be taken back."""
        self.clean = 0
        if self.kind is not None:
            self.horizon = min(self.horizon, max(2, self.horizon - 2))
            self.interval += 1

    def state_dict(self) -> dict[str, Any]:
        return {"horizon": self.horizon, "interval": self.interval, "losses": list(self.losses), "clean": self.clean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.horizon, self.interval = state["horizon"], state["interval"]
        self.losses, self.clean = list(state["losses"]), state["clean"]
