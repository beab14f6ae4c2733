"""Predictive differential training around any torch optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from cameraready.methods.pdt.horizon import Kind
from cameraready.methods.pdt.masks import Criterion
from cameraready.methods.pdt.predictor import Predictor
from cameraready.methods.pdt.report import PredictionReport
from cameraready.methods.pdt.settings import Mode, Settings


class PredictiveDifferential(Optimizer):
    """Any torch optimizer, with a jump ahead at the end of an epoch in the coordinates that a forecast gets right.

    Dynamic mode decomposition (DMD) of the last epochs' weights forecasts the weights some epochs ahead. A coordinate
    jumps there if the forecast p agrees with the displacement d that training made in the last epoch: the same sign,
    and not more than (horizon + 1) |d|. The others, and the optimizer's own state, stay as training left them.

    Parameters
    ----------
    optimizer : any torch optimizer that evaluates the loss once a step. Its ``param_groups`` and ``state`` are shared,
        so that every learning-rate scheduler may be given this wrapper or the optimizer.
    snapshot_every : optimizer steps in what is called an epoch here; ``len(loader)`` is usual. Steps that a
        `torch.amp.GradScaler` skips, and micro-batches of an accumulated gradient, do not count.
    horizon : epochs to look ahead (tau), 5 by default. The scheduler changes it.
    history : snapshots that DMD is fitted to (h), 5 by default. Memory is history + 1 copies of the weights.
    interval : epochs from one prediction to the next (T_i), 1 by default. The scheduler changes it.
    start : the first prediction is at the end of this epoch, 5 by default, or once ``history`` snapshots exist.
    rank : of the fitted operator. "ght" (optimal hard threshold), a whole number up to ``history - 1``, or a share of
        the energy. In differential mode 1 is recommended.
    mode : "paper" fits DMD to the weights and replaces weights by the forecast from the epoch's start. "differential"
        fits it to the moves that training makes in an epoch, and adds the sum of the next ``horizon`` moves to where
        training is; jumps are no part of the fitted moves.
    mask : "both" criteria, one of them ("consistency" of signs, "bounds" of size), or, to compare with, "none" or
        "random". See `believable`.
    scheduler : "paper" shortens the horizon and lengthens the interval when the epoch's loss rises; "adaptive" also
        recovers; None leaves both. Needs losses, see `observe`.
    rho_max : differential mode scales the operator so that its spectral radius is at most this; 1 forbids growth.
    guard_steps : a jump is taken back if the mean loss of so many steps after it is above 1.5 times the mean of as
        many before; 20 by default, 0 switches this off. Needs losses.
    snapshot_dtype : of stored moves, float32 (or the weights' own, if finer) by default; `torch.bfloat16` halves the
        memory.
    param_filter : tells for a parameter whether to predict it; all that require a gradient by default.
    seed : for ``mask="random"``.

    Attributes
    ----------
    optimizer : the wrapped one.
    last_report : `PredictionReport` of the last epoch that ended, or None.
    horizon, interval : the present values.

    Raises
    ------
    ValueError, TypeError : a setting out of range, LBFGS, a wrapper of a wrapper, or not a torch optimizer.

    Notes
    -----
    Paper mode, with X and Y the first and last h - 1 snapshots, X = U S V^T, A~ = U^T Y V S^-1, w_0 and w_1 the
    weights at the start and end of the epoch: p = U (A~^horizon - I) U^T w_0, d = w_1 - w_0, and w_0 + p replaces w_1
    where sign p = sign d and |d| <= |p| <= (horizon + 1) |d|. Differential mode, with s the latest move and X, Y made
    of moves: p = U (A~ + ... + A~^horizon) U^T s is added to w_1 where sign p = sign s and |p| <= (horizon + 1) |s|.
    All of it is computed from the h x h inner products of the snapshots.

    "Predictive Differential Training Guided by Training Dynamics", ICLR 2026.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(64, 4); y = x @ torch.ones(4, 1)
    >>> net = torch.nn.Linear(4, 1)
    >>> opt = PredictiveDifferential(torch.optim.SGD(net.parameters(), lr=0.01), snapshot_every=4)
    >>> for step in range(40):
    ...     opt.zero_grad()
    ...     loss = torch.nn.functional.mse_loss(net(x), y)
    ...     loss.backward()
    ...     opt.observe(loss)
    ...     opt.step()
    >>> opt.last_report.n_jumps
    6
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        snapshot_every: int,
        horizon: int = 5,
        history: int = 5,
        interval: int = 1,
        start: int = 5,
        rank: str | int | float = "ght",
        mode: Mode = "paper",
        mask: Criterion = "both",
        scheduler: Kind = "paper",
        rho_max: float = 1.0,
        guard_steps: int = 20,
        snapshot_dtype: torch.dtype | None = None,
        param_filter: Callable[[Tensor], bool] | None = None,
        seed: int = 0,
    ) -> None:
        check_optimizer(optimizer)
        self.settings = Settings(
            snapshot_every=snapshot_every,
            horizon=horizon,
            history=history,
            interval=interval,
            start=start,
            rank=rank,
            mode=mode,
            mask=mask,
            scheduler=scheduler,
            rho_max=rho_max,
            guard_steps=guard_steps,
            snapshot_dtype=snapshot_dtype,
            param_filter=param_filter,
            seed=seed,
        )
        self.optimizer = optimizer
        # Makes Optimizer's hooks, without the param_groups of its own that __init__ would make.
        super().__setstate__({})
        self.predictor = Predictor(self.settings, optimizer)
        self._callbacks: list[Callable[[PredictionReport], Any]] = []

    # What schedulers, scalers and trainers see is the wrapped optimizer's own, even after it loads a checkpoint.

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    @property
    def last_report(self) -> PredictionReport | None:
        return self.predictor.last_report

    @property
    def horizon(self) -> int:
        return self.predictor.scheduler.horizon

    @property
    def interval(self) -> int:
        return self.predictor.scheduler.interval

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """The snapshots start anew, with a warning."""
        self.optimizer.add_param_group(param_group)

    def __getattr__(self, name: str) -> Any:
        # For what some optimizers offer beside torch's interface, like train() of schedule-free ones. Private names are
        # not passed on: GradScaler would leave its work to a fused optimizer, and skipped steps would count.
        if name.startswith("_") or name in ("optimizer", "predictor", "settings"):
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        every = self.settings.snapshot_every
        return f"PredictiveDifferential(mode={self.settings.mode!r}, snapshot_every={every}) of {self.optimizer!r}"

    def __getstate__(self) -> dict[str, Any]:
        # A learning-rate scheduler replaces `step` by a closure, which cannot be copied.
        return {name: value for name, value in self.__dict__.items() if name != "step"}

    def observe(self, loss: Tensor | float) -> None:
        """Tell the training loss of the present step, before `step`. Scheduler and guard go by it.

        A closure that returns the loss does the same. Nothing is read back from the device until an epoch ends.
        """
        self.predictor.losses.observe(loss)

    def on_prediction(self, callback: Callable[[PredictionReport], Any]) -> Callable[[PredictionReport], Any]:
        """Call ``callback(report)`` after each jump. Usable as a decorator."""
        self._callbacks.append(callback)
        return callback

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of the wrapped optimizer; at the end of an epoch, a snapshot and perhaps a jump."""
        self.predictor.before_step()
        loss = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        if loss is not None and not self.predictor.losses.pending:
            self.observe(loss)
        if self.predictor.after_step():
            for callback in self._callbacks:
                callback(self.predictor.last_report)
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # torch's mark: hooks and profiler ranges are the inner step's

    def register_step_pre_hook(self, hook: Any) -> Any:
        """As in torch, on the wrapped optimizer: ``hook`` receives that one."""
        return self.optimizer.register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Any) -> Any:
        """As in torch, on the wrapped optimizer: ``hook`` receives that one, before any jump."""
        return self.optimizer.register_step_post_hook(hook)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state, and under "pdt" all that a bit-identical resumption needs."""
        return {**self.optimizer.state_dict(), "pdt": self.predictor.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned. That of the plain optimizer will do: its snapshots then start anew.

        Raises
        ------
        ValueError : a checkpoint with another mode or history length, or of another model.
        """
        own = state_dict.get("pdt")
        if own is not None:
            self.predictor.check_state(own)
        self.optimizer.load_state_dict({name: value for name, value in state_dict.items() if name != "pdt"})
        self.predictor.restart() if own is None else self.predictor.load_state_dict(own)


def check_optimizer(optimizer: Any) -> None:
    """Refuse what cannot be wrapped."""
    if isinstance(optimizer, PredictiveDifferential):
        raise ValueError("the optimizer is wrapped already; wrap the inner one (its .optimizer) once")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"PredictiveDifferential wraps a torch optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, LBFGS):
        raise ValueError(
            "LBFGS evaluates the loss several times a step, and its curvature pairs would span the jumps; "
            "use a first-order optimizer"
        )
