"""Train the same network with and without prediction, and see what that saves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cameraready.methods.pdt.optimizer import PredictiveDifferential

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What to train on and what to test on.

    Attributes
    ----------
    train, test : inputs and class numbers, tensors with as many rows. Class numbers of shape (n,), or (n, length) for
        a model that returns logits of shape (n, classes, length).
    batch_size : 64 by default; an epoch ends with what is left over.
    loss : mean loss of (outputs, targets), cross-entropy by default.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    batch_size: int = 64
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy

    def __post_init__(self) -> None:
        for name in ("train", "test"):
            inputs, targets = getattr(self, name)
            if len(inputs) != len(targets) or not len(inputs):
                raise ValueError(f"{name} has {len(inputs)} inputs and {len(targets)} targets; they must be as many")
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} is below 1; 64 is usual")

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.train[0]) // self.batch_size)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, part: tuple[Tensor, Tensor]) -> tuple[float, float]:
        """Mean loss and accuracy at the present weights, in evaluation mode."""
        model.eval()
        losses, correct, seen = 0.0, 0, 0
        for inputs, targets in zip(part[0].split(1024), part[1].split(1024), strict=True):
            outputs = model(inputs)
            losses += float(self.loss(outputs, targets)) * len(inputs)
            correct += int((outputs.argmax(1) == targets).sum())
            seen += targets.numel()
        model.train()
        return losses / len(part[0]), correct / seen


@dataclass(frozen=True)
class Epoch:
    """Measured after an epoch: the loss over the whole training set, test accuracy, and the seconds of its training."""

    train_loss: float
    accuracy: float
    seconds: float


@dataclass(frozen=True)
class Saving:
    """Of the baseline's way to its least training loss, the share that another run did not need. 0 if never reached.

    ``time`` is from epochs times the median seconds of an epoch, ``clock`` from the seconds as they passed.
    """

    epochs: float
    time: float
    clock: float
    reached: bool


def train(
    model: nn.Module, optimizer: Optimizer, task: Task, *, seed: int, after_epoch: Callable[[], Any] | None = None
) -> Iterator[Epoch]:
    """Train without end, an epoch at each ``next``. The order of the examples depends on ``seed`` alone."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = task.train
    observe = optimizer.observe if isinstance(optimizer, PredictiveDifferential) else None
    while True:
        order = torch.randperm(len(inputs), generator=generator).to(inputs.device)
        began = time.perf_counter()
        for batch in order.split(task.batch_size):
            optimizer.zero_grad()
            loss = task.loss(model(inputs[batch]), targets[batch])
            loss.backward()
            if observe is not None:
                observe(loss)
            optimizer.step()
        if after_epoch is not None:
            after_epoch()
        seconds = time.perf_counter() - began
        yield Epoch(task.evaluate(model, task.train)[0], task.evaluate(model, task.test)[1], seconds)


def in_turn(runs: Mapping[str, Iterator[Epoch]], *, epochs: int) -> dict[str, list[Epoch]]:
    """All runs an epoch at a time, so that a slow spell of the machine hits them all."""
    done: dict[str, list[Epoch]] = {name: [] for name in runs}
    for _ in range(epochs):
        for name, run in runs.items():
            done[name].append(next(run))
    return done


def saving(baseline: Sequence[Epoch], other: Sequence[Epoch]) -> Saving:
    """How much sooner ``other`` reaches the least training loss of ``baseline``; both counted to that loss."""
    losses = [epoch.train_loss if math.isfinite(epoch.train_loss) else math.inf for epoch in baseline]
    target = min(losses)
    needed = losses.index(target) + 1
    reached = next((n for n, epoch in enumerate(other, 1) if epoch.train_loss <= target), None)
    if reached is None:
        return Saving(0.0, 0.0, 0.0, reached=False)
    pace = median(epoch.seconds for epoch in other) / median(epoch.seconds for epoch in baseline)
    clock = sum(epoch.seconds for epoch in other[:reached]) / sum(epoch.seconds for epoch in baseline[:needed])
    return Saving(1 - reached / needed, 1 - pace * reached / needed, 1 - clock, reached=True)


@dataclass(frozen=True, eq=False)
class PairedRuns:
    """What `train_pair` measured.

    Attributes
    ----------
    epochs : DataFrame with columns seed, method ("baseline" or "PDT"), epoch, train_loss, accuracy, seconds
    savings : DataFrame, one row a seed: epochs_saved, time_saved, clock_saved, reached, accuracy_gain
    """

    epochs: pd.DataFrame
    savings: pd.DataFrame

    def __str__(self) -> str:
        mean = self.savings.mean(numeric_only=True)
        n = len(self.savings)
        return (
            f"{n} seed{'s' * (n > 1)}: saved {mean.epochs_saved:.0%} of the epochs and {mean.time_saved:.0%} of "
            f"the time to the baseline's least training loss, reached in {int(self.savings.reached.sum())} of {n}; "
            f"test accuracy {mean.accuracy_gain:+.4f}"
        )


def train_pair(
    make_model: Callable[[], nn.Module],
    make_optimizer: Callable[[Any], Optimizer],
    task: Task,
    *,
    epochs: int,
    pdt: Mapping[str, Any] | None = None,
    make_scheduler: Callable[[Optimizer], Any] | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
) -> PairedRuns:
    """Train with and without `PredictiveDifferential` from the same weights and on the same batches.

    Parameters
    ----------
    make_model : called after torch is seeded.
    make_optimizer : of ``model.parameters()``. Tune its learning rate first: prediction acts a bit like a larger one,
        so a rate that is too small makes it look better than it is.
    task : data, batch size and loss.
    epochs : of each run.
    pdt : settings of the wrapper; ``snapshot_every`` is an epoch unless given.
    make_scheduler : a learning-rate scheduler of the optimizer, stepped once an epoch.
    seeds : one pair of runs each.

    Returns
    -------
    `PairedRuns`

    Raises
    ------
    ValueError : no seeds, or ``epochs`` below 1.
    """
    import pandas as pd

    if epochs < 1 or not len(seeds):
        raise ValueError(f"epochs={epochs} and {len(seeds)} seeds; at least one of each is needed")
    rows, savings = [], []
    for seed in seeds:
        runs = {}
        for name in ("baseline", "PDT"):
            torch.manual_seed(seed)
            model = make_model()
            optimizer = make_optimizer(model.parameters())
            if name == "PDT":
                settings = {"snapshot_every": task.steps_per_epoch, **(pdt or {})}
                optimizer = PredictiveDifferential(optimizer, **settings)
            scheduler = None if make_scheduler is None else make_scheduler(optimizer)
            after = None if scheduler is None else scheduler.step
            runs[name] = train(model, optimizer, task, seed=seed, after_epoch=after)
        done = in_turn(runs, epochs=epochs)
        for name, measured in done.items():
            rows += [{"seed": seed, "method": name, "epoch": n, **vars(e)} for n, e in enumerate(measured, 1)]
        saved = saving(done["baseline"], done["PDT"])
        gain = done["PDT"][-1].accuracy - done["baseline"][-1].accuracy
        savings.append(
            {
                "seed": seed,
                "epochs_saved": saved.epochs,
                "time_saved": saved.time,
                "clock_saved": saved.clock,
                "reached": saved.reached,
                "accuracy_gain": gain,
            }
        )
    return PairedRuns(pd.DataFrame(rows), pd.DataFrame(savings))
