"""A Ray cluster of two nodes on this machine: the same verdicts as here, also when a node is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs cameraready[cluster]")
pytestmark = pytest.mark.slow

CLAIMS = """
@claim("small", says="It is small.", factors={"k": [1, 2]}, scales={"quick": Scale(seeds=15)},
       holds=ratio("cost", "new", to="old", at_most=0.5))
def small(trial, k):
    import time
    time.sleep(0.3)
    base = trial.rng.lognormal(0, 0.2)
    trial.record(method="old", cost=base)
    trial.record(method="new", cost=0.4 * base * trial.rng.lognormal(0, 0.1))

@claim("broken", says="It runs.", factors={"k": 1}, scales={"quick": Scale(seeds=1)},
       holds=ratio("cost", "new", to="old", at_most=0.5))
def broken(trial, k):
    raise RuntimeError("on purpose")
"""


@pytest.fixture
def cluster(methods: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    methods.write("planted", CLAIMS)
    monkeypatch.setenv("CAMERAREADY_METHODS", str(methods.folder))
    monkeypatch.setenv(methods.mark, "1")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100_000_000})
    cluster.add_node(num_cpus=1, object_store_memory=100_000_000)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


def trials(events: list[dict[str, Any]]) -> list[str]:
    return [event["status"] for event in events if event["event"] == "trial"]


def test_a_cluster_gives_the_same_verdicts_and_failures_as_this_machine(
    methods: Any, cluster: Any, verdicts: Callable[..., dict[str, Any]]
) -> None:
    here = methods.events("planted", "--store", "here", code=1)
    there = methods.events("planted", "--store", "there", "--cluster", cluster.address, code=1)
    assert verdicts(there) == verdicts(here)
    assert verdicts(here)["planted:small"]["outcome"] == "supported"
    assert sorted(trials(there)) == ["failed"] + ["ok"] * 30
    nodes = methods.run("query", "select 'nodes=' || count(distinct _environment) from trials", "--store", "there")
    assert "nodes=" in nodes.stdout
    again = methods.events("planted:small", "--store", "there", "--cluster", cluster.address)
    assert again[0]["trials"] == 0


def test_a_node_that_is_lost_in_the_middle_changes_no_verdict(
    methods: Any, cluster: Any, verdicts: Callable[..., dict[str, Any]], wait_until: Callable[..., bool]
) -> None:
    here = verdicts(methods.events("planted:small", "--store", "here"))
    (node,) = cluster.worker_nodes
    stored = methods.cwd / "there" / "planted" / "small"
    killed: list[int] = []

    def kill() -> None:
        assert wait_until(lambda: len(list(stored.glob("*.parquet"))) >= 5, seconds=120)
        cluster.remove_node(node, allow_graceful=False)
        killed.append(len(list(stored.glob("*.parquet"))))

    killer = threading.Thread(target=kill)
    killer.start()
    there = methods.events("planted:small", "--store", "there", "--cluster", cluster.address)
    killer.join()
    assert killed
    assert killed[0] < 30
    assert verdicts(there) == here
    assert trials(there) == ["ok"] * 30


def test_an_address_where_no_cluster_is_is_wrong_use(methods: Any) -> None:
    methods.write("planted", CLAIMS)
    start = time.monotonic()
    done = methods.run("verify", "planted:small", "--cluster", "127.0.0.1:9", "--store", "nowhere", timeout=200)
    assert done.returncode == 2, done.stderr
    assert "error: --cluster 127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - start < 60
