"""The solving process: reads one job after the other from its connection, and answers (``python -m ... FD``)."""

from __future__ import annotations

import math
import os
import resource
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from pyscipopt import SCIP_EVENTTYPE, SCIP_PARAMSETTING, Model
from pyscipopt.scip import Eventhdlr

from cameraready.methods.mip_cuts.control import Budget, Decision, SeparationControl, include
from cameraready.methods.mip_cuts.families import FAMILIES, FamilySwitches
from cameraready.methods.mip_cuts.features import N_CUT, work_seconds
from cameraready.methods.mip_cuts.selector import GateSelector, RandomSelector, attach
from cameraready.methods.mip_cuts.solving import peak_rss_mb

CPU_CLOCK = 1
LAST_RESORT = 20  # processor seconds for each second of a limit on work


class RemoteSelector(SeparationControl):
    """Asks the environment at the other end of the connection for each decision."""

    def __init__(self, connection: Connection, *, budget: Budget, time_limit: float, clock: str) -> None:
        super().__init__(budget=budget, safety=True, time_limit=time_limit)
        self.clock = clock
        self.connection, self.aborted = connection, False

    def opening(self, overall: np.ndarray) -> np.ndarray:
        action = self._ask("opening", np.zeros((0, N_CUT), dtype=np.float32), overall)
        return np.zeros(len(FAMILIES)) if action is None else np.asarray(action["families"])

    def decide(self, cuts: np.ndarray, overall: np.ndarray) -> Decision:
        action = self._ask("round", cuts, overall)
        if action is None:
            return Decision(np.zeros(len(cuts)), 0.0, True)
        return Decision(action["scores"], float(action["keep"]), bool(action["stop"]), diverse=False)

    def _ask(self, phase: str, cuts: np.ndarray, overall: np.ndarray) -> dict[str, Any] | None:
        if self.aborted:
            return None
        seconds = work_seconds(self.model) if self.clock == "work" else self.model.getSolvingTime()
        costs = {"seconds": seconds, "memory_mb": self.model.getMemTotal() / 2**20}
        dual = self.model.getDualbound() if phase == "round" else -math.inf
        try:
            self.connection.send(("decide", {"phase": phase, "cuts": cuts, "overall": overall, "dual": dual, **costs}))
            action = self.connection.recv()
        except (EOFError, OSError):  # the environment is gone
            action = None
        if action is None:
            self.aborted = True
            self.model.interruptSolve()
        return action


class RootWatch(Eventhdlr):
    """Notes what the root cost, and ends a solve at its limit of work."""

    def __init__(self, work_limit: float | None) -> None:
        self.work_limit = work_limit
        self.seconds = self.work = math.nan
        self.rounds = self.applied = 0

    def eventinit(self) -> None:
        self.model.catchEvent(SCIP_EVENTTYPE.NODESOLVED, self)
        if self.work_limit is not None:
            self.model.catchEvent(SCIP_EVENTTYPE.LPSOLVED, self)

    def eventexec(self, event: Any) -> None:
        if event.getType() == SCIP_EVENTTYPE.LPSOLVED:
            if work_seconds(self.model) >= self.work_limit:
                self.model.interruptSolve()
        elif math.isnan(self.seconds):
            self.seconds, self.work = self.model.getSolvingTime(), work_seconds(self.model)
            self.applied, self.rounds = self.model.getNCutsApplied(), self.model.getNSepaRounds()
            self.model.dropEvent(SCIP_EVENTTYPE.NODESOLVED, self)


def read(job: dict[str, Any]) -> Model:
    model = Model()
    model.hideOutput()
    try:
        model.readProblem(job["path"])
    except OSError as error:
        raise ValueError(
            f"SCIP cannot read {Path(job['path']).name} ({error}); pass an .mps, .lp or .cip file"
        ) from None
    model.setParam("timing/clocktype", CPU_CLOCK)
    if job["seed"] is not None:
        model.setParam("randomization/permutationseed", job["seed"])
        model.setParam("randomization/randomseedshift", job["seed"])
        model.setParam("randomization/permutevars", True)
    if job["time_limit"] is not None:
        model.setParam("limits/time", job["time_limit"] * (LAST_RESORT if job["clock"] == "work" else 1.0))
    if job["memory_mb"] is not None:
        model.setParam("limits/memory", float(job["memory_mb"]))
    return model


def solve(job: dict[str, Any]) -> dict[str, Any]:
    """One measured solve."""
    if job["selector"] == "highs":
        from cameraready.methods.mip_cuts.peers import solve_by_highs

        floor: list[float] = []
        found = solve_by_highs(
            job["path"], time_limit=job["time_limit"], seed=job["seed"], on_read=lambda: floor.append(peak_rss_mb())
        )
        return found | _gap_and_memory(found["objective"], found["dual"], floor[0])
    model = read(job)
    budget = Budget(**{"memory_mb": job["memory_mb"], **job["budget"]})
    control: SeparationControl | None = None
    match job["selector"]:
        case "off" | "fast":
            model.setSeparating(SCIP_PARAMSETTING.OFF if job["selector"] == "off" else SCIP_PARAMSETTING.FAST)
        case "nogomory":
            FamilySwitches(model).close(["gomory"])
        case "gate":
            control = include(model, GateSelector(rounds=job["rounds"], share=job["share"]))
        case "random":
            control = include(model, RandomSelector(rounds=job["rounds"], share=job["share"], seed=job["seed"] or 0))
        case "rl":
            control = attach(model, policy=job["policy"], budget=budget, safety=job["safety"], seed=job["seed"] or 0)
            control.adaptive = job["adaptive"]
    floor_mb = peak_rss_mb()
    if job["memory_mb"] is not None:
        _limit_address_space(job["memory_mb"])
    return run(model, control, job) | _memory(floor_mb)


def run(model: Model, control: SeparationControl | None, job: dict[str, Any]) -> dict[str, Any]:
    """Optimise, and collect SCIP's figures."""
    watch = RootWatch(job["time_limit"] if job["clock"] == "work" else None)
    model.includeEventhdlr(watch, "cameraready-root", "notes what the root cost")
    status = ""
    try:
        model.optimize()
    except MemoryError:
        status = "memlimit"
    report = control.report() if control else None
    objective = model.getPrimalbound() if model.getNSols() else math.nan
    dual = model.getDualbound()
    return {
        "status": status or model.getStatus(),
        "objective": objective,
        "dual": dual,
        "gap": gap(objective, dual),
        "seconds": model.getSolvingTime(),
        "root_seconds": model.getSolvingTime() if math.isnan(watch.seconds) else watch.seconds,
        "work": work_seconds(model),
        "root_work": work_seconds(model) if math.isnan(watch.work) else watch.work,
        "nodes": model.getNTotalNodes(),
        "rounds": report.rounds if report else watch.rounds,
        "cuts_taken": report.taken if report else watch.applied,
        "lp_iterations": model.getNLPIterations(),
        "scip_peak_mb": model.getMemTotal() / 2**20,
        "selector_seconds": report.seconds if report else 0.0,
        "report": str(report) if report else "",
        "counts": {} if not report else {
            "candidates": report.candidates, "opened": len(report.opened), "stopped": report.stopped_at is not None,
            "reopened": len(report.reopened), "errors": report.errors,
        },
    }  # fmt: skip


def episode(job: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """One solve whose decisions come from the environment."""
    model = read(job)
    if job["mode"] == "root":
        model.setParam("limits/totalnodes", 1)
    control = RemoteSelector(connection, budget=Budget(memory_mb=job["memory_mb"]), time_limit=job["time_limit"],
                             clock=job["clock"])  # fmt: skip
    include(model, control)
    record = run(model, control, job)
    record["aborted"] = control.aborted
    model.free()
    return record


def gap(objective: float, dual: float) -> float:
    if not (math.isfinite(objective) and abs(dual) < 1e19):
        return math.inf
    return abs(objective - dual) / max(abs(objective), abs(dual), 1e-9) if objective != dual else 0.0


def _memory(floor_mb: float) -> dict[str, float]:
    peak = peak_rss_mb()
    return {"rss_peak_mb": peak, "rss_delta_mb": peak - floor_mb}


def _gap_and_memory(objective: float, dual: float, floor_mb: float) -> dict[str, float]:
    return {"gap": gap(objective, dual), **_memory(floor_mb)}


def _limit_address_space(memory_mb: float) -> None:
    """A ceiling above SCIP's own limit, for memory that SCIP does not count."""
    virtual = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    most = virtual + int((2 * memory_mb + 64) * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def serve(connection: Connection) -> None:
    """Answer jobs until the other end closes."""
    while True:
        try:
            kind, job = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            connection.send(("done", solve(job) if kind == "solve" else episode(job, connection)))
        except ValueError as error:
            connection.send(("refused", str(error)))
        except OSError:  # nobody listens
            return


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
