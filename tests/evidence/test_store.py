"""The store: whole files or none, whatever else lies in the folder."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cameraready.evidence.plan import TrialSpec
from cameraready.evidence.store import Store, TrialRecord

SPEC = TrialSpec("one", "a", 3, {"k": 2, "name": "x", "flag": True, "none": None}, 60, "0123456789abcdef0123")


def record(spec: TrialSpec = SPEC, **values: Any) -> TrialRecord:
    rows = ({"method": "m", "x": 1.5}, {"method": "n", "x": 2.0})
    environment = {"machine": "here", "numpy": "2"}
    cost = {"seconds": 1.0, "cpu_seconds": 0.5, "peak_rss": 7}
    return TrialRecord(spec, **{"status": "ok", "rows": rows, "environment": environment, **cost, **values})


def numbered(count: int) -> list[TrialSpec]:
    return [replace(SPEC, seed=seed, fingerprint=f"{seed:020x}") for seed in range(count)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "results"))


def test_a_trial_comes_back_as_it_was(store: Store) -> None:
    store.write(record())
    found, skipped = store.read([SPEC])
    assert found == {SPEC.fingerprint: record()}
    assert skipped == []


def test_a_failure_comes_back_with_its_traceback(store: Store) -> None:
    failure = record(status="failed", rows=(), error="ValueError: no", traceback="Traceback\n  é\udcff")
    store.write(failure)
    found, _ = store.read([SPEC])
    assert found[SPEC.fingerprint] == replace(failure, traceback="Traceback\n  é?")


NUMBERS = st.floats(allow_nan=False) | st.integers(-9, 2**53)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.sampled_from(["x", "y"]), NUMBERS), max_size=4))
def test_any_numbers_come_back_equal(store: Store, rows: list[dict[str, float]]) -> None:
    mine = record(rows=tuple({"method": "m", **row} for row in rows))
    store.write(mine)
    found, skipped = store.read([SPEC])
    assert skipped == []
    assert found[SPEC.fingerprint].rows == mine.rows


def test_infinite_and_undefined_numbers_come_back(store: Store) -> None:
    store.write(record(rows=({"method": "m", "x": math.nan, "y": math.inf},)))
    (row,) = store.read([SPEC])[0][SPEC.fingerprint].rows
    assert math.isnan(row["x"])
    assert row["y"] == math.inf


def test_factors_that_are_lists_can_be_stored(store: Store) -> None:
    spec = replace(SPEC, cell={"shape": (3, 4), "options": {"a": [1, "b"]}})
    store.write(record(spec))
    assert store.read([spec])[0] == {spec.fingerprint: record(spec)}
    assert store.connect().sql("select distinct shape from trials").fetchall() == [("[3, 4]",)]


def test_many_rows_come_back_packed(store: Store) -> None:
    rows = tuple({"method": "m", "x": float(row)} for row in range(50_000))
    store.write(record(rows=rows))
    assert store.read([SPEC])[0][SPEC.fingerprint].rows == rows
    assert os.path.getsize(store.path(SPEC)) < 1_000_000


def foreign(kind: str, path: Path) -> None:
    whole = path.read_bytes()
    path.unlink()
    if kind == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "a byte short":
        path.write_bytes(whole[:-1])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("not a trial")
    elif kind == "another table":
        pd.DataFrame({"x": [1, 2]}).to_parquet(path)
    elif kind == "no rows":
        pd.DataFrame({"_fingerprint": []}).to_parquet(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "dangling link":
        path.symlink_to(path.parent / "nowhere")


@pytest.mark.parametrize(
    "kind",
    ["truncated", "a byte short", "empty", "text", "another table", "no rows", "directory", "dangling link"],
)
def test_what_is_no_whole_trial_is_skipped_with_its_name_and_harms_nobody(store: Store, kind: str) -> None:
    first, second = numbered(2)
    store.write(record(first))
    store.write(record(second))
    foreign(kind, Path(store.path(first)))
    found, skipped = store.read([first, second])
    assert list(found) == [second.fingerprint]
    assert len(skipped) == 1
    assert store.path(first) in skipped[0]
    assert "the trial runs again" in skipped[0]
    assert store.connect().sql("select count(distinct _fingerprint) from trials").fetchall() == [(1,)]


def test_a_file_under_another_trials_name_is_skipped_and_not_counted_twice(store: Store) -> None:
    first, second = numbered(2)
    store.write(record(first))
    Path(store.path(second)).write_bytes(Path(store.path(first)).read_bytes())
    found, skipped = store.read([first, second])
    assert list(found) == [first.fingerprint]
    assert f"it holds trial {first.fingerprint}" in skipped[0]
    assert store.connect().sql("select count(*) from trials").fetchall() == [(2,)]


def test_a_truncation_at_any_byte_is_noticed(store: Store) -> None:
    store.write(record())
    path = Path(store.path(SPEC))
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        found, skipped = store.read([SPEC])
        assert (found, len(skipped)) == ({}, 1)


def test_files_of_other_claims_with_other_types_are_one_view(store: Store) -> None:
    store.write(record(SPEC))
    other = TrialSpec("two", "b", 0, {"k": "large"}, 60, "f" * 20)
    store.write(record(other, rows=({"method": "m", "y": "label"},)))
    rows = store.connect().sql("select _slug, k, x, y from trials order by all").fetchall()
    assert rows == [("one", "2", 1.5, None), ("one", "2", 2.0, None), ("two", "large", None, "label")]


def test_an_empty_store_says_what_to_do(store: Store) -> None:
    with pytest.raises(FileNotFoundError, match="run `cameraready verify` first"):
        store.connect()
    assert store.read([SPEC]) == ({}, [])
    assert store.verdicts("one") == []


def test_a_verdict_replaces_the_one_before_and_a_damaged_one_is_left_out(store: Store) -> None:
    store.write_verdict("one", "a", "quick", {"outcome": "inconclusive"})
    store.write_verdict("one", "a", "quick", {"outcome": "supported"})
    store.write_verdict("one", "b", "full", {"outcome": "not supported"})
    assert [(entry["claim"], entry["scale"], entry["outcome"]) for entry in store.verdicts("one")] == [
        ("a", "quick", "supported"),
        ("b", "full", "not supported"),
    ]
    Path(store.path(SPEC)).parent.joinpath("quick.json").write_text('{"claim"')
    assert [entry["claim"] for entry in store.verdicts("one")] == ["b"]


def test_an_unknown_file_system_is_wrong_use() -> None:
    with pytest.raises(ValueError, match="--store nosuch://x"):
        Store("nosuch://x")


WRITER = """
import sys
sys.path.insert(0, {tests!r})
from test_store import numbered, record
from cameraready.evidence.store import Store
store = Store({url!r})
for _ in range(8):
    for spec in numbered(10):
        store.write(record(spec))
"""


def test_writers_at_the_same_time_leave_whole_files_at_every_moment(store: Store) -> None:
    specs = numbered(10)
    code = WRITER.format(tests=str(Path(__file__).parent), url=store.url)
    writers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        found, skipped = store.read(specs)
        assert skipped == []
        assert all(found[mark] == record(replace(SPEC, seed=int(mark, 16), fingerprint=mark)) for mark in found)
        seen += 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen > 3
    names = {path.name for path in Path(store.path(SPEC)).parent.iterdir()}
    assert names == {f"{spec.fingerprint}.parquet" for spec in specs}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_raises_leaves_nothing_half_written_and_keeps_what_was_there(small_disk: Path) -> None:
    store = Store(str(small_disk / "results"))
    specs = numbered(200)
    stored: list[str] = []

    def fill() -> None:
        for spec in specs:
            store.write(record(spec))
            stored.append(spec.fingerprint)

    with pytest.raises(OSError, match="No space left"):
        fill()
    assert stored
    found, skipped = store.read(specs)
    assert (sorted(found), skipped) == (stored, [])
    names = {path.name for path in Path(store.path(SPEC)).parent.iterdir()}
    assert names == {f"{mark}.parquet" for mark in stored}
