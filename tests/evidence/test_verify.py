"""The whole engine, from claims file to verdict and report: planted truths, kills, interruptions, a full disk."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PLANTED = """
@claim("{name}", says="New costs at most half of old.", factors={{"k": [1, 2], "replicate": {replicate}}},
       scales={{"quick": Scale(seeds=6)}}, holds=ratio("cost", "new", to="old", at_most=0.5),
       chart=line(x="k", y="cost"))
def {function}(trial, k, replicate):
    import numpy as np
    rng = np.random.default_rng([trial.seed, replicate, k])
    base = rng.lognormal(0, 0.2)
    trial.record(method="old", cost=base)
    trial.record(method="new", cost={effect} * base * rng.lognormal(0, 0.1))
"""
SLOW = """
@claim("slow", says="New costs at most half of old.", factors={"k": [1, 2, 3]}, scales={"quick": Scale(seeds=10)},
       holds=ratio("cost", "new", to="old", at_most=0.5))
def slow(trial, k):
    import time
    time.sleep(0.05)
    base = trial.rng.lognormal(0, 0.2)
    trial.record(method="old", cost=base)
    trial.record(method="new", cost=0.4 * base * trial.rng.lognormal(0, 0.1))
"""
TOTAL = 30
REPLICATES = 4


def planted(kind: str, effect: float) -> str:
    return "".join(
        PLANTED.format(name=f"{kind}-{number}", function=f"{kind}_{number}", replicate=number, effect=effect)
        for number in range(REPLICATES)
    )


def test_a_planted_effect_is_found_and_a_method_that_does_nothing_is_never_supported(
    methods: Any, verdicts: Callable[..., dict[str, Any]]
) -> None:
    methods.write("planted", planted("effect", 0.4) + planted("nothing", 1.0) + planted("opposite", 2.0))
    found = verdicts(methods.events("planted"))
    assert len(found) == 3 * REPLICATES
    for name, verdict in found.items():
        kind = name.partition(":")[2].partition("-")[0]
        assert verdict["outcome"] == ("supported" if kind == "effect" else "not supported"), verdict
        assert verdict["low"] <= {"effect": 0.4, "nothing": 1.0, "opposite": 2.0}[kind] * 1.1
        assert verdict["high"] >= {"effect": 0.4, "nothing": 1.0, "opposite": 2.0}[kind] / 1.1
        assert verdict["n"] == 6
    shown = ["planted:effect-0", "planted:nothing-0", "planted:opposite-0"]
    done = methods.run("report", *shown, "--out", "site")
    assert done.returncode == 0, done.stderr
    site = methods.cwd / "site"
    assert str(site / "index.html") in done.stdout
    pages = "".join(page.read_text() for page in site.rglob("*.html"))
    for name in shown:
        assert name.partition(":")[2] in pages
        assert found[name]["sentence"].partition(" (")[0] in pages


@pytest.fixture(scope="module")
def slow(shared_methods: Any, verdicts: Callable[..., dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
    """The method whose runs are disturbed below, and the verdict of a run that was not."""
    shared_methods.write("slow", SLOW)
    expected = verdicts(shared_methods.events("slow", "--store", "undisturbed"))["slow:slow"]
    assert expected["outcome"] == "supported"
    return shared_methods, expected


def stored(methods: Any, store: str) -> list[Path]:
    return sorted((methods.cwd / store).glob("slow/slow/*.parquet"))


def leftovers(methods: Any, store: str) -> list[str]:
    return [path.name for path in (methods.cwd / store).rglob("*") if path.is_file() and path.suffix == ".tmp"]


def resumes(methods: Any, store: str, expected: dict[str, Any], *, missing: int) -> list[dict[str, Any]]:
    """Run again: what is missing runs, and the verdict is the undisturbed run's."""
    events = methods.events("slow", "--store", store)
    assert [event["status"] for event in events if event["event"] == "trial"] == ["ok"] * missing
    assert events[0] == {"event": "planned", "claims": 1, "trials": missing, "scale": "quick"}
    verdict = next(event for event in events if event["event"] == "verdict")
    assert verdict == expected
    assert len(stored(methods, store)) == TOTAL
    return events


def kill_at_a_random_moment(slow: tuple[Any, dict[str, Any]], store: str, wait_until: Callable[..., bool]) -> None:
    methods, expected = slow
    process = methods.start("verify", "slow", "--store", store)
    after = random.randrange(1, TOTAL - 5)
    assert wait_until(lambda: len(stored(methods, store)) >= after, seconds=60)
    time.sleep(random.random() * 0.05)
    process.kill()
    process.communicate()
    assert wait_until(lambda: not methods.processes(), seconds=2), methods.processes()
    kept = len(stored(methods, store))
    assert after <= kept < TOTAL
    resumes(methods, store, expected, missing=TOTAL - kept)


def test_a_run_killed_at_a_random_moment_leaves_no_process_and_resumes_to_the_same_verdict(
    slow: tuple[Any, dict[str, Any]], wait_until: Callable[..., bool]
) -> None:
    kill_at_a_random_moment(slow, "killed", wait_until)


@pytest.mark.slow
def test_eight_runs_killed_at_random_moments_resume_to_the_same_verdict(
    slow: tuple[Any, dict[str, Any]], wait_until: Callable[..., bool]
) -> None:
    for number in range(8):
        kill_at_a_random_moment(slow, f"killed-{number}", wait_until)


@pytest.mark.slow
def test_one_run_killed_again_and_again_loses_nothing_that_was_stored(
    slow: tuple[Any, dict[str, Any]], wait_until: Callable[..., bool]
) -> None:
    methods, expected = slow
    kept: dict[str, bytes] = {}
    for goal in (5, 15):
        process = methods.start("verify", "slow", "--store", "often")
        assert wait_until(lambda goal=goal: len(stored(methods, "often")) >= goal, seconds=60)
        process.kill()
        process.communicate()
        now = {path.name: path.read_bytes() for path in stored(methods, "often")}
        assert kept.items() <= now.items()
        kept = now
    assert wait_until(lambda: not methods.processes(), seconds=2)
    resumes(methods, "often", expected, missing=TOTAL - len(kept))


@pytest.mark.parametrize(
    "to_all",
    [
        pytest.param(False, id="the process alone", marks=pytest.mark.slow),
        pytest.param(True, id="the whole group, as a terminal does"),
    ],
)
def test_ctrl_c_ends_quickly_and_quietly_and_the_run_resumes(
    slow: tuple[Any, dict[str, Any]], wait_until: Callable[..., bool], to_all: bool
) -> None:
    methods, expected = slow
    store = f"interrupted-{to_all}"
    process = subprocess.Popen(
        [*methods.command, "verify", "slow", "--store", store],
        cwd=methods.cwd,
        env=methods.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert wait_until(lambda: len(stored(methods, store)) >= 5, seconds=60)
    start = time.monotonic()
    if to_all:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - start < 3
    assert process.returncode == 130
    assert "Traceback" not in out + err
    assert f"interrupted; what ended is in {store}" in err
    assert wait_until(lambda: not methods.processes(), seconds=2)
    resumes(methods, store, expected, missing=TOTAL - len(stored(methods, store)))


def test_two_runs_on_one_store_at_the_same_time_both_end_well(slow: tuple[Any, dict[str, Any]]) -> None:
    methods, expected = slow
    runs = [methods.start("verify", "slow", "--store", "both", "--json", "--jobs", "1") for _ in range(2)]
    for run in runs:
        out, err = run.communicate(timeout=120)
        assert (run.returncode, err) == (0, "")
        events = [json.loads(line) for line in out.splitlines()]
        assert events[-1] == expected
        assert not [event for event in events if event["event"] == "message"]
    assert leftovers(methods, "both") == []
    assert "slow:slow: 0 of 30 trials to run" in methods.run("verify", "slow", "--store", "both", "--dry-run").stdout


def test_damaged_foreign_and_renamed_files_are_named_and_their_trials_run_again(
    slow: tuple[Any, dict[str, Any]],
) -> None:
    methods, expected = slow
    shutil.copytree(methods.cwd / "undisturbed", methods.cwd / "damaged")
    truncated, text, empty, renamed, source, removed, *_ = stored(methods, "damaged")
    truncated.write_bytes(truncated.read_bytes()[:-100])
    text.write_text("shopping list")
    empty.write_bytes(b"")
    renamed.write_bytes(source.read_bytes())
    removed.unlink()
    (truncated.parent / "notes.txt").write_text("mine")
    (truncated.parent / ".half.parquet.1.tmp").write_bytes(b"PAR1")
    events = resumes(methods, "damaged", expected, missing=5)
    said = "\n".join(event["text"] for event in events if event["event"] == "message")
    assert said.count("skipped ") == 4
    for path in (truncated, text, empty, renamed):
        assert str(path) in said
    assert (truncated.parent / "notes.txt").read_text() == "mine"
    assert "slow:slow: 0 of 30 trials to run" in methods.run("verify", "slow", "--store", "damaged", "--dry-run").stdout


def test_a_folder_in_a_trials_place_is_left_alone_and_the_exit_code_says_so(slow: tuple[Any, dict[str, Any]]) -> None:
    methods, expected = slow
    shutil.copytree(methods.cwd / "undisturbed", methods.cwd / "folder")
    path = stored(methods, "folder")[0]
    path.unlink()
    path.mkdir()
    (path / "precious").write_text("mine")
    events = methods.events("slow", "--store", "folder", code=1)
    assert (path / "precious").read_text() == "mine"
    said = [event["text"] for event in events if event["event"] == "message"]
    assert str(path) in said[0]
    assert "could not store slow:slow" in said[1]
    assert "1 trial is not in folder and will run again next time" in said[2]
    assert next(event for event in events if event["event"] == "verdict") == expected
    assert leftovers(methods, "folder") == []


LARGE = """
@claim("slow", says="Large.", factors={"k": 1}, scales={"quick": Scale(seeds=20)}, holds=at_most("x", "m", 5))
def slow(trial, k):
    for row in range(20):
        trial.record(method="m", x=1, text=trial.rng.bytes(500).hex())
"""


@pytest.fixture
def small_disk(methods: Any) -> Iterator[Path]:
    folder = methods.cwd / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_keeps_what_was_stored_says_what_was_not_and_the_next_run_completes(
    methods: Any, small_disk: Path
) -> None:
    methods.write("slow", LARGE)
    events = methods.events("slow", "--store", "disk", code=1)
    said = [event["text"] for event in events if event["event"] == "message"]
    kept = len(stored(methods, "disk"))
    assert 1 <= kept < 20
    assert sum("could not store slow:slow" in text and "No space left" in text for text in said) == 20 - kept
    assert said[-1].endswith("not in disk and will run again next time; what was stored is safe")
    assert leftovers(methods, "disk") == []
    assert next(event for event in events if event["event"] == "verdict")["outcome"] == "supported"
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    again = methods.events("slow", "--store", "disk")
    assert sum(event["event"] == "trial" for event in again) == 20 - kept
    assert len(stored(methods, "disk")) == 20
    assert not [event for event in again if event["event"] == "message"]
