"""A Lightning callback that wraps the trainer's optimizer."""

from __future__ import annotations

import importlib
import math
from typing import Any

from torch import Tensor

from cameraready.methods.pdt.optimizer import PredictiveDifferential

try:
    # By name: an import statement would make every worker of `cameraready verify` load Lightning.
    lightning = importlib.import_module("lightning.pytorch")
except ImportError as error:
    raise ImportError("PDTCallback needs Lightning: pip install lightning") from error


class PDTCallback(lightning.Callback):  # type: ignore[misc, name-defined]
    """Predictive differential training in Lightning: ``Trainer(callbacks=[PDTCallback()])``.

    Optimizers are wrapped before a checkpoint is restored, so that resumed runs have their snapshots. Losses are
    observed where there is one optimizer; with several, which only manual optimization has, call
    ``callback.optimizers[i].observe(loss)``.

    Parameters
    ----------
    snapshot_every : optimizer steps from snapshot to snapshot; None for an epoch of the training data.
    settings : those of `PredictiveDifferential`.

    Attributes
    ----------
    optimizers : the wrappers, once ``fit`` has begun.
    """

    def __init__(self, snapshot_every: int | None = None, **settings: Any) -> None:
        self.snapshot_every, self.settings = snapshot_every, settings
        self.optimizers: list[PredictiveDifferential] = []

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        every = self.snapshot_every or steps_per_epoch(trainer)
        self.optimizers = [
            optimizer
            if isinstance(optimizer, PredictiveDifferential)
            else PredictiveDifferential(optimizer, snapshot_every=every, **self.settings)
            for optimizer in trainer.strategy.optimizers
        ]
        trainer.strategy.optimizers = list(self.optimizers)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        if len(self.optimizers) == 1:
            self.optimizers[0].observe(loss)


def steps_per_epoch(trainer: Any) -> int:
    """Optimizer steps in an epoch of Lightning's trainer, which knows its data only from here on."""
    trainer.fit_loop.setup_data()
    batches = trainer.num_training_batches
    if not math.isfinite(batches) or batches < 1:
        raise ValueError(f"the training data have {batches} batches an epoch; pass PDTCallback(snapshot_every=...)")
    return math.ceil(batches / trainer.accumulate_grad_batches)
