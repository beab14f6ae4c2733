"""Decays from tables, laws from logs, and the recommendation: recovered where the truth is known, refused elsewhere."""

import numpy as np
import pandas as pd
import pytest

from cameraready.methods.signsgd_scaling import NotCovered, fit_decay, fit_runs, recommend
from cameraready.methods.signsgd_scaling.peers import chinchilla_fit, chinchilla_predict
from cameraready.methods.signsgd_scaling.real_rows import train_on_rows
from cameraready.methods.signsgd_scaling.regression import GaussianRegression


def power_law_table(alpha, beta, *, n=4000, D=80, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    j = np.arange(1, D + 1.0)
    turn = np.linalg.qr(rng.standard_normal((D, D)))[0]
    x = 3.0 * rng.standard_normal((n, D)) * j**-alpha
    return x @ turn + 5.0, 2.0 * x @ j**-beta + noise * rng.standard_normal(n) + 1.0


@pytest.mark.parametrize(("alpha", "beta", "noise"), [(0.8, 0.5, 0.0), (0.6, 0.9, 0.5)])
def test_decays_of_a_known_law_are_recovered_in_any_rotation(alpha, beta, noise):
    found = fit_decay(*power_law_table(alpha, beta, noise=noise))
    assert found.alpha == pytest.approx(alpha, abs=0.02)
    assert found.beta == pytest.approx(beta, abs=0.1)
    assert found.scale == pytest.approx(9.0, rel=0.1)
    assert found.target_scale == pytest.approx(2.0, rel=0.15)
    assert found.noise == pytest.approx(noise**2, rel=0.06, abs=1e-6)
    assert found.coverage
    assert found.alpha_ci[0] < found.alpha < found.alpha_ci[1]
    assert found.p_value > 0.05


def test_a_decay_does_not_depend_on_the_units():
    X, y = power_law_table(0.8, 0.5, n=1500, D=40)
    one, other = fit_decay(X, y), fit_decay(100 * X - 7, 0.01 * y + 3)
    assert (one.alpha, one.beta) == pytest.approx((other.alpha, other.beta), abs=1e-6)


def test_wide_features_go_through_the_randomised_decomposition():
    found = fit_decay(*power_law_table(0.9, 0.4, n=1000, D=600))
    assert found.alpha == pytest.approx(0.9, abs=0.06)


def test_a_spectrum_that_is_no_power_law_is_not_covered():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 60)) * np.exp(-0.25 * np.arange(60))
    found = fit_decay(X, X @ np.ones(60))
    assert found.p_value <= 0.05
    assert not found.coverage
    assert "no power law" in str(found)
    answer = recommend(X, X @ np.ones(60), flops=1e5)
    assert answer.best is None
    assert answer.choices.empty
    assert "not covered" in answer.text


def test_a_target_of_pure_noise_has_no_beta():
    X, _ = power_law_table(0.8, 0.5, n=2000, D=40)
    found = fit_decay(X, np.random.default_rng(5).standard_normal(2000))
    assert not found.coverage or found.beta_ci[1] - found.beta_ci[0] > 0.3


def test_a_recommendation_names_size_steps_and_rate_in_the_units_of_the_data():
    X, y = power_law_table(0.7, 0.3, n=4000, D=120, noise=0.1)
    found = recommend(X, y, flops=2e4, optimizer="sgd")
    row = found.choices.iloc[0]
    assert found.best == "sgd"
    assert row["d"] * row["N"] == pytest.approx(2e4, rel=0.02)
    # features are three times, the target six times as large as in the model of unit scale
    again = recommend((X - 5) / 3, y / 6, flops=2e4, optimizer="sgd").choices.iloc[0]
    assert row["lr"] == pytest.approx(again["lr"] / 9, rel=0.01)
    assert row["risk"] == pytest.approx(again["risk"] * 36, rel=0.01)
    assert "sgd: at d N = 20000" in found.text


def test_a_model_larger_than_the_table_is_not_covered():
    X, y = power_law_table(0.7, 0.3, n=2000, D=40)
    found = recommend(X, y, flops=1e8, optimizer="sgd")
    assert found.best is None
    assert "40 directions" in found.text


def logs(optimizer, alpha, beta, rng):
    """Losses that are exactly the sum of the law's terms, away from transients."""
    from cameraready.methods.signsgd_scaling.runs import _log_loss

    N, d, lr = (
        grid.ravel() for grid in np.meshgrid([300, 1e3, 3e3, 1e4], [16, 32, 64, 128, 256], np.geomspace(3e-4, 3e-2, 6))
    )
    lr = 10 * lr if optimizer == "sgd" else lr
    theta = [alpha, beta, -12.0, 0.3, 0.6, 0.9, -0.5, -0.7, -2.0]
    loss = np.exp(_log_loss(theta, np.log(N), np.log(d), np.log(lr), optimizer) + 0.01 * rng.standard_normal(len(N)))
    return pd.DataFrame({"N": N, "d": d, "lr": lr, "loss": loss}), theta


def law_by_hand(alpha, beta, constants, N, d, lr, optimizer):
    """The fitted law in plain powers; the terms are those that `exponents` takes to the limit."""
    E, A, D, speed, F, noise, amplification = np.exp(constants)
    p, q, a = (2 * alpha + 2 * beta - 1) / (2 * alpha), 1 - 1 / (2 * alpha), min(alpha, 0.5)
    total = E + A * d ** -min(2 * alpha, 2 * alpha + 2 * beta - 1)
    aligned = F / d if alpha > 0.5 and beta > 0.5 else 0.0
    if optimizer == "sgd":
        time = 1 + speed * lr * N
        noisy = noise * lr * (time ** -(2 - 1 / (2 * alpha)) if alpha > 0.25 else d ** max(0, 1 - 4 * alpha))
        return (total + D * time**-p + noisy + aligned * time**-q) / (1 - amplification * lr)
    total += D * (1 + speed * lr * d**a * N) ** -(2 * p / (2 - p) if p < 1.9 else 20 * p)
    total += aligned * (1 + speed * lr * d * N) ** -(2 * q / (2 - q))
    half = noise * lr * d ** (1 - a) / np.sqrt(total)  # sqrt(P) solves s^2 - 2 noise lr d^(1-a) s - total = 0
    return total * (half + np.sqrt(half**2 + 1)) ** 2


@pytest.mark.parametrize("optimizer", ["signsgd", "sgd"])
@pytest.mark.parametrize(
    ("alpha", "beta"), [(0.2, 0.4), (0.3, 1.0), (0.498, 0.9), (0.502, 0.7), (0.8, 0.498), (0.8, 0.502), (1.5, 1.0)]
)
def test_the_fitted_law_has_the_powers_of_the_theory(alpha, beta, optimizer):
    from cameraready.methods.signsgd_scaling.runs import _log_loss

    constants = [-2.0, 0.3, 0.6, -1.0, 1.2, -0.7, -0.5]
    for N, d, lr in [(2.0, 2.0, 1e-3), (30.0, 12.0, 0.05), (1e3, 40.0, 0.004)]:
        found = np.exp(_log_loss([alpha, beta, *constants], np.log(N), np.log(d), np.log(lr), optimizer))
        assert found == pytest.approx(law_by_hand(alpha, beta, constants, N, d, lr, optimizer), rel=1e-10)


@pytest.mark.parametrize(("optimizer", "alpha", "beta"), [("signsgd", 0.8, 0.3), ("sgd", 1.0, 0.3)])
def test_a_law_is_recovered_from_its_own_runs_and_predicts_beyond_them(optimizer, alpha, beta):
    from cameraready.methods.signsgd_scaling.runs import _log_loss

    runs, theta = logs(optimizer, alpha, beta, np.random.default_rng(0))
    fit = fit_runs(runs, optimizer=optimizer, intervals=False)
    assert fit.coverage
    assert fit.error < 0.012
    lr = 2e-3 if optimizer == "signsgd" else 0.1
    truth = np.exp(_log_loss(theta, np.log(3e4), np.log(512), np.log(lr), optimizer))
    assert fit.predict(3e4, 512, lr) == pytest.approx(truth, rel=0.1)
    best = fit.compute_optimal(1e7)
    assert best["d"] * best["N"] == pytest.approx(1e7, rel=0.01)
    assert best["loss"] <= float(fit.predict(best["N"], best["d"], 2 * best["lr"])) + 1e-12
    assert best["loss"] <= float(fit.predict(best["N"] / 2, best["d"] * 2, best["lr"])) + 1e-12
    assert best["extrapolation"] == pytest.approx(1e7 / (256 * 1e4))


@pytest.mark.slow
def test_profile_intervals_hold_the_truth():
    runs, _ = logs("signsgd", 0.8, 0.3, np.random.default_rng(1))
    fit = fit_runs(runs, optimizer="signsgd", near_best=np.inf)
    assert fit.alpha_ci[0] < 0.8 < fit.alpha_ci[1]
    assert fit.beta_ci[0] < 0.3 < fit.beta_ci[1]


@pytest.mark.parametrize("optimizer", ["signsgd", "sgd"])
@pytest.mark.parametrize("unit", [1e-12, 1e9])
def test_a_law_does_not_depend_on_the_unit_of_the_loss(optimizer, unit):
    runs, _ = logs(optimizer, 0.8, 0.3, np.random.default_rng(0))
    one = fit_runs(runs, optimizer=optimizer, intervals=False)
    other = fit_runs(runs.assign(loss=unit * runs["loss"]), optimizer=optimizer, intervals=False)
    assert (other.alpha, other.beta, other.error) == pytest.approx((one.alpha, one.beta, one.error), rel=1e-4)
    assert other.predict(3e4, 512, 1e-3) == pytest.approx(unit * one.predict(3e4, 512, 1e-3), rel=1e-4)


def test_columns_that_repeat_others_count_for_no_direction():
    X, y = power_law_table(0.7, 0.3, n=2000, D=40)
    found = recommend(np.hstack([X, X, np.ones((2000, 3))]), y, flops=2e4, optimizer="sgd")
    assert found.best is None
    assert "40 directions" in found.text


def test_runs_that_follow_no_law_are_not_covered():
    runs, _ = logs("signsgd", 0.8, 0.3, np.random.default_rng(0))
    runs["loss"] *= np.exp(0.5 * np.random.default_rng(1).standard_normal(len(runs)))
    fit = fit_runs(runs, intervals=False, near_best=np.inf)
    assert not fit.coverage
    with pytest.raises(NotCovered, match="misses the runs"):
        fit.predict(1e4, 100, 1e-3)


def test_the_peer_recovers_its_own_form():
    N, d = (grid.ravel() for grid in np.meshgrid([100, 1e3, 1e4], [10.0, 100, 1000]))
    runs = pd.DataFrame({"N": N, "d": d, "lr": 1.0, "loss": 0.1 + 2 * d**-0.5 + 3 * N**-0.7})
    predicted = chinchilla_predict(chinchilla_fit(runs), 1e5, 3000.0)
    assert predicted == pytest.approx(0.1 + 2 * 3000**-0.5 + 3 * 1e5**-0.7, rel=0.01)


def test_training_on_rows_equals_plain_numpy():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((50, 4)).astype(np.float32).astype(float), rng.standard_normal(50)
    problem = GaussianRegression.from_data(X, y)
    found = train_on_rows(
        problem, X, y, optimizer="signsgd", lr=0.01, record=np.array([5, 30]), rng=np.random.default_rng(1)
    )
    again, theta, done = np.random.default_rng(1), np.zeros(4), 0
    for target, error in zip((5, 30), found, strict=True):
        for row in again.integers(50, size=target - done):
            theta -= 0.01 * np.sign((X[row] @ theta - y[row]) * X[row])
        done = target
        assert np.mean((X @ theta - y) ** 2) == pytest.approx(error, rel=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_decay(np.ones((5, 3)), np.ones(5)), "5 rows and 3 columns"),
        (lambda: fit_decay(np.ones((200, 20)), np.ones(100)), "do not match"),
        (lambda: fit_decay(np.full((200, 20), np.nan), np.ones(200)), "not finite"),
        (lambda: fit_decay(np.random.default_rng(0).normal(size=(200, 20)), np.ones(200)), "constant"),
        (lambda: fit_runs(pd.DataFrame({"N": [1], "d": [1]})), "lack the columns lr, loss"),
        (
            lambda: fit_runs(logs("sgd", 1, 0.3, np.random.default_rng(0))[0].assign(loss=-1.0)),
            "'loss' is not a positive",
        ),
        (lambda: fit_runs(logs("sgd", 1, 0.3, np.random.default_rng(0))[0].head(5)), "5 rows"),
        (lambda: fit_runs(logs("sgd", 1, 0.3, np.random.default_rng(0))[0].assign(d=8)), "'d' has 1 different"),
        (lambda: recommend(np.ones((200, 20)), np.ones(200), 1e5, "adam"), "adam"),
        (lambda: recommend(np.ones((200, 20)), np.ones(200), 10), "flops=10"),
        (lambda: fit_decay(np.ones((200, 20)), np.arange(200)), "X departs from its mean by at most 0"),
        (lambda: fit_decay(np.outer(np.arange(200), np.ones(20)), np.arange(200)), "X varies in 1 directions"),
        (lambda: fit_decay(1e-150 * np.random.default_rng(0).normal(size=(200, 20)), np.arange(200)), "rescale"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
