"""Closed forms against simulation, a second closed form and quadrature; each would fail with a constant off by 1 %."""

import time

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import ndtr

from cameraready.methods.preprocess_gain import (
    acc_bayes,
    acc_plugin,
    acc_plugin_unbalanced,
    break_even,
    efficiency,
    kept_energy_pca,
)
from cameraready.methods.preprocess_gain.plugin_accuracy import class_accuracies, probability_positive

POINTS = [(m, d, n) for m in (0.5, 1.0, 2.0, 3.0) for d in (1, 2, 10, 100, 2000) for n in (2, 50)]


@pytest.mark.parametrize(("m", "d", "n"), POINTS)
def test_the_accuracy_is_that_of_simulated_classifiers(m, d, n):
    """40 points, four standard errors each: a false alarm in 1 of 400 such suites; the seed is fixed."""
    rng = np.random.default_rng([int(10 * m), d, n])
    along = m + rng.normal(size=100_000) / np.sqrt(n)
    across = rng.chisquare(d - 1, size=100_000) / n if d > 1 else 0.0
    accuracies = ndtr(m * along / np.sqrt(along**2 + across))
    error = accuracies.std() / np.sqrt(100_000)
    assert abs(acc_plugin(m, d, n) - accuracies.mean()) < 4 * error + 1e-12


def test_the_simulation_would_notice_one_percent_in_m_d_or_n():
    for wrong in ((1.01, 100, 50), (1, 101, 50), (1, 100, 50.5)):
        assert abs(acc_plugin(*wrong) - acc_plugin(1, 100, 50)) > 4 * 1e-4


@pytest.mark.parametrize(
    ("m", "d", "n"), [(1, 50, 10), (2, 50, 10), (1, 500, 100), (0.5, 100, 1000), (3, 2, 3), (12, 9000, 3)]
)
def test_the_accuracy_is_that_of_quadrature_over_normal_and_chi_squared(m, d, n):
    """E Phi(m A / sqrt(A^2 + C/n)) by Gauss-Hermite and adaptive quadrature; the same to 1e-8."""
    x, w = np.polynomial.hermite_e.hermegauss(100)
    along, w = m + x / np.sqrt(n), w / w.sum()
    law = stats.chi2(d - 1)

    def integrand(c):
        return law.pdf(c) * (w * ndtr(m * along / np.sqrt(along**2 + c / n))).sum()

    low, high = law.ppf([1e-13, 1 - 1e-13])
    # Split where the mass is; for two degrees of freedom and fewer the density is largest at 0.
    value = sum(
        integrate.quad(integrand, a, b, epsabs=1e-11, limit=200)[0]
        for a, b in zip(law.ppf([1e-13, 0.1, 0.5, 0.9]), [*law.ppf([0.1, 0.5, 0.9]), high], strict=True)
    )
    if d > 2:
        assert low < high
        assert acc_plugin(m, d, n) == pytest.approx(value, abs=1e-7)
    else:
        assert acc_plugin(m, d, n) == pytest.approx(value, abs=1e-5)


def test_the_integral_is_the_series_of_noncentral_chi_squared_variables():
    """P(a chi2_d(x) > b chi2_d(y)) as a Poisson mixture of beta distributions: a second closed form, to 1e-10."""
    for d, a, b, x, y in ((1, 1.0, 1.0, 3.0, 0.5), (7, 0.4, 1.3, 12.0, 2.0), (40, 2.0, 1.0, 0.0, 30.0)):
        j = np.arange(200)
        weights = stats.poisson.pmf(j, x / 2)[:, None] * stats.poisson.pmf(j, y / 2)
        # a U > b V with U / (U + V) ~ Beta(d/2 + i, d/2 + j): more than b / (a + b).
        tail = stats.beta.sf(b / (a + b), d / 2 + j[:, None], d / 2 + j)
        assert probability_positive(d, a, b, x, y) == pytest.approx((weights * tail).sum(), abs=1e-10)


@pytest.mark.parametrize(("n1", "n2"), [(50, 50), (80, 20), (95, 5), (1, 3)])
@pytest.mark.parametrize(("d", "m", "sigma"), [(100, 1.0, 1.0), (3, 0.6, 0.5)])
def test_unbalanced_accuracies_are_those_of_simulated_means(n1, n2, d, m, sigma):
    """Means drawn in d dimensions, each rule's accuracy exact; four standard errors, false alarm 6e-5 each."""
    rng = np.random.default_rng([n1, d])
    draws = 10_000
    first = sigma * rng.normal(size=(draws, d)) / np.sqrt(n1)
    second = sigma * rng.normal(size=(draws, d)) / np.sqrt(n2)
    first[:, 0] += m
    second[:, 0] -= m
    w = first - second
    b = ((second**2).sum(1) - (first**2).sum(1)) / 2
    length = sigma * np.linalg.norm(w, axis=1)
    for told, seen in zip(
        class_accuracies(m, d, n1, n2, sigma),
        (ndtr((w[:, 0] * m + b) / length), ndtr((w[:, 0] * m - b) / length)),
        strict=True,
    ):
        assert abs(told - seen.mean()) < 4 * seen.std() / np.sqrt(draws)
    assert acc_plugin_unbalanced(m, d, n1, n2, sigma) == pytest.approx(
        np.mean(class_accuracies(m, d, n1, n2, sigma)), abs=1e-14
    )


def test_the_accuracy_falls_with_dimension_and_rises_with_labels_and_separation():
    m, d, n = np.ix_([0.3, 1.0, 2.5], [1, 2, 5, 20, 100, 500, 5000], [2, 10, 100, 10_000])
    accuracy = acc_plugin(m, d, n)
    assert (np.diff(accuracy, axis=1) < 0).all()
    assert (np.diff(accuracy[:, 1:], axis=2) > 0).all()
    assert (np.diff(accuracy, axis=0) > 0).all()
    assert (accuracy <= acc_bayes(m) + 1e-14).all()
    assert (accuracy[:, 1:] < acc_bayes(m)).all()


def test_limits_are_exact():
    assert acc_plugin(0.0, 30, 7) == pytest.approx(0.5, abs=1e-14)
    assert acc_plugin(1.3, 30, np.inf) == acc_bayes(1.3)
    assert acc_plugin(1.3, 30, 1e12) == pytest.approx(acc_bayes(1.3), abs=1e-9)
    assert acc_plugin(2.6, 30, 9, 2.0) == pytest.approx(acc_plugin(1.3, 30, 9), abs=1e-14)
    assert acc_plugin_unbalanced(1.3, 30, np.inf, np.inf) == pytest.approx(acc_bayes(1.3), abs=1e-14)
    assert acc_plugin([8.0, 40.0, 90.0, 1e5], 5, 3) == pytest.approx(1.0, abs=1e-12)
    # One dimension: w is a normal variable, and only its sign counts.
    wrong = stats.norm.sf(0.8 * np.sqrt(6))
    assert acc_plugin(0.8, 1, 6) == pytest.approx((1 - wrong) * ndtr(0.8) + wrong * ndtr(-0.8), abs=1e-12)


def test_the_values_of_the_specification_are_met():
    assert acc_plugin(1.0, [1, 2, 5, 20, 100, 500], 20) == pytest.approx(
        [0.8413, 0.8348, 0.8174, 0.7598, 0.6578, 0.5776], abs=5e-5
    )
    n = np.arange(2, 300)
    for m, peak, gain in ((0.5, 75, 0.100), (1.0, 15, 0.177), (2.0, 2, 0.247)):
        gains = acc_plugin(m, 10, n) - acc_plugin(m, 200, n)
        assert n[gains.argmax()] == peak
        assert gains.max() == pytest.approx(gain, abs=5e-4)


def test_the_break_even_share_makes_both_accuracies_equal():
    m, n = np.array([[0.5], [1.0], [2.0]]), np.array([5, 20, 200, 2000])
    share = break_even(m, 200, 10, n)
    np.testing.assert_allclose(acc_plugin(np.sqrt(share) * m, 10, n), acc_plugin(m, 200, n), atol=1e-9)
    assert (np.diff(share, axis=1) > 0).all()
    assert break_even(1.0, 200, 200, 10) == 1.0
    assert break_even(1.0, 200, 10, [20, 200, 2000]) == pytest.approx([0.264, 0.542, 0.914], abs=1e-3)
    assert break_even(2.0, 200, 10, [20, 200, 2000]) == pytest.approx([0.374, 0.811, 0.977], abs=1e-3)


@pytest.mark.parametrize(
    ("m", "d", "n", "share"),
    [(1.0, 100, 1000, 0.5), pytest.param(1.0, 300, 1500, 0.5, marks=pytest.mark.slow), (1.5, 200, 1000, 0.2)],
)
def test_kept_energy_is_that_of_simulated_components(m, d, n, share):
    """Four standard errors of 40 fits (near 0.5 % of the value) and 1 % for finite d: 3 % off would fail."""
    rng = np.random.default_rng(d)
    kept = []
    for _ in range(40):
        y = np.where(rng.random(n) < share, 1, -1)
        X = rng.normal(size=(n, d))
        X[:, 0] += m * y
        X -= X.mean(axis=0)
        vector = np.linalg.eigh(X.T @ X)[1][:, -1]
        kept.append(vector[0] ** 2)
    told, error = kept_energy_pca(m, d, n, share=share), np.std(kept) / np.sqrt(40)
    assert error < 0.01 * told
    assert abs(np.mean(kept) - told) < 4 * error + 0.01 * told


def test_below_the_threshold_no_energy_is_kept():
    assert kept_energy_pca(0.5, 1000, 1000) == 0.0
    assert kept_energy_pca(2.0, 100, 1e9) == pytest.approx(1.0, abs=1e-6)
    assert kept_energy_pca(2.0, 100, 1000, 2.0) == pytest.approx(kept_energy_pca(1.0, 100, 1000))


def test_efficiency_is_the_share_of_the_error_removed():
    assert efficiency(0.6, 0.8) == pytest.approx(0.5)
    assert efficiency(0.6, 0.8, 0.9) == pytest.approx(2 / 3)
    raw, processed = (acc_plugin_unbalanced(1, d, [50, 80, 95], [50, 20, 5]) for d in (100, 10))
    assert efficiency(raw, processed, acc_bayes(1.0)) == pytest.approx([0.857, 0.867, 0.781], abs=2e-3)
    with pytest.raises(ValueError, match="nothing to gain"):
        efficiency(0.9, 0.95, 0.9)


def test_a_call_takes_less_than_a_millisecond():
    acc_plugin(1.0, 200, 50)
    start = time.perf_counter()
    for _ in range(100):
        acc_plugin(1.0, 200, 50)
    assert time.perf_counter() - start < 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: acc_plugin(-1, 5, 3), "m=-1"),
        (lambda: acc_plugin(1, 0, 3), "d=0"),
        (lambda: acc_plugin(1, 5, 0.5), "n=0.5"),
        (lambda: acc_plugin(1, 5, 3, 0), "sigma=0"),
        (lambda: acc_plugin(np.nan, 5, 3), "m=nan"),
        (lambda: acc_plugin_unbalanced(1, 5, 0, 3), "n1=0"),
        (lambda: break_even(1, 5, 6, 3), "k=6 is larger than d=5"),
        (lambda: break_even(0, 5, 2, 3), "m=0"),
        (lambda: kept_energy_pca(1, 5, 10, share=2), "share=2"),
    ],
)
def test_arguments_out_of_range_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
