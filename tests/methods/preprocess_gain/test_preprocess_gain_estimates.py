"""Estimated separations and predicted accuracies against simulation."""

import math

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import ndtr
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import NearestCentroid
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cameraready.methods.preprocess_gain import NotCovered, estimate_separation
from cameraready.methods.preprocess_gain.coverage import PluginRule, plugin_rule
from cameraready.methods.preprocess_gain.plugin_accuracy import class_accuracies
from cameraready.methods.preprocess_gain.prediction import accuracy_curve, predict_gains
from cameraready.methods.preprocess_gain.separation import (
    ClassStatistics,
    class_statistics,
    mean_m_squared,
    normal_scores,
    pairs_in_metric,
)


def two_classes(n1, n2, d, m, rng, law="normal"):
    codes = np.repeat([0, 1], [n1, n2])
    noise = rng.normal(size=(n1 + n2, d)) if law == "normal" else rng.standard_t(law, size=(n1 + n2, d))
    noise[:, 0] += m * (2 * codes - 1)
    return noise, codes


@pytest.mark.parametrize(("n1", "n2", "d", "m"), [(100, 100, 20, 2.0), (90, 30, 20, 2.0)])
def test_the_squared_separation_is_unbiased(n1, n2, d, m):
    """Four standard errors of 400 estimates, 2 % of m^2; the bias without correction would be 5 to 7 %."""
    rng = np.random.default_rng(n1)
    found = [mean_m_squared(class_statistics(*two_classes(n1, n2, d, m, rng))) for _ in range(400)]
    error = np.std(found) / 20
    assert error < 0.006 * m**2
    assert abs(np.mean(found) - m**2) < 4 * error
    assert d * (1 / n1 + 1 / n2) / 4 > 5 * error


@pytest.mark.slow
def test_the_jackknife_interval_covers_in_nineteen_of_twenty():
    """100 intervals of true coverage 0.95: 89 to 100 with probability 0.99."""
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(100):
        found = estimate_separation(*two_classes(40, 40, 10, 1.0, rng), seed=seed)
        covered += found.low < 1.0 < found.high
    assert covered >= 89


def test_classes_that_are_the_same_are_not_distinguishable():
    found = [estimate_separation(*two_classes(30, 30, 50, 0.0, np.random.default_rng(s))) for s in range(20)]
    assert sum(f.distinguishable for f in found) <= 2
    assert all(f.m_squared >= 0 for f in found)
    assert "not distinguishable from 0" in str(next(f for f in found if not f.distinguishable))


def test_outliers_do_not_move_the_estimate_on_normal_scores():
    X, codes = two_classes(300, 300, 10, 1.0, np.random.default_rng(0), law=2.1)
    clean = estimate_separation(X, codes)
    assert clean.heavy_tails
    X[5, 0] = 1e9
    assert estimate_separation(X, codes).m_squared == pytest.approx(clean.m_squared, rel=0.05)
    assert normal_scores(np.array([[1.0], [2.0], [1e9]]))[:, 0] == pytest.approx(stats.norm.ppf([1 / 6, 0.5, 5 / 6]))


def test_constant_features_and_more_features_than_samples_survive():
    rng = np.random.default_rng(0)
    X, codes = two_classes(10, 10, 200, 3.0, rng)
    X[:, 50:] = 4.0
    assert estimate_separation(X, codes).m_squared > 0
    assert estimate_separation(np.ones((8, 3)), [0, 1] * 4).m_squared == 0
    assert estimate_separation(rng.normal(size=(12, 4)), [0, 0, *[1] * 10]).n == 12


@pytest.mark.parametrize(("n", "d"), [(60, 12), (30, 80)])
def test_the_estimate_is_the_debiased_distance_behind_a_whitening_by_ledoit_and_wolf(n, d):
    """|mu_1 - mu_2|^2 / 4 - d (1/n_1 + 1/n_2) / 4 behind S^(-1/2), with fewer samples than dimensions too."""
    X, codes = two_classes(n // 3, n - n // 3, d, 2.0, np.random.default_rng(n))
    X = X * np.geomspace(3, 1, d)
    means, freedom = np.stack([X[codes == k].mean(axis=0) for k in (0, 1)]), n - 2
    residuals = X - means[codes]
    S, shrinkage = residuals.T @ residuals / freedom, ledoit_wolf_shrinkage(residuals, assume_centered=True)
    S = (1 - shrinkage) * S + shrinkage * np.trace(S) / d * np.eye(d)
    half = (means[0] - means[1]) / 2
    expected = half @ np.linalg.solve(S, half) - d * (1 / (n // 3) + 1 / (n - n // 3)) / 4
    found = estimate_separation(X, codes)
    assert found.m_squared == pytest.approx(expected, rel=1e-9)
    assert estimate_separation(1e-160 * X, codes).m_squared == pytest.approx(expected, rel=1e-9)  # free of units
    assert found.d_eff == pytest.approx(np.trace(S) ** 2 / np.trace(S @ S), rel=1e-9)


def test_a_large_variance_along_the_means_is_seen_with_fewer_samples_than_dimensions():
    """Variance 4 along mu and 1 elsewhere: nearest means tend to Phi(|mu| / 2), not to Phi(|mu|)."""
    rng, m, d = np.random.default_rng(0), [], []
    for _ in range(60):
        X, codes = two_classes(40, 40, 100, 0.0, rng)
        X[:, 0] = 2 * X[:, 0] + 1.6 * (2 * codes - 1)
        pairs = pairs_in_metric(class_statistics(X, codes), math.inf)
        m.append(pairs.m[0])
        d.append(pairs.d[0])
    # h'Vh / |h|^2 = 4, so m = 1.6 / 2 and d = tr(V^2) / 4^2 = (16 + 99) / 16; single estimates scatter by a quarter.
    assert np.median(m) == pytest.approx(0.8, rel=0.08)
    assert np.median(d) == pytest.approx(115 / 16, rel=0.25)


@pytest.fixture(scope="module")
def coloured():
    """Half difference of the means, and standard deviations, in 60 dimensions."""
    sd = np.geomspace(3, 0.2, 60)
    return np.random.default_rng(0).normal(size=60) * sd * 0.25, sd


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0, math.inf])
@pytest.mark.parametrize("n", [10, 100])
def test_effective_numbers_describe_the_rule_in_any_metric(coloured, alpha, n):
    """The reduction to (m, d) is exact for alpha = 0 and within 0.4 points else; simulation error 0.05 points."""
    mu, sd = coloured
    known = ClassStatistics(np.stack([mu, -mu]), sd**2, np.array([1e9, 1e9]), sd**2)
    pairs = pairs_in_metric(known, alpha)
    scale = np.ones(60) if math.isinf(alpha) else 1 / (sd**2 + alpha * (sd**2).mean())
    rng = np.random.default_rng(n)
    first, second = (sign * mu + rng.normal(size=(20_000, 60)) * sd / np.sqrt(n) for sign in (1, -1))
    w = (first - second) * scale
    b = ((second**2 - first**2) * scale).sum(axis=1) / 2
    seen = ndtr((w @ mu + b) / np.sqrt((w * w) @ sd**2)).mean()
    told = class_accuracies(pairs.m[0], pairs.d[0], n, n)[0]
    assert told == pytest.approx(seen, abs=0.0015 if alpha == 0 else 0.004)


@pytest.mark.parametrize(("n", "ridge"), [(40, 0.5), (100, 0.0), (100, 0.05), (400, 0.0), (400, 0.5)])
def test_the_accuracy_counts_the_estimated_covariance(coloured, n, ridge):
    """Discriminant analysis with a ridge, its covariance from the same n samples, within 0.5 points."""
    mu, sd = coloured
    level, freedom = (sd**2).mean(), n - 2
    known = ClassStatistics(np.stack([mu, -mu]), sd**2, np.array([1e9, 1e9]), sd**2)

    def implied(k):  # the ridge that acts like the metric k: lambda = k (1 - tr(V) / freedom)
        return k - ridge * level - k / freedom * (sd**2 / (sd**2 + k)).sum()

    alpha = optimize.brentq(implied, 1e-9, 1e4) / level if ridge else 0.0
    told = accuracy_curve(known, PluginRule("test", (alpha,)), np.array([float(n)]), shares=np.array([0.5, 0.5]))[0][0]
    rng, seen = np.random.default_rng(n), []
    for _ in range(200):
        first, second = (sign * mu + rng.normal(size=60) * sd / np.sqrt(n / 2) for sign in (1, -1))
        residuals = rng.normal(size=(freedom, 60)) * sd
        w = np.linalg.solve(residuals.T @ residuals / freedom + ridge * level * np.eye(60), first - second)
        b, length = -w @ (first + second) / 2, np.sqrt((w * w) @ sd**2)
        seen.append((ndtr((w @ mu + b) / length) + ndtr((w @ mu - b) / length)) / 2)
    error = np.std(seen) / np.sqrt(200)
    assert abs(told - np.mean(seen)) < 0.005 + 3 * error
    if ridge == 0:  # without the factor the accuracy would be that of the known covariance
        assert class_accuracies(*(pairs_in_metric(known, 0.0).m, 60), n / 2, n / 2)[0][0] - told > 0.005


def test_discriminant_analysis_without_ridge_has_no_accuracy_below_as_many_samples_as_dimensions(coloured):
    mu, sd = coloured
    known = ClassStatistics(np.stack([mu, -mu]), sd**2, np.array([1e9, 1e9]), sd**2)
    curve = accuracy_curve(known, PluginRule("LDA", (0.0,)), np.array([20.0, 61.0, 80.0]), shares=np.full(2, 0.5))[0]
    assert np.isnan(curve[:2]).all()
    assert 0.5 < curve[2] < 1


def test_votes_among_many_classes_are_those_of_simulated_nearest_means():
    rng = np.random.default_rng(0)
    means = 1.2 * rng.normal(size=(5, 12))
    known = ClassStatistics(means, np.ones(12), np.full(5, 1e9), np.ones(12))
    told = accuracy_curve(known, PluginRule("mean", (math.inf,)), np.array([25.0, 500.0]), shares=np.full(5, 0.2))[0]
    for n, value in zip((25, 500), told, strict=True):
        right = []
        for _ in range(300):
            estimated = means + rng.normal(size=means.shape) / np.sqrt(n / 5)
            x = means + rng.normal(size=(40, 5, 12))
            nearest = ((x[:, :, None] - estimated) ** 2).sum(axis=-1).argmin(axis=2)
            right.append(np.mean(nearest == np.arange(5)))
        assert value == pytest.approx(np.mean(right), abs=0.015)


def test_predicted_gains_hold_in_the_model_they_are_made_for():
    """Estimated from 400 samples; the gain of an ideal projection at 20 labels within the predicted interval."""
    rng = np.random.default_rng(0)
    X, codes = two_classes(200, 200, 100, 1.0, rng)
    found = predict_gains(
        {"raw": X, "kept": X[:, :5]}, codes, plugin_rule(NearestCentroid()), [20, 2000], balanced=True
    )
    truth = class_accuracies(1.0, 5, [10, 1000], [10, 1000])[0] - class_accuracies(1.0, 100, [10, 1000], [10, 1000])[0]
    kept = found["kept"]
    assert (kept.low < truth).all()
    assert (truth < kept.high).all()
    assert kept.low[0] > 0
    assert found["raw"].gain == pytest.approx([0, 0])


def test_a_tuned_rule_is_covered_where_it_sees_the_classes_though_nearest_means_would_not():
    """A strong nuisance direction hides the classes from nearest means; a rule that may whiten sees them."""
    X, codes = two_classes(50, 50, 5, 1.5, np.random.default_rng(0))
    X[:, 1] *= 12
    found = predict_gains({"raw": X, "first": X[:, :1]}, codes, plugin_rule(LogisticRegression()), [40], balanced=True)
    assert found["raw"].accuracy[0] > 0.8
    assert isinstance(
        predict_gains({"raw": X}, codes, plugin_rule(NearestCentroid()), [40], balanced=True)["raw"], NotCovered
    )


def test_rules_are_found_inside_pipelines_and_searches():
    ridge = make_pipeline(StandardScaler(), LogisticRegression())
    assert plugin_rule(GridSearchCV(ridge, {"logisticregression__C": [1.0]})).name == "LogisticRegression"
    assert plugin_rule(LinearDiscriminantAnalysis()).alphas == (0.0,)
    assert plugin_rule(NearestCentroid()).alphas == (math.inf,)


@pytest.mark.parametrize(
    ("classifier", "counts", "reason"),
    [
        (MLPClassifier(), [10, 10], "MLPClassifier is not a linear rule"),
        (LogisticRegression(), [90, 10], "class_weight='balanced'"),
        (LinearDiscriminantAnalysis(), [90, 10], "even priors"),
        (NearestCentroid(priors="empirical"), [90, 10], "even priors"),
        (NearestCentroid(shrink_threshold=0.1), [10, 10], "shrink_threshold"),
    ],
)
def test_other_classifiers_are_not_covered_and_told_why(classifier, counts, reason):
    with pytest.raises(NotCovered, match=reason):
        plugin_rule(classifier, np.array(counts))
    assert plugin_rule(LogisticRegression(class_weight="balanced"), np.array([90, 10])).name == "LogisticRegression"


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.ones((4, 2)), [0, 0, 0, 0], "at least two classes"),
        (np.ones((4, 2)), [0, 0, 0, 1], "two samples"),
        (np.full((4, 2), np.inf), [0, 0, 1, 1], "not finite"),
        (np.ones((4, 2)), [0, 1], r"X has shape \(4, 2\) and y \(2,\)"),
    ],
)
def test_bad_samples_are_refused(X, y, message):
    with pytest.raises(ValueError, match=message):
        estimate_separation(X, y)
