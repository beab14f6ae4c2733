"""Run trials: joblib threads that each hold a worker process here, Ray tasks that do the same on a cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from cameraready.evidence.plan import TrialSpec
from cameraready.evidence.store import TrialRecord
from cameraready.registry import card

ATTEMPTS = 2
ONE_THREAD = {
    name: "1"
    for name in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMBA_NUM_THREADS",
    )
}


class Worker:
    """The near end of a worker process (`cameraready.evidence.worker`), started again when it has died."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = list(modules)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._closed = False

    def run(self, spec: TrialSpec) -> TrialRecord:
        """Run one trial; one that dies, alone or with its worker, is tried once more before it counts as failed."""
        record = TrialRecord(spec, status="died")
        for _ in range(ATTEMPTS):
            try:
                connection = self._start()
                connection.send(spec)
                record = connection.recv()
            except (EOFError, OSError):
                code = self._reap()
                record = TrialRecord(spec, status="died", error=f"its worker process died (exit code {code})")
            if record.status != "died" or self._closed:
                break
        return record

    def close(self) -> None:
        """End the worker and the trial that it may be running; callable from any thread."""
        self._closed = True
        if self._connection is not None:
            # A shutdown, unlike a close, wakes the thread that waits for the answer as well as the worker.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)

    def _start(self) -> Connection:
        if self._closed:
            raise EOFError
        if self._connection is None:
            self._connection, far = multiprocessing.Pipe()
            command = [sys.executable, "-m", "cameraready.evidence.worker", str(far.fileno()), *self._modules]
            self._process = subprocess.Popen(
                command, pass_fds=[far.fileno()], env={**os.environ, **ONE_THREAD}, stdin=subprocess.DEVNULL
            )
            far.close()
        return self._connection

    def _reap(self) -> int | None:
        if self._process is None or self._connection is None:
            return None
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._process.kill()
        code = self._process.wait()
        self._process = self._connection = None
        return code


class LocalExecutor:
    """Trials on this machine, ``jobs`` at a time."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._workers: list[Worker] = []
        self._mine = threading.local()
        self._stopping = False

    def run(self, specs: Sequence[TrialSpec]) -> Iterator[TrialRecord]:
        """Yield each trial's record as it ends, in any order."""
        from joblib import Parallel, delayed

        modules = preload(specs)
        jobs = min(self.jobs, len(specs))
        parallel = Parallel(n_jobs=jobs, backend="threading", return_as="generator_unordered", batch_size=1)
        try:
            yield from (
                record for record in parallel(delayed(self._one)(spec, modules) for spec in specs) if record is not None
            )
        finally:
            self._stopping = True
            for worker in self._workers:
                worker.close()

    def _one(self, spec: TrialSpec, modules: list[str]) -> TrialRecord | None:
        if self._stopping:
            return None
        if not hasattr(self._mine, "worker"):
            self._mine.worker = Worker(modules)
            self._workers.append(self._mine.worker)
        record: TrialRecord = self._mine.worker.run(spec)
        return record


class RayExecutor:
    """Trials on a Ray cluster, one core each; a trial whose node is lost runs again on another.

    Parameters
    ----------
    address : "auto" for the cluster that this machine belongs to, or its address. cameraready must be installed on every
        node, and a file given by ``--on`` must be readable from every node.
    """

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError:
            raise ValueError("--cluster needs Ray: pip install 'cameraready[cluster]'") from None
        self._ray = ray
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, configure_logging=False)
            except ConnectionError as error:
                raise ValueError(f"--cluster {address}: no Ray cluster answers there ({error})") from error

    def run(self, specs: Sequence[TrialSpec]) -> Iterator[TrialRecord]:
        """Yield each trial's record as it ends, in any order."""
        ray = self._ray
        remote = ray.remote(run_on_node).options(num_cpus=1, max_retries=3)
        modules = preload(specs)
        pending: dict[Any, TrialSpec] = {remote.remote(spec, modules): spec for spec in specs}
        try:
            while pending:
                (done,), _ = ray.wait(list(pending), num_returns=1)
                spec = pending.pop(done)
                try:
                    yield ray.get(done)
                except ray.exceptions.RayError as error:
                    yield TrialRecord(spec, status="died", error=f"lost by the cluster: {str(error).splitlines()[0]}")
        finally:
            for task in pending:
                ray.cancel(task, force=True)


_node_worker: Worker | None = None


def run_on_node(spec: TrialSpec, modules: list[str]) -> TrialRecord:
    """The Ray task: like a local thread, with one worker for each Ray process."""
    global _node_worker
    if _node_worker is None:
        _node_worker = Worker(modules)
    record = _node_worker.run(spec)
    host = os.uname().nodename
    return replace(record, environment={**record.environment, "host": host})


def preload(specs: Iterable[TrialSpec]) -> list[str]:
    """The modules that a worker imports once, before it forks the first trial."""
    modules = ["torch", "scipy.stats"]
    for slug in dict.fromkeys(spec.slug for spec in specs):
        modules.append(f"cameraready.methods.{slug}")
        modules += [f"cameraready.methods.{slug}.peers"] if (card(slug).folder / "peers.py").exists() else []
        modules.append("cameraready.data")
    return list(dict.fromkeys(modules))
