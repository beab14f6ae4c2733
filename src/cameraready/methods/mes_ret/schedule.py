"""Who runs next: rounds, waves, budget and restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np


class Schedule:
    """A round is one generation of every task ("self"), then the generations that were drawn ("extra").

    They run in waves, in which a task runs once, so that one wave is one batch.

    Attributes
    ----------
    popsize, evals, generations, restarts : (tasks,) integers.
    wave : the tasks of the wave that waits for values; phase : "self" or "extra".
    why : what stopped a task, "" while it runs.
    """

    def __init__(self, popsize: np.ndarray, *, max_evals: int, equal_shares: bool) -> None:
        T = len(popsize)
        self.popsize, self.max_evals, self.equal_shares = popsize, max_evals, equal_shares
        self.evals, self.generations, self.restarts, self.draws = (np.zeros(T, int) for _ in range(4))
        self.why = [""] * T
        self.phase: Literal["self", "extra"] = "extra"
        self.wave: list[int] = []

    @property
    def spent(self) -> float:
        """Share of the budget."""
        return int(self.evals.sum()) / self.max_evals

    def active(self) -> np.ndarray:
        """Which tasks have not stopped."""
        return np.array([not why for why in self.why])

    def next_wave(self, more: Callable[[int], int]) -> bool:
        """Open the next wave, empty when the budget is spent; True where a new round begins.

        ``more(task)`` are points beyond the population that its next generation evaluates.
        """
        self.draws[~self.active()] = 0
        self.phase, self.wave = "extra", self._affordable(np.flatnonzero(self.draws), more)
        if self.wave:
            self.draws[self.wave] -= 1
            return False
        self.draws[:] = 0
        self.phase, self.wave = "self", self._affordable(np.flatnonzero(self.active()), more)
        return True

    def ran(self, t: int, points: int) -> None:
        """One generation of a task is done."""
        self.evals[t] += points
        self.generations[t] += 1

    def restart(self, t: int) -> None:
        """Twice the population for a task that starts again."""
        self.popsize[t] *= 2
        self.restarts[t] += 1
        self.why[t] = ""

    def _affordable(self, tasks: np.ndarray, more: Callable[[int], int]) -> list[int]:
        """The tasks whose next generation the budget still pays, in order."""
        cost = {int(t): int(self.popsize[t]) + more(int(t)) for t in tasks}
        if self.equal_shares:
            share = self.max_evals // len(self.why)
            return [t for t in cost if self.evals[t] + cost[t] <= share]
        left, chosen = self.max_evals - int(self.evals.sum()), []
        for t in cost:
            if cost[t] <= left:
                chosen.append(t)
                left -= cost[t]
        return chosen
