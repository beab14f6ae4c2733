"""A client's part of a round: its local steps, and what it sends. The same code under every engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from cameraready.methods.fed_dpo.objective import Objective

Algorithm = Literal["fedavg", "fedprox", "scaffold"]


def check_counts(least: int, **counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name}={value!r}; a whole number of at least {least} is needed")


@dataclass(frozen=True)
class Recipe:
    """How clients train: K local steps of SGD, or of a variant.

    ``fedprox`` adds mu / 2 ||theta - theta_server||^2; ``scaffold`` corrects each step by control variates c - c_i.
    ``batch_size`` None takes all pairs. Batches depend on ``seed``, round and client alone, whatever the engine.
    """

    local_steps: int
    lr: float
    algorithm: Algorithm = "fedavg"
    mu: float = 0.01
    batch_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(1, local_steps=self.local_steps)
        if self.batch_size is not None:  # None: all of a client's pairs
            check_counts(1, batch_size=self.batch_size)
        if not isinstance(self.lr, Real) or not 0 < self.lr < math.inf:
            raise ValueError(f"lr={self.lr!r}; it must be a positive, finite number")
        if self.algorithm not in ("fedavg", "fedprox", "scaffold"):
            raise ValueError(f"algorithm={self.algorithm!r}; choose 'fedavg', 'fedprox' or 'scaffold'")
        if not self.mu >= 0:
            raise ValueError(f"mu={self.mu}; it must be at least 0")


@dataclass(frozen=True)
class Batches:
    """Pairs of m clients at some steps: ``rows`` (steps, m, batch), ``share`` (m, batch), 0 beyond a small client."""

    rows: Tensor
    share: Tensor


def draw_batches(
    sizes: Sequence[int], ids: Sequence[int], *, batch_size: int, steps: int, seed: int, round: int
) -> Batches:
    """Batches without replacement inside a batch; a client smaller than ``batch_size`` uses all its pairs."""
    width = min(batch_size, max(sizes))
    rows = np.zeros((steps, len(sizes), width), dtype=np.int64)
    share = np.zeros((len(sizes), width))
    for j, (n, name) in enumerate(zip(sizes, ids, strict=True)):
        size = min(width, n)
        order = np.random.default_rng((seed, round, name)).random((steps, n))
        rows[:, j, :size] = np.argpartition(order, size - 1, axis=1)[:, :size]
        share[j, :size] = 1 / size
    return Batches(torch.from_numpy(rows), torch.from_numpy(share))


def local_steps(
    objective: Objective,
    start: Tensor,
    *,
    which: Sequence[int],
    steps: int,
    lr: float,
    batches: Batches | None = None,
    mu: float = 0.0,
    shift: Tensor | None = None,
    watch: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """theta <- theta - lr (grad f_i(theta) + mu (theta - start_i) + shift_i), ``steps`` times, for several clients.

    ``start`` is (m, d) or (d,); the result is (m, d). ``watch`` sees the clients' parameters before every step.
    """
    anchor = start.expand(len(which), -1)
    theta = anchor.clone()
    for k in range(steps):
        if watch is not None:
            watch(theta)
        rows, share = (None, None) if batches is None else (batches.rows[k], batches.share)
        direction = objective.gradients(theta, which=which, rows=rows, share=share)
        if mu:
            direction = direction + mu * (theta - anchor)
        if shift is not None:
            direction = direction + shift
        theta = theta - lr * direction
    return theta


class Worker:
    """The clients of one process (one, on a real device): trains them, and adds up what they send.

    Parameters
    ----------
    ids : the clients' numbers in the whole federation. weights : their p_i.

    Attributes
    ----------
    controls : (m, d), SCAFFOLD's c_i; empty for the others.
    """

    def __init__(self, objective: Objective, recipe: Recipe, *, ids: Sequence[int], weights: Sequence[float]) -> None:
        self.objective, self.recipe = objective, recipe
        self.ids, self.weights = list(ids), list(weights)
        self.controls = torch.zeros(len(self.ids) if recipe.algorithm == "scaffold" else 0, objective.dimension)
        self.controls = self.controls.to(objective.theta_ref)
        self.watch: Callable[[Tensor], None] | None = None

    def train(
        self, theta: Tensor, *, round: int, chosen: Sequence[int], control: Tensor | None, encode: Callable
    ) -> Report:
        """Local steps of those of ``chosen`` (numbers in the federation) that live here, and the sums to send.

        A client whose parameters are not finite afterwards is left out, and named.
        """
        recipe, objective = self.recipe, self.objective
        here = [j for j, name in enumerate(self.ids) if name in set(chosen)]
        if not here:
            return Report.empty(encode(theta), theta, recipe)
        batches = None
        if recipe.batch_size is not None:
            batches = draw_batches(
                [objective.sizes[j] for j in here],
                [self.ids[j] for j in here],
                batch_size=recipe.batch_size,
                steps=recipe.local_steps,
                seed=recipe.seed,
                round=round,
            )
        shift = control - self.controls[here] if control is not None else None
        after = local_steps(
            objective,
            theta,
            which=here,
            steps=recipe.local_steps,
            lr=recipe.lr,
            batches=batches,
            mu=recipe.mu if recipe.algorithm == "fedprox" else 0.0,
            shift=shift,
            watch=self.watch,
        )
        code = encode(theta)
        report = Report.empty(code, theta, recipe)
        for row, j in enumerate(here):
            if not bool(torch.isfinite(after[row]).all()):
                report.excluded.append(self.ids[j])
                continue
            p, moved = self.weights[j], after[row] - theta
            report.weight += p
            report.moved2 += p * float(moved @ moved)
            report.total += p * (encode(after[row]) - code)
            if control is not None:
                # c_i <- c_i - c + (theta_server - theta_i) / (K lr)
                new = self.controls[j] - control - moved / (recipe.local_steps * recipe.lr)
                report.control += p * (new - self.controls[j])
                self.controls[j] = new
        return report


@dataclass
class Report:
    """Sums over clients: of p_i, p_i ||move_i||^2, p_i (change of encode(theta_i)) and p_i (change of c_i)."""

    weight: float
    moved2: float
    total: Tensor
    control: Tensor
    excluded: list[int]

    @classmethod
    def empty(cls, code: Tensor, theta: Tensor, recipe: Recipe) -> Report:
        control = torch.zeros_like(theta) if recipe.algorithm == "scaffold" else theta[:0]
        return cls(0.0, 0.0, torch.zeros_like(code), control, [])
