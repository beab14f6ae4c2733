"""What happens between an optimizer's steps: snapshots, forecasts, jumps, and taking them back."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from cameraready.methods.pdt.guard import Guard, mend_state
from cameraready.methods.pdt.history import Array, History
from cameraready.methods.pdt.horizon import HorizonScheduler
from cameraready.methods.pdt.jump import jump
from cameraready.methods.pdt.layout import Layout
from cameraready.methods.pdt.losses import Losses
from cameraready.methods.pdt.parameters import PredictedParameters
from cameraready.methods.pdt.reduced_dmd import ReducedDMD, reduce
from cameraready.methods.pdt.report import Counters, PredictionReport, report
from cameraready.methods.pdt.settings import Settings

CHANGED = "the set of predicted parameters has changed"


class Predictor:
    """Call `before_step` and `after_step` around each of the optimizer's steps."""

    def __init__(self, settings: Settings, optimizer: Optimizer) -> None:
        self.settings, self.optimizer = settings, optimizer
        self.from_end = settings.mode == "differential"
        self.scheduler = HorizonScheduler(settings.scheduler, horizon=settings.horizon, interval=settings.interval)
        self.losses = Losses(settings.guarded_steps)
        self.guard = Guard(settings.guarded_steps)
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.history: History | None = None
        self.last_report: PredictionReport | None = None
        self.counters = Counters()
        self._parameters = PredictedParameters(optimizer, settings.param_filter)
        self._warned_of_losses = False

    def before_step(self) -> None:
        if self.counters.position == 0:
            self._begin_epoch()

    def after_step(self) -> bool:
        """Whether the parameters have jumped. Most steps only count."""
        self.losses.end_step()
        count = self.counters
        count.step += 1
        count.position += 1
        if count.step == self.guard.due:
            self._decide_about_jump()
        if count.position < self.settings.snapshot_every:
            return False
        count.position = 0
        return self._end_epoch()

    def restart(self) -> None:
        """Forget the snapshots: the weights are others now."""
        self.history = None
        self.counters.position = 0
        self.losses.forget()
        self.guard.drop()

    @torch.no_grad()
    def _begin_epoch(self) -> None:
        layout = self._parameters.layout()
        if self.history is None:
            self.history = self._new_history(layout)
        elif self.history.signature != layout.signature:
            self._start_anew(layout, CHANGED)
        elif not self.history.resembles(layout):
            self._start_anew(layout, "the weights were replaced between two steps")

    @torch.no_grad()
    def _end_epoch(self) -> bool:
        began = time.perf_counter()
        self.counters.epoch += 1
        layout = self._parameters.layout()
        history = self.history
        assert history is not None  # `before_step` made it
        loss = self.losses.epoch_mean(device=layout.device)
        found, accepted, horizon = None, np.zeros(0), self.scheduler.horizon
        if loss is not None and not math.isfinite(loss):
            outcome = f"snapshots cleared: the epoch's mean loss is {loss}"
            self._forget(layout)
        elif history.signature != layout.signature:
            outcome = self._start_anew(layout, CHANGED)
        else:
            if self.from_end:
                history.append(layout)
                history.multiply(layout)
            outcome = self._why_not_yet(history)
            if not outcome:
                found = self._fit(layout, history)
                coefficients = None if found is None else self._forecast(found, history)
                if coefficients is None:
                    outcome, found = "skipped: the weights do not move, or their forecast is not finite", None
                    self.counters.skipped += 1
                else:
                    self._warn_without(loss)
                    accepted = self._jump(layout, history, coefficients)
                    outcome = "jumped"
            if loss is not None:
                self.scheduler.observe(loss)  # after the jump, as in the paper: this loss is from before it
            if outcome == "jumped":
                self.scheduler.predicted()
            self._advance(layout, history)
        self.last_report = report(
            self.counters,
            outcome=outcome,
            found=found,
            accepted=accepted,
            horizon=horizon,
            interval=self.scheduler.interval,
            seconds=time.perf_counter() - began,
            extra_bytes=self.history.n_bytes + self.guard.n_bytes,
            n_parameters=layout.n_parameters,
        )
        return self.last_report.jumped

    def _why_not_yet(self, history: History) -> str:
        settings, count = self.settings, self.counters
        if not history.is_full:
            snapshots = len(history.moves) + history.about_weights
            return f"collecting snapshots ({snapshots} of {settings.history})"
        if count.epoch < settings.start:
            return f"predictions start at epoch {settings.start}"
        if count.predicted_at and count.epoch - count.predicted_at < self.scheduler.interval:
            return f"the next prediction is at epoch {count.predicted_at + self.scheduler.interval}"
        return ""

    def _fit(self, layout: Layout, history: History) -> ReducedDMD | None:
        if not history.has_moved:
            return None
        rho_max = self.settings.rho_max if self.from_end else None
        products = history.snapshot_products()
        return reduce(products, n_parameters=layout.n_parameters, rank=self.settings.rank, rho_max=rho_max)

    def _forecast(self, found: ReducedDMD, history: History) -> Array | None:
        """Coefficients of the forecast displacement over (moves, anchor), or None where they overflow."""
        horizon = self.scheduler.horizon
        with np.errstate(over="ignore", invalid="ignore"):
            coefficients = history.over_moves(found.summed(horizon) if self.from_end else found.moved(horizon))
        return coefficients if np.isfinite(coefficients).all() else None

    def _jump(self, layout: Layout, history: History, coefficients: Array) -> Array:
        """Returns the accepted share of each parameter, and of all as the last one."""
        self.guard.arm(self.losses, step=self.counters.step, device=layout.device)
        counts = jump(
            layout,
            history,
            coefficients,
            from_end=self.from_end,
            horizon=self.scheduler.horizon,
            mask=self.settings.mask,
            generator=self.generator,
            saved=self.guard.saved,
        )
        self.counters.predicted_at = self.counters.epoch
        self.counters.jumps += 1
        sizes = np.array([size for block in layout.blocks for size in block.sizes])
        return np.append(counts, counts.sum()) / np.maximum(np.append(sizes, sizes.sum()), 1)

    def _advance(self, layout: Layout, history: History) -> None:
        """Paper mode remembers where each epoch starts, jumps included; differential mode what training did."""
        if not self.from_end:
            history.append(layout)
        elif history.is_full:
            history.forget_oldest()  # no later fit needs it
        history.advance(layout)
        if not self.from_end:
            history.multiply(layout)

    @torch.no_grad()
    def _decide_about_jump(self) -> None:
        layout = self._parameters.layout()
        history = self.history
        assert history is not None
        loss = self.guard.objects(self.losses, device=layout.device)
        if loss is None or history.signature != layout.signature:
            self.guard.drop()
            return
        self.guard.restore(layout)
        history.advance(layout) if self.from_end else history.rewrite_newest(layout)
        if not math.isfinite(loss):
            mend_state(self.optimizer)
        self.scheduler.punish()
        self.losses.forget()
        self.counters.restored += 1
        self.counters.position = 0  # the epoch starts again, from the weights before the jump

    def _warn_without(self, loss: float | None) -> None:
        if loss is None and not self._warned_of_losses and (self.settings.scheduler or self.settings.guard_steps):
            self._warned_of_losses = True
            warnings.warn(
                "PredictiveDifferential has seen no loss, so its scheduler and guard do nothing; call "
                "observe(loss) before each step, or pass scheduler=None, guard_steps=0",
                stacklevel=2,
            )

    def _start_anew(self, layout: Layout, why: str) -> str:
        warnings.warn(f"PredictiveDifferential starts its snapshots anew: {why}", stacklevel=2)
        self._forget(layout)
        return f"snapshots cleared: {why}"

    def _forget(self, layout: Layout) -> None:
        self.history = self._new_history(layout)
        self.guard.drop()
        self.losses.forget()

    def _new_history(self, layout: Layout) -> History:
        return History(
            layout,
            length=self.settings.history - (not self.from_end),
            dtype=self.settings.snapshot_dtype,
            about_weights=not self.from_end,
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "settings": {"mode": self.settings.mode, "history": self.settings.history},
            "history": None if self.history is None else self.history.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "losses": self.losses.state_dict(),
            "guard": self.guard.state_dict(),
            "generator": self.generator.get_state(),
            "counters": dict(vars(self.counters)),
        }

    def check_state(self, state: dict[str, Any]) -> None:
        for name, value in state["settings"].items():
            mine = getattr(self.settings, name)
            if mine != value:
                raise ValueError(f"the checkpoint has {name}={value!r}, this wrapper {name}={mine!r}; make them equal")

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = None
        if state["history"] is not None:
            self.history = self._new_history(self._parameters.layout())
            self.guard.load_state_dict(state["guard"], self.history.anchor)
            self.history.load_state_dict(state["history"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.losses.load_state_dict(state["losses"])
        self.generator.set_state(state["generator"].cpu())
        self.counters = Counters(**state["counters"])
