"""The same network trained by several contestants in turn, and what each saves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from cameraready.methods.pdt.claim_inputs import GRID, SELECTION_SEEDS, TUNED, make_optimizer, make_problem
from cameraready.methods.pdt.optimizer import PredictiveDifferential
from cameraready.methods.pdt.peers import LinearExtrapolation, averaged, lookahead
from cameraready.methods.pdt.training import Epoch, in_turn, saving, train

ALONE, PDT = "optimizer alone", "PDT"

Wrap = Callable[[Optimizer, int], Optimizer]  # what a contestant makes of the optimizer, given the steps of an epoch


class Setup:
    """A network, its data and an optimizer, as in "MLP, Adam". Every contestant starts from the same weights."""

    def __init__(self, name: str, *, seed: int, epochs: int, schedule: str = "constant") -> None:
        model, self.optimizer = name.split(", ")
        self.name, self.seed, self.epochs, self.schedule = name, seed, epochs, schedule
        self.task, self.make_model = make_problem(model, seed=seed)

    def run(self, contestants: Mapping[Any, tuple[float, Wrap | None]]) -> dict[Any, list[Epoch]]:
        """Train each contestant, given as (learning-rate multiple, wrap), an epoch of each in turn."""
        return in_turn({name: self._start(*given) for name, given in contestants.items()}, epochs=self.epochs)

    def model(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return self.make_model()

    def _start(self, times: float, wrap: Wrap | None) -> Iterator[Epoch]:
        model = self.model()
        optimizer = make_optimizer(self.optimizer, model.parameters(), times=times)
        if wrap is not None:
            optimizer = wrap(optimizer, self.task.steps_per_epoch)
        return train(model, optimizer, self.task, seed=self.seed, after_epoch=self.scheduler_step(optimizer))

    def scheduler_step(self, optimizer: Optimizer) -> Callable[[], None] | None:
        return CosineAnnealingLR(optimizer, self.epochs).step if self.schedule == "cosine" else None


def predicting(**settings: Any) -> Wrap:
    return lambda optimizer, steps: PredictiveDifferential(optimizer, snapshot_every=steps, **settings)


def extrapolating(**settings: Any) -> Wrap:
    return lambda optimizer, steps: LinearExtrapolation(optimizer, snapshot_every=steps, **settings)


def tuned_rate(setup: Setup) -> int:
    """The multiple of the stated rate at which the optimizer alone gets the training loss lowest.

    Known for the setups of `TUNED`; else the grid is run on the selection seeds.
    """
    if setup.name in TUNED and (setup.epochs, setup.schedule) == (40, "constant"):
        return TUNED[setup.name]
    logs = dict.fromkeys(GRID, 0.0)
    for seed in SELECTION_SEEDS:
        selection = Setup(setup.name, seed=seed, epochs=setup.epochs, schedule=setup.schedule)
        for times, run in selection.run({times: (times, None) for times in GRID}).items():
            logs[times] += math.log(least_loss(run))
    return min(logs, key=logs.__getitem__)


def race_the_tuned(trial: Any, setup: Setup, *, others: bool) -> None:
    """The optimizer at its tuned rate, alone and with prediction (and, beside, what else is said to speed it up)."""
    times = tuned_rate(setup)
    arms: dict[str, tuple[float, Wrap | None]] = {ALONE: (times, None), PDT: (times, predicting())}
    if others:
        arms["PDT, differential"] = (times, predicting(mode="differential", rank=1))
        arms["Lookahead"] = (times, lambda optimizer, steps: lookahead(optimizer))
    runs = setup.run(arms)
    if others:
        runs["averaged weights"] = averaged_run(setup, times=times)
    for name, run in runs.items():
        saved = saving(runs[ALONE], run)
        values = {"epochs_saved": saved.epochs, "time_saved": saved.time, "clock_saved": saved.clock}
        record(trial, name, run, tuned_to=times, reached=saved.reached, **values)


def least_loss(run: list[Epoch]) -> float:
    return min(finite(epoch.train_loss) for epoch in run)


def finite(loss: float) -> float:
    """A loss that overflowed, as a large number: missing values would hide that a run diverged."""
    return min(loss, 1e6) if math.isfinite(loss) else 1e6


def record(trial: Any, method: str, run: list[Epoch], **values: Any) -> None:
    last = run[-1]
    trial.record(
        method=method,
        final_loss=finite(last.train_loss),
        least_loss=least_loss(run),
        accuracy=last.accuracy,
        **values,
    )


def averaged_run(setup: Setup, *, times: float) -> list[Epoch]:
    """The optimizer alone, evaluated at an exponential moving average of its weights."""
    model = setup.model()
    optimizer = make_optimizer(setup.optimizer, model.parameters(), times=times)
    average = averaged(model, steps_per_epoch=setup.task.steps_per_epoch)
    optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))
    epochs = train(model, optimizer, setup.task, seed=setup.seed, after_epoch=setup.scheduler_step(optimizer))
    measured = []
    for _ in range(setup.epochs):
        seconds = next(epochs).seconds
        loss, _ = setup.task.evaluate(average, setup.task.train)
        measured.append(Epoch(loss, setup.task.evaluate(average, setup.task.test)[1], seconds))
    return measured


def epoch_of_steps(steps: int, *, seed: int, predict: bool = False) -> Callable[[], int]:
    """A function that trains the MLP on digits by Adam for an epoch of ``steps``; returns the jumps so far."""
    task, make_model = make_problem("MLP", seed=seed)
    torch.manual_seed(seed)
    model = make_model()
    optimizer = make_optimizer("Adam", model.parameters())
    if predict:
        optimizer = PredictiveDifferential(optimizer, snapshot_every=steps, scheduler=None)
    inputs, targets = task.train
    batches = torch.randint(len(inputs), (steps, task.batch_size), generator=torch.Generator().manual_seed(seed))

    def epoch() -> int:
        for batch in batches:
            optimizer.zero_grad()
            loss = task.loss(model(inputs[batch]), targets[batch])
            loss.backward()
            if isinstance(optimizer, PredictiveDifferential):
                optimizer.observe(loss)
            optimizer.step()
        return optimizer.predictor.counters.jumps if isinstance(optimizer, PredictiveDifferential) else 0

    return epoch


def seconds_of_a_jump(n: int, history: int, *, repeats: int) -> float:
    """Least time of the end of an epoch, with its snapshot and jump, for one parameter of ``n`` numbers."""
    weight = nn.Parameter(torch.randn(n))
    optimizer = PredictiveDifferential(
        torch.optim.SGD([weight], lr=0.1), snapshot_every=1, history=history, start=1, scheduler=None, guard_steps=0
    )
    noise = torch.randn(n)
    seconds = []
    while len(seconds) < repeats:
        weight.grad = weight.detach() + 0.1 * noise
        optimizer.step()
        if optimizer.last_report is not None and optimizer.last_report.jumped:
            seconds.append(optimizer.last_report.seconds)
    return min(seconds)
