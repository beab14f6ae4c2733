"""The intervals cover what the docstrings promise: fixed seeds, each coverage from 2,000 repetitions (s.e. 0.5 %)."""

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cameraready.evidence import statistics
from cameraready.evidence.statistics import (
    is_constant,
    least_squares_slopes,
    mean_interval,
    page_correlation,
    page_margin,
    rank_interval,
)

REPETITIONS = 2000
SIZES = (2, 3, 4, 5, 8, 10, 20, 50)

# Centred at their mean.
CONTINUOUS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "gamma with shape 4": lambda rng, shape: rng.gamma(4, size=shape) - 4,
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
    "uniform": lambda rng, shape: rng.uniform(-1, 1, size=shape),
    "Student t, 3 degrees of freedom": lambda rng, shape: rng.standard_t(3, size=shape),
    "log-normal": lambda rng, shape: np.exp(rng.normal(size=shape)) - np.exp(0.5),
}

# Two methods that do the same, so that there is no effect: what a rule sees of them.
NO_EFFECT = {
    "difference of exponentials": lambda rng, shape: rng.exponential(size=shape) - rng.exponential(size=shape),
    "difference of log-normals": lambda rng, shape: np.exp(rng.normal(size=shape)) - np.exp(rng.normal(size=shape)),
    "log ratio of gammas": lambda rng, shape: np.log(rng.gamma(1, size=shape) / rng.gamma(1, size=shape)),
}


def _ends(draw, n):
    rng = np.random.default_rng([n, 7])
    return mean_interval(draw(rng, (REPETITIONS, n)))


def _coverage(draw, n):
    low, high = _ends(draw, n)
    return np.mean((low <= 0) & (high >= 0))


@pytest.mark.parametrize("n", SIZES)
def test_the_interval_covers_the_mean_of_normal_data_and_finds_nothing_where_there_is_nothing(n):
    low, high = _ends(CONTINUOUS["normal"], n)
    assert 0.92 <= np.mean((low <= 0) & (high >= 0)) <= 0.98
    # Both one-sided rules, "above 0" and "below 0", have the same chance of a false alarm.
    assert (np.mean(low > 0) + np.mean(high < 0)) / 2 <= 0.03


@pytest.mark.parametrize("n", SIZES)
def test_the_interval_covers_the_mean_of_moderately_skewed_data(n):
    assert 0.92 <= _coverage(CONTINUOUS["gamma with shape 4"], n) <= 0.98


@pytest.mark.parametrize("n", SIZES)
def test_the_interval_covers_the_mean_of_strongly_skewed_data_as_far_as_documented(n):
    assert (0.92 if n >= 8 else 0.86) <= _coverage(CONTINUOUS["exponential"], n) <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ["uniform", "Student t, 3 degrees of freedom"])
def test_the_interval_covers_the_mean_of_symmetric_data_with_short_or_long_tails(name, n):
    assert 0.915 <= _coverage(CONTINUOUS[name], n) <= 0.98  # uniform, n = 3: 92.0 % by design of Student's t


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("name", list(NO_EFFECT))
def test_no_effect_between_skewed_methods_is_called_supported_at_most_3_percent_for_few_seeds(name, n):
    low, high = _ends(NO_EFFECT[name], n)
    assert (np.mean(low > 0) + np.mean(high < 0)) / 2 <= 0.03


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 8, 10, 20, 50])
@pytest.mark.parametrize("name", list(NO_EFFECT))
def test_no_effect_between_skewed_methods_is_called_supported_at_most_3_percent_for_more_seeds(name, n):
    low, high = _ends(NO_EFFECT[name], n)
    assert (np.mean(low > 0) + np.mean(high < 0)) / 2 <= 0.03


@pytest.mark.parametrize("n", [5, 8, 20])
def test_the_bootstrap_of_many_samples_equals_that_of_scipy_for_each(n):
    samples = np.random.default_rng(n).uniform(size=(3, n))
    samples[:, 0], samples[:, 1] = 0, 1
    low, high = statistics._bca_interval(samples, 0.97)
    for row, row_low, row_high in zip(samples, low, high, strict=True):
        expected = stats.bootstrap(
            (row,),
            lambda values, axis: np.round(np.mean(values, axis=axis), 12),
            confidence_level=0.97,
            n_resamples=statistics.RESAMPLES,
            method="BCa",
            rng=np.random.default_rng(statistics.BOOTSTRAP_SEED),
        ).confidence_interval
        assert row_low == pytest.approx(expected.low, rel=1e-9)
        assert row_high == pytest.approx(expected.high, rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_few_values_have_students_interval(n):
    values = np.random.default_rng(n).normal(size=n)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert mean_interval(values) == pytest.approx((expected.low, expected.high))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [2, 3, 5, 20])
@pytest.mark.parametrize("value", [0.0, 0.1, -1e9, 1e-30])
def test_constant_values_have_an_interval_of_length_zero(n, value):
    assert mean_interval(np.full(n, value)) == (value, value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("values", [[0, 0, 0, 0, 1], [1, 1, 0, 0, 0, 0], [5, 5, 5, 5, 5, 5, 5, 9], [0] * 19 + [1e6]])
def test_tied_values_have_a_finite_interval_around_their_mean(values):
    low, high = mean_interval(values)
    assert np.isfinite([low, high]).all()
    assert low < np.mean(values) < high


def test_constant_samples_among_others_are_recognised():
    samples = np.array([[1.0, 2.0, 3.0, 4.0, 5.0], [0.3, 0.1 + 0.2, 0.3, 0.3, 0.3], [0.0, 0.0, 0.0, 0.0, 0.0]])
    low, high = mean_interval(samples)
    assert is_constant(samples).tolist() == [False, True, True]
    assert (high - low > 0).tolist() == [True, False, False]


def test_one_value_has_no_interval():
    with pytest.raises(ValueError, match="at least 2"):
        mean_interval([1.0])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(-50, 50), min_size=2, max_size=12, unique=True),
    st.floats(0.1, 100),
    st.floats(-100, 100),
)
def test_the_interval_moves_and_stretches_with_the_values(values, scale, shift):
    low, high = mean_interval(np.array(values, dtype=float))
    moved = mean_interval(scale * np.array(values) + shift)
    mirrored = mean_interval(-np.array(values, dtype=float))
    assert moved == pytest.approx((scale * low + shift, scale * high + shift), rel=1e-6, abs=1e-6)
    assert mirrored == pytest.approx((-high, -low), rel=1e-6, abs=1e-6)


def test_the_slope_is_that_of_the_least_squares_line():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(1, 5, 6), rng.normal(size=(3, 6))
    assert least_squares_slopes(x, y) == pytest.approx([np.polyfit(x, row, 1)[0] for row in y])
    assert least_squares_slopes(x, np.full(6, 0.1)) == 0


def test_the_page_correlation_is_the_mean_of_spearmans():
    blocks = np.random.default_rng(0).normal(size=(4, 6))
    spearman = [stats.spearmanr(np.arange(6), block).statistic for block in blocks]
    assert page_correlation(blocks) == pytest.approx(np.mean(spearman))


def test_the_page_interval_is_above_zero_exactly_when_scipys_p_value_is_below_one_in_forty():
    rng = np.random.default_rng(0)
    decisions = set()
    for m, k, strength in product((2, 3, 5, 8), (3, 4, 5), np.linspace(0, 1, 12)):
        blocks = rng.normal(size=(m, k)) + strength * np.arange(k)
        p = stats.page_trend_test(blocks, method="exact").pvalue
        assert (page_correlation(blocks) - page_margin(m, k) > 0) == (p < 0.025), (m, k, p)
        decisions.add(p < 0.025)
    assert decisions == {True, False}


def test_the_page_margin_of_many_levels_continues_that_of_few():
    assert page_margin(10, 9) == pytest.approx(page_margin(10, 8) * np.sqrt(7 / 8), rel=0.03)


def test_always_being_first_of_two_is_shown_by_six_seeds_and_not_by_five():
    assert rank_interval(np.ones(5), 2)[1] > 1.5 > rank_interval(np.ones(6), 2)[1]
    assert rank_interval(np.ones(6), 2)[0] == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 8, 10, 15])
def test_one_of_two_equal_methods_is_called_first_with_at_most_3_percent(n):
    firsts = range(n + 1)
    called = [rank_interval(np.repeat([1.0, 2.0], [first, n - first]), 2)[1] < 1.5 for first in firsts]
    assert sum(comb(n, first) for first in firsts if called[first]) / 2**n <= 0.03
