"""What happened at the end of an epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cameraready.methods.pdt.reduced_dmd import ReducedDMD


@dataclass
class Counters:
    """``position`` is the step within the epoch; ``predicted_at`` the epoch of the last jump, 0 for none."""

    step: int = 0
    epoch: int = 0
    position: int = 0
    predicted_at: int = 0
    jumps: int = 0
    skipped: int = 0
    restored: int = 0


@dataclass(frozen=True, kw_only=True)
class PredictionReport:
    """The last epoch's decision.

    Attributes
    ----------
    step, epoch : optimizer steps and epochs (of ``snapshot_every`` steps) so far.
    outcome : in words: "jumped", "collecting snapshots (2 of 5)", "skipped: ...".
    accepted : share of the predicted coordinates that the mask accepted; 0 without a jump.
    accepted_per_tensor : the same for each predicted parameter, in the order of the parameter groups.
    eigenvalues, rho, rank : of the fitted operator; rho is its spectral radius. Empty, NaN and 0 without a fit.
    horizon, interval : epochs looked ahead, and epochs from one prediction to the next, at present.
    seconds : what the end of the epoch cost.
    extra_bytes : memory of snapshots and of what the guard keeps.
    n_parameters : numbers that are predicted.
    n_jumps, n_skipped, n_restored : predictions made, left out, and taken back by the guard so far.
    """

    step: int
    epoch: int
    outcome: str
    accepted: float
    accepted_per_tensor: tuple[float, ...]
    eigenvalues: tuple[complex, ...]
    rho: float
    rank: int
    horizon: int
    interval: int
    seconds: float
    extra_bytes: int
    n_parameters: int
    n_jumps: int
    n_skipped: int
    n_restored: int

    @property
    def jumped(self) -> bool:
        return self.outcome == "jumped"

    def __str__(self) -> str:
        text = f"epoch {self.epoch} (step {self.step}): {self.outcome}"
        if self.jumped:
            text += f" {self.horizon} epochs ahead in {self.accepted:.0%} of the coordinates"
            text += f" (rank {self.rank}, spectral radius {self.rho:.3f})"
        return f"{text}; {1e3 * self.seconds:.1f} ms, {self.extra_bytes / 2**20:.1f} MiB of snapshots"


def report(
    counters: Counters, *, found: ReducedDMD | None, accepted: NDArray[np.float64], **measured: Any
) -> PredictionReport:
    """``found`` is None without a fit, ``accepted`` empty without a jump, else its last entry is for all parameters."""
    return PredictionReport(
        step=counters.step,
        epoch=counters.epoch,
        accepted=float(accepted[-1]) if len(accepted) else 0.0,
        accepted_per_tensor=tuple(accepted[:-1].tolist()),
        eigenvalues=() if found is None else tuple(found.eigenvalues.tolist()),
        rho=math.nan if found is None else found.rho,
        rank=0 if found is None else found.rank,
        n_jumps=counters.jumps,
        n_skipped=counters.skipped,
        n_restored=counters.restored,
        **measured,
    )
