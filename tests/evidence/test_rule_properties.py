"""Planted effects are found, planted nothing is not, and rules do not depend on what they must not depend on."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cameraready.evidence import agree, difference, rank, ratio

OURS, PEER = "QKMeans", "k-means++ (scikit-learn)"


def paired(ours, peer, metric="seconds"):
    """A table with one cell: the value of each method in each seed."""
    table = pd.DataFrame(
        {"seed": seed, "method": name, metric: values[seed]}
        for name, values in ((OURS, ours), (PEER, peer))
        for seed in range(len(values))
    )
    table.attrs["factors"] = []
    return table


# Planted effects and planted nothing: 200 experiments each. A rate of 3 % gives more than 14 in 1 of 1,000 such tests.

EXPERIMENTS, ALLOWED = 200, 14  # n = 3 seeds each


def _experiment(index, factor, n=3):
    rng = np.random.default_rng([index, 11])
    difficulty = np.exp(rng.normal(size=n))
    noise = np.exp(0.05 * rng.normal(size=(2, n)))
    return paired(factor * difficulty * noise[0], difficulty * noise[1])


def _supported(rule, factor):
    return sum(rule(_experiment(index, factor)).verdict == "supported" for index in range(EXPERIMENTS))


def test_a_method_that_does_nothing_is_not_called_faster():
    assert _supported(ratio("seconds", OURS, to=PEER, at_most=1.0), 1.0) <= ALLOWED


def test_a_method_exactly_at_the_margin_is_not_called_equivalent():
    assert _supported(agree("seconds", OURS, to=PEER, within=0.2, relative=True), 1.2) <= ALLOWED


def test_an_effect_of_the_stated_size_is_found():
    assert _supported(ratio("seconds", OURS, to=PEER, at_most=0.5), 0.25) >= 0.95 * EXPERIMENTS
    assert _supported(ratio("seconds", OURS, to=PEER, at_most=0.1), 0.25) == 0


# Properties

positive = st.floats(0.1, 10)
samples = st.integers(2, 7).flatmap(
    lambda n: st.tuples(st.lists(positive, min_size=n, max_size=n), st.lists(positive, min_size=n, max_size=n))
)
properties = settings(max_examples=20, deadline=None)


def _ends(finding):
    return np.array([finding.effect, finding.low, finding.high])


@properties
@given(samples, st.floats(1e-6, 1e6))
def test_the_unit_of_the_metric_does_not_change_a_ratio(values, scale):
    rule = ratio("seconds", OURS, to=PEER, at_most=1)
    scaled = rule(paired(*(scale * np.array(side) for side in values)))
    assert _ends(scaled) == pytest.approx(_ends(rule(paired(*values))), rel=1e-6, nan_ok=True)


@properties
@given(samples, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(values, random):
    table = paired(*values)
    order = list(table.index)
    random.shuffle(order)
    for rule in (ratio("seconds", OURS, to=PEER, at_most=1), rank("seconds", OURS, at_most=1.5)):
        assert repr(rule(table.loc[order])) == repr(rule(table))


@properties
@given(samples)
def test_swapping_the_methods_inverts_the_ratio(values):
    effect, low, high = _ends(ratio("seconds", OURS, to=PEER, at_most=1)(paired(*values)))
    swapped = _ends(ratio("seconds", PEER, to=OURS, at_most=1)(paired(*values)))
    assert swapped == pytest.approx([1 / effect, 1 / high, 1 / low], rel=1e-6, nan_ok=True)


@properties
@given(samples)
def test_the_same_values_in_twice_as_many_seeds_narrow_the_interval(values):
    rule = difference("seconds", OURS, to=PEER, at_most=1)
    few, many = rule(paired(*values)), rule(paired(*(side * 2 for side in values)))
    assert many.effect == pytest.approx(few.effect)
    assert not many.high - many.low > few.high - few.low
