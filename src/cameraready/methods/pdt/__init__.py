"""Predictive differential training: an optimizer wrapper that jumps ahead where a forecast of the weights is right."""

from typing import Any

from cameraready.methods.pdt.dmd import DMD, fit_dmd
from cameraready.methods.pdt.masks import believable
from cameraready.methods.pdt.optimizer import PredictiveDifferential
from cameraready.methods.pdt.report import PredictionReport
from cameraready.methods.pdt.training import PairedRuns, Task, train_pair

__all__ = [
    "DMD",
    "PDTCallback",
    "PDTTrainerCallback",
    "PairedRuns",
    "PredictionReport",
    "PredictiveDifferential",
    "Task",
    "believable",
    "fit_dmd",
    "train_pair",
]


def __getattr__(name: str) -> Any:
    # These two need Lightning and transformers, which the optimizer itself does not.
    if name == "PDTCallback":
        from cameraready.methods.pdt.lightning_callback import PDTCallback

        return PDTCallback
    if name == "PDTTrainerCallback":
        from cameraready.methods.pdt.transformers_callback import PDTTrainerCallback

        return PDTTrainerCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
