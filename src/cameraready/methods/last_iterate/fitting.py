"""From scaled data to a fitted W: tuning, the run with its checkpoints, polish, certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from .certificate import Certificate, certify
from .polish import polish
from .problem import Problem
from .solver import Settings, run, tune_eta0

CHECKPOINTS = 20
CERTIFIED_STOPS = 10


@dataclass(frozen=True)
class Fitted:
    """A fitted W (K, D) in the solver's units."""

    W: NDArray[np.float64]
    n_iter: int
    eta0: float
    history: pd.DataFrame
    certificate: Certificate | None
    interrupted: bool
    reached: bool


def fit_problem(
    problem: Problem,
    T: int,
    *,
    settings: Settings,
    eta0: float | Literal["auto"] = "auto",
    seed: int = 0,
    start: NDArray | None = None,
    tol: float | None = None,
    use_average: bool = False,
    polished: bool = False,
    certified: bool = True,
) -> Fitted:
    """Run T steps and keep the last iterate (or the average).

    ``tol`` ends the run at one of ten checkpoints once the certified gap is below tol times the objective.
    A keyboard interrupt during the run ends it; what there is at that moment is returned.
    """
    begun = perf_counter()
    tuning, running = np.random.SeedSequence(seed).spawn(2)
    settings.check(len(problem.y))
    if eta0 == "auto":
        eta0 = tune_eta0(problem, T, settings=settings, seed=tuning, start=start, on_average=use_average)
    settings = replace(settings, eta0=float(eta0), average_from=(settings.average_from or 0.0) if use_average else None)
    start = np.zeros(problem.shape) if start is None else start
    rows = [(0, problem.objective(start), perf_counter() - begun)]
    stops = np.unique(np.linspace(T / CHECKPOINTS, T, CHECKPOINTS).round().astype(int).clip(min=1))
    certified_stops = set(stops[:: CHECKPOINTS // CERTIFIED_STOPS][1:].tolist())
    reached = [tol is None]

    def at_stop(k: int, W: NDArray) -> bool:
        rows.append((k, problem.objective(W), perf_counter() - begun))
        if tol is not None and k in certified_stops:
            found = certify(problem, W)
            reached[0] = found.gap <= tol * abs(found.objective)
        return tol is not None and reached[0]

    found = run(problem, T, settings=settings, seed=running, start=start, stops=stops, at_stop=at_stop)
    W = found.average if use_average else found.W
    certificate = None
    interrupted = found.interrupted
    try:
        # Many small products: threads of a BLAS would spend their time waiting for each other.
        with threadpool_limits(limits=1, user_api="blas"):
            if polished and not interrupted:
                W = polish(problem, W)
            if certified and not interrupted:
                certificate = certify(problem, W)
    except KeyboardInterrupt:  # W is valid at every moment
        interrupted = True
    if polished or use_average or rows[-1][0] != found.n_iter:
        rows.append((found.n_iter, problem.objective(W), perf_counter() - begun))
    if tol is not None and certificate is not None:
        reached[0] = certificate.gap <= tol * abs(certificate.objective)
    history = pd.DataFrame(rows, columns=["iteration", "objective", "seconds"])
    return Fitted(W, found.n_iter, float(eta0), history, certificate, interrupted, reached[0])
