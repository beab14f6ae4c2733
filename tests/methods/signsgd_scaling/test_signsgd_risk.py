"""The risk formulas against Monte-Carlo, dense algebra and second closed forms."""

import numpy as np
import pytest
from scipy.linalg import solve
from scipy.optimize import brentq

from cameraready.methods.signsgd_scaling import PLRF, WSD, GaussianRegression, NotCovered
from cameraready.methods.signsgd_scaling.coverage import linearisation
from cameraready.methods.signsgd_scaling.risk_curve import risk_curve
from cameraready.methods.signsgd_scaling.sign_statistics import drift_gain, expected_sign, sign_covariance
from cameraready.methods.signsgd_scaling.simulation import draw_features


def test_expected_sign_of_a_single_sample_is_the_arcsine_law():
    rho = np.linspace(-1, 1, 21)
    np.testing.assert_allclose(expected_sign(rho), 2 / np.pi * np.arcsin(rho), atol=1e-12)
    assert drift_gain(1) == pytest.approx(2 / np.pi, rel=1e-12)


def test_expected_sign_of_two_and_four_samples_are_polynomials():
    rho = np.linspace(-1, 1, 21)
    np.testing.assert_allclose(expected_sign(rho, 2), rho, atol=1e-12)
    np.testing.assert_allclose(expected_sign(rho, 4), (3 * rho - rho**3) / 2, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_expected_sign_meets_a_monte_carlo_average(batch):
    rng = np.random.default_rng(batch)
    rho, draws = 0.4, 400_000
    r = rng.standard_normal((draws, batch))
    u = rho * r + np.sqrt(1 - rho**2) * rng.standard_normal((draws, batch))
    measured = np.sign((r * u).sum(axis=1)).mean()
    # five standard errors (false alarm 6e-7) are 0.8 % of sqrt(batch) times the smallest expected value
    assert abs(measured - expected_sign(rho, batch)) < 5 / np.sqrt(draws)


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_drift_gain_is_the_slope_of_the_expected_sign(batch):
    h = 1e-4
    assert drift_gain(batch) == pytest.approx(
        float(expected_sign(h, batch) - expected_sign(-h, batch)) / (2 * h), rel=1e-6
    )


def test_sign_covariance_is_that_of_signs():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((4, 4))
    signs = np.sign(rng.standard_normal((400_000, 4)) @ root)
    covariance = root.T @ root
    np.testing.assert_allclose(signs.T @ signs / len(signs), sign_covariance(covariance), atol=0.008)
    # two signs differ with probability angle / pi
    angle = np.arccos(np.clip(covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance))), -1, 1))
    np.testing.assert_allclose(sign_covariance(covariance), 1 - 2 * angle / np.pi, atol=1e-6)


def test_the_reduction_equals_dense_least_squares_in_all_v_dimensions():
    alpha, beta, d, v = 0.7, 0.3, 20, 5000  # more rows than one block of the streamed factorisation
    model = PLRF(alpha, beta, d, v=v, seed=3)
    W = np.random.default_rng(3).standard_normal((v, d)) / np.sqrt(d)
    j = np.arange(1, v + 1.0)
    D, b = j ** (-2 * alpha), j**-beta
    K = W.T @ (D[:, None] * W)
    theta = solve(K, W.T @ (D * b))
    np.testing.assert_allclose(model.K, K, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(model.theta_star, theta, rtol=1e-7)
    assert model.P_inf == pytest.approx(np.sum(D * (b - W @ theta) ** 2), rel=1e-9)
    assert model.initial_risk == pytest.approx(np.sum(D * b**2), rel=1e-10)


@pytest.mark.parametrize("optimizer", ["sgd", "signsgd"])
def test_training_in_v_dimensions_and_in_d_dimensions_have_the_same_mean_risk(optimizer):
    alpha, beta, d, v, steps, runs = 0.7, 0.3, 12, 72, 150, 300
    model = PLRF(alpha, beta, d, v=v, seed=0)
    W = np.random.default_rng(0).standard_normal((v, d)) / np.sqrt(d)
    j = np.arange(1, v + 1.0)
    lr = 0.03 if optimizer == "signsgd" else 0.1
    rng = np.random.default_rng(1)
    theta = np.zeros((runs, d))
    for _ in range(steps):
        x = rng.standard_normal((runs, v)) * j**-alpha
        u = x @ W
        gradient = (np.einsum("rd,rd->r", u, theta) - x @ j**-beta)[:, None] * u
        theta -= lr * (np.sign(gradient) if optimizer == "signsgd" else gradient)
    risks = np.sum(j ** (-2 * alpha) * (theta @ W.T - j**-beta) ** 2, axis=1)
    ours = model.simulate(optimizer, lr=lr, steps=steps, seeds=runs, record=[steps]).iloc[0]
    error = np.hypot(risks.std() / np.sqrt(runs), ours["risk_se"])
    assert abs(risks.mean() - ours["risk_mean"]) < 4 * error  # false alarm 6e-5
    assert error < 0.05 * ours["risk_mean"]


def test_drawn_features_have_the_covariance():
    model = PLRF(0.7, 0.3, 6, seed=1)
    u = draw_features(np.asfortranarray(model.root, dtype=np.float32), 400_000, np.random.default_rng(0)).astype(float)
    scale = np.sqrt(np.outer(np.diag(model.K), np.diag(model.K)))
    np.testing.assert_allclose(u.T @ u / len(u) / scale, model.K / scale, atol=0.009)


@pytest.mark.parametrize(("optimizer", "batch"), [("signsgd", 1), ("signsgd", 4), ("sgd", 1), ("sgd", 4)])
def test_blocks_equal_the_recursion_step_by_step(optimizer, batch):
    model = PLRF(0.7, 0.3, 40, seed=2)
    modes = model.sgd_modes if optimizer == "sgd" else model.sign_modes
    lr = 0.3 * model.stability_limit(batch=batch) if optimizer == "sgd" else 5e-3
    rates = lr * WSD().multipliers(4000)
    lam, y2, noise = modes.eigenvalues, modes.weights.copy(), modes.noise
    expected = []
    for rate in rates:
        risk = model.P_inf + lam @ y2
        if optimizer == "sgd":
            y2 = y2 * (1 - 2 * rate * lam + (1 + 1 / batch) * (rate * lam) ** 2) + rate**2 * lam * risk / batch
        else:
            y2 = y2 * (1 - 2 * drift_gain(batch) * rate * lam / np.sqrt(risk)) + rate**2 * noise
        expected.append(model.P_inf + lam @ y2)
    record = np.array([1, 10, 50, 100, 1000, 3000, 4000])
    found = model.mode_recursion(optimizer, lr=lr, steps=4000, schedule=WSD(), batch=batch, record=record)
    np.testing.assert_allclose(found[:3], np.array(expected)[record[:3] - 1], rtol=1e-12)  # blocks of one step
    np.testing.assert_allclose(found, np.array(expected)[record - 1], rtol=0.006)


@pytest.mark.parametrize("shrink", [0.5, 0.995, 1.005, 2.0])
def test_a_mode_faster_than_a_step_relaxes_at_once(shrink):
    lam, weight, noise, floor, gain = 2.0, 1.0, 3.0, 0.5, 0.6
    risk = floor + lam * weight
    rate = shrink * np.sqrt(risk) / (2 * gain * lam)  # shrink = 2 kappa eta lam / sqrt(P)
    one = (np.array([value]) for value in (lam, weight, noise))
    found = risk_curve(*one, floor, sign_gain=gain, batch=1, rates=np.array([rate]), record=np.array([1]))
    rest = lam * rate**2 * noise
    assert found[0] == pytest.approx(floor + (rest / shrink if shrink >= 1 else (1 - shrink) * lam * weight + rest))


def test_sgd_moments_are_exact_for_gaussian_features():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((3, 3))
    problem = GaussianRegression(root.T @ root, [1.0, -0.5, 0.3], 0.2)
    lr, runs, batch = 0.1 / np.trace(problem.K), 400_000, 2
    u = rng.standard_normal((runs, batch, 3)) @ problem.root
    residual = -u @ problem.theta_star + np.sqrt(0.2) * rng.standard_normal((runs, batch))
    delta = -problem.theta_star - lr * np.mean(residual[..., None] * u, axis=1)
    risks = 0.2 + np.sum((delta @ problem.root.T) ** 2, axis=1)
    predicted = problem.predict_risk("sgd", lr=lr, steps=1, batch=batch, record=[1])["risk_mean"].iloc[0]
    assert abs(risks.mean() - predicted) < 5 * risks.std() / np.sqrt(runs)
    assert 5 * risks.std() / np.sqrt(runs) < 0.01 * predicted


@pytest.mark.parametrize(("share", "length"), [(0.1, 15), (1.0, 100), (3.0, 300)])
def test_the_floor_of_signsgd_is_met_on_independent_features(share, length):
    d, irreducible = 120, 0.01
    problem = GaussianRegression(np.diag(np.geomspace(1, 3, d)), np.zeros(d), irreducible)
    lr = share * np.sqrt(irreducible) / problem.total_scale
    steps = int(length * problem.total_scale / share)
    late = problem.simulate(
        "signsgd", lr=lr, steps=steps, seeds=4, record=np.linspace(steps / 2, steps, 100).astype(int)
    )
    assert problem.noise_floor(lr) == pytest.approx(late["risk_mean"].mean(), rel=0.03)


@pytest.mark.parametrize("optimizer", ["sgd", "signsgd"])
def test_the_floor_is_where_the_recursion_ends_and_a_rate_is_found_for_it(optimizer):
    model = PLRF(0.7, 0.3, 30, seed=0)
    lr = 0.4 * model.stability_limit() if optimizer == "sgd" else 2e-2
    floor = model.noise_floor(lr, optimizer=optimizer)
    end = model.predict_risk(optimizer, lr=lr, steps=300_000, record=[300_000])["risk_mean"].iloc[0]
    assert floor == pytest.approx(end, rel=1e-3)
    assert model.lr_for_loss(floor, optimizer=optimizer) == pytest.approx(lr, rel=1e-6)


def test_the_floor_is_the_trace_of_a_lyapunov_equation():
    model = PLRF(0.6, 0.4, 25, seed=5)
    lr = 1e-2
    s = np.sqrt(model.noise_floor(lr))
    # stationary second moment M of delta: eta (G K M + M K G) = eta^2 K_s with G = (2/pi) diag(K)^(-1/2) / sqrt(P)
    from scipy.linalg import solve_continuous_lyapunov

    drift = 2 / np.pi / s * np.diag(np.diag(model.K) ** -0.5) @ model.K
    M = solve_continuous_lyapunov(drift, lr * sign_covariance(model.K))
    assert model.P_inf + np.trace(model.K @ M) == pytest.approx(s**2, rel=1e-8)


def test_sgd_is_stable_up_to_its_limit_and_not_beyond():
    single = GaussianRegression([[2.0]], [1.0], 0.1)
    assert single.stability_limit() == pytest.approx(2 / (3 * 2.0), rel=1e-9)
    model = PLRF(1.0, 0.5, 30, seed=0)
    limit = model.stability_limit()
    below = model.predict_risk("sgd", lr=0.99 * limit, steps=200_000, record=[200_000])["risk_mean"].iloc[0]
    above = model.predict_risk("sgd", lr=1.01 * limit, steps=200_000, record=[200_000])["risk_mean"].iloc[0]
    assert np.isfinite(below)
    assert above > 10 * model.initial_risk
    assert model.noise_floor(1.001 * limit, optimizer="sgd") == np.inf
    assert model.simulate("sgd", lr=30 * limit, steps=3000, seeds=2, record=[3000])["risk_mean"].iloc[0] == np.inf


def test_the_prediction_meets_the_simulation():
    model = PLRF(0.6, 0.3, 200, seed=0)
    record = np.unique(np.geomspace(1, 2000, 12).astype(int))
    simulated = model.simulate("signsgd", lr=2e-3, steps=2000, seeds=16, record=record)
    predicted = model.predict_risk("signsgd", lr=2e-3, steps=2000, record=record)
    assert np.median(np.abs(predicted["risk_mean"] / simulated["risk_mean"] - 1)) < 0.05


def test_outside_its_regime_the_formula_gives_a_reason_and_no_number():
    model = PLRF(1.5, 0.3, 60)
    assert not model.coverage("signsgd")
    assert "leading mode" in str(model.coverage("signsgd"))
    for question in (
        lambda: model.predict_risk("signsgd", lr=1e-3, steps=100),
        lambda: model.noise_floor(1e-3),
        lambda: model.lr_for_loss(0.1),
        lambda: model.predict_risk("adam", lr=1e-3, steps=100),
    ):
        with pytest.raises(NotCovered, match="not covered"):
            question()
    assert model.coverage("sgd")
    assert PLRF(0.6, 0.3, 60).coverage("signsgd")
    assert not PLRF(0.6, 0.3, 60).coverage("signsgd", batch=64)


def test_the_regime_ends_where_the_linear_drift_is_off_by_ten_per_cent():
    border = brentq(lambda rho: np.arcsin(rho) / rho - 1.1, 0.1, 0.99)
    assert linearisation((0.999 * border) ** 2, batch=1)
    assert not linearisation((1.001 * border) ** 2, batch=1)
    assert "off by up to 10%" in str(linearisation((1.001 * border) ** 2, batch=1))


def test_a_run_does_not_depend_on_how_many_are_run():
    model = PLRF(0.7, 0.3, 10)
    one = model.simulate("lion", lr=1e-3, steps=50, seeds=1, seed=1, record=[50])["risk_mean"].iloc[0]
    both = model.simulate("lion", lr=1e-3, steps=50, seeds=2, seed=0, record=[50])["risk_mean"].iloc[0]
    first = model.simulate("lion", lr=1e-3, steps=50, seeds=1, seed=0, record=[50])["risk_mean"].iloc[0]
    assert both == pytest.approx((first + one) / 2, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PLRF(0, 0.8, 10), "alpha=0"),
        (lambda: PLRF(0.2, 0.3, 10), "exceed 1"),
        (lambda: PLRF(0.7, 0.3, 10, v=5), "v=5"),
        (lambda: PLRF(0.7, 0.3, 10, v=np.inf), "v=inf"),
        (lambda: PLRF(0.7, 0.3, 2.5), r"d=2\.5"),
        (lambda: PLRF(0.6, 0.3, 40).coverage(batch=0), "batch=0"),
        (lambda: PLRF(0.6, 0.3, 40).stability_limit(batch=0), "batch=0"),
        (lambda: PLRF(0.7, 0.3, 10).simulate(lr=1e-3, steps=np.inf), "steps=inf"),
        (lambda: PLRF(0.7, 0.3, 10).simulate(lr=1e-3, steps=10, record=[]), "whole numbers between 0"),
        (lambda: PLRF(0.7, 0.3, 10).simulate(lr=1e-3, steps=10, record=[1.5]), "whole numbers between 0"),
        (lambda: PLRF(0.7, 0.3, 10).simulate("adam", lr=1e-3, steps=10, betas=(0.9,)), "betas"),
        (lambda: PLRF(0.7, 0.3, 10).simulate("adam", lr=1e-3, steps=10, betas=(0.9, 1)), "betas"),
        (lambda: GaussianRegression(np.zeros((0, 0)), [], 0.1), "do not match"),
        (lambda: GaussianRegression.from_data(np.full((9, 2), np.nan), np.zeros(9)), "not finite"),
        (lambda: PLRF(0.7, 0.3, 10).simulate(lr=0, steps=10), "lr=0"),
        (lambda: PLRF(0.7, 0.3, 10).simulate(lr=1e-3, steps=0), "steps=0"),
        (lambda: PLRF(0.7, 0.3, 10).simulate("rmsprop", lr=1e-3, steps=10), "rmsprop"),
        (lambda: PLRF(0.7, 0.3, 10).simulate(lr=1e-3, steps=10, schedule="cosine"), "schedule='cosine'"),
        (lambda: PLRF(0.6, 0.3, 40).lr_for_loss(1e-9), "P_inf"),
        (lambda: GaussianRegression([[1, 2], [2, 1]], [0, 0], 0.1), "smallest eigenvalue"),
        (lambda: GaussianRegression([[1.0]], [np.nan], 0.1), "finite"),
        (lambda: WSD(warmup=0.5, decay=0.6), "warmup=0.5"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_rank_deficient_features_and_a_tiny_rate_survive():
    root = np.random.default_rng(0).standard_normal((3, 8))
    problem = GaussianRegression(root.T @ root + 1e-15 * np.eye(8), np.ones(8), 0.1)
    assert np.isfinite(problem.simulate("signsgd", lr=1e-3, steps=100, seeds=2)["risk_mean"]).all()
    model = PLRF(0.6, 0.3, 40)
    still = model.predict_risk("signsgd", lr=1e-300, steps=1000)["risk_mean"]
    np.testing.assert_allclose(still, model.initial_risk, rtol=1e-9)


def test_one_signsgd_step_moves_the_risk_by_the_drift_alone_and_not_by_its_square():
    signal, irreducible, lr, draws = 1.0, 24.0, 2.0, 1_000_000
    problem = GaussianRegression([[1.0]], [signal], irreducible)
    # One feature is a dominant direction, which predict_risk refuses; its correlation of 0.2 is in the linear part.
    step = np.array([1])
    predicted = problem.mode_recursion("signsgd", lr=lr, steps=1, schedule="constant", batch=1, record=step)[0]
    rng = np.random.default_rng(0)
    u, noise = rng.standard_normal((2, draws))
    sign = np.sign((np.sqrt(irreducible) * noise - signal * u) * u)
    measured = irreducible + np.mean((-signal - lr * sign) ** 2)
    # five standard errors of 2 lr signal / sqrt(draws) = 0.004; with (1 - g)^2 in place of 1 - 2 g it would be 0.065
    assert abs(predicted - measured) < 0.02


def test_a_regression_keeps_its_own_coefficients():
    theta = np.ones(3)
    problem = GaussianRegression(np.eye(3), theta, 0.1)
    theta[:] = 100
    assert problem.initial_risk == pytest.approx(3.1)


def test_a_rate_beyond_all_reason_has_an_infinite_floor():
    assert PLRF(0.6, 0.3, 40).noise_floor(1e300) == np.inf
