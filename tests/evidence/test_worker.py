"""Workers and trials: real processes that fail, hang, crash and are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cameraready.evidence.plan import TrialSpec, claims_of, plan
from cameraready.evidence.run import LocalExecutor, Worker
from cameraready.evidence.store import TrialRecord

CLAIMS = """
import os, signal, subprocess, sys, time
from pathlib import Path

NAMES = ["raises", "hangs", "hangs_with_children", "segfaults", "is_killed", "leaves", "records_nothing", "talks",
         "takes_memory", "takes_time", "counts_threads", "draws", "alternates", "measures", "dies_with_child",
         "records_array", "exits", "dumps", "loads_late"]

@claim("case", says="", factors={"name": NAMES, "where": "."}, scales={"quick": Scale(seeds=2)},
       holds=at_most("x", "m", 1), timeout=60)
def case(trial, name, where):
    globals()[name](trial, Path(where))

def raises(trial, where):
    raise ZeroDivisionError("on purpose")

def hangs(trial, where):
    print("last words", flush=True)
    time.sleep(600)

def hangs_with_children(trial, where):
    sleep = ["sleep", "600"]
    pids = [subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid, os.getpid()]
    (where / "pids").write_text(" ".join(map(str, pids)))
    time.sleep(600)

def dies_with_child(trial, where):
    if os.fork() == 0:
        time.sleep(600)
    (where / "attempts").open("a").write("x")
    os.kill(os.getpid(), signal.SIGKILL)

def segfaults(trial, where):
    (where / "attempts").open("a").write("x")
    print("last words", flush=True)
    import ctypes
    ctypes.string_at(0)

def is_killed(trial, where):
    (where / "attempts").open("a").write("x")
    if (where / "attempts").read_text() == "x":
        os.kill(os.getpid(), signal.SIGKILL)
    trial.record(method="m", x=1)

def leaves(trial, where):
    os._exit(3)

def exits(trial, where):
    sys.exit("enough")

def records_nothing(trial, where):
    pass

def records_array(trial, where):
    import numpy as np
    trial.record(method="m", x=np.zeros(3))

def talks(trial, where):
    for _ in range(100):
        os.write(1, b"x" * 500_000)
        os.write(2, b"x" * 500_000)
    trial.record(method="m", x=1)

def takes_memory(trial, where):
    import numpy as np
    trial.record(method="m", x=float(np.ones(200_000_000 // 8)[-1]))

def takes_time(trial, where):
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
    trial.record(method="m", x=1)

def counts_threads(trial, where):
    import numpy as np
    import threadpoolctl
    import torch
    np.ones((400, 400)) @ np.ones((400, 400))
    torch.ones(400, 400) @ torch.ones(400, 400)
    pools = max(pool["num_threads"] for pool in threadpoolctl.threadpool_info())
    trial.record(method="m", torch=torch.get_num_threads(), pools=pools,
                 threads=len(list(Path("/proc/self/task").iterdir())))

def draws(trial, where):
    import random
    import numpy as np
    import torch
    order = "".join({"alpha", "beta", "gamma", "delta"})
    trial.record(method="m", rng=trial.rng.random(), random=random.random(), numpy=np.random.random(),
                 torch=torch.rand(1, dtype=torch.float64), order=order)

def alternates(trial, where):
    calls = []
    def contestant(name, seconds):
        def run():
            calls.append(name)
            time.sleep(seconds)
            return len(calls)
        return run
    contestants = {"a": contestant("a", 0.01), "b": contestant("b", 0.03), "c": contestant("c", 0)}
    found = trial.alternate(contestants, repeats=4)
    for name, timing in found.items():
        trial.record(method=name, seconds=timing.seconds, value=timing.value, calls="".join(calls))

def measures(trial, where):
    import numpy as np
    kept = np.ones(80_000_000 // 8)
    trial.record(method="nothing", x=trial.peak_memory(lambda: None))
    trial.record(method="100 MB", x=trial.peak_memory(lambda: np.ones(100_000_000 // 8)))
    trial.record(method="reads", x=trial.peak_memory(lambda: kept.sum()))
    try:
        trial.peak_memory(lambda: os._exit(5))
    except MemoryError as error:
        trial.record(method="dies", x=0, said=str(error))
    try:
        trial.peak_memory(lambda: 1 / 0)
    except ZeroDivisionError as error:
        trial.record(method="raises", x=0, said=error.__notes__[0])

def loads_late(trial, where):
    __import__("importlib").import_module("tor" + "ch")
    trial.record(method="m", x=1)

def dumps(trial, where):
    rows = 20_000
    for row in range(rows):
        trial.record(method="m", x=row, text="y" * 50)
"""


WAITING = """
import os, time
from pathlib import Path

@claim("case", says="", factors={"name": "waits", "where": "."}, scales={"quick": Scale(seeds=2)},
       holds=at_most("x", "m", 1))
def case(trial, name, where):
    started = Path(where, f"started-{trial.seed}")
    started.with_suffix(".new").write_text(str(os.getppid()))
    started.with_suffix(".new").rename(started)
    end = time.monotonic() + 30
    while not Path(where, "go").exists() and time.monotonic() < end:
        time.sleep(0.01)
    trial.record(method="m", x=trial.seed)
"""


@pytest.fixture(scope="module")
def visible(shared_methods: Any) -> Iterator[Any]:
    shared_methods.write("cases", CLAIMS)
    shared_methods.write("edited", CLAIMS)
    shared_methods.write("waiting", WAITING)
    with shared_methods.visible():
        yield shared_methods


@pytest.fixture(scope="module")
def worker(visible: Any) -> Iterator[Worker]:
    """One worker for the whole file: that it goes on after each of these cases is part of what is tested."""
    worker = Worker(["torch"])
    yield worker
    worker.close()
    worker.wait()


def spec_of(
    name: str, where: Path | str = ".", *, seed: int = 0, timeout: float = 60, slug: str = "cases"
) -> TrialSpec:
    overrides = {"name": [name], "where": [str(where)]}
    return replace(plan(slug, claims_of(slug)[0], "quick", overrides=overrides)[seed], timeout=timeout)


def test_an_exception_is_a_failure_with_its_traceback_and_is_not_tried_again(worker: Worker) -> None:
    record = worker.run(spec_of("raises"))
    assert (record.status, record.error) == ("failed", "ZeroDivisionError: on purpose")
    assert 'raise ZeroDivisionError("on purpose")' in record.traceback
    assert record.environment["torch"]


def test_a_trial_that_takes_too_long_is_ended_in_time_with_what_it_said(worker: Worker) -> None:
    start = time.monotonic()
    record = worker.run(spec_of("hangs", timeout=0.5))
    assert (record.status, record.error) == ("timed out", "took longer than its time-out of 0.5 s")
    assert record.traceback == "last words\n"
    assert time.monotonic() - start < 5


def test_a_time_out_ends_the_trials_own_children_too(
    worker: Worker, tmp_path: Path, wait_until: Callable[..., bool]
) -> None:
    record = worker.run(spec_of("hangs_with_children", tmp_path, timeout=1))
    assert record.status == "timed out"
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    assert wait_until(lambda: not any(runs(pid) for pid in pids), seconds=2)


def test_a_segmentation_fault_is_named_with_the_last_output(worker: Worker, tmp_path: Path) -> None:
    record = worker.run(spec_of("segfaults", tmp_path))
    assert (record.status, record.error) == ("died", "killed by SIGSEGV")
    assert "last words" in record.traceback
    assert (tmp_path / "attempts").read_text() == "xx"


def test_a_trial_that_is_killed_is_tried_once_more(worker: Worker, tmp_path: Path) -> None:
    record = worker.run(spec_of("is_killed", tmp_path))
    assert record.ok
    assert (tmp_path / "attempts").read_text() == "xx"


def test_a_death_is_noticed_at_once_even_when_a_grandchild_holds_the_pipe(worker: Worker, tmp_path: Path) -> None:
    start = time.monotonic()
    record = worker.run(spec_of("dies_with_child", tmp_path, timeout=30))
    assert (record.status, record.error) == ("died", "killed by SIGKILL; the system may have run out of memory")
    assert time.monotonic() - start < 10
    assert (tmp_path / "attempts").read_text() == "xx"


def test_leaving_without_a_word_is_reported_with_the_exit_code(worker: Worker) -> None:
    record = worker.run(spec_of("leaves"))
    assert (record.status, record.error) == ("died", "exited with code 3")


def test_sys_exit_is_an_exception_like_any_other(worker: Worker) -> None:
    assert worker.run(spec_of("exits")).error == "SystemExit: enough"


def test_a_trial_that_records_nothing_has_failed(worker: Worker) -> None:
    record = worker.run(spec_of("records_nothing"))
    assert record.status == "failed"
    assert "the trial recorded nothing" in record.error


def test_an_array_is_no_measurement(worker: Worker) -> None:
    assert "record(x=...): expected one number, got an array" in worker.run(spec_of("records_array")).error


def test_a_hundred_megabytes_of_output_change_nothing(worker: Worker) -> None:
    assert worker.run(spec_of("talks")).ok


def test_many_rows_arrive(worker: Worker) -> None:
    record = worker.run(spec_of("dumps"))
    assert [row["x"] for row in record.rows] == list(range(20_000))


def test_peak_memory_of_a_trial_is_its_own(worker: Worker) -> None:
    base = worker.run(spec_of("takes_time")).peak_rss
    assert 190e6 < worker.run(spec_of("takes_memory")).peak_rss - base < 260e6
    assert abs(worker.run(spec_of("takes_time")).peak_rss - base) < 20e6


def test_cpu_seconds_of_a_trial_are_its_own(worker: Worker) -> None:
    record = worker.run(spec_of("takes_time"))
    assert 0.49 < record.cpu_seconds < 1
    assert record.seconds >= record.cpu_seconds * 0.9
    assert worker.run(spec_of("is_killed", "/nowhere")).cpu_seconds < 0.4


def test_a_trial_has_one_thread(worker: Worker) -> None:
    (row,) = worker.run(spec_of("counts_threads")).rows
    assert (row["torch"], row["pools"], row["threads"]) == (1, 1, 1)


def test_the_same_seed_draws_the_same_in_every_worker_and_another_seed_does_not(worker: Worker) -> None:
    first = worker.run(spec_of("draws")).rows
    second = worker.run(spec_of("draws", "elsewhere")).rows
    fresh = Worker(["torch"])
    third = fresh.run(spec_of("draws")).rows
    fresh.close()
    fresh.wait()
    assert first == second == third
    other = worker.run(spec_of("draws", seed=1)).rows[0]
    assert all(other[name] != first[0][name] for name in ("rng", "random", "numpy", "torch"))


def test_torch_that_is_loaded_too_late_for_its_seed_is_a_failure_that_says_what_to_write(visible: Any) -> None:
    worker = Worker([])
    record = worker.run(spec_of("loads_late"))
    worker.close()
    worker.wait()
    assert "write `import torch` in the trial function" in record.error


def test_contestants_are_timed_in_turn_and_each_round_starts_with_another(worker: Worker) -> None:
    rows = {row["method"]: row for row in worker.run(spec_of("alternates")).rows}
    assert rows["a"]["calls"] == "abc" + "bca" + "cab" + "abc"
    assert 0.01 <= rows["a"]["seconds"] < 0.03 <= rows["b"]["seconds"] < 0.1
    assert rows["c"]["seconds"] < 0.01
    assert (rows["a"]["value"], rows["b"]["value"], rows["c"]["value"]) == (10, 11, 12)


def test_peak_memory_of_a_function_is_measured_in_a_child_above_the_start(worker: Worker) -> None:
    rows = {row["method"]: row for row in worker.run(spec_of("measures")).rows}
    assert 0 <= rows["nothing"]["x"] < 5e6
    assert 95e6 < rows["100 MB"]["x"] < 110e6
    assert rows["reads"]["x"] < 10e6
    assert rows["dies"]["said"] == "the measured function died with exit code 5"
    assert "1 / 0" in rows["raises"]["said"] or "ZeroDivisionError" in rows["raises"]["said"]


def test_a_killed_worker_is_replaced_and_its_trial_tried_again_while_the_others_go_on(
    visible: Any, tmp_path: Path, wait_until: Callable[..., bool]
) -> None:
    records: list[TrialRecord] = []
    executor = LocalExecutor(2)
    specs = [spec_of("waits", tmp_path, seed=seed, slug="waiting") for seed in (0, 1)]
    thread = threading.Thread(target=lambda: records.extend(executor.run(specs)))
    thread.start()
    started = [tmp_path / "started-0", tmp_path / "started-1"]
    assert wait_until(lambda: all(path.exists() and path.read_text() for path in started), seconds=30)
    first, second = (int(path.read_text()) for path in started)
    started[0].unlink()
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: started[0].exists() and started[0].read_text(), seconds=30)
    assert int(started[0].read_text()) not in (first, second)
    (tmp_path / "go").touch()
    thread.join(30)
    assert sorted((record.spec.seed, record.status) for record in records) == [(0, "ok"), (1, "ok")]
    assert wait_until(lambda: not runs(second), seconds=3)


def test_a_worker_that_always_dies_is_a_failure_with_its_last_words(visible: Any) -> None:
    (visible.cwd / "dies_at_import.py").write_text("import os\nprint('goodbye', flush=True)\nos._exit(7)\n")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(visible.cwd)
    try:
        record = Worker(["dies_at_import"]).run(spec_of("draws"))
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    assert (record.status, record.error) == ("died", "its worker process died (exit code 7)")
    assert record.traceback == "goodbye\n"


def test_a_trial_whose_code_was_edited_after_the_plan_is_not_stored_as_what_was_planned(visible: Any) -> None:
    claim = claims_of("edited")[0]
    spec = plan("edited", claim, "quick", overrides={"name": ["takes_time"]})[0]
    visible.write("edited", CLAIMS.replace("random=random.random()", "random=0.5"))
    worker = Worker([])
    record = worker.run(spec)
    worker.close()
    worker.wait()
    assert record.status == "failed"
    assert "a file was edited since the run started" in record.error


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
