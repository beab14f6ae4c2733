"""The rounds of MES-RET, in the paper's order: self evolution, rewards, knowledge, drawn generations, restarts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from cameraready.methods.mes_ret import ranking
from cameraready.methods.mes_ret.best import BestPoints
from cameraready.methods.mes_ret.fleet import Fleet, Spread
from cameraready.methods.mes_ret.reward import diversity, normalised
from cameraready.methods.mes_ret.schedule import Schedule
from cameraready.methods.mes_ret.tasks import Round
from cameraready.methods.mes_ret.transfer import Knowledge


@dataclass(frozen=True)
class Asked:
    """Points in the user's units, their steps (x - mean)/sigma and how far beyond the box they were."""

    X: np.ndarray
    y: Tensor
    beyond: np.ndarray


@dataclass
class Rounds:
    """A run: its distributions, budget, best points and random numbers, and the steps that change them.

    ``asked`` are the points that are out, ``told`` the values (objective, violation) that came back, by task number.
    """

    fleet: Fleet
    schedule: Schedule
    best: BestPoints
    rng: np.random.Generator
    rngs: list[np.random.Generator]  # one a task
    sigma0: float
    tau: float
    evaluation: str
    transfer: bool
    smoothing: float
    bounds: str | None
    restart: str
    history: list[Round] = field(default_factory=list)
    asked: dict[int, Asked] = field(default_factory=dict)
    told: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._transfer_after = 2 * int(self.schedule.popsize.sum())
        self._mark = self.best.mark()
        self._epsilon_cv = np.zeros(len(self.rngs))
        self._smooth: np.ndarray | None = None
        self._knowledge: Knowledge | None = None
        self._before: Spread | None = None  # of the round's first generations
        self._round: dict[str, Any] = {"evals": 0}  # what becomes the next entry of the history
        for t, spec in enumerate(self.fleet.specs):
            self._start(t, spec.x0)
        self.schedule.next_wave(self._more)

    def missing(self) -> list[int]:
        """Tasks of the wave without values."""
        return [t for t in self.schedule.wave if t not in self.told]

    def sample(self) -> None:
        """a. and e.: every task of the wave samples its generation; some samples follow the others."""
        schedule = self.schedule
        if schedule.phase == "self":
            self._before = self.fleet.spread()
        ready = self.transfer and schedule.evals.sum() > self._transfer_after
        for popsize, tasks in self.fleet.groups(schedule.wave, schedule.popsize):
            z = np.stack([self.rngs[t].standard_normal((popsize, self.fleet.specs[t].n)) for t in tasks])
            hints = np.full(len(tasks), int(self.tau))
            if ready and self.tau % 1:
                hints = hints + (self.rng.random(len(tasks)) < self.tau % 1)
            knowledge = self._knowledge if ready else None
            unit, y = self.fleet.sample(tasks, z, clip=self.bounds == "clip", knowledge=knowledge, hints=hints)
            beyond = ranking.outside(unit) if self.bounds == "rank" else np.zeros(unit.shape[:2])
            X = self.fleet.to_user(tasks, unit, walls=self.bounds is not None)
            for i, t in enumerate(tasks):
                points = np.vstack([X[i], self.best.more_points(t, X[i])]) if self._more(t) else X[i]
                self.asked[t] = Asked(points, y[i], beyond[i])

    def finish_wave(self) -> None:
        """All values are there: update, learn, restart what is exhausted, open the next wave."""
        schedule, tasks = self.schedule, list(self.told)
        self._update()
        if tasks and schedule.phase == "self":
            self._learn()
        elif tasks:
            self._round["extra"] += self.best.gain(self._mark)
        self._mark = self.best.mark()
        self._retire(tasks)
        self.asked, self.told = {}, {}
        if schedule.next_wave(self._more) and "draws" in self._round:
            self.history.append(Round(**self._round, best=self.best.f.copy()))
            self._round = {"evals": int(schedule.evals.sum())}

    def _update(self) -> None:
        """Rank each generation and move its distribution; keep the best points."""
        schedule = self.schedule
        spent = schedule.spent
        for popsize, tasks in self.fleet.groups(list(self.told), schedule.popsize):
            f, cv = (np.stack([self.told[t][each][:popsize] for t in tasks]) for each in (0, 1))
            for i, t in enumerate(tasks):
                if schedule.generations[t] == 0:
                    self._epsilon_cv[t] = np.nan_to_num(np.quantile(cv[i], ranking.EPSILON_QUANTILE), posinf=0.0)
                self.best.see(t, self.asked[t].X, *self.told[t], popsize=popsize)
                schedule.ran(t, len(self.asked[t].X))
            beyond = np.stack([self.asked[t].beyond for t in tasks])
            order = ranking.order(f, cv, beyond, ranking.epsilon_level(self._epsilon_cv[tasks], spent))
            self.fleet.update(tasks, [self.asked[t].y for t in tasks], order)

    def _learn(self) -> None:
        """b. to d.: the reward vector, what the tasks share, and who runs again."""
        schedule, after = self.schedule, self.fleet.spread()
        active, share = schedule.active(), self.best.gain(self._mark)
        kind = "improvement" if self.rng.random() < 1 - schedule.spent else "diversity"
        reward = share if kind == "improvement" else diversity((self._before.diversity + after.diversity) / 2)
        if self._smooth is not None:
            reward = self.smoothing * self._smooth + (1 - self.smoothing) * reward
        self._smooth = reward
        reward = normalised(reward, active)
        self._knowledge = self.fleet.share(reward, self._before, after)
        if self.evaluation == "reward" and active.any():
            schedule.draws = self.rng.multinomial(len(self.rngs), reward)
        drawn = {"draws": schedule.draws.copy(), "extra": np.zeros(len(self.rngs)), "middle": self.best.f.copy()}
        self._round |= {"kind": kind, "reward": reward, "share": share, **drawn}

    def _retire(self, tasks: list[int]) -> None:
        """f.: exhausted tasks start again with twice the samples: each at once, or all when all are."""
        schedule = self.schedule
        for _, group in self.fleet.groups(tasks, schedule.popsize):
            for t in self.fleet.exhausted(group):
                schedule.why[t] = schedule.why[t] or "exhausted"
        exhausted = [t for t, why in enumerate(schedule.why) if why == "exhausted"]
        if self.restart == "task" or not schedule.active().any():
            for t in exhausted:
                schedule.restart(t)
                self._start(t, None)

    def _start(self, t: int, x0: np.ndarray | None) -> None:
        spec = self.fleet.specs[t]
        mean = self.rngs[t].random((self.schedule.popsize[t], spec.n)).mean(0)
        if x0 is not None:
            mean = (x0 - spec.lower) / (spec.upper - spec.lower)
        self.fleet.start(t, mean, self.sigma0)

    def _more(self, t: int) -> int:
        """Points beyond the population in a task's next generation."""
        return 2 * self.best.looks_now(self.schedule.generations[t])
