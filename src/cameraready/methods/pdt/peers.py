"""What prediction is compared with: other optimizers, averaged weights, extrapolation, the flat form of DMD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from cameraready.methods.pdt.history import Array, History
from cameraready.methods.pdt.optimizer import PredictiveDifferential
from cameraready.methods.pdt.predictor import Predictor
from cameraready.methods.pdt.reduced_dmd import ReducedDMD

INSTALL = "pip install 'cameraready[peers]'"


def lamb(parameters: Any, lr: float) -> Optimizer:
    try:
        from pytorch_optimizer import Lamb
    except ImportError as error:
        raise ImportError(f"LAMB needs pytorch-optimizer: {INSTALL}") from error
    return Lamb(parameters, lr=lr)


def lookahead(optimizer: Optimizer) -> Optimizer:
    """Five fast steps, then the slow weights go half the way: the settings of its authors."""
    try:
        from pytorch_optimizer import Lookahead
    except ImportError as error:
        raise ImportError(f"Lookahead needs pytorch-optimizer: {INSTALL}") from error
    return Lookahead(optimizer, k=5, alpha=0.5)


def averaged(model: nn.Module, *, steps_per_epoch: int) -> AveragedModel:
    """Exponential moving average of the weights over about one epoch; call ``update_parameters(model)`` each step."""
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(1 - 1 / max(steps_per_epoch, 2)))


class LinearExtrapolation(PredictiveDifferential):
    """The last epoch's move, ``horizon`` times over: every coordinate passes the masks, being a multiple of it."""

    def __init__(self, optimizer: Optimizer, **settings: Any) -> None:
        super().__init__(optimizer, mode="differential", **settings)
        self.predictor = _Linear(self.settings, optimizer)


class _Linear(Predictor):
    def _forecast(self, found: ReducedDMD, history: History) -> Array | None:
        coefficients = np.zeros(len(history.moves))
        coefficients[-1] = self.scheduler.horizon
        return coefficients


def flat_forecast(snapshots: Sequence[Sequence[Tensor]], *, rank: int, steps: int) -> list[Tensor]:
    """DMD as it is usually written: one N x h matrix, its thin SVD in the weights' own precision, its modes."""
    columns = torch.stack([torch.cat([tensor.reshape(-1) for tensor in snapshot]) for snapshot in snapshots], dim=1)
    x, y = columns[:, :-1], columns[:, 1:]
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    u, s, vh = u[:, :rank], s[:rank], vh[:rank]
    operator = u.T @ y @ vh.T / s
    state = u.T @ columns[:, -1]
    forecast = columns[:, -1] + u @ (torch.linalg.matrix_power(operator, steps) @ state - state)
    pieces = forecast.split([tensor.numel() for tensor in snapshots[-1]])
    return [piece.reshape(tensor.shape) for piece, tensor in zip(pieces, snapshots[-1], strict=True)]
