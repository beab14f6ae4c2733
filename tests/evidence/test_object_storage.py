"""The store in object storage: an S3 server of its own process, and the command line against it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("s3fs", reason="needs cameraready[s3]")
pytest.importorskip("moto", reason="needs moto[server], of the extra test")

CLAIMS = """
@claim("small", says="It is small.", factors={"k": [1, 2]}, scales={"quick": Scale(seeds=4)},
       holds=ratio("cost", "new", to="old", at_most=0.5))
def small(trial, k):
    base = trial.rng.lognormal(0, 0.2)
    trial.record(method="old", cost=base)
    trial.record(method="new", cost=0.4 * base * trial.rng.lognormal(0, 0.1))
"""
STORE = "s3://evidence/of/ours"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket on an S3 server that this test starts, found through the environment as any user's would be."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.mkdir("evidence")
    yield files
    files.rm("evidence", recursive=True)
    server.stop()


def test_verify_resume_list_query_and_report_work_on_object_storage(
    methods: Any, bucket: Any, verdicts: Callable[..., dict[str, Any]]
) -> None:
    methods.write("planted", CLAIMS)
    local = verdicts(methods.events("planted", "--store", "here", "--jobs", "1"))
    first = methods.events("planted", "--store", STORE, "--jobs", "1")
    assert sum(event["event"] == "trial" for event in first) == 8
    assert verdicts(first) == local
    assert local["planted:small"]["outcome"] == "supported"

    bucket.invalidate_cache()
    files = sorted(bucket.find("evidence"))
    assert len([path for path in files if path.endswith(".parquet")]) == 8
    assert not [path for path in files if "tmp" in path]

    damaged, lost, *_ = [path for path in files if path.endswith(".parquet")]
    bucket.pipe_file(damaged, bucket.cat_file(damaged)[:500])
    bucket.rm_file(lost)
    second = methods.events("planted", "--store", STORE, "--jobs", "1")
    assert sum(event["event"] == "trial" for event in second) == 2
    assert [damaged in event["text"] for event in second if event["event"] == "message"] == [True]
    assert verdicts(second) == local
    planned = methods.run("verify", "planted", "--store", STORE, "--dry-run").stdout
    assert planned == "planted:small: 0 of 8 trials to run\n"

    rows = {row["slug"]: row for row in json.loads(methods.run("list", "--json", "--store", STORE).stdout)}
    assert rows["planted"]["verdicts"] == {"small": "supported"}
    counted = methods.run("query", "select 'n=' || count(*) as n from trials", "--store", STORE)
    assert "n=16" in counted.stdout, counted.stderr
    done = methods.run("report", "planted", "--store", STORE, "--out", "site")
    assert done.returncode == 0, done.stderr
    pages = "".join(page.read_text() for page in (methods.cwd / "site").rglob("*.html"))
    assert local["planted:small"]["sentence"].partition(" (")[0] in pages


def test_a_bucket_that_is_not_there_is_told_in_a_line(methods: Any, bucket: Any) -> None:
    methods.write("planted", CLAIMS)
    done = methods.run("verify", "planted", "--store", "s3://nobodys-bucket/x", "--seeds", "1", "--set", "k=1")
    assert done.returncode in (1, 2)
    assert "s3://nobodys-bucket/x" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_server_that_does_not_answer_is_told_in_a_line(methods: Any, bucket: Any) -> None:
    methods.write("planted", CLAIMS)
    nobody = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    done = methods.run("verify", "planted", "--store", STORE, **nobody)
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
