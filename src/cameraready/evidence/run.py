"""Run trials: joblib threads that each hold a worker process here, Ray tasks that do the same on a cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import IO, Any

from cameraready.evidence.fingerprint import imported_modules
from cameraready.evidence.plan import TrialSpec
from cameraready.evidence.store import TrialRecord
from cameraready.registry import card

ATTEMPTS = 2
LOG_TAIL = 2000
ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMBA_NUM_THREADS",
        "RAYON_NUM_THREADS",
        "LOKY_MAX_CPU_COUNT",
    ),
    "1",
)
# Sets of strings are iterated in the same order in every run; tokenizers neither start threads nor warn of forks.
WORKER_ENVIRONMENT = {**ONE_THREAD, "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"}


class Worker:
    """The near end of a worker process (`cameraready.evidence.worker`), started again when it has died."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = list(modules)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._log: IO[bytes] | None = None
        self._closed = False

    def run(self, spec: TrialSpec) -> TrialRecord:
        """Run one trial; one that dies, alone or with its worker, is tried once more before it counts as failed."""
        record = TrialRecord(spec, status="died")
        for _ in range(ATTEMPTS):
            trial = 0
            try:
                connection = self._start()
                connection.send(spec)
                trial = connection.recv()
                record = connection.recv()
            except (EOFError, OSError):
                code, output = self._reap(trial)
                error = f"its worker process died (exit code {code})"
                record = TrialRecord(spec, status="died", error=error, traceback=output)
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

    def wait(self) -> None:
        """Wait for the end that `close` asked for; a worker that is slow, since it is still importing, is killed."""
        if (process := self._process) is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
            process.kill()
            process.wait()

    def _start(self) -> Connection:
        if self._closed:
            raise EOFError
        if self._connection is None:
            connection, far = multiprocessing.Pipe()
            self._log = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the worker lives)
            # A session of its own keeps the terminal's Ctrl-C from it: the run's end is told by the socket alone.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cameraready.evidence.worker", str(far.fileno()), *self._modules],
                pass_fds=[far.fileno()],
                env={**os.environ, **WORKER_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
            far.close()
            self._connection = connection
        return self._connection

    def _reap(self, trial: int) -> tuple[int | None, str]:
        """Exit code and last words of the worker, after ending what is left of it and of its trial."""
        if self._process is None or self._connection is None or self._log is None:
            return None, ""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._process.kill()
        code = self._process.wait()
        if trial:  # the trial died with its worker; what it had started has not
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(trial, signal.SIGKILL)
        with self._log as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL))
            output = log.read().decode(errors="replace")
        self._process = self._connection = self._log = None
        return code, output


class LocalExecutor:
    """Trials on this machine, ``jobs`` at a time."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._workers: list[Worker] = []
        self._mine = threading.local()
        self._stopping = False

    def run(self, specs: Sequence[TrialSpec]) -> Generator[TrialRecord, None, None]:
        """Yield each trial's record as it ends, in any order."""
        from joblib import Parallel, delayed

        modules = preload(specs)
        jobs = min(self.jobs, len(specs))
        parallel = Parallel(n_jobs=jobs, backend="threading", return_as="generator_unordered", batch_size=1)
        try:
            for record in parallel(delayed(self._one)(spec, modules) for spec in specs):
                if record is not None:
                    yield record
        finally:
            self._stopping = True
            for worker in self._workers:
                worker.close()
            for worker in self._workers:
                worker.wait()

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
    address : "auto" for the cluster that this machine belongs to, or its address. cameraready must be installed on
        every node, and a file given by ``--on`` must be readable from every node.
    """

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError:
            raise ValueError("--cluster needs Ray: pip install 'cameraready[cluster]'") from None
        self._ray = ray
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            try:
                _require_listener(address)
                ray.init(address=address, log_to_driver=False, configure_logging=False)
            except OSError as error:
                raise ValueError(f"--cluster {address}: no Ray cluster answers there ({error})") from error

    def run(self, specs: Sequence[TrialSpec]) -> Generator[TrialRecord, None, None]:
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
            if self._is_ours:
                ray.shutdown()


def _require_listener(address: str) -> None:
    """Find out in seconds that nobody listens at ``host:port``, for which Ray takes minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


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
    """The modules that a worker imports once, before it forks the first trial: all that the methods' files import."""
    modules = ["numpy.random", "cameraready.data"]
    for slug in dict.fromkeys(spec.slug for spec in specs):
        modules.append(f"cameraready.methods.{slug}")
        modules += [f"cameraready.methods.{slug}.peers"] if (card(slug).folder / "peers.py").exists() else []
        # Among these are names of functions ("numpy.ones"), which the worker fails to import, and goes on.
        skipped = {*sys.stdlib_module_names, "cameraready"}
        modules += sorted(name for name in imported_modules(slug) if name.partition(".")[0] not in skipped)
    return list(dict.fromkeys(modules))
