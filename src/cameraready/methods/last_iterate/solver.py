"""The stochastic proximal methods: draws, steps, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import Blocks, matchings, single_edges
from .problem import LOSSES, Problem
from .schedules import SCHEDULES, step_sizes

SOLVERS = ("rip", "prox_sgd", "block_rip")
CHUNK = 1 << 14  # steps between two looks at the keyboard: a few milliseconds
PILOT_SHARES = (0.1, 0.3)  # of T: the length of a pilot run, and of one where those were too short
JUDGES = 5_000  # rows that decide between pilots


@dataclass(frozen=True)
class Settings:
    """How to run.

    Parameters
    ----------
    solver : "prox_sgd" takes the prox of the whole penalty at every step, "rip" that of one random edge, with its
        weight divided by the edge's probability, "block_rip" those of a random matching.
    schedule : see `step_sizes`.
    eta0 : step size in units of 1/(L sqrt(T)).
    batch_size : examples a step, without replacement.
    sampling : "uniform", or "lipschitz", which draws example i in proportion to L_i (and edge e, for "rip", to its
        weight) and corrects for it; batches are then drawn with replacement.
    average_from : None, or the share of the run after which the running average starts: 0 all of it, 0.5 the
        second half (suffix average). It is kept lazily: a step still touches three rows only.
    """

    solver: str = "rip"
    schedule: str = "linear"
    eta0: float = 1.0
    batch_size: int = 1
    sampling: str = "uniform"
    average_from: float | None = None

    def check(self, n: int) -> None:
        """Raises ValueError where a field is out of range for ``n`` rows."""
        if self.solver not in SOLVERS:
            raise ValueError(f"solver={self.solver!r} is unknown; pass one of {', '.join(map(repr, SOLVERS))}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule={self.schedule!r} is unknown; pass one of {', '.join(map(repr, SCHEDULES))}")
        if not 0 < self.eta0 < float("inf"):
            raise ValueError(f"eta0={self.eta0} must be positive and finite; 1 is the scale, 'auto' tunes it")
        if not 1 <= self.batch_size <= n:
            raise ValueError(f"batch_size={self.batch_size} is not between 1 and the {n} rows")
        if self.average_from is not None and not 0 <= self.average_from < 1:
            raise ValueError(f"average_from={self.average_from} is not in [0, 1); 0 averages all, 0.5 the second half")
        if self.sampling not in ("uniform", "lipschitz"):
            raise ValueError(f"sampling={self.sampling!r} is unknown; pass 'uniform' or 'lipschitz'")


@dataclass(frozen=True)
class Run:
    """A finished run: the last iterate, the average (if kept), and whether it was interrupted."""

    W: NDArray[np.float64]
    average: NDArray[np.float64] | None
    n_iter: int
    interrupted: bool


@dataclass(frozen=True)
class Draws:
    """The random choices of some steps: rows (count, batch), and blocks (count,), empty without edges."""

    rows: NDArray[np.int64]
    blocks: NDArray[np.int64]


class Sampler:
    """One stream of random choices; the same seed gives the same choices to the compiled loop and to torch."""

    def __init__(self, problem: Problem, settings: Settings, seed: int | np.random.SeedSequence) -> None:
        settings.check(len(problem.y))
        self.problem, self.settings = problem, settings
        self.rng = np.random.Generator(np.random.PCG64(seed))
        n = len(problem.y)
        strengths = problem.penalty.strengths
        by_size = settings.sampling == "lipschitz"
        self.weights: NDArray | None = None  # cumulative probabilities of the rows; None: uniform
        self.scale = np.ones(n)  # 1/(n p_i)
        total = problem.smoothness.sum()
        if by_size and total > 0:
            # Half uniform, so that no row's weight exceeds 2.
            p = 0.5 / n + 0.5 * problem.smoothness / total
            self.weights, self.scale = np.cumsum(p), 1.0 / (n * p)
        self.blocks: Blocks | None = None
        if len(strengths) and problem.penalty.lam > 0 and settings.solver != "prox_sgd":
            if settings.solver == "rip":
                self.blocks = single_edges(strengths, by_strength=by_size)
            else:
                self.blocks = matchings(problem.penalty.graph.edges, problem.shape[0], self.rng)

    @property
    def L(self) -> float:
        """Largest smoothness constant of the reweighted f_i; 1 where all are linear."""
        return float((self.scale * self.problem.smoothness).max()) or 1.0

    def second_moment(self, W: NDArray) -> float:
        """E ||g||^2 of a step's stochastic (sub)gradient at W: drawn rows, and drawn edges with weight 1/pi."""
        total = self.problem.noise(W, scale=self.scale) / self.settings.batch_size
        if self.blocks is not None:
            total += 2 * float((self.problem.penalty.strengths**2 / self.blocks.inclusion).sum())
        return total

    def draw(self, count: int) -> Draws:
        n, b = len(self.problem.y), self.settings.batch_size
        if self.weights is not None:
            rows = np.searchsorted(self.weights, self.rng.random((count, b)) * self.weights[-1], side="right").clip(
                max=n - 1
            )
        elif b == 1:
            rows = self.rng.integers(n, size=(count, 1))
        else:
            rows = _distinct(self.rng.integers(np.arange(n - b + 1, n + 1), size=(count, b)), n)
        if self.blocks is None:
            return Draws(rows, np.empty(0, dtype=np.int64))
        if self.blocks.probabilities is None:
            return Draws(rows, self.rng.integers(self.blocks.number, size=count))
        cumulative = np.cumsum(self.blocks.probabilities)
        drawn = np.searchsorted(cumulative, self.rng.random(count) * cumulative[-1], side="right")
        return Draws(rows, drawn.clip(max=self.blocks.number - 1))


def _distinct(picks: NDArray, n: int) -> NDArray:
    """Floyd's sampling: column j holds a number below n - b + j + 1; one drawn before becomes n - b + j."""
    b = picks.shape[1]
    for j in range(1, b):
        repeated = (picks[:, :j] == picks[:, j : j + 1]).any(axis=1)
        picks[repeated, j] = n - b + j
    return picks


def chunks(T: int, stops: NDArray | None = None) -> Iterator[tuple[int, int]]:
    """(first, count) of pieces of at most `CHUNK` steps that also end at every number in ``stops``."""
    ends = sorted({T, *range(CHUNK, T, CHUNK), *(() if stops is None else stops.tolist())})
    first = 0
    for end in ends:
        if first < end <= T:
            yield first, end - first
            first = end


def run(
    problem: Problem,
    T: int,
    *,
    settings: Settings,
    seed: int | np.random.SeedSequence = 0,
    start: NDArray | None = None,
    stops: NDArray | None = None,
    at_stop: Callable[[int, NDArray], bool] | None = None,
) -> Run:
    """T steps from ``start`` (default 0).

    ``at_stop(k, W)`` is called after the step counts in ``stops``; where it returns True the run ends. A keyboard
    interrupt ends it at the next chunk and keeps what there is.
    """
    from .kernels import full_prox_steps, incremental_steps

    if T < 1:
        raise ValueError(f"T={T}; a run needs at least one step")
    sampler = Sampler(problem, settings, seed)
    W = np.zeros(problem.shape) if start is None else np.array(start, dtype=np.float64, order="C")
    penalty, X = problem.penalty, problem.X
    averaging = settings.average_from is not None
    begin = int((settings.average_from or 0.0) * T)
    average = (np.zeros(problem.shape if averaging else (1, 1)), np.full(problem.shape[0], begin), averaging)
    ridge_width = problem.ridge_width if problem.l2 else 0
    row_data = (X.data, X.indices, X.indptr, problem.y, problem.task, LOSSES[problem.loss], sampler.scale)
    whole = settings.solver == "prox_sgd" and penalty.lam > 0 and len(penalty.strengths) > 0
    dual = np.zeros((len(penalty.strengths), problem.width))
    if sampler.blocks is None:
        none = np.empty(0, dtype=np.int64)
        edge_data = (none, none, penalty.graph.edges, np.empty(0))
    else:
        tau = penalty.strengths / sampler.blocks.inclusion
        edge_data = (sampler.blocks.start, sampler.blocks.edges, penalty.graph.edges, tau)
    done, interrupted = 0, False
    stop_set = set() if stops is None else set(stops.tolist())
    try:
        for first, count in chunks(T, stops):
            draws = sampler.draw(count)
            h = step_sizes(settings.schedule, settings.eta0, sampler.L, T, first=first, count=count)
            common = (W, *row_data, problem.ridge, ridge_width, draws.rows, h, first, average)
            if whole:
                full_prox_steps(
                    *common, dual, penalty.graph.edges, penalty.strengths, penalty.p, problem.width, penalty.curvature
                )
            else:
                incremental_steps(*common, draws.blocks, *edge_data, penalty.p, problem.width)
            done = first + count
            if done in stop_set and at_stop is not None and at_stop(done, W):
                break
    except KeyboardInterrupt:
        interrupted = True
    return Run(W, _finish_average(W, average, begin, done) if averaging else None, done, interrupted)


def _finish_average(W: NDArray, average: tuple, begin: int, done: int) -> NDArray:
    sums, counted, _ = average
    if done <= begin:
        return W.copy()
    return (sums + (done - counted)[:, None] * W) / (done - begin)


def tune_eta0(
    problem: Problem,
    T: int,
    *,
    settings: Settings,
    seed: int | np.random.SeedSequence = 0,
    start: NDArray | None = None,
    on_average: bool = False,
) -> float:
    """eta0 by doubling from 1 on pilot runs, capped by what the bound's two terms allow.

    A pilot is one run of 10 % of T with the same draws for every candidate (three of 3 % cost as much and, being
    shorter, misled more). The objective on a fixed batch of at most 5,000 rows decides; doubling ends when two
    candidates in a row were worse than the best, or nearly every step is at its limit 1/(2L). Candidates whose
    objective is not finite or beyond ten times the start's are discarded. Where the first candidate is the best, the
    pilots were too short to get anywhere, and others of 30 % of T decide.

    A pilot prefers larger steps than a long run, which feels their noise: the bound after T steps of size h is
    D^2/(2 h T) + 2 h V, least at h = D/(2 sqrt(V T)). So eta0 is at most L D/(2 sqrt(V)), where the distance D and the
    second moment V of a step's gradients come from one more run, of 10 % of T, that goes on from the best pilot.
    """
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    batch_seed, pilot_seed = sequence.spawn(2)
    n = len(problem.y)
    judged = None if n <= JUDGES else np.sort(np.random.default_rng(batch_seed).choice(n, JUDGES, replace=False))
    if on_average:
        settings = replace(settings, average_from=settings.average_from or 0.0)
    start = np.zeros(problem.shape) if start is None else start
    limit = 10 * abs(problem.objective(start, rows=judged)) + 1e-300

    def pilot(eta0: float, length: int, begin: NDArray, run_seed: np.random.SeedSequence, **changes: Any) -> Run:
        found = run(problem, length, settings=replace(settings, eta0=eta0, **changes), seed=run_seed, start=begin)
        if found.interrupted:
            raise KeyboardInterrupt
        return found

    for share in PILOT_SHARES:
        length = max(int(share * T), min(T, 100))
        eta0, best, best_value, end, worse = 1.0, 1.0, limit, start, 0
        while worse < 2 and eta0 <= max(8 * np.sqrt(length), 1.0):
            found = pilot(eta0, length, start, pilot_seed)
            value = problem.objective(found.average if on_average else found.W, rows=judged)
            worse = 0 if value < best_value else worse + 1  # nan is worse
            if worse == 0:
                best, best_value, end = eta0, value, found.W
            eta0 *= 2
        if best > 1:
            break
    if best_value == limit:
        raise FloatingPointError("every pilot run diverged; scale X (standardize=True) or pass eta0 below 1")
    far = pilot(best, max(T // 10, length), end, batch_seed, schedule="linear", average_from=None).W
    sampler = Sampler(problem, settings, batch_seed)
    noise, distance = sampler.second_moment(far), float(np.linalg.norm(far - start))
    if not (noise > 0 and distance > 0):
        return best
    return min(best, sampler.L * distance / (2 * float(np.sqrt(noise))))
