"""Plans: factors x seeds at a scale."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from cameraready.evidence.plan import TrialSpec, claims_of, plan

CLAIMS = """
@claim("a", says="", factors={"dataset": Dataset("table", default=["wine", "iris"]), "k": [1, 2], "n": 10},
       scales={"quick": Scale(seeds=2), "full": Scale(seeds=3, k=[1, 2, 4])}, holds=at_most("x", "m", 1), timeout=7)
def a(trial, dataset, k, n):
    trial.record(method="m", x=0)

@claim("b", says="", factors={"dataset": Dataset("table", default=["wine", "iris"]), "k": [1, 2], "n": 10},
       scales={"quick": Scale(seeds=2)}, holds=at_most("x", "m", 1))
def b(trial, dataset, k, n):
    trial.record(method="m", x=0)
"""


@pytest.fixture
def planned(methods: Any) -> Any:
    methods.write("one", CLAIMS)
    methods.write("two", CLAIMS)

    def make(scale: str = "quick", *, slug: str = "one", name: str = "a", **options: Any) -> list[TrialSpec]:
        claim = next(claim for claim in claims_of(slug) if claim.name == name)
        return plan(slug, claim, scale, **options)

    with methods.visible():
        yield make


def test_trials_are_the_full_cross_product_of_factors_and_seeds(planned: Any) -> None:
    specs = planned()
    cells = {(spec.cell["dataset"], spec.cell["k"], spec.cell["n"], spec.seed) for spec in specs}
    assert cells == {(name, k, 10, seed) for name in ("wine", "iris") for k in (1, 2) for seed in (0, 1)}
    assert len({spec.fingerprint for spec in specs}) == len(specs) == 8
    assert {spec.timeout for spec in specs} == {7}


def test_a_larger_scale_contains_the_trials_of_a_smaller_one(planned: Any) -> None:
    quick, full = ({spec.fingerprint for spec in planned(scale)} for scale in ("quick", "full"))
    assert quick < full
    assert len(full) == 2 * 3 * 3


def test_seeds_and_factors_can_be_set_and_a_value_given_twice_counts_once(planned: Any) -> None:
    specs = planned(seeds=1, overrides={"k": [8, 8], "dataset": ["wine"]})
    assert [(spec.seed, spec.cell["k"]) for spec in specs] == [(0, 8)]


def test_the_users_file_replaces_the_data_sets_and_its_content_tells_trials_apart(planned: Any) -> None:
    first = planned(on="/some/where/mine.csv", on_digest="1")
    second = planned(on="/some/where/mine.csv", on_digest="2")
    assert {spec.cell["dataset"] for spec in first} == {"mine.csv"}
    assert len(first) == 4
    assert not {spec.fingerprint for spec in first} & {spec.fingerprint for spec in second}


def test_equal_code_in_two_claims_or_two_methods_gives_different_trials(planned: Any) -> None:
    groups = [planned(slug=slug, name=name) for slug in ("one", "two") for name in ("a", "b")]
    assert len({spec.fingerprint for group in groups for spec in group}) == 4 * 8


def test_one_and_one_point_zero_and_true_are_different_values(planned: Any) -> None:
    assert len({planned(overrides={"k": [value]})[0].fingerprint for value in (1, 1.0, True, "1")}) == 4


def test_a_trial_travels_by_pickle_and_has_a_name(planned: Any) -> None:
    spec = planned()[0]
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.name == "one:a [dataset=wine, k=1, n=10, seed=0]"
