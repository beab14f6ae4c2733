"""The best point of every task, and the improvement reward that it earned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cameraready.methods.mes_ret.reward import improvement

LOOK_EVERY = 4  # generations between two looks at the incumbent, for noisy objectives


class BestPoints:
    """Best values by (violation, objective), of shape (tasks,), and the points that gave them.

    With ``noisy`` a task's best is an incumbent whose value is the average of all looks at it. In the second and then
    every fourth generation two points are added to the batch: the incumbent, and the best sample since (the
    challenger), which takes its place if its second look is better. Its first look does not count: it was lucky.
    """

    def __init__(self, dims: Sequence[int], *, form: str, noisy: bool) -> None:
        T = len(dims)
        self.form, self.noisy = form, noisy
        self.f, self.cv, self.first_f, self.first_cv = (np.full(T, np.inf) for _ in range(4))
        self.x = [np.full(n, np.nan) for n in dims]
        self.looks = np.zeros((T, 2))  # how many, and the sum of what they gave
        self.challenger: list[tuple[float, float, np.ndarray | None]] = [(np.inf, np.inf, None)] * T

    def mark(self) -> tuple[np.ndarray, np.ndarray]:
        """The values now, for `gain` later."""
        return self.f.copy(), self.cv.copy()

    def gain(self, since: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Improvement rewards since a `mark`: of the violation until a task is feasible, of the objective then."""
        f, cv = since
        objective = improvement(f, self.f, self.first_f, form=self.form)
        feasibility = improvement(cv, self.cv, self.first_cv, form=self.form)
        return np.where(np.isfinite(cv) & (cv > 0), feasibility, objective)

    def looks_now(self, generation: int) -> bool:
        """Whether this generation of a task has the two more points."""
        return self.noisy and (generation == 1 or generation % LOOK_EVERY == LOOK_EVERY - 1)

    def more_points(self, t: int, points: np.ndarray) -> np.ndarray:
        """The two points to look at; before any is known, the first of ``points`` stands in."""
        challenger = self.challenger[t][2]
        challenger = points[0] if challenger is None else challenger
        incumbent = challenger if np.isnan(self.x[t]).any() else self.x[t]
        return np.stack([incumbent, challenger])

    def see(self, t: int, points: np.ndarray, f: np.ndarray, cv: np.ndarray, *, popsize: int) -> None:
        """A generation's points and values; those beyond ``popsize`` are the two more."""
        leader = int(np.lexsort((f[:popsize], cv[:popsize]))[0])
        found = (cv[leader], f[leader], points[leader])
        if not self.noisy:
            self._keep(t, *found)
            return
        if len(points) > popsize:
            known = not np.isnan(self.x[t]).any()
            if known:
                self.looks[t] += 1, f[popsize]
                self.f[t], self.cv[t] = self.looks[t, 1] / self.looks[t, 0], cv[popsize]
            if not known or (cv[-1], f[-1]) < (self.cv[t], self.f[t]):
                self.cv[t] = self.f[t] = np.inf
                self.looks[t] = 1, f[-1]
                self._keep(t, cv[-1], f[-1], points[-1])
            self.challenger[t] = (np.inf, np.inf, None)
        if found[:2] < self.challenger[t][:2]:
            self.challenger[t] = found

    def _keep(self, t: int, cv: float, f: float, x: np.ndarray) -> None:
        if np.isinf(self.first_cv[t]):
            self.first_cv[t] = cv
        if cv == 0 and np.isinf(self.first_f[t]):
            self.first_f[t] = f
        if np.isfinite(f) and (cv, f) < (self.cv[t], self.f[t]):
            self.cv[t], self.f[t], self.x[t] = cv, f, x.copy()
