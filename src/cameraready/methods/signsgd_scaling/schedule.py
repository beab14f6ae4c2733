"""Warm-up, stable, decay: the learning rate as a multiple of its peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Shape = Literal["linear", "cosine", "1-sqrt", "exponential"]
EXPONENTIAL_END = 1e-3


@dataclass(frozen=True)
class WSD:
    """Warm-up-stable-decay schedule: linear warm-up, a constant rate, then decay over the last share of the steps.

    Parameters
    ----------
    warmup : share of the steps with a linear warm-up; 0.01 by default, 0 for the paper's stable-decay schedule.
    decay : share of the steps that decay; 0.2 by default, as is usual.
    shape : "linear", "cosine", "1-sqrt" (1 - sqrt(t)) go to zero, "exponential" to a thousandth.

    Raises
    ------
    ValueError : shares that are negative or exceed 1 together, or an unknown shape.

    Examples
    --------
    >>> WSD(warmup=0.2, decay=0.4).multipliers(10).round(2).tolist()
    [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    """

    warmup: float = 0.01
    decay: float = 0.2
    shape: Shape = "linear"

    def __post_init__(self) -> None:
        if not (self.warmup >= 0 and self.decay >= 0 and self.warmup + self.decay <= 1):
            raise ValueError(
                f"warmup={self.warmup}, decay={self.decay}: both are shares of the steps, at least 0 and "
                "at most 1 together; warmup=0.01, decay=0.2 are usual"
            )
        if self.shape not in get_args(Shape):
            raise ValueError(f"shape={self.shape!r}; choose one of {', '.join(get_args(Shape))}")

    def multiplier(self, step: int, steps: int) -> float:
        """The rate at step 0, 1, ..., steps - 1 over its peak."""
        return float(self._at(np.array([step]), steps)[0])

    def multipliers(self, steps: int) -> NDArray[np.float64]:
        """The rate over its peak at every step; shape (steps,)."""
        return self._at(np.arange(steps), steps)

    def _at(self, step: NDArray[np.int64], steps: int) -> NDArray[np.float64]:
        warming = round(self.warmup * steps)
        decaying = round(self.decay * steps)
        rate = np.ones(step.shape)
        if warming:
            rate = np.minimum(1.0, (step + 1) / warming)
        if decaying:
            done = np.clip((step - (steps - decaying)) / decaying, 0, 1)
            rate = np.where(done > 0, rate * _decayed(done, self.shape), rate)
        return np.asarray(rate)


def _decayed(done: NDArray[np.float64], shape: Shape) -> NDArray[np.float64]:
    if shape == "linear":
        return 1 - done
    if shape == "cosine":
        return np.asarray((1 + np.cos(np.pi * done)) / 2)
    if shape == "1-sqrt":
        return np.asarray(1 - np.sqrt(done))
    return np.asarray(EXPONENTIAL_END**done)
