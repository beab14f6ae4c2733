"""Steering SCIP's separation loop from a cut selector: which cuts enter, whether it goes on, what starts at all."""

from __future__ import annotations

import atexit
import logging
import math
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pyscipopt import SCIP_EVENTTYPE, SCIP_RESULT, SCIP_STAGE
from pyscipopt.scip import Cutsel, Eventhdlr

from cameraready.methods.mip_cuts.families import FAMILIES, FamilySwitches, family_of
from cameraready.methods.mip_cuts.features import SolveProgress, cut_features, efficacies

if TYPE_CHECKING:
    from pyscipopt import Model
    from pyscipopt.scip import Row

PRIORITY = 1_000_000
MAX_CANDIDATES = 256  # the most efficacious ones; the others are not looked at, and do not enter
MIN_GAIN_PER_SECOND = 1e-4
SAFE_MEMORY_SHARE = 0.8
SAFETY_NODES = 500
SAFETY_GAIN = 0.5  # of the gap; the rule of 0.001 never fired on gesa2, where a bound creeps for 14,000 nodes
HEAVY = "gomory"  # the family whose work space is most of the memory on set covers
log = logging.getLogger(__name__)
_models: weakref.WeakSet[Model] = weakref.WeakSet()


@dataclass(frozen=True)
class Budget:
    """What separation may use in one solve; None is no limit.

    Parameters
    ----------
    rounds : rounds of separation.
    cuts : cuts that enter the LP, forced ones not counted.
    seconds : of branch and bound's time during which separation goes on.
    memory_mb : of SCIP's own memory; separation ends at 80 % of it.
    """

    rounds: int | None = None
    cuts: int | None = None
    seconds: float | None = None
    memory_mb: float | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "cuts", "seconds", "memory_mb"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"Budget({name}={value}) is negative; pass a number from 0 up, or None for no limit")


@dataclass(frozen=True)
class Decision:
    """One round's decision.

    Parameters
    ----------
    scores : of the candidates that were shown, shape (n,).
    keep : fraction of them that enters, in [0, 1].
    stop : whether separation ends with this round.
    diverse : leave out cuts that are more than 0.9 parallel to one that enters.
    """

    scores: np.ndarray
    keep: float
    stop: bool
    diverse: bool = True

    MAX_PARALLELISM = 0.9


@dataclass(frozen=True)
class SelectorReport:
    """What a selector did in a solve.

    Parameters
    ----------
    rounds, candidates, taken : rounds it decided, cuts it was offered, cuts that entered (forced ones not counted).
    opened : families of separators that started enabled.
    stopped_at : the round with which separation ended, or None.
    reason : why it ended: "policy", "no gain", or the name of a budget.
    reopened : families that the safety net opened again, or ().
    seconds : processor time spent in the selector.
    errors : rounds that were left to SCIP's own selector because something failed here.
    """

    rounds: int = 0
    candidates: int = 0
    taken: int = 0
    opened: tuple[str, ...] = FAMILIES
    stopped_at: int | None = None
    reason: str = ""
    reopened: tuple[str, ...] = ()
    seconds: float = 0.0
    errors: int = 0

    def __str__(self) -> str:
        lines = [f"{self.rounds} rounds, {self.taken} of {self.candidates} cuts taken, {self.seconds:.3f} s in here"]
        lines.append(f"started with {', '.join(self.opened) or 'no separator'}")
        if self.stopped_at is not None:
            lines.append(f"separation ended with round {self.stopped_at} ({self.reason})")
        if self.reopened:
            lines.append(f"reopened {', '.join(self.reopened)}")
        if self.errors:
            lines.append(f"{self.errors} rounds were left to SCIP after errors")
        return "\n".join(lines)


class SeparationControl(Cutsel):
    """A PySCIPOpt cut selector that also starts and ends separation; subclasses say how in `opening` and `decide`.

    Feasibility is never touched: all cuts are SCIP's, so any decision keeps the optimum.
    """

    adaptive = False  # also end separation where it gains nothing

    def __init__(self, *, budget: Budget | None = None, safety: bool = True, time_limit: float | None = None) -> None:
        self.budget, self.safety, self.time_limit = budget or Budget(), safety, time_limit
        self._forget()

    def _forget(self) -> None:
        """Be ready for a solve."""
        self._report = SelectorReport()
        self._progress: SolveProgress | None = None
        self._switches: FamilySwitches | None = None
        self._useful: set[str] = set()
        self._bound_at_stop: float | None = None
        self._nodes_at_stop = 0
        self._began = 0.0
        self._watching = self._ended = False

    def opening(self, overall: np.ndarray) -> np.ndarray:
        """Which of the 8 families start enabled (booleans), from the global features alone."""
        return np.ones(len(FAMILIES), dtype=bool)

    def decide(self, cuts: np.ndarray, overall: np.ndarray) -> Decision:
        """The decision of a round, from the features of its candidates (n, 24) and of the solve (16,)."""
        raise NotImplementedError

    def report(self) -> SelectorReport:
        """What has been done so far."""
        return self._report

    # SCIP calls these. An exception that left one would end the process, so none does.
    def cutselinit(self) -> None:
        """A second solve of the model starts from the user's own frequencies, too."""
        try:
            if self._switches is not None:
                self._switches.open()
            self._forget()
        except BaseException as error:
            self._failed(error)

    def cutselinitsol(self) -> None:
        started = time.process_time()
        try:
            if self._progress is None:  # a restart comes here again, with its decisions taken
                self._switches = FamilySwitches(self.model)
                self._progress = SolveProgress(self.model, memory_mb=self.budget.memory_mb, time_limit=self.time_limit)
                self._began = self.model.getSolvingTime()
                starts = np.asarray(self.opening(self._progress.features()), dtype=bool)
                if self._spent():
                    starts = np.zeros(len(FAMILIES), dtype=bool)
                self._switches.close(name for name, on in zip(FAMILIES, starts, strict=True) if not on)
                opened = tuple(name for name, on in zip(FAMILIES, starts, strict=True) if on)
                self._count(opened=opened)
                if not opened:
                    self._stop("never started")
        except BaseException as error:
            self._failed(error)
        self._count(seconds=self._report.seconds + time.process_time() - started)

    def cutselselect(self, cuts: list[Row], forcedcuts: list[Row], root: bool, maxnselectedcuts: int) -> dict[str, Any]:
        started = time.process_time()
        try:
            answer = self._select(cuts, forcedcuts, bool(root), maxnselectedcuts)
        except BaseException as error:
            self._failed(error)
            answer = {"cuts": cuts, "nselectedcuts": 0, "result": SCIP_RESULT.DIDNOTFIND}
        self._count(seconds=self._report.seconds + time.process_time() - started)
        return answer

    def node_solved(self) -> None:
        """After each node: where 500 nodes closed less than half of the gap, open separation and restart, once."""
        if not self._watching:
            return
        lower, upper = self.model.getLowerbound(), self.model.getUpperbound()
        if self._bound_at_stop is None:  # the first node after the end
            self._bound_at_stop, self._nodes_at_stop = lower, self.model.getNTotalNodes()
        if self.model.getNTotalNodes() - self._nodes_at_stop < SAFETY_NODES:
            return
        self._watching = False
        gained, whole = lower - self._bound_at_stop, upper - self._bound_at_stop
        if gained >= SAFETY_GAIN * whole or self.model.isInfinity(upper):
            return
        families = tuple(name for name in FAMILIES if name in self._useful) or FAMILIES
        if self.budget.memory_mb is not None:
            families = tuple(name for name in families if name != HEAVY)
        self._switches.open(families)
        self._ended = False
        self._count(reopened=families)
        self.model.restartSolve()  # at the new root the cuts are worth most

    def _select(self, cuts: list[Row], forced: list[Row], root: bool, most: int) -> dict[str, Any]:
        progress, report = self._progress, self._report
        if not root and not self._ended:  # cuts in the tree are other ones than training saw
            self._stop("root")
        if self._ended:  # left over
            return {"cuts": cuts, "nselectedcuts": 0, "result": SCIP_RESULT.SUCCESS}
        progress.start_round()
        efficacy = efficacies(self.model, cuts)
        order = np.argsort(-efficacy, kind="stable")
        shown = [cuts[i] for i in order[:MAX_CANDIDATES]]
        x = cut_features(self.model, shown, efficacy[order[:MAX_CANDIDATES]], forced=forced)
        decision = self.decide(x, progress.features(candidates=len(cuts), most=most, root=root))
        allowed = min(len(shown), most)
        if self.budget.cuts is not None:
            allowed = min(allowed, max(0, self.budget.cuts - report.taken))
        wanted = min(allowed, math.ceil(float(decision.keep) * len(shown)))
        chosen = self._choose(shown, decision, wanted)
        taken = [shown[i] for i in chosen]
        progress.added_nonzeros += sum(row.getNNonz() for row in [*taken, *forced])
        self._useful.update(FAMILIES[family_of(row)] for row in [*taken, *forced])
        self._count(rounds=report.rounds + 1, candidates=report.candidates + len(cuts), taken=report.taken + len(taken))
        if reason := self._reason_to_stop(decision, root):
            self._stop(reason)
        # Indices, since two rows may be equal; SCIP takes the first ones of a permutation of its list.
        first = [int(order[i]) for i in chosen]
        rest = sorted(set(range(len(cuts))) - set(first))
        return {"cuts": [cuts[i] for i in first + rest], "nselectedcuts": len(first), "result": SCIP_RESULT.SUCCESS}

    def _choose(self, shown: Sequence[Row], decision: Decision, wanted: int) -> list[int]:
        scores = np.asarray(decision.scores, dtype=float)[: len(shown)]
        scores = np.where(np.isnan(scores), -np.inf, scores)
        chosen: list[int] = []
        for i in np.argsort(-scores, kind="stable"):
            if len(chosen) >= wanted:
                break
            if decision.diverse and any(
                self.model.getRowParallelism(shown[i], shown[j]) > Decision.MAX_PARALLELISM for j in chosen
            ):
                continue
            chosen.append(int(i))
        return chosen

    def _reason_to_stop(self, decision: Decision, root: bool) -> str:
        if decision.stop and not self._report.reopened:
            return "policy"
        if spent := self._spent():
            return spent
        gain = self._progress.moving_gain
        stalled = gain is not None and gain <= MIN_GAIN_PER_SECOND
        return "no gain" if self.adaptive and root and stalled and not self._report.reopened else ""

    def _spent(self) -> str:
        """The name of a budget that is used up, or ""."""
        budget, report = self.budget, self._report
        if budget.rounds is not None and report.rounds >= budget.rounds:
            return "rounds"
        if budget.cuts is not None and report.taken >= budget.cuts:
            return "cuts"
        if budget.seconds is not None and self.model.getSolvingTime() - self._began >= budget.seconds:
            return "seconds"
        if budget.memory_mb is not None and self._progress.memory_mb_used() >= SAFE_MEMORY_SHARE * budget.memory_mb:
            return "memory"
        return ""

    def _stop(self, reason: str) -> None:
        self._switches.close()
        self._ended = True
        self._watching = self.safety and not self._report.reopened and not self._spent()
        if not self._report.reopened:
            self._count(stopped_at=self._report.rounds, reason=reason)

    def _count(self, **values: Any) -> None:
        self._report = replace(self._report, **values)

    def _failed(self, error: BaseException) -> None:
        self._count(errors=self._report.errors + 1)
        if self._report.errors == 1:
            log.warning("the cut selector failed and leaves this round to SCIP: %s: %s", type(error).__name__, error)
        if not isinstance(error, Exception):  # an interruption that Python, not SCIP, got hold of
            self.model.interruptSolve()


class TreeWatch(Eventhdlr):
    """Tells a `SeparationControl` of every solved node, for its safety net."""

    def __init__(self, control: SeparationControl) -> None:
        self.control = control

    def eventinit(self) -> None:
        self.model.catchEvent(SCIP_EVENTTYPE.NODESOLVED, self)

    def eventexec(self, event: Any) -> None:
        try:
            self.control.node_solved()
        except BaseException as error:
            self.control._failed(error)


def include(model: Model, control: SeparationControl) -> SeparationControl:
    """Add the selector, with its watch on the tree, as the model's first cut selector."""
    if model.getStage() > SCIP_STAGE.PROBLEM:
        raise ValueError(
            "the model is already being solved; attach the selector after reading it and before optimize()"
        )
    for name, value in model.getParams().items():
        if name.startswith("cutselection/") and name.endswith("/priority") and value >= PRIORITY:
            raise ValueError(
                f"the model already has the cut selector {name.split('/')[1]!r} at priority {value}; one selector "
                f"decides, so remove it or lower {name} below {PRIORITY}"
            )
    memory = control.budget.memory_mb
    if memory is not None and memory <= model.getMemTotal() / 2**20:
        raise ValueError(
            f"memory_mb={memory} is not above the {model.getMemTotal() / 2**20:.1f} MB that the model takes already"
        )
    model.includeCutsel(control, "cameraready", "learned cut selection with a budget", PRIORITY)
    model.includeEventhdlr(TreeWatch(control), "cameraready", "tells the cut selector of solved nodes")
    free_at_exit(model)
    return control


def free_at_exit(model: Model) -> None:
    """Free the model before Python takes its plug-ins apart, which SCIP calls while it is freed: a crash otherwise."""
    _models.add(model)


@atexit.register
def _free() -> None:
    for model in list(_models):
        model.free()
