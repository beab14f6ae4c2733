"""Compute-optimal scaling laws of SGD and signSGD: exponents, allocation of a budget, and the map of the phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
import pandas as pd

from cameraready.coverage import NotCovered
from cameraready.methods.signsgd_scaling.exponents import Exponents, Optimizer, Rate, solve, terms
from cameraready.methods.signsgd_scaling.frontier import frontier, runs_table, sketches
from cameraready.methods.signsgd_scaling.phase_map import PhaseMap
from cameraready.methods.signsgd_scaling.power_law import check_decays

CALIBRATION_BUDGETS = (5e3, 5e4)
CALIBRATION_SIZES = (12, 20, 32, 48, 72, 110, 160, 240, 360)
CALIBRATION_RUNS = 1
CALIBRATION_SKETCHES = 8
CALIBRATION_RATES = 8
SMALLEST_BUDGET = 1e3


@dataclass(frozen=True)
class Allocation:
    """How to spend a compute budget.

    Attributes
    ----------
    d : number of features (model size). N : steps, each on one fresh sample. lr : peak constant learning rate.
    risk : the risk expected there, by the law through the larger calibrated budget.
    basis : how the constants were found.
    """

    d: int
    N: int
    lr: float
    risk: float
    basis: str


class ScalingLaw:
    """Compute-optimal scaling law of one optimiser: at compute ``f = d N`` the best risk is ``f^-slope``.

    Parameters
    ----------
    alpha, beta : decays of features and target, 2 alpha + 2 beta > 1.
    optimizer : "signsgd" (default) or "sgd".
    rate : "optimal" (default) or "largest", for which SGD's exponents were published; see `terms`.

    Attributes
    ----------
    slope : e in ``risk ~ f^-e``. size_exponent : x in ``d ~ f^x``. lr_exponent : y in ``lr ~ f^-y``.
    active_terms : the terms of the risk that limit it. phase : their names in one string.
    notes : what a reader must know about this point (log corrections, dependence on v/d).

    Raises
    ------
    ValueError : alpha <= 0, 2 alpha + 2 beta <= 1, an unknown optimiser, rate="largest" for signSGD.

    Examples
    --------
    >>> law = ScalingLaw(1.0, 1.2, "signsgd")
    >>> round(law.slope, 3), law.phase
    (0.773, 'drift + aligned features + noise')
    >>> ScalingLaw(1.0, 1.2, "sgd").slope
    0.75
    """

    def __init__(self, alpha: float, beta: float, optimizer: Optimizer = "signsgd", *, rate: Rate = "optimal") -> None:
        check_decays(alpha, beta)
        if optimizer not in get_args(Optimizer):
            raise ValueError(
                f"optimizer={optimizer!r}: scaling laws are known for {' and '.join(get_args(Optimizer))}; "
                "Adam with a small beta and Lion are closest to 'signsgd'"
            )
        if rate not in get_args(Rate):
            raise ValueError(f"rate={rate!r}; choose one of {', '.join(get_args(Rate))}")
        if rate == "largest" and optimizer == "signsgd":
            raise ValueError("rate='largest': signSGD is stable at every learning rate; pass rate='optimal'")
        self.alpha, self.beta, self.optimizer, self.rate = alpha, beta, optimizer, rate
        solution: Exponents = solve([terms(alpha, beta, optimizer, rate=rate)])[0]
        self.slope, self.size_exponent, self.lr_exponent, self.active_terms = solution
        self.phase = " + ".join(self.active_terms)

    @property
    def notes(self) -> tuple[str, ...]:
        found = []
        if 2 * self.alpha <= 1:
            found.append("2 alpha <= 1: the exponents hold for a fixed ratio v/d only")
        if min(abs(self.alpha - 0.5), abs(self.beta - 0.5)) < 0.02:
            found.append(
                "on the border 2 alpha = 1 or 2 beta = 1 the power laws carry logarithms: finite-size slopes differ"
            )
        if self.optimizer == "signsgd" and self.alpha > 0.8:
            found.append("alpha > 0.8: exponents hold up to constants; risks themselves are not covered (use simulate)")
        return tuple(found)

    def allocate(self, flops: float) -> Allocation:
        """Model size, steps and learning rate for compute ``flops = d N``.

        The exponents come from the law; two small budgets (5e3 and 5e4) are solved over 9 model sizes and 8 learning
        rates, by the risk recursion where it is covered, else by simulation, which takes some seconds. The larger one
        gives the constants; the slope measured between them, in `Allocation.basis`, shows how far from the law small
        budgets are.

        Raises
        ------
        ValueError : a budget below 1,000, where no power law has set in.
        NotCovered : the best size at a small budget is not among those tried (12 to 360), so the constants are unknown.
        """
        check_budget(flops)
        measured, basis = self._calibration
        d = max(1, round(_at(flops, measured, "d", self.size_exponent)))
        lr = _at(flops, measured, "lr", -self.lr_exponent)
        risk = _at(flops, measured, "risk", -self.slope)
        return Allocation(d, max(1, round(flops / d)), lr, risk, basis)

    @staticmethod
    def phase_map(alphas: Sequence[float], betas: Sequence[float]) -> PhaseMap:
        """Slopes and phases of both optimisers on a grid; points with 2 alpha + 2 beta <= 1 are left out."""
        grid = [(float(a), float(b)) for a in alphas for b in betas if 0 < a < np.inf and 1 < 2 * a + 2 * b < np.inf]
        if not grid:
            raise ValueError("no point of the grid has alpha > 0 and 2 alpha + 2 beta > 1; choose larger decays")
        solved = {o: solve([terms(a, b, o) for a, b in grid]) for o in get_args(Optimizer)}
        table = pd.DataFrame(grid, columns=["alpha", "beta"])
        for optimizer, solutions in solved.items():
            table[f"slope_{optimizer}"] = [solution.slope for solution in solutions]
            table[f"phase_{optimizer}"] = [" + ".join(solution.active) for solution in solutions]
        return PhaseMap(table)

    @cached_property
    def _calibration(self) -> tuple[pd.DataFrame, str]:
        models = sketches(self.alpha, self.beta, CALIBRATION_SIZES, most=CALIBRATION_SKETCHES)
        covered = all(model.coverage(self.optimizer) for model in models[-1] + models[-2])
        runs = None if covered else CALIBRATION_RUNS
        table = runs_table(models, self.optimizer, CALIBRATION_BUDGETS, rates=CALIBRATION_RATES, runs=runs)
        best = frontier(table)
        if not best["interior"].all():
            outside = ", ".join(f"{compute:g}" for compute in best["compute"][~best["interior"]])
            raise NotCovered(
                f"at compute {outside} the best model is not between {CALIBRATION_SIZES[0]} and "
                f"{CALIBRATION_SIZES[-1]} features, so the constants of the law cannot be measured; its "
                "exponents hold"
            )
        how = "the risk recursion" if covered else "simulation, as the risk formula is not covered"
        slope = -float(np.polyfit(np.log(best["compute"]), np.log(best["risk"]), 1)[0])
        return best, f"constants from d N = 5e4 by {how}; measured slope from 5e3 to 5e4: {slope:.3f}"


def check_budget(flops: float) -> None:
    """Refuse budgets at which no power law has set in."""
    if not SMALLEST_BUDGET <= flops < np.inf:
        raise ValueError(f"flops={flops}: the law speaks of budgets d N of at least {SMALLEST_BUDGET:g}")


def _at(flops: float, best: pd.DataFrame, name: str, exponent: float) -> float:
    """``c f^exponent`` through the larger calibrated budget, which is the nearer to the law."""
    last = best.iloc[-1]
    return float(last[name] * (flops / last["compute"]) ** exponent)
