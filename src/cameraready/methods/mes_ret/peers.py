"""What MES-RET is compared with, `cma` and `ddmtolab`, and the problems of `ddmtolab` that all are run on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import cma
import numpy as np
from ddmtolab.Algorithms.MTSO.MFEA_II import MFEA_II
from ddmtolab.Algorithms.MTSO.MTEA_AD import MTEA_AD
from ddmtolab.Algorithms.MTSO.MTES_KG import MTES_KG
from ddmtolab.Methods.mtop import MTOP
from ddmtolab.Problems.BasicFunctions import basic_functions
from ddmtolab.Problems.MTSO.cec17_mtso import CEC17MTSO
from ddmtolab.Problems.MTSO.cec19_matso import CEC19MaTSO
from ddmtolab.Problems.RWO.pepvm import PEPVM
from ddmtolab.Problems.RWO.pkacp import PKACP
from scipy.optimize import minimize

from cameraready.methods.mes_ret import ranking
from cameraready.methods.mes_ret.strategy import ManyTaskES
from cameraready.methods.mes_ret.tasks import Round, TaskSpec

FLOOR = 1e-4  # target precision: a task whose residual is below counts as solved
ALGORITHMS = {"MTES_KG": MTES_KG, "MFEA_II": MFEA_II, "MTEA_AD": MTEA_AD}
KINDS = ("Sphere", "Elliptic", "Rosenbrock", "Rastrigin", "Ackley", "Griewank", "Discus")
CELLS = (9.860218e-4, 9.824848e-4, 2.425074e-3)  # least errors of the cell models, from their literature
WIDE = {"Sphere", "Elliptic", "Griewank", "Discus"}  # boxes of half width 100 as in CEC 2017, others 50


@dataclass(frozen=True)
class Case:
    """A task whose least value is known to be ``least``: ``function`` maps points (k, n) to values (k,)."""

    spec: TaskSpec
    function: Callable[[np.ndarray], np.ndarray]
    least: float = 0.0


def scores(q: np.ndarray) -> dict[str, float]:
    """Means over the tasks of the residual and of its logarithm, a residual below the target counting as the target."""
    return {"residual": float(q.mean()), "log10_residual": float(logs(q).mean())}


def logs(q: np.ndarray) -> np.ndarray:
    """log10 of the residuals, clipped at the target precision."""
    return np.log10(np.maximum(q, FLOOR))


def typical(cases: Sequence[Case], seed: int) -> np.ndarray:
    """Median of 200 random points above the least value, for every task: what a residual of 1 is."""
    rng = np.random.default_rng([seed, 200])
    points = [rng.uniform(case.spec.lower, case.spec.upper, size=(200, case.spec.n)) for case in cases]
    return np.array([np.median(case.function(X)) - case.least for case, X in zip(cases, points, strict=True)])


class Counter:
    """The one budget of a run: counts evaluations of all tasks and keeps each one's best value within it."""

    def __init__(self, cases: Sequence[Case], max_evals: int) -> None:
        self.cases, self.max_evals, self.spent = cases, max_evals, 0
        self.evals, self.best = np.zeros(len(cases), int), np.full(len(cases), np.inf)
        self.history: list[Round] = []

    def __call__(self, t: int, X: np.ndarray) -> np.ndarray:
        values = np.asarray(self.cases[t].function(X), float).ravel()
        counted = values[: max(0, self.max_evals - self.spent)]
        self.spent += len(counted)
        self.evals[t] += len(counted)
        self.best[t] = np.min(counted, initial=self.best[t])
        return values

    def residuals(self, seed: int) -> np.ndarray:
        """q = (best - least)/(median of 200 random points - least) of every task."""
        return np.maximum(0.0, self.best - [case.least for case in self.cases]) / typical(self.cases, seed)


def suite(n_tasks: int, seed: int, *, dims: Sequence[int] = (10, 20, 30)) -> list[Case]:
    """Unrelated tasks: seven kinds of functions in turn, each shifted and rotated at random."""
    rng = np.random.default_rng([seed, n_tasks])
    return [_case(t, KINDS[t % 7], dims[t // 7 % len(dims)], rng) for t in range(n_tasks)]


def adversarial(n_tasks: int, n: int, seed: int) -> list[Case]:
    """Elliptic tasks whose optima lie at 0.1 and 0.9 of the box in turn: their mean is the worst advice."""
    rng = np.random.default_rng(seed)
    return [_case(t, "Elliptic", n, rng, at=(0.1, 0.9)[t % 2]) for t in range(n_tasks)]


def _case(t: int, kind: str, n: int, rng: np.random.Generator, at: float | None = None) -> Case:
    half = 100.0 if kind in WIDE else 50.0
    rotation = np.linalg.qr(rng.standard_normal((n, n)))[0]
    optimum = half * (2 * (rng.uniform(0.1, 0.9, n) if at is None else np.full(n, at)) - 1)
    if kind == "Discus":  # ddmtolab has none

        def function(X: np.ndarray) -> np.ndarray:
            y = (X - optimum) @ rotation.T
            return (y**2).sum(1) + (1e6 - 1) * y[:, 0] ** 2
    else:
        base = getattr(basic_functions, kind)

        def function(X: np.ndarray) -> np.ndarray:
            return base(X, rotation, optimum, 0.0).ravel()

    return Case(TaskSpec(f"{kind.lower()} {t}", np.full(n, -half), half), function)


def engineering(n_arms: int, seed: int) -> list[Case]:
    """Planar arms of 20 joints that reach for a point (pkacp), and three models of photovoltaic cells (pepvm)."""
    np.random.seed(seed)  # noqa: NPY002 (ddmtolab draws the arms from numpy's global state)
    arms = PKACP.__new__(PKACP)  # its __init__ makes a folder in the home directory, for a cache that knows no seed
    with tempfile.TemporaryDirectory() as arms.data_dir:
        shapes = arms._generate_task_parameters(n_arms, 20)
    cases = [
        Case(TaskSpec(f"arm {t}", np.zeros(20), 1.0), _arm(*shape), _closest(*shape)) for t, shape in enumerate(shapes)
    ]
    return cases + [replace(case, least=least) for case, least in zip(_cases(PEPVM().P1(), "cell"), CELLS, strict=True)]


def competition(name: str) -> list[Case]:
    """All tasks of ddmtolab's "cec17" (18 in pairs, n = 25 and 50) or "cec19" (six families of ten, n = 50)."""
    problems = {"cec17": (CEC17MTSO, 9), "cec19": (CEC19MaTSO, 6)}
    source, count = problems[name]
    families = [(f"{name} P{i}", getattr(source(), f"P{i}")()) for i in range(1, count + 1)]
    return [case for label, problem in families for case in _cases(problem, label)]


def _arm(turn: float, reach: float) -> Callable[[np.ndarray], np.ndarray]:
    """ddmtolab's distance of the tip from (0.5, 0.5), for all points at once (its own takes 3 ms a point)."""

    def distance(X: np.ndarray) -> np.ndarray:
        joints = X.shape[1]
        angles = np.cumsum((X - 0.5) * turn / joints * 2 * np.pi, axis=1)
        tip = np.stack([np.cos(angles), np.sin(angles)]).sum(axis=2) * reach / joints
        return np.hypot(tip[0] - 0.5, tip[1] - 0.5)

    return distance


def _closest(turn: float, reach: float, joints: int = 20) -> float:
    """The least distance: 0 within reach, else the best of some L-BFGS runs with the exact gradient."""

    def squared(x: np.ndarray) -> tuple[float, np.ndarray]:
        angles = np.cumsum((x - 0.5) * turn / joints * 2 * np.pi)
        along = np.stack([np.cos(angles), np.sin(angles)]) * reach / joints
        gap = along.sum(axis=1) - 0.5
        each = 2 * (gap[1] * along[0] - gap[0] * along[1])  # by the absolute angle of each link
        return float(gap @ gap), np.cumsum(each[::-1])[::-1] * turn / joints * 2 * np.pi

    starts = [np.full(joints, 0.5), *np.random.default_rng(0).random((4, joints))]
    bounds, options = [(0, 1)] * joints, {"ftol": 1e-15, "gtol": 1e-12, "maxiter": 500}
    found = [minimize(squared, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun for x in starts]
    best = float(np.sqrt(min(found)))
    return best if best > 1e-6 else 0.0


def _cases(problem: object, label: str) -> list[Case]:
    """The tasks of a ddmtolab problem."""
    cases = []
    for t in range(problem.n_tasks):
        lower, upper = (np.ravel(bound) for bound in problem.bounds[t])

        def function(X: np.ndarray, t: int = t) -> np.ndarray:
            return problem.evaluate_task(t, X)[0].ravel()

        cases.append(Case(TaskSpec(f"{label} {t}", lower, upper), function))
    return cases


def mes_ret(cases: Sequence[Case], evals_per_task: int, *, seed: int, **settings: object) -> Counter:
    """This library's method, or an ablation."""
    counter = Counter(cases, evals_per_task * len(cases))
    es = ManyTaskES([case.spec for case in cases], max_evals=counter.max_evals, seed=seed, **settings)
    while not es.stop():
        es.tell([(b.index, b.X, counter(b.index, b.X)) for b in es.ask()])
    counter.history = es.history
    return counter


def independent(
    cases: Sequence[Case], evals_per_task: int, *, seed: int, popsize: int, diagonal: bool = False
) -> Counter:
    """One `cma.CMAEvolutionStrategy` a task with an equal share of the budget; restarted with twice the samples.

    Bounds are handled as in `ManyTaskES`: samples outside are evaluated at the nearest point inside and ranked behind.
    With its own transformation of the box `cma` does clearly worse on `suite` (mean residual 0.11 instead of 0.08).
    """
    counter = Counter(cases, evals_per_task * len(cases))
    for t, case in enumerate(cases):
        rng = np.random.default_rng([seed, t])
        lower, width, n = case.spec.lower, case.spec.upper - case.spec.lower, case.spec.n
        size, left = popsize, evals_per_task
        while left >= size:
            options = {"popsize": size, "verbose": -9, "seed": int(rng.integers(1, 2**31)), "CMA_diagonal": diagonal}
            es = cma.CMAEvolutionStrategy(rng.random((size, n)).mean(0), 0.3, options)
            while left >= size and not es.stop():
                asked = es.ask()
                X = np.array(asked)
                f = counter(t, lower + np.clip(X, 0, 1) * width)
                left -= size
                ranked = ranking.order(f[None], np.zeros((1, size)), ranking.outside(X)[None], np.zeros(1))[0]
                values = np.empty(size)
                values[ranked] = np.sort(f)  # in the order of the ranks, which are all that the strategy uses
                es.tell(asked, list(values))
            size *= 2
    return counter


def many_task(name: str, cases: Sequence[Case], evals_per_task: int, *, seed: int, popsize: int) -> Counter:
    """An algorithm of ddmtolab by name ("MTES_KG", "MFEA_II", "MTEA_AD"), other settings its defaults."""
    counter = Counter(cases, evals_per_task * len(cases))
    problem = MTOP()
    for t, case in enumerate(cases):
        problem.add_task(
            lambda X, t=t: counter(t, X)[:, None],
            dim=case.spec.n, lower_bound=case.spec.lower, upper_bound=case.spec.upper,
        )  # fmt: skip
    counter.spent, counter.evals[:], counter.best[:] = 0, 0, np.inf  # add_task tries every function once
    np.random.seed(seed)  # noqa: NPY002 (the only randomness that ddmtolab knows)
    ALGORITHMS[name](problem, n=popsize, max_nfes=evals_per_task, save_data=False).optimize()
    return counter
