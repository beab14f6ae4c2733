"""A transformers callback that wraps the trainer's optimizer."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cameraready.methods.pdt.optimizer import PredictiveDifferential

try:
    # By name: an import statement would make every worker of `cameraready verify` load transformers.
    transformers = importlib.import_module("transformers")
except ImportError as error:
    raise ImportError("PDTTrainerCallback needs transformers: pip install 'cameraready[attention]'") from error


class PDTTrainerCallback(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """Predictive differential training in transformers: ``Trainer(..., callbacks=[PDTTrainerCallback()])``.

    The optimizer is wrapped when training begins, and losses are read from the model's outputs. A run that is resumed
    from a checkpoint takes its snapshots from there. A `PredictiveDifferential` given to the trainer as
    ``optimizers=(optimizer, None)`` is used as it is.

    Parameters
    ----------
    snapshot_every : optimizer steps from snapshot to snapshot; None for an epoch of the training data.
    settings : those of `PredictiveDifferential`.

    Attributes
    ----------
    optimizer : the wrapper while training goes on, and after.
    """

    def __init__(self, snapshot_every: int | None = None, **settings: Any) -> None:
        self.snapshot_every, self.settings = snapshot_every, settings
        self.optimizer: PredictiveDifferential | None = None
        self._undo: list[Any] = []

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        inner = getattr(optimizer, "optimizer", optimizer)
        if isinstance(inner, PredictiveDifferential):
            self.optimizer = inner
        else:
            every = self.snapshot_every or math.ceil(state.max_steps / max(state.num_train_epochs, 1))
            if not isinstance(getattr(optimizer, "optimizer", None), Optimizer):
                raise TypeError(
                    f"{type(optimizer).__name__} cannot be wrapped from here; give the trainer "
                    "optimizers=(PredictiveDifferential(...), None)"
                )
            self.optimizer = PredictiveDifferential(inner, snapshot_every=every, **self.settings)
            _set_inner(optimizer, self.optimizer)
            self._undo.append(lambda: _set_inner(optimizer, inner))
            if state.global_step:
                self._resume(args, state)
        self._undo.append(model.register_forward_hook(self._observe).remove)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        while self._undo:
            self._undo.pop()()

    def _observe(self, model: Any, inputs: Any, outputs: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
        if model.training and isinstance(loss, Tensor) and self.optimizer is not None:
            self.optimizer.observe(loss.mean())

    def _resume(self, args: Any, state: Any) -> None:
        """The trainer has loaded the inner optimizer's state before; the snapshots are in the same file."""
        assert self.optimizer is not None
        given = [Path(args.resume_from_checkpoint)] if isinstance(args.resume_from_checkpoint, str) else []
        for folder in (*given, Path(args.output_dir) / f"checkpoint-{state.global_step}"):
            if (folder / "optimizer.pt").exists():
                saved = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
                if "pdt" in saved:
                    self.optimizer.predictor.check_state(saved["pdt"])
                    self.optimizer.predictor.load_state_dict(saved["pdt"])
                return


def _set_inner(holder: Any, optimizer: Optimizer) -> None:
    """Make accelerate's wrapper as if it had been made around ``optimizer``: it keeps the bound ``step`` too."""
    made_anew = type(holder)(optimizer, device_placement=False, scaler=holder.scaler)
    vars(holder).update(vars(made_anew))
