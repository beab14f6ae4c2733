"""What the policy sees: 24 numbers a candidate cut, and 16 of the whole solve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cameraready.methods.mip_cuts.families import FAMILIES, family_of

if TYPE_CHECKING:
    from pyscipopt import Model
    from pyscipopt.scip import Row

FEATURE_VERSION = 1
CUT_FEATURES = (
    "efficacy by the round's best", "log efficacy", "efficacy rank", "parallelism to the objective", "support",
    "log support", "integer support", "log dynamism", "right-hand side by norm", "cut-off distance to the incumbent",
    "an incumbent exists", "local", "parallelism to forced cuts", "parallelism to the best cut", "integral", "in pool",
    *(f"family: {name}" for name in FAMILIES),
)  # fmt: skip
GLOBAL_FEATURES = (
    "round / 20", "root", "depth / 20", "gap closed since the first LP", "bound gain of the last round",
    "moving gain per second", "log LP iterations ratio", "candidates by the maximum", "LP nonzeros growth",
    "memory used by its limit", "time used by its limit", "log rows", "log columns", "density", "binary share",
    "continuous share",
)  # fmt: skip
N_CUT, N_GLOBAL = len(CUT_FEATURES), len(GLOBAL_FEATURES)
ITERATIONS_A_SECOND, MB_A_SECOND = 10_000, 40  # fitted to SCIP's times on the families of `instances`
MAX_FORCED_COMPARED = 8  # parallelism to more forced cuts than this costs more than it tells


def work_seconds(model: Model) -> float:
    """What a solve has cost so far, as a clock that runs alike each time: LP iterations, and SCIP's memory, most of
    which separators fill. About processor seconds on a machine of 2025 for models of seconds."""
    from pyscipopt import SCIP_STAGE  # here, so that a policy can be looked at without SCIP

    starting = model.getStage() == SCIP_STAGE.INITSOLVE  # where SCIP may not be asked
    iterations = 0 if starting else model.getNLPIterations()
    return iterations / ITERATIONS_A_SECOND + model.getMemTotal() / 2**20 / MB_A_SECOND


def efficacies(model: Model, cuts: Sequence[Row]) -> np.ndarray:
    """SCIP's efficacy of each cut, shape (n,); what is not a number counts as 0."""
    values = np.array([model.getCutEfficacy(cut) for cut in cuts], dtype=float)
    return values if np.isfinite(values).all() else np.nan_to_num(values, nan=0.0, posinf=1e6)


def cut_features(model: Model, cuts: Sequence[Row], efficacy: np.ndarray, *, forced: Sequence[Row] = ()) -> np.ndarray:
    """Features of the candidates, float32 of shape (n, 24), all within [-1, 1] (`CUT_FEATURES`).

    ``cuts`` come by falling ``efficacy`` (n,). Rows live only inside the callback: nothing here keeps one.
    """
    n = len(cuts)
    x = np.zeros((n, N_CUT), dtype=np.float32)
    if n == 0:
        return x
    efficacy = np.maximum(efficacy, 0.0)
    incumbent = model.getBestSol() if model.getNSols() else None
    columns = max(1, model.getNLPCols())
    x[:, 0] = efficacy / max(efficacy.max(), 1e-12)
    x[:, 1] = np.clip((np.log10(efficacy + 1e-9) + 4.5) / 4.5, -1, 1)
    x[:, 2] = 1.0 - np.arange(n) / n
    for i, cut in enumerate(cuts):
        nonzeros = cut.getNNonz()
        sizes = np.abs(np.array(cut.getVals(), dtype=float)) if nonzeros else np.ones(1)
        side = cut.getRhs() if abs(cut.getRhs()) < 1e19 else -cut.getLhs()
        x[i, 3] = model.getRowObjParallelism(cut)
        x[i, 4] = nonzeros / columns
        x[i, 5] = math.log1p(nonzeros) / math.log1p(columns)
        x[i, 6] = model.getRowNumIntCols(cut) / max(1, nonzeros)
        x[i, 7] = math.log10(max(sizes.max() / max(sizes.min(), 1e-12), 1.0)) / 8
        x[i, 8] = math.tanh(side / max(cut.getNorm(), 1e-9) / 4)
        if incumbent is not None:
            x[i, 9] = math.tanh(model.getCutLPSolCutoffDistance(cut, incumbent))
            x[i, 10] = 1.0
        x[i, 11] = cut.isLocal()
        x[i, 12] = max((model.getRowParallelism(cut, other) for other in forced[:MAX_FORCED_COMPARED]), default=0.0)
        x[i, 13] = model.getRowParallelism(cut, cuts[0]) if i else 1.0
        x[i, 14] = cut.isIntegral()
        x[i, 15] = cut.isInGlobalCutpool()
        x[i, 16 + family_of(cut)] = 1.0
    return np.clip(np.nan_to_num(x), -1.0, 1.0)


class SolveProgress:
    """Follows one solve and gives its global features.

    Parameters
    ----------
    model : the running SCIP model.
    memory_mb, time_limit : the limits that memory and time are compared with; None are none, and SCIP's.

    Time is `work_seconds`, so that a solve is the same each time.
    """

    def __init__(self, model: Model, *, memory_mb: float | None = None, time_limit: float | None = None) -> None:
        self.model, self.memory_mb = model, memory_mb
        self.time_limit = float(time_limit or model.getParam("limits/time"))
        self.rounds = 0
        self.first_bound: float | None = None
        self.bound = -math.inf
        self.last_gain = 0.0
        self.moving_gain: float | None = None
        self.added_nonzeros = 0
        self._first_iterations = 1
        self._first_nonzeros = 1
        self._last_time = 0.0
        self._start = work_seconds(model)
        self._shape = self._problem_shape()

    def seconds(self) -> float:
        """Work since branch and bound began."""
        return work_seconds(self.model) - self._start

    def memory_mb_used(self) -> float:
        return self.model.getMemTotal() / 2**20

    def start_round(self) -> None:
        """Take the LP that the last round's cuts led to into account."""
        bound, now = self.model.getLPObjVal(), self.seconds()
        if self.first_bound is None:
            self.first_bound = self.bound = bound
            self._first_iterations = max(1, self.model.getNLPIterations())
            self._first_nonzeros = max(1, int(self._shape[2]))
        else:
            self.last_gain = self.relative(max(0.0, bound - self.bound))
            rate = self.last_gain / max(now - self._last_time, 1e-3)
            self.moving_gain = rate if self.moving_gain is None else 0.5 * self.moving_gain + 0.5 * rate
            self.bound = max(self.bound, bound)
        self._last_time = now
        self.rounds += 1

    def relative(self, gain: float) -> float:
        """A bound's gain as a share of the gap at the first LP, or of the bound where there is no incumbent."""
        first = 0.0 if self.first_bound is None else self.first_bound
        upper = self.model.getUpperbound()  # of the transformed problem, as the LP's value is
        whole = upper - first if upper < 1e19 else max(1.0, abs(first))
        return min(1.0, gain / max(whole, 1e-9))

    def features(self, *, candidates: int = 0, most: int = 1, root: bool = False) -> np.ndarray:
        """`GLOBAL_FEATURES`, float32 of shape (16,); before any separation the first eleven are 0."""
        rows, columns, _, density, binary, continuous = self._shape
        x = np.zeros(N_GLOBAL, dtype=np.float32)
        if self.rounds:
            x[:11] = (
                self.rounds / 20,
                root,
                self.model.getDepth() / 20,
                self.relative(max(0.0, self.bound - (self.first_bound or 0.0))),
                self.last_gain,
                math.tanh(self.moving_gain or 0.0),
                math.log(max(1.0, self.model.getNLPIterations() / self._first_iterations)) / 5,
                candidates / max(1, min(most, 2000)),
                math.log1p(self.added_nonzeros / self._first_nonzeros),
                self.memory_mb_used() / self.memory_mb if self.memory_mb else 0.0,
                self.seconds() / self.time_limit if self.time_limit < 1e19 else 0.0,
            )
        x[11:] = (math.log10(rows + 1) / 5, math.log10(columns + 1) / 5, density, binary, continuous)
        return np.clip(np.nan_to_num(x), -2.0, 2.0)

    def _problem_shape(self) -> tuple[float, float, float, float, float, float]:
        """Rows, columns, nonzeros, density and shares of kinds of variables, of the presolved problem."""
        model = self.model
        constraints = model.getConss(transformed=True)
        columns = max(1, model.getNVars(transformed=True))
        some = constraints[:: max(1, len(constraints) // 200)]  # the mean support of some hundreds is exact enough
        support = [n for n in (_support(model, constraint) for constraint in some) if n is not None]
        mean = float(np.mean(support)) if support else 0.0
        binary, integer = model.getNBinVars(), model.getNIntVars()
        shares = (mean / columns, binary / columns, max(0.0, 1 - (binary + integer) / columns))
        return (len(constraints), columns, mean * len(constraints), *shares)


def _support(model: Model, constraint: object) -> int | None:
    try:
        return int(model.getConsNVars(constraint))
    except Exception:  # a handler that cannot count its variables
        return None
