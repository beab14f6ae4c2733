"""The weights make the class independent of the flagged concepts."""

from functools import partial

import numpy as np
import pytest

from cameraready.methods.cbdebug import augment_probability, ipw_weights, permutation_weights

WEIGHTINGS = [
    pytest.param(partial(permutation_weights, n_permutations=2), id="permutation"),
    pytest.param(ipw_weights, id="ipw"),
]


def agreeing_pairs(n: int, agreement: float, rng: np.random.Generator):
    y = rng.integers(0, 2, n)
    return y, np.where(rng.random(n) < agreement, y, 1 - y)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_independent_class_and_concept_have_weights_of_one(weighting):
    rng = np.random.default_rng(0)
    y, v = rng.integers(0, 2, 4000), rng.normal(size=4000)
    assert np.abs(weighting(y, v).weights - 1).mean() < 0.1


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("agreement", [0.7, 0.9])
def test_a_binary_concept_has_the_known_ratio_of_probabilities_as_weight(weighting, agreement):
    y, v = agreeing_pairs(4000, agreement, np.random.default_rng(1))
    weights = weighting(y, v).weights
    for a in (0, 1):
        for b in (0, 1):
            cell = (y == a) & (v == b)
            assert weights[cell].mean() == pytest.approx((y == a).mean() * (v == b).mean() / cell.mean(), rel=0.1)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_weighted_concept_and_class_are_uncorrelated(weighting):
    rng = np.random.default_rng(2)
    y = rng.integers(0, 2, 3000)
    v = rng.normal(size=(3000, 3)) + y[:, None] * [1.0, -0.7, 0.0]
    u = weighting(y, v).weights

    def gap(j, w):
        return abs(np.average(v[y == 1, j], weights=w[y == 1]) - np.average(v[y == 0, j], weights=w[y == 0]))

    assert all(gap(j, u) < 0.5 * gap(j, np.ones(3000)) for j in (0, 1))


def test_more_than_two_classes_have_the_known_ratio_too():
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 4000)
    v = np.where(rng.random(4000) < 0.8, y == 2, rng.random(4000) < 0.5).astype(float)
    weights = permutation_weights(y, v, n_permutations=1).weights
    cell = (y == 2) & (v == 0)
    assert weights[cell].mean() == pytest.approx((y == 2).mean() * (v == 0).mean() / cell.mean(), rel=0.15)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_a_constant_concept_has_uniform_weights(weighting):
    found = weighting([0, 1] * 20, np.full(40, 3.0))
    assert found.method == "uniform"
    assert (found.weights == 1).all()


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_weights_have_mean_one_and_are_reproduced_by_their_seed(weighting):
    y, v = agreeing_pairs(200, 0.9, np.random.default_rng(4))
    first, second = weighting(y, v, random_state=3), weighting(y, v, random_state=3)
    assert first.weights.mean() == pytest.approx(1)
    assert (first.weights == second.weights).all()
    assert first.n_eff == pytest.approx(first.weights.sum() ** 2 / (first.weights**2).sum())


def test_collapsed_permutation_weights_give_way_to_propensity_weights(monkeypatch):
    from cameraready.methods.cbdebug import sample_weights

    monkeypatch.setattr(sample_weights, "LEAST_SHARE", 0.99)
    y, v = agreeing_pairs(400, 0.95, np.random.default_rng(5))
    with pytest.warns(UserWarning, match="of 400 images"):
        found = permutation_weights(y, v, n_permutations=1)
    assert found.method == "ipw"
    assert "collapsed" in str(found)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_a_class_that_never_parts_from_the_concept_is_told_by_the_overlap(weighting):
    y = np.arange(600) % 2
    with pytest.warns(UserWarning, match="images cover only"):
        found = weighting(y, y.astype(float))
    assert found.overlap == pytest.approx(0.5, abs=0.05)
    assert "independent pairs" in str(found)
    assert weighting(*agreeing_pairs(600, 0.9, np.random.default_rng(0))).overlap > 0.9


def test_augmentation_probabilities_of_impossible_weights_are_refused():
    for weights in ([1.0, np.nan], [1.0, -1.0], []):
        with pytest.raises(ValueError, match="finite and not negative"):
            augment_probability(weights)


def test_augmentation_is_certain_for_the_smallest_weight_and_never_for_the_largest():
    q = augment_probability([0.2, 0.6, 1.0], gamma=2.0)
    assert q.tolist() == pytest.approx([1.0, 0.25, 0.0])
    assert (augment_probability(np.ones(5)) == 0).all()


@pytest.mark.parametrize(
    ("y", "v", "said"),
    [
        ([0, 1, 0], [1.0, 2.0], "y has 3 entries for 2"),
        ([1, 1, 1], [1.0, 2.0, 3.0], "single class"),
        ([0, 1, 0], [1.0, np.nan, 3.0], "1 values that are not finite"),
        ([[0, 1], [1, 0]], [1.0, 2.0], "Multi-label"),
        ([0, 1], np.zeros((2, 0)), r"shape \(2, 0\)"),
    ],
)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_bad_input_is_refused(weighting, y, v, said):
    with pytest.raises(ValueError, match=said):
        weighting(y, v)


def test_a_class_of_one_sample_cannot_be_cross_fitted():
    with pytest.raises(ValueError, match="has one sample"):
        ipw_weights([0] * 9 + [1], np.arange(10.0))


@pytest.mark.slow
def test_a_hundred_thousand_images_and_twenty_concepts_take_at_most_a_minute_on_two_cores():
    import time

    rng = np.random.default_rng(6)
    y = rng.integers(0, 2, 100_000)
    v = rng.normal(size=(100_000, 20)) + 0.3 * y[:, None]
    start = time.process_time()
    permutation_weights(y, v)
    assert time.process_time() - start < 2 * 60
