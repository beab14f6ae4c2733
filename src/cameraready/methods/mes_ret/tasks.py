"""A task, the points it asks for, and what came out of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, init=False)
class TaskSpec:
    """One black box to minimise over a box.

    Parameters
    ----------
    name : unique among the tasks.
    lower, upper : (n,) or numbers that broadcast; the search runs in the unit box that they span.
    x0 : (n,), the first mean; None takes the mean of some uniform points.
    layout : (n,) distinct integers: which shared slot each coordinate is. Coordinates in the same slot mean the same
        in all tasks. None is 0, 1, ..., n - 1; `align` makes one for policies.

    Raises
    ------
    ValueError : bounds out of order or not finite, ``x0`` outside them, a layout of another length or with repeats.

    Examples
    --------
    >>> TaskSpec("cell 7", lower=[0.0, 1.0], upper=[1.0, 2.0]).n
    2
    """

    name: str
    lower: np.ndarray
    upper: np.ndarray
    x0: np.ndarray | None
    layout: np.ndarray | None

    def __init__(
        self,
        name: str,
        lower: ArrayLike,
        upper: ArrayLike,
        *,
        x0: ArrayLike | None = None,
        layout: ArrayLike | None = None,
    ) -> None:
        try:
            low, high = np.broadcast_arrays(np.atleast_1d(np.asarray(lower, float)), np.asarray(upper, float))
        except (TypeError, ValueError) as error:
            raise ValueError(f"task {name!r}: lower and upper must be equally many numbers ({error})") from error
        if low.ndim != 1 or low.size == 0:
            raise ValueError(f"task {name!r}: bounds of shape {low.shape}; pass one number a coordinate")
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ValueError(f"task {name!r}: bounds must be finite; to search without walls set bounds=None too")
        if (low >= high).any():
            j = int(np.argmax(low >= high))
            raise ValueError(f"task {name!r}: lower={low[j]} is not below upper={high[j]} in coordinate {j}")
        with np.errstate(over="ignore"):
            if np.isinf(high - low).any():
                raise ValueError(f"task {name!r}: the box is wider than a number can be; pass narrower bounds")
        start = None if x0 is None else np.array(x0, float)
        if start is not None and (start.shape != low.shape or not ((low <= start) & (start <= high)).all()):
            raise ValueError(f"task {name!r}: x0={x0!r} must be {low.size} numbers inside the bounds")
        slots = None if layout is None else np.array(layout)
        if slots is not None and (
            slots.shape != low.shape
            or not np.issubdtype(slots.dtype, np.integer)
            or slots.min() < 0
            or len(np.unique(slots)) < len(slots)
        ):
            raise ValueError(f"task {name!r}: layout={layout!r} must be {low.size} distinct integers of at least 0")
        values = {"name": str(name), "lower": low.copy(), "upper": high.copy(), "x0": start, "layout": slots}
        for field, value in values.items():
            object.__setattr__(self, field, value)

    @property
    def n(self) -> int:
        """Number of coordinates."""
        return self.lower.size


@dataclass(frozen=True)
class Batch:
    """Points to evaluate: ``X`` (popsize, n) in the user's units, for ``task``, its name, at place ``index``."""

    task: str
    index: int
    X: np.ndarray


@dataclass(frozen=True)
class TaskResult:
    """The best point of one task.

    Attributes
    ----------
    x_best : (n,), in the user's units; f_best : its objective, inf where no evaluation was finite.
    violation : by how much its constraints fail, in sum; 0 where it is feasible.
    evals : evaluations spent on the task.
    restarts : how often its search was exhausted and started again with twice the population.
    stop : why its search ended: "max_evals", "exhausted", "suspended: ..."; "" while it runs.
    """

    name: str
    x_best: np.ndarray
    f_best: float
    violation: float
    evals: int
    restarts: int
    stop: str


class Results(tuple[TaskResult, ...]):
    """One `TaskResult` a task, in the order of the tasks; prints as a table."""

    def __str__(self) -> str:
        wide = max(4, *(len(r.name) for r in self))
        lines = [f"{'task':<{wide}} {'best':>12} {'evals':>8} {'restarts':>8}  stop"]
        for r in self:
            broken = f", violates by {r.violation:.3g}" if r.violation else ""
            lines.append(f"{r.name:<{wide}} {r.f_best:>12.5g} {r.evals:>8} {r.restarts:>8}  {r.stop}{broken}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Round:
    """What one round did; arrays have one entry a task.

    Attributes
    ----------
    evals : evaluations spent before the round.
    kind : the reward that was used, "improvement" or "diversity".
    reward : shares of the round's extra generations, sum 1; ``share`` is the improvement reward that they come from.
    draws : extra generations that were drawn.
    extra : improvement rewards, in the same unit, of the extra generations, summed.
    middle, best : best objectives before the extra generations and at the end of the round.
    """

    evals: int
    kind: str
    reward: np.ndarray
    share: np.ndarray
    draws: np.ndarray
    extra: np.ndarray
    middle: np.ndarray
    best: np.ndarray


def task_specs(tasks: Sequence[TaskSpec] | Sequence[int]) -> tuple[TaskSpec, ...]:
    """The tasks as given, or unit boxes of the given dimensions; refuses none and repeated names."""
    if isinstance(tasks, str) or not isinstance(tasks, Iterable):
        raise ValueError(f"tasks={tasks!r}; pass a list of TaskSpecs or of dimensions")
    for task in tasks:
        whole = isinstance(task, int | np.integer) and not isinstance(task, bool) and task >= 1
        if not whole and not isinstance(task, TaskSpec):
            raise ValueError(f"tasks holds {task!r}; pass TaskSpecs, or dimensions of at least 1")
    specs = tuple(
        task if isinstance(task, TaskSpec) else TaskSpec(f"task {i}", np.zeros(int(task)), 1.0)
        for i, task in enumerate(tasks)
    )
    if not specs:
        raise ValueError("tasks is empty; pass at least one TaskSpec or dimension")
    names = [spec.name for spec in specs]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"tasks share the names {repeated}; give every task its own")
    return specs
