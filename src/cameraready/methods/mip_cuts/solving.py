"""Solving a model in a process of its own, so that time, memory and limits are that solve's alone."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cameraready.methods.mip_cuts.policy import Policy

if TYPE_CHECKING:
    from pyscipopt import Model

    from cameraready.methods.mip_cuts.control import Budget

SELECTORS = ("rl", "default", "off", "fast", "gate", "random", "nogomory", "highs")
OPTIMAL_GAP = 1e-3


@dataclass(frozen=True)
class SolveRecord:
    """A solve's outcome and costs.

    Parameters
    ----------
    selector, seed : what was asked for.
    status : SCIP's, or HiGHS's in SCIP's words; "crashed" with `signal`, "killed" when it overran its limits.
    objective, dual, gap : best solution, bound, and |objective - dual| / max(|objective|, |dual|, 1e-9).
    seconds : processor time of the solve, which is wall time on a quiet machine; limits count the same.
    root_seconds, root_work : up to the end of the first node.
    work : LP iterations and memory as seconds (`features.work_seconds`), the same on every machine.
    nodes, rounds, cuts_taken, lp_iterations : SCIP's counts over all restarts; `rounds` and `cuts_taken` at the root.
    scip_peak_mb : SCIP's block and buffer memory at the end, which never shrinks. Not a number for HiGHS.
    rss_delta_mb : VmHWM of the process above its value just after the model was read.
    rss_peak_mb : VmHWM of the process.
    selector_seconds, report : time in the selector, and its report as text.
    signal : of a crash, else 0.
    """

    selector: str
    seed: int | None
    status: str
    objective: float = math.nan
    dual: float = math.nan
    gap: float = math.inf
    seconds: float = math.nan
    root_seconds: float = math.nan
    work: float = math.nan
    root_work: float = math.nan
    nodes: int = 0
    rounds: int = 0
    cuts_taken: int = 0
    lp_iterations: int = 0
    scip_peak_mb: float = math.nan
    rss_delta_mb: float = math.nan
    rss_peak_mb: float = math.nan
    selector_seconds: float = 0.0
    report: str = ""
    signal: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        """Solved to a gap of 0.1 % within its limits."""
        return self.gap <= OPTIMAL_GAP

    def __str__(self) -> str:
        lines = [
            f"{self.selector}: {self.status}, objective {self.objective:.10g}, gap {100 * self.gap:.3g} %",
            f"{self.seconds:.2f} s, {self.nodes} nodes, {self.lp_iterations} LP iterations, "
            f"{self.scip_peak_mb:.1f} MB in SCIP, {self.rss_delta_mb:.1f} MB more in the process",
        ]
        return "\n".join(lines + self.report.splitlines())


def solve(
    path_or_model: str | Path | Model,
    *,
    selector: str = "rl",
    policy: str | Path | Policy = "setcover",
    budget: Budget | None = None,
    time_limit: float | None = None,
    memory_mb: float | None = None,
    threads: int = 1,
    seed: int | None = None,
    clock: str = "scip",
    safety: bool = True,
    adaptive: bool = True,
    rounds: int = 2,
    share: float = 0.3,
) -> SolveRecord:
    """Solve a model in a fresh process with one of the ways to separate, and measure it.

    Parameters
    ----------
    path_or_model : an .mps, .lp, .cip (also .gz) file, or a pyscipopt model that is not yet solved.
    selector : "rl"; "default", "fast" and "off" are SCIP's separation settings; "gate" takes the best ``share`` of the
        first ``rounds`` rounds by efficacy, "random" a random ``share``; "nogomory" is the default without the family
        of Gomory's cuts; "highs" is another solver.
    policy, budget, safety, adaptive : of the learned selector.
    time_limit, memory_mb : processor seconds and MB of SCIP (`limits/memory`, and RLIMIT_AS as a ceiling above it).
        With a memory limit, the selector's budget has it too.
    clock : what the time limit counts: "scip" is processor seconds, "work" is `features.work_seconds`.
    threads : 1; SCIP's callbacks are sequential.
    seed : SCIP's permutation and random seed; None leaves the model as it is.

    Raises
    ------
    ValueError : an unknown selector, more than one thread, limits that are not positive, a policy that cannot be used.
    FileNotFoundError : no such model file.

    Examples
    --------
    >>> from cameraready.methods.mip_cuts import setcover
    >>> record = solve(setcover(30, 60, density=0.1, seed=0), selector="gate", time_limit=20)
    >>> record.status, record.success
    ('optimal', True)
    """
    if selector not in SELECTORS:
        raise ValueError(f"selector={selector!r} is not one of {', '.join(SELECTORS)}")
    if threads != 1:
        raise ValueError(f"threads={threads}: the selector steers one sequential separation loop; pass threads=1")
    for name, value in (("time_limit", time_limit), ("memory_mb", memory_mb)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name}={value} must be positive and finite, or None for no limit")
    if seed is not None and not 0 <= seed < 2**31:
        raise ValueError(f"seed={seed} must be in [0, 2**31), or None for the model as it is")
    if not (rounds >= 0 and 0 <= share <= 1):
        raise ValueError(f"rounds={rounds} must be at least 0 and share={share} in [0, 1]")
    chosen = Policy.load(policy) if selector == "rl" else None
    with model_file(path_or_model, suffix=".mps" if selector == "highs" else ".cip") as path:
        job = {
            "path": str(path), "selector": selector, "policy": chosen, "budget": asdict(budget) if budget else {},
            "time_limit": time_limit, "memory_mb": memory_mb, "seed": seed, "safety": safety, "adaptive": adaptive,
            "clock": clock, "rounds": rounds, "share": share,
        }  # fmt: skip
        process, connection = start_worker()
        try:
            answer = _ask(connection, job, None if time_limit is None else 60 + 4 * time_limit)
        finally:
            code = stop_worker(process, connection)
    if answer is None:
        return SolveRecord(selector, seed, "killed")
    if answer[0] == "refused":
        raise ValueError(answer[1])
    if answer[0] == "crashed":
        return SolveRecord(selector, seed, "crashed", signal=max(0, -code), report=signal_name(-code))
    return SolveRecord(selector=selector, seed=seed, **answer[1])


@contextmanager
def model_file(path_or_model: str | Path | Model, *, suffix: str = ".cip") -> Iterator[Path]:
    """The path of a model; a pyscipopt model is written to a temporary file."""
    if isinstance(path_or_model, str | Path):
        path = Path(path_or_model)
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist; pass an .mps, .lp or .cip file, or a pyscipopt model")
        yield path.resolve()
        return
    if not hasattr(path_or_model, "writeProblem"):
        kind = type(path_or_model).__name__
        raise TypeError(f"expected a path or a pyscipopt.Model, got {kind}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model{suffix}"
        path_or_model.writeProblem(str(path), verbose=False, genericnames=True)
        yield path


def start_worker() -> tuple[subprocess.Popen[bytes], Connection]:
    """A fresh process that waits for a job at the other end of the connection. It never imports torch."""
    ours, theirs = multiprocessing.Pipe()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "cameraready.methods.mip_cuts.worker", str(theirs.fileno())]
    process = subprocess.Popen(
        command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    theirs.close()
    return process, ours


def stop_worker(process: subprocess.Popen[bytes], connection: Connection) -> int:
    """End the process, wait for it, and return its exit code."""
    connection.close()
    try:
        return process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def signal_name(number: int) -> str:
    return signal.Signals(number).name if number > 0 else "the process ended without an answer"


def peak_rss_mb() -> float:
    """VmHWM of this process. Not ru_maxrss, which a child inherits from its parent."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:  # no Linux
        pass
    return math.nan


def _ask(connection: Connection, job: dict[str, Any], seconds: float | None) -> tuple[str, Any] | None:
    """The answer, or None after ``seconds``; the process may have died before it read the job, or since."""
    try:
        connection.send(("solve", job))
        return connection.recv() if connection.poll(seconds) else None
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return ("crashed", None)
