"""A worker: a process that imports what the trials need once, then forks a child for each of them.

A child of its own makes a trial's peak memory and CPU time its own, lets it be killed when it takes too long, and keeps a
crash to itself. The worker is started by `cameraready.evidence.run` with one end of a socket; it ends, and takes the
running trial with it, when the other end closes, however that came about.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing.connection
import os
import platform
import random
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from typing import IO, Any

from cameraready.evidence.fingerprint import versions
from cameraready.evidence.plan import TrialSpec, claims_of
from cameraready.evidence.store import TrialRecord
from cameraready.evidence.trial import Trial

LOG_TAIL = 4000


def serve(connection: Connection, modules: list[str]) -> None:
    """Import ``modules``, then run every `TrialSpec` that arrives and answer with its `TrialRecord`."""
    for module in modules:
        # What a method cannot import here it cannot import in its trial either, where the failure is recorded.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    while True:
        try:
            spec = connection.recv()
        except EOFError:
            return
        connection.send(run_in_child(spec, connection))


def run_in_child(spec: TrialSpec, parent: Connection) -> TrialRecord:
    """Fork, run the trial there, and report whatever becomes of it."""
    with contextlib.suppress(Exception):
        claims_of(spec.slug)  # read once here; what is wrong with them is reported by the child
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
        ready = multiprocessing.connection.wait([receiver, parent], timeout=spec.timeout)
        answer: dict[str, Any] = {}
        if receiver in ready:
            with contextlib.suppress(EOFError):
                answer = receiver.recv()
        for kill in (os.kill, os.killpg):  # it has answered, is late or is no longer wanted; its own children too
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        if parent in ready and receiver not in ready:
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


def environment(slug: str) -> dict[str, str]:
    """The machine and the versions that a trial of this method runs with."""
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "processor": _processor(),
        **versions(slug),
    }


def _child(spec: TrialSpec, sender: Connection, log: IO[bytes]) -> None:
    """Run the trial and leave by `os._exit`: the worker's exit handlers are not the child's to run."""
    os.setsid()
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        answer = {"status": "ok", "rows": _rows(spec)}
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
    claim = next(claim for claim in claims_of(spec.slug) if claim.name == spec.claim)
    _seed_everything(spec.seed)
    arguments = dict(spec.cell)
    if claim.dataset_factor is not None:
        name, dataset = claim.dataset_factor
        from cameraready import data

        arguments[name] = data.open(spec.on, kind=dataset.kind) if spec.on else data.load(arguments[name])
    trial = Trial(spec.seed, spec.cell)
    claim.run(trial, **arguments)
    if not trial.rows:
        raise RuntimeError("the trial recorded nothing; call trial.record(method=..., metric=...)")
    return tuple(trial.rows)


def _seed_everything(seed: int) -> None:
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (peers that draw from numpy's global state)
    torch.manual_seed(seed)
    torch.set_num_threads(1)


def _obituary(spec: TrialSpec, status: int, *, timed_out: bool, log: IO[bytes]) -> dict[str, Any]:
    """The failure of a trial that could not report for itself."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL))
    tail = log.read().decode(errors="replace")
    if timed_out:
        return {"status": "timed out", "error": f"took longer than its time-out of {spec.timeout:g} s", "traceback": tail}
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        hint = "; the system may have run out of memory" if name == "SIGKILL" else ""
        return {"status": "died", "error": f"killed by {name}{hint}", "traceback": tail}
    return {"status": "died", "error": f"exited with code {os.WEXITSTATUS(status)}", "traceback": tail}


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), sys.argv[2:])
