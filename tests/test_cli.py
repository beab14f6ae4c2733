"""The command line: exit codes, what it prints for people and for machines, and what it loads."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

CLAIMS = """
@claim("holds", says="It is small.", source="Table 1", factors={"k": [1, 2]},
       scales={"quick": Scale(seeds=2), "full": Scale(seeds=3)}, holds=at_most("x", "m", 1))
def holds(trial, k):
    print("chatter")
    trial.record(method="m", x=0.5)

@claim("fails", says="It is small too.", factors={"k": 1}, scales={"quick": Scale(seeds=2)},
       holds=at_most("x", "m", 1), untestable_at={"full": "there is no machine that large"})
def fails(trial, k):
    trial.record(method="m", x=1.5)

@claim("on-data", says="Tables have rows.", factors={"dataset": Dataset("table", default="wine")},
       scales={"quick": Scale(seeds=2)}, holds=at_least("rows", "m", 1))
def on_data(trial, dataset):
    trial.record(method="m", rows=len(dataset.X))
"""
BROKEN = """
@claim("broken", says="It runs.", factors={"k": 1}, scales={"quick": Scale(seeds=2)}, holds=at_most("x", "m", 1))
def broken(trial, k):
    if trial.seed == 1:
        raise RuntimeError("[red]on purpose[/red]")
    trial.record(method="m", x=0.5)
"""


@pytest.fixture(scope="module")
def methods(shared_methods: Any) -> Any:
    shared_methods.write("good", CLAIMS)
    shared_methods.write("heavy", CLAIMS, files={"__init__.py": "import numpy, pandas, scipy, sklearn, torch\n"})
    shared_methods.write("broken", BROKEN)
    shared_methods.write("needy", CLAIMS, more="extra: graph\nrequires: [no_such_module]\n")
    return shared_methods


@pytest.fixture(scope="module")
def verified(methods: Any) -> Any:
    """What `verify good` prints, with its verdicts left in the store."""
    done = methods.run("verify", "good")
    assert done.returncode == 0, done.stderr
    return done


def test_verify_prints_a_line_a_verdict_and_a_table(verified: Any) -> None:
    assert verified.stderr == ""
    assert verified.stdout.startswith("3 claims, 8 trials to run, 0 taken from the store\n")
    assert "good:holds: supported. " in verified.stdout
    table = [line.split() for line in verified.stdout.splitlines() if line.startswith(("✔", "✘"))]
    assert table == [
        ["✔", "supported", "good:holds"],
        ["✘", "not", "supported", "good:fails"],
        ["✔", "supported", "good:on-data"],
    ]
    assert "\n3 claims: 2 supported, 1 not supported" in verified.stdout
    assert "chatter" not in verified.stdout


def test_json_lines_agree_with_the_table_and_nothing_runs_again(methods: Any, verified: Any) -> None:
    events = methods.events("good")
    assert events[0] == {"event": "planned", "claims": 3, "trials": 0, "scale": "quick"}
    assert {event["event"] for event in events} == {"planned", "verdict"}
    for event in events[1:]:
        assert f"{event['claim']}: {event['outcome']}. {event['sentence']}\n" in verified.stdout


def test_no_json_line_holds_what_json_does_not_know(methods: Any) -> None:
    done = methods.run("verify", "good", "--seeds", "1", "--json")  # one seed has no finite interval

    def refuse(name: str) -> None:
        raise AssertionError(name)

    for line in done.stdout.splitlines():
        json.loads(line, parse_constant=refuse)


def test_strict_turns_a_claim_that_is_not_supported_into_exit_code_3(methods: Any, verified: Any) -> None:
    assert methods.run("verify", "good", "--strict").returncode == 3
    assert methods.run("verify", "good:holds", "--strict").returncode == 0


def test_a_failed_trial_is_exit_code_1_with_its_traceback_and_no_verdict(methods: Any) -> None:
    done = methods.run("verify", "broken", "--strict")
    assert done.returncode == 1
    assert "failed: broken:broken [k=1, seed=1]: RuntimeError: [red]on purpose[/red]" in done.stdout
    assert "failed trial broken:broken [k=1, seed=1]" in done.stderr
    assert 'raise RuntimeError("[red]on purpose[/red]")' in done.stderr
    assert "? inconclusive" in done.stdout
    assert "1 of 2 trials did not end" in done.stdout


def test_in_a_terminal_the_bars_end_with_the_verdict(methods: Any) -> None:
    near, far = pty.openpty()
    process = subprocess.Popen(
        [*methods.command, "verify", "broken", "good:holds", "--store", "terminal"],
        cwd=methods.cwd,
        env=methods.environment(TERM="xterm-256color"),
        stdout=far,
        stderr=subprocess.PIPE,
    )
    os.close(far)
    shown = b""
    while True:
        try:
            block = os.read(near, 65536)
        except OSError:  # the far end is closed
            break
        if not block:
            break
        shown += block
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(60) == 1
    os.close(near)
    text = shown.decode()
    assert "all trials" in text
    assert "✔ supported" in text
    assert "[red]on purpose[/red]" in text


WRONG = [
    (["verify", "goood"], "error: no method 'goood'; did you mean good?"),
    (["verify", "good:hold"], "error: good has no claim 'hold'; did you mean holds?"),
    (["verify", "good:zzz"], "error: good has no claim 'zzz'; its claims are holds, fails, on-data"),
    (["verify", "good", "--scale", "ful"], "error: --scale ful: no such scale; did you mean full?"),
    (["verify", "good", "--set", "kk=1"], "error: --set kk: no such factor; did you mean k?"),
    (["verify", "good", "--set", "k"], "error: --set k: write FACTOR=VALUE or FACTOR=V1,V2"),
    (["verify", "good:holds", "--on", "missing.csv"], "none of these claims takes a data set of yours"),
    (["verify", "good", "--on", "missing.csv"], "missing.csv"),
    (["verify", "good", "--store", "nosuch://x"], "error: --store nosuch://x"),
    (["show", "goood"], "error: no method 'goood'; did you mean good?"),
    (["report", "goood"], "error: no method 'goood'; did you mean good?"),
    (["query", "select 1", "--store", "empty"], "error: no trials in empty; run `cameraready verify` first"),
    (["query", "select nothing from trials"], "error: Binder Error"),
    (["serve", "--folder", "nowhere"], "run `cameraready report` first"),
    (["verify", "good", "--jobs", "0"], "--jobs"),
    (["verify", "good", "--seeds", "none"], "--seeds"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_wrong_use_is_exit_code_2_with_a_line_that_helps(
    methods: Any, verified: Any, arguments: list[str], said: str
) -> None:
    done = methods.run(*arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_dry_run_says_what_would_run_and_runs_nothing(methods: Any) -> None:
    done = methods.run("verify", "good", "needy", "--scale", "full", "--dry-run", "--store", "dry")
    assert done.stdout.splitlines() == [
        "good:holds: 6 of 6 trials to run",
        "good:fails: untestable: there is no machine that large",
        "good:on-data: untestable: the claim declares no full scale",
        *(
            f"needy:{name}: skipped: needs no_such_module: pip install 'cameraready[graph]'"
            for name in ("holds", "fails", "on-data")
        ),
    ]
    assert not (methods.cwd / "dry").exists()
    events = methods.events("good:holds", "--dry-run", "--store", "dry")
    assert events == [{"event": "plan", "claim": "good:holds", "trials": 4, "stored": 0, "outcome": None, "reason": ""}]


def test_seeds_factors_and_jobs_can_be_set_and_are_not_remembered_as_the_declared_verdict(
    methods: Any, verdicts: Callable[..., dict[str, Any]]
) -> None:
    events = methods.events("good:holds", "--seeds", "3", "--set", "k=7,8", "--jobs", "1", "--store", "set")
    trials = {(event["cell"]["k"], event["seed"]) for event in events if event["event"] == "trial"}
    assert trials == {(k, seed) for k in (7, 8) for seed in (0, 1, 2)}
    assert verdicts(events)["good:holds"]["outcome"] == "supported"
    assert '"last": null' in methods.run("show", "good", "--json", "--store", "set").stdout


def test_a_method_whose_extra_is_missing_is_skipped_with_the_command_that_installs_it(
    methods: Any, verdicts: Callable[..., dict[str, Any]]
) -> None:
    found = verdicts(methods.events("needy", "--store", "needy"))
    assert {verdict["outcome"] for verdict in found.values()} == {"skipped"}
    assert found["needy:holds"]["sentence"] == "needs no_such_module: pip install 'cameraready[graph]'"
    shown = methods.run("show", "needy").stdout
    assert "missing    no_such_module: pip install 'cameraready[graph]'" in shown


def test_a_claim_whose_data_is_not_here_is_skipped_with_the_way_to_get_it(
    methods: Any, verdicts: Callable[..., dict[str, Any]]
) -> None:
    methods.write(
        "archived",
        """
@claim("holds", says="It holds.", factors={}, scales={"quick": Scale(seeds=2)}, holds=at_most("x", "a", 1))
def holds(trial):
    from cameraready.data import MissingData
    raise MissingData("bring it by: pip install --no-deps some-archive")
""",
    )
    found = verdicts(methods.events("archived", "--store", "archived"))["archived:holds"]
    assert (found["outcome"], found["failed"]) == ("skipped", 0)
    assert found["sentence"] == "bring it by: pip install --no-deps some-archive"


def test_of_a_methods_claims_those_run_that_the_file_suits(methods: Any) -> None:
    body = """
@claim("{0}", says="It holds.", factors={{"data": Dataset("{0}", default="wine")}}, scales={{"quick": Scale(seeds=2)}},
       holds=at_most("x", "a", 1))
def {0}(trial, data):
    trial.record(method="a", x=0)
"""
    methods.write("both", body.format("table") + body.format("images"))
    pd.DataFrame({"a": range(5), "y": range(5)}).to_csv(methods.cwd / "mine.csv", index=False)
    said = methods.run("verify", "both", "--on", "mine.csv", "--dry-run").stdout
    assert "both:table" in said
    assert "both:images" not in said


def test_the_users_file_is_what_the_trial_receives(methods: Any, verdicts: Callable[..., dict[str, Any]]) -> None:
    path = methods.cwd / "mine.csv"
    pd.DataFrame({"a": range(5), "y": range(5)}).to_csv(path, index=False)
    first = methods.events("good", "--on", "mine.csv", "--store", "on")
    assert list(verdicts(first)) == ["good:on-data"]
    assert [event["cell"] for event in first if event["event"] == "trial"] == [{"dataset": "mine.csv"}] * 2
    rows = methods.run("query", "select rows from trials", "--store", "on").stdout
    assert "5" in rows
    assert methods.events("good", "--on", "./mine.csv", "--store", "on")[0]["trials"] == 0
    pd.DataFrame({"a": range(6), "y": range(6)}).to_csv(path, index=False)
    assert methods.run("verify", "good", "--on", "mine.csv", "--store", "on", "--dry-run").stdout.startswith(
        "good:on-data: 2 of 2 trials to run"
    )
    path.write_text("")
    refused = methods.run("verify", "good", "--on", "mine.csv", "--store", "on")
    assert refused.returncode == 2
    assert "mine.csv" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_list_and_show_know_the_last_verdicts(methods: Any, verified: Any) -> None:
    rows = {row["slug"]: row for row in json.loads(methods.run("list", "--json").stdout)}
    assert rows["good"]["verdicts"] == {"holds": "supported", "fails": "not supported", "on-data": "supported"}
    assert rows["needy"] == {
        "slug": "needy",
        "title": "A throw-away method",
        "field": "testing",
        "venue": "nowhere",
        "interface": "function",
        "summary": "Written by a test.",
        "missing": ["no_such_module"],
        "verdicts": {},
    }
    lines = methods.run("list").stdout
    assert "function; 2 supported, 1 not supported" in lines
    assert "function; not verified yet" in lines
    shown = methods.run("show", "good").stdout
    assert "import     from cameraready.methods.good import shift" in shown
    assert "holds: It is small." in shown
    assert "last  supported at quick scale. " in shown
    claims = json.loads(methods.run("show", "good", "--json").stdout)["claims"]
    assert [claim["name"] for claim in claims] == ["holds", "fails", "on-data"]
    assert [claim["source"] for claim in claims] == ["Table 1", "", ""]
    assert claims[1]["last"]["outcome"] == "not supported"


def test_query_answers_over_all_trials(methods: Any, verified: Any) -> None:
    done = methods.run("query", "select _claim, count(*) from trials where _slug = 'good' group by all order by all")
    lines = [line for line in done.stdout.splitlines() if any(claim in line for claim in ("holds", "fails", "on-data"))]
    assert len(lines) == 3


HEAVY = ("torch", "numpy", "pandas", "scipy", "sklearn", "pyarrow", "duckdb", "joblib", "altair", "ray", "fsspec")


@pytest.mark.parametrize("arguments", [None, ["list"], ["list", "--json"], ["show", "heavy"]], ids=str)
def test_import_list_and_show_load_nothing_heavy(methods: Any, verified: Any, arguments: list[str] | None) -> None:
    act = "import cameraready" if arguments is None else f"from cameraready.cli import app; app({arguments!r})"
    code = f"import atexit, sys\natexit.register(lambda: print('LOADED', *sys.modules))\n{act}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=methods.cwd,
        env=methods.environment(),
        check=True,
    )
    loaded = done.stdout.rpartition("LOADED")[2].split()
    assert "cameraready" in loaded
    assert [name for name in HEAVY if name in loaded] == []
    assert len(loaded) < 600


def test_help_names_every_command(methods: Any) -> None:
    shown = methods.run("--help").stdout
    for command in ("list", "show", "verify", "report", "serve", "run", "query"):
        assert f"  {command} " in shown
    assert "Exit code: 0 when every trial ran" in methods.run("verify", "--help").stdout


def test_serve_serves_the_report(methods: Any, wait_until: Callable[..., bool]) -> None:
    import urllib.request

    (methods.cwd / "report").mkdir()
    (methods.cwd / "report" / "index.html").write_text("<title>mine</title>")
    process = methods.start("serve", "--port", "0", PYTHONUNBUFFERED="1")
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert answer.read() == b"<title>mine</title>"
    finally:
        process.send_signal(2)
        process.communicate(timeout=10)
    assert process.returncode == 0


def test_a_store_that_is_a_file_is_refused_in_a_line(methods: Any) -> None:
    (methods.cwd / "file").write_text("")
    done = methods.run("verify", "good:holds", "--store", "file")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Not a directory" in done.stderr
    assert Path(methods.cwd / "file").read_text() == ""


def test_run_hands_everything_after_the_slug_to_the_methods_own_command(methods: Any) -> None:
    own = """
import typer

app = typer.Typer()

@app.command()
def audit(path: str, level: int = 1) -> None:
    "Audit a file."
    print(path, level)
    raise SystemExit(level)
"""
    methods.write("commanding", CLAIMS, files={"__main__.py": own})
    done = methods.run("run", "commanding", "x y.npz", "--level", "3")
    assert (done.stdout, done.returncode) == ("x y.npz 3\n", 3)
    asked = methods.run("run", "commanding", "--help")
    assert "Audit a file." in asked.stdout
    assert "cameraready run commanding " in asked.stdout
    assert "methods with a command: commanding" in methods.run("run").stdout
    assert "methods with a command: commanding" in methods.run("run", "--help").stdout
    refused = methods.run("run", "good")
    assert refused.returncode == 2
    assert "error: good has no command" in refused.stderr
    assert "did you mean" in methods.run("run", "goood").stderr
