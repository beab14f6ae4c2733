"""The claims' data, networks and what they record of a study."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import sklearn.datasets  # noqa: F401  (for data.load: imported once for all trials, not by each)
import torch
import torch._dynamo  # (likewise: the first optimiser that is made imports it, which takes a second)
from torch import Tensor, nn

from cameraready import data
from cameraready.methods.compress_robust.measure import measure
from cameraready.methods.compress_robust.sweep import QUANTITIES, Data, Key, train
from cameraready.methods.compress_robust.training import Recipe, Stack, fit


def images(name: str, rng: np.random.Generator, n_train: int, n_test: int) -> Data:
    """((x, y), (x_test, y_test)) of labelled images as vectors in [0, 1], split at random."""
    pictures, labels = data.load(name)
    if n_train + n_test > len(labels):
        raise ValueError(f"{n_train} + {n_test} of the {len(labels)} images of {name}")
    rows = rng.permutation(len(labels))[: n_train + n_test]
    flat = pictures[rows].reshape(len(rows), -1)
    x = torch.from_numpy((flat / flat.max()).astype(np.float32))
    y = torch.from_numpy(labels[rows].astype(np.int64))
    return (x[:n_train], y[:n_train]), (x[n_train:], y[n_train:])


def network(task: Data, width: int, *, hidden: int = 2) -> Callable[[], nn.Module]:
    """A maker of ReLU networks for the task, ``hidden`` layers of one width."""
    (x, y), _ = task

    def make() -> nn.Module:
        sizes = [x.shape[1], *[width] * hidden]
        pairs = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
        return nn.Sequential(*[module for pair in pairs for module in pair], nn.Linear(width, int(y.max()) + 1))

    return make


ACCURACIES = {"clean": "clean", "adv": "adversarial", "relative": "relative"}


@dataclass(frozen=True)
class Family:
    """Networks from the least compressed to the most, and their `Sweep` table."""

    models: dict[Key, nn.Module]
    table: pd.DataFrame


def two_families(
    make: Callable[[], nn.Module],
    task: Data,
    ranks: Sequence[float],
    neurons: Sequence[float],
    *,
    seed: int,
    eps: Mapping[str, Sequence[float]],
    moved: Callable[[nn.Module], nn.Module] = lambda model: model,
    test: tuple[Tensor, Tensor] | None = None,
    **settings: Any,
) -> dict[str, Family]:
    """The network as it is, then at these ranks and at these numbers of active neurons; the first is trained once.

    ``moved`` makes of each trained network the one that is measured, on ``test`` instead of the task's own.
    """
    parts = []
    for knob, levels in (("rank", [None]), ("rank", ranks), ("active_neurons", neurons)):
        trained = train(make, task[0], knob=knob, levels=levels, seeds=[seed], **settings)
        models = {key: moved(model) for key, model in trained.items()}
        rows = [
            {"level": level, **row}
            for (level, _), model in models.items()
            for row in measure(model, *(test or task[1]), eps=eps, seed=seed)
        ]
        parts.append(Family(models, pd.DataFrame(rows).astype({"level": object})))
    whole, *families = parts
    return {
        name: Family(whole.models | family.models, pd.concat([whole.table, family.table], ignore_index=True))
        for name, family in zip(("rank", "active neurons"), families, strict=True)
    }


def classes(task: Data, keep: Sequence[int]) -> Data:
    """The examples of some classes, numbered from 0."""

    def part(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        chosen = torch.isin(y, torch.tensor(list(keep)))
        return x[chosen], torch.searchsorted(torch.tensor(sorted(keep)), y[chosen])

    return part(*task[0]), part(*task[1])


def record_levels(trial: Any, table: pd.DataFrame, name: Callable[[pd.Series], str]) -> None:
    """The rule's metrics, and for the charts one row a quantity; compression 0 is the table's first level."""
    steps, _ = pd.factorize(table["level"], use_na_sentinel=False)
    for step, (_, row) in zip(steps.tolist(), table.iterrows(), strict=True):
        accuracies = {f"{words}_accuracy": row[key] for key, words in ACCURACIES.items()}
        numbers = {key: row[key] for key in ("loss_gap", "stable_rank", "log_product")}
        trial.record(method=name(row), compression=step, **accuracies, **numbers)
        for quantity, words in QUANTITIES.items():
            trial.record(method=name(row), compression=step, quantity=words, value=row[quantity])


def with_new_head(model: nn.Sequential, task: Data, *, steps: int, seed: int) -> nn.Module:
    """The network with its body frozen and a fresh last layer trained on another task."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = nn.Linear(model[-1].in_features, int(task[0][1].max()) + 1)
    moved = nn.Sequential(*[copy.deepcopy(child).requires_grad_(False) for child in model[:-1]], head)
    return fit(Stack([moved]), *task[0], recipe=Recipe(lr=1e-2, steps=steps), seeds=[seed]).unstack()[0]


def aic_gain(y: np.ndarray, own: np.ndarray, other: np.ndarray) -> float:
    """AIC of the line of y over ``other`` minus that over ``own``; positive where ``own`` explains more."""
    return float(len(y) * (np.log(_residual(y, other)) - np.log(_residual(y, own))))


def r_squared(y: np.ndarray, x: np.ndarray) -> float:
    """Share of the variance of y that its line over x explains."""
    return float(1 - _residual(y, x) / np.sum((y - y.mean()) ** 2))


def _residual(y: np.ndarray, x: np.ndarray) -> float:
    design = np.column_stack([x, np.ones_like(x)])
    return float(np.sum((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2))
