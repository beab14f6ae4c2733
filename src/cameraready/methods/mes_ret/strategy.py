"""MES-RET as ask and tell: settings, points out, values in, results."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from cameraready.methods.mes_ret import ranking
from cameraready.methods.mes_ret.best import BestPoints
from cameraready.methods.mes_ret.fleet import Fleet
from cameraready.methods.mes_ret.inputs import check_whole
from cameraready.methods.mes_ret.reward import FORMS
from cameraready.methods.mes_ret.rounds import Rounds
from cameraready.methods.mes_ret.schedule import Schedule
from cameraready.methods.mes_ret.tasks import Batch, Results, Round, TaskResult, TaskSpec, task_specs

Value = tuple[str | int, Any, Any]


class ManyTaskES:
    """Minimises many black boxes under one budget; ask and tell, as in `cma.CMAEvolutionStrategy`.

    Each round every task runs one generation of CMA-ES. The tasks that gained most then get further generations, as
    many in all as there are tasks; and a few samples of every generation follow the reward-weighted mean and scale of
    the others.

    Parameters
    ----------
    tasks : TaskSpecs, or dimensions (each a unit box).
    max_evals : evaluations in all.
    popsize : samples a generation; None is 4 + floor(3 ln n).
    sigma0 : first standard deviation, in widths of the box.
    tau : samples of each of the two kinds of transfer in a generation; below 1 a probability.
    evaluation : "reward", or "uniform": every task gets the same share of ``max_evals``.
    transfer : whether samples follow the other tasks. With "uniform" and without transfer every task is the CMA-ES it
        would be alone.
    covariance : "full", "diag" (sep-CMA-ES), or "auto": diagonal above 200 coordinates.
    reward : "bounded" or "paper"; see `improvement`.
    smoothing : share of the last round's rewards that is kept, in [0, 1).
    bounds : "rank" evaluates a sample outside the box at the nearest point inside, and ranks it behind when it is more
        than 5 % of the box away; "clip" moves the sample itself; None searches without walls (policies).
    restart : "task" starts an exhausted task again with twice the population; "all" waits for all (the paper).
    noisy : for objectives with noise, whose best value is the luckiest: the best point is then one that is evaluated
        again and again, at two more evaluations every 4 generations, and its value their average; see `BestPoints`.
    seed : an integer, or one for each task.
    device, dtype : of the batched state.

    Raises
    ------
    ValueError : see the text of each; nothing is evaluated before.

    Examples
    --------
    >>> es = ManyTaskES([TaskSpec("a", [-1, -1], [3, 3]), TaskSpec("b", [0, 0, 0], 1.0)], max_evals=3000, seed=1)
    >>> while not es.stop():
    ...     es.tell([(b.task, b.X, ((b.X - 0.5) ** 2).sum(axis=1)) for b in es.ask()])
    >>> [r.f_best < 1e-8 for r in es.result]
    [True, True]
    """

    def __init__(
        self,
        tasks: Sequence[TaskSpec] | Sequence[int],
        *,
        max_evals: int,
        popsize: int | None = None,
        sigma0: float = 0.3,
        tau: float = 1.0,
        evaluation: Literal["reward", "uniform"] = "reward",
        transfer: bool = True,
        covariance: Literal["auto", "full", "diag"] = "auto",
        reward: Literal["bounded", "paper"] = "bounded",
        smoothing: float = 0.0,
        bounds: Literal["rank", "clip"] | None = "rank",
        restart: Literal["task", "all"] = "task",
        noisy: bool = False,
        seed: int | Sequence[int] = 0,
        device: str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.tasks = task_specs(tasks)
        T = len(self.tasks)
        for name, value, known in (
            ("evaluation", evaluation, ("reward", "uniform")),
            ("covariance", covariance, ("auto", "full", "diag")),
            ("reward", reward, FORMS),
            ("bounds", bounds, ("rank", "clip", None)),
            ("restart", restart, ("task", "all")),
            ("dtype", dtype, (torch.float32, torch.float64)),
        ):
            if value not in known:
                raise ValueError(f"{name}={value!r} is not one of {known}")
        if popsize is not None:
            check_whole("popsize", popsize, least=4)
        default = [4 + int(3 * np.log(spec.n)) for spec in self.tasks]
        sizes = np.array(default if popsize is None else [int(popsize)] * T)
        if not tau >= 0 or sizes.min() <= 2 * tau:
            raise ValueError(f"tau={tau} must be at least 0 and below half of popsize={sizes.min()}")
        check_whole("max_evals", max_evals, least=1)
        if max_evals < 2 * sizes.sum():
            raise ValueError(f"max_evals={max_evals} is below {2 * sizes.sum()}: two generations of all {T} tasks")
        if not 0 <= smoothing < 1 or not 0 < sigma0 < np.inf:
            raise ValueError(f"smoothing={smoothing} must be in [0, 1) and sigma0={sigma0} positive and finite")
        if not str(device).startswith(("cpu", "cuda")):
            raise ValueError(f"device={device!r}; pass 'cpu' or 'cuda'")
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device={device!r}: torch sees no GPU here; pass device='cpu'")
        for each in np.atleast_1d(np.asarray(seed, dtype=object)):
            check_whole("seed", each, least=0)
        if np.ndim(seed) == 0:
            seed = np.random.SeedSequence(int(seed)).generate_state(T, np.uint64)
        if len(seed) != T:
            raise ValueError(f"seed holds {len(seed)} numbers; pass one, or one for each of the {T} tasks")
        self.task_seeds = tuple(int(each) for each in seed)
        self._index = {spec.name: t for t, spec in enumerate(self.tasks)}
        self._run = Rounds(
            fleet=Fleet(self.tasks, covariance=covariance, device=device, dtype=dtype),
            schedule=Schedule(sizes, max_evals=int(max_evals), equal_shares=evaluation == "uniform"),
            best=BestPoints([spec.n for spec in self.tasks], form=reward, noisy=noisy),
            rng=np.random.default_rng(self.task_seeds),
            rngs=[np.random.default_rng(each) for each in self.task_seeds],
            sigma0=sigma0,
            tau=tau,
            evaluation=evaluation,
            transfer=transfer and T > 1 and tau > 0,
            smoothing=smoothing,
            bounds=bounds,
            restart=restart,
        )

    def ask(self, task: str | int | None = None) -> list[Batch] | np.ndarray:
        """Points of every task that is due, empty when the budget is spent; with ``task`` that task's points alone.

        Asking again before telling returns the same points.

        Raises
        ------
        ValueError : an unknown task, or one that is not due now (see `due`).
        """
        if not self._run.asked and self._run.schedule.wave:
            self._run.sample()
        if task is None:
            return [Batch(self.tasks[t].name, t, self._run.asked[t].X.copy()) for t in self._run.missing()]
        return self._run.asked[self._due_index(task)].X.copy()

    def tell(
        self,
        batches: Sequence[Value] | None = None,
        *,
        task: str | int | None = None,
        X: Any = None,
        f: Any = None,
        constraints: Mapping[str | int, Any] | None = None,
    ) -> None:
        """Objective values: ``[(task, X, f), ...]`` for some or all of the tasks due, or ``task=, X=, f=`` for one.

        Parameters
        ----------
        batches : ``f`` (popsize,) belongs to the points ``X`` that `ask` gave. NaN and infinite values rank last.
        constraints : task to its constraints g <= 0, of shape (popsize, m) or (popsize,), at the same points.

        Raises
        ------
        ValueError : an unknown task, one not due, other points than asked, another number of values.
        """
        if batches is None:
            if task is None:
                raise ValueError("nothing to tell: pass [(task, X, f), ...], or task=, X= and f=")
            batches = [(task, X, f)]
        if not isinstance(constraints, Mapping | None):
            raise ValueError(f"constraints is a {type(constraints).__name__}; pass a dictionary, task to values")
        held = {self._due_index(each): value for each, value in (constraints or {}).items()}
        checked = {}
        for entry in batches:
            if len(entry) != 3:
                raise ValueError(f"an entry of batches holds {len(entry)} things; pass (task, X, f)")
            each, points, values = entry
            t = self._due_index(each)
            if t in checked:
                raise ValueError(f"task {each!r} comes twice; tell each task's values once")
            checked[t] = self._checked(t, points, values, held.pop(t, None))
        if held:
            raise ValueError(f"constraints for {[self.tasks[t].name for t in held]} came without objective values")
        self._run.told.update(checked)
        if self._run.told and not self._run.missing():
            self._run.finish_wave()

    def stop(self) -> dict[str, int]:
        """Empty while there is something to ask, else why it is over; as in `cma`."""
        if self._run.schedule.wave:
            return {}
        running = self._run.schedule.active().any()
        return {"max_evals": self._run.schedule.max_evals} if running else {"suspended": len(self.tasks)}

    def suspend(self, task: str | int, reason: str) -> None:
        """Take a task out for good; its points that are still out need no answer."""
        t = self._find(task)
        self._run.schedule.why[t] = f"suspended: {reason}"
        if t in self._run.missing():  # values that are there already count
            self._run.schedule.wave.remove(t)
            self._run.asked.pop(t, None)
            if not self._run.missing():
                self._run.finish_wave()

    @property
    def due(self) -> list[str]:
        """Names of the tasks that wait for values now."""
        return [self.tasks[t].name for t in self._run.missing()]

    @property
    def result(self) -> Results:
        """The best point of every task so far."""
        schedule, best = self._run.schedule, self._run.best
        over = "" if schedule.wave else "max_evals"
        return Results(
            TaskResult(
                name=spec.name,
                x_best=best.x[t].copy(),
                f_best=float(best.f[t]),
                violation=0.0 if np.isnan(best.x[t]).any() else float(best.cv[t]),
                evals=int(schedule.evals[t]),
                restarts=int(schedule.restarts[t]),
                stop=schedule.why[t] or over,
            )
            for t, spec in enumerate(self.tasks)
        )

    @property
    def allocation(self) -> dict[str, int]:
        """Evaluations spent on each task."""
        return {spec.name: int(evals) for spec, evals in zip(self.tasks, self._run.schedule.evals, strict=True)}

    @property
    def history(self) -> list[Round]:
        """What each round did."""
        return self._run.history

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run in progress needs to go on, also between `ask` and `tell`; it can be pickled.

        It holds numpy generators, so that `torch.load` wants ``weights_only=False``.
        """
        return {"tasks": self._signature(), "run": copy.deepcopy(self._run)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of the same tasks, with the settings and the budget that it was saved with.

        Raises
        ------
        ValueError : a state of other tasks, or no state.
        """
        if not isinstance(state, Mapping) or "run" not in state:
            raise ValueError(f"the state is a {type(state).__name__} without a run; pass what state_dict() gave")
        if (found := state.get("tasks")) != self._signature():
            raise ValueError(f"the state belongs to the tasks {found}, this object has {self._signature()}")
        self._run = copy.deepcopy(state["run"])

    def _signature(self) -> list[tuple[str, int]]:
        return [(spec.name, spec.n) for spec in self.tasks]

    def _find(self, task: str | int) -> int:
        t = self._index.get(task, -1) if isinstance(task, str) else task
        if isinstance(t, bool) or not isinstance(t, int | np.integer) or not 0 <= t < len(self.tasks):
            raise ValueError(f"unknown task {task!r}; the tasks are {list(self._index)[:10]}")
        return int(t)

    def _due_index(self, task: str | int) -> int:
        t = self._find(task)
        waiting = self._run.asked or self._run.schedule.wave  # before asking nothing is out yet
        if t in self._run.told or t not in waiting:
            raise ValueError(f"task {task!r} is not due now; due are {self.due[:10]}")
        return t

    def _checked(self, t: int, X: Any, f: Any, constraints: Any) -> tuple[np.ndarray, np.ndarray]:
        """Values and violations of one task, checked against what was asked."""
        name = self.tasks[t].name
        if t not in self._run.asked:
            raise ValueError(f"task {name!r}: values before ask(); ask for points first")
        asked = self._run.asked[t].X
        try:
            points, values = np.asarray(X, float), np.asarray(f)
            values = values.astype(float, casting="same_kind")  # complex numbers and words are no values
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"task {name!r}: X and f must be arrays of real numbers ({error})") from error
        if points.shape != asked.shape or not np.array_equal(points, asked):
            raise ValueError(f"task {name!r}: X of shape {points.shape} is not what ask() gave, of shape {asked.shape}")
        if values.shape != (len(asked),):
            raise ValueError(f"task {name!r}: f has shape {values.shape}; pass {len(asked)} values, one a point")
        cv = np.zeros(len(asked))
        if constraints is not None:
            held = np.asarray(constraints, float)
            if held.shape[:1] != values.shape or held.ndim > 2:
                raise ValueError(f"task {name!r}: constraints of shape {held.shape}; pass ({len(asked)}, m)")
            cv = ranking.violation(held.reshape(len(asked), -1))
        return np.where(np.isfinite(values), values, np.inf), cv
