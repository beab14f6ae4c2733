"""A worker: a process that imports what the trials need once, then forks a child for each of them.

A child of its own makes a trial's peak memory and CPU time its own, lets it be killed when it takes too long, and
keeps a crash to itself. The worker is started by `cameraready.evidence.run` with one end of a socket; it ends, and
takes the running trial with it, when the other end closes, however that came about.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import multiprocessing.connection
import os
import platform
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from cameraready.data import MissingData
from cameraready.evidence.fingerprint import versions
from cameraready.evidence.plan import TrialSpec, claims_of, fingerprint_of
from cameraready.evidence.store import TrialRecord
from cameraready.evidence.trial import Trial

LOG_TAIL = 4000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of <linux/prctl.h>


def serve(connection: Connection, modules: list[str]) -> None:
    """Import ``modules``, then run every `TrialSpec` that arrives; answer with its process, then its `TrialRecord`."""
    _linux(PR_SET_CHILD_SUBREAPER, 1)  # whatever a trial leaves running becomes a child of this process
    for module in modules:
        # What a method cannot import here it cannot import in its trial either, where the failure is recorded.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    gc.freeze()  # or each child's first collection would copy every page that it shares with this process
    while True:
        try:
            spec = connection.recv()
            connection.send(run_in_child(spec, connection))
        except (EOFError, ConnectionError):
            return


def run_in_child(spec: TrialSpec, parent: Connection) -> TrialRecord:
    """Fork, run the trial there, and report whatever becomes of it."""
    with contextlib.suppress(Exception):  # read once here; what is wrong with them is reported by the child
        _check_plan(spec)
    spared = _children()
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with tempfile.TemporaryFile() as log:
        sys.stdout.flush()
        sys.stderr.flush()
        start = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            parent.close()
            _child(spec, sender, log)
        sender.close()
        with _death_of(pid) as dead:
            parent.send(pid)
            ready = multiprocessing.connection.wait([receiver, parent, *dead], timeout=spec.timeout)
        answer: dict[str, Any] = {}
        if receiver.poll():
            with contextlib.suppress(EOFError):
                answer = receiver.recv()
        for kill in (os.kill, os.killpg):  # it has answered, is late or is no longer wanted; its own children too
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        _kill_orphans(spared)
        if parent in ready and not answer:
            os._exit(1)
        receiver.close()
        if not answer:
            answer = _obituary(spec, status, timed_out=not ready, log=log)
        return TrialRecord(
            spec=spec,
            **answer,
            seconds=time.perf_counter() - start,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            peak_rss=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            environment=environment(spec.slug),
        )


@cache
def environment(slug: str) -> dict[str, str]:
    """The machine and the versions that a trial of this method runs with."""
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "processor": _processor(),
        **versions(slug),
    }


def _child(spec: TrialSpec, sender: Connection, log: IO[bytes]) -> None:
    """Run the trial and leave by `os._exit`: the worker's exit handlers are not the child's to run."""
    worker = os.getppid()
    os.setsid()
    _linux(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:  # it died before the line above
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # where memory runs out the system ends the trial, not the run
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        answer = {"status": "ok", "rows": _rows(spec)}
    except MissingData as error:
        answer = {"status": "missing data", "error": str(error), "traceback": traceback.format_exc()}
    except BaseException as error:
        answer = {"status": "failed", "error": _one_line(error), "traceback": traceback.format_exc()}
    code = 1
    try:
        sender.send(answer)
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _rows(spec: TrialSpec) -> tuple[dict[str, Any], ...]:
    _check_plan(spec)
    claim = next(claim for claim in claims_of(spec.slug) if claim.name == spec.claim)
    arguments = dict(spec.cell)
    if claim.dataset_factor is not None:
        name, dataset = claim.dataset_factor
        from cameraready import data

        arguments[name] = data.open(spec.on, kind=dataset.kind) if spec.on else data.load(arguments[name])
    trial = Trial(spec.seed, spec.cell)
    seeded = _seed_everything(spec.seed)
    claim.run(trial, **arguments)
    if "torch" in sys.modules and not seeded:
        raise RuntimeError(
            "the trial loaded torch while it ran, too late for its seed; write `import torch` in the trial function"
        )
    if not trial.rows:
        raise RuntimeError("the trial recorded nothing; call trial.record(method=..., metric=...)")
    return tuple(trial.rows)


def _check_plan(spec: TrialSpec) -> None:
    """A result is stored under the fingerprint of what was planned, so nothing else may run under it."""
    claim = next((claim for claim in claims_of(spec.slug) if claim.name == spec.claim), None)
    if claim is None or spec.fingerprint != fingerprint_of(spec, claim):
        raise RuntimeError(
            "the code, the data or the versions here are not those that were planned: a file was edited since the run "
            "started, or this node has another installation; run the same command again"
        )


def _seed_everything(seed: int) -> bool:
    """Seed all global states; whether torch, loaded if the method's files import it, was among them."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (peers that draw from numpy's global state)
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    return True


def _obituary(spec: TrialSpec, status: int, *, timed_out: bool, log: IO[bytes]) -> dict[str, Any]:
    """The failure of a trial that could not report for itself."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL))
    tail = log.read().decode(errors="replace")
    if timed_out:
        error = f"took longer than its time-out of {spec.timeout:g} s"
        return {"status": "timed out", "error": error, "traceback": tail}
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        hint = "; the system may have run out of memory" if name == "SIGKILL" else ""
        return {"status": "died", "error": f"killed by {name}{hint}", "traceback": tail}
    return {"status": "died", "error": f"exited with code {os.WEXITSTATUS(status)}", "traceback": tail}


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _linux(option: int, value: int) -> None:
    """Call prctl; elsewhere what it would do is left to the kill that ends every trial."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


@contextlib.contextmanager
def _death_of(pid: int) -> Iterator[list[int]]:
    """Something to wait on that wakes when the process ends, even if its own children keep its pipe open."""
    if not hasattr(os, "pidfd_open"):
        yield []
        return
    descriptor = os.pidfd_open(pid)
    try:
        yield [descriptor]
    finally:
        os.close(descriptor)


def _children() -> set[int]:
    try:
        return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    except OSError:
        return set()


def _kill_orphans(spared: set[int]) -> None:
    """End what the trial left in process groups of its own, generation by generation."""
    while orphans := _children() - spared:
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        for pid in orphans:
            os.waitpid(pid, 0)


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), sys.argv[2:])
