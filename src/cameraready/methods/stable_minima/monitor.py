"""Stability meters during training: a plain callable, or a callback of Lightning Fabric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cameraready.coverage import NotCovered
from cameraready.methods.stable_minima.relu_report import relu_report
from cameraready.methods.stable_minima.sharpness import sharpness
from cameraready.methods.stable_minima.thresholds import ADAM


@dataclass(frozen=True)
class Reading:
    """One measurement: the step, lambda_max, its threshold and status, path norm and memorisers of the ReLU block."""

    step: int
    lambda_max: float
    threshold: float | NotCovered
    status: str | NotCovered
    pathnorm_g: float | NotCovered
    memorisers: int | NotCovered

    def __str__(self) -> str:
        edge = f"{self.status} the threshold {self.threshold:.4g}" if self.threshold else f"threshold {self.threshold}"
        line = f"step {self.step}: lambda_max {self.lambda_max:.4g}, {edge}"
        if isinstance(self.pathnorm_g, NotCovered):
            return line
        return f"{line}; weighted path norm {self.pathnorm_g:.4g}, {self.memorisers} memorising neurons"


class StabilityMonitor:
    """Measure every so many steps, on one fixed batch, where training stands; the model is left as it was.

    Call it once after each optimiser step, ``monitor(model, optimizer)``; or pass it to
    ``Fabric(callbacks=[monitor])`` and call ``fabric.call("on_train_step_end", model, optimizer)`` in your loop.

    Parameters
    ----------
    loss_fn : the mean loss, ``loss_fn(model(x), y)``.
    batch : (x, y) to measure on. Small ones overestimate the sharpness of all the data, but follow its course.
    every : steps between measurements.
    block : name of the first layer of the ReLU block, where the model has several.
    report : called with each `Reading`, for instance ``print``.
    tolerance : largest residual of the eigenvector, relative to lambda_max, whose own error is about the square of it.

    Attributes
    ----------
    readings : list of all `Reading`; ``frame`` has them as a table, NaN where not covered.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> X = torch.randn(32, 2)
    >>> y, loss_fn = X[:, :1], nn.MSELoss()
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> monitor = StabilityMonitor(loss_fn, (X, y), every=10)
    >>> for _ in range(30):
    ...     optimizer.zero_grad()
    ...     loss_fn(model(X), y).backward()
    ...     _ = optimizer.step()
    ...     _ = monitor(model, optimizer)
    >>> monitor.frame["status"].tolist()
    ['below', 'below', 'below']
    """

    def __init__(
        self,
        loss_fn: Callable[..., Tensor],
        batch: tuple[Any, Any],
        *,
        every: int = 100,
        block: str | None = None,
        report: Callable[[Reading], Any] | None = None,
        tolerance: float = 0.1,
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every={every!r}; measure every 1 or more steps")
        self.loss_fn, self.batch, self.every, self.block, self.report = loss_fn, batch, every, block, report
        self.tolerance = tolerance
        self.step = 0
        self.readings: list[Reading] = []
        self._vector: NDArray[np.float64] | None = None

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Reading | None:
        """Count one step; measure if it is the turn."""
        self.step += 1
        if self.step % self.every:
            return None
        reading = self.measure(model, optimizer)
        self.readings.append(reading)
        if self.report is not None:
            self.report(reading)
        return reading

    on_train_step_end = __call__

    def measure(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Reading:
        """Measure now."""
        # Fabric wraps both; what is measured is the user's own.
        model, optimizer = getattr(model, "module", model), getattr(optimizer, "optimizer", optimizer)
        kind = "adam" if isinstance(optimizer, ADAM) else "hessian"
        found = sharpness(
            model,
            self.loss_fn,
            [self.batch],
            kind=kind,
            optimizer=optimizer,
            batches=1,
            tolerance=self.tolerance,
            start=self._vector,
        )
        self._vector = found.vector  # it moves little between measurements
        pathnorm, memorisers = self._neurons(model)
        return Reading(self.step, found.lambda_max, found.threshold, found.status, pathnorm, memorisers)

    def _neurons(self, model: nn.Module) -> tuple[float | NotCovered, int | NotCovered]:
        try:
            report = relu_report(model, self.batch[0], block=self.block)
        except ValueError as error:
            if self.block is not None:
                raise
            reason = NotCovered(str(error))  # no block, or several: training goes on without this meter
            return reason, reason
        return report.pathnorm_g, int(report.neurons["memoriser"].sum())

    @property
    def frame(self) -> pd.DataFrame:
        """One row a reading."""
        rows = [
            {name: None if isinstance(value, NotCovered) else value for name, value in vars(reading).items()}
            for reading in self.readings
        ]
        return pd.DataFrame(rows, columns=list(Reading.__dataclass_fields__))
