"""The ODE of one-pass SGD, simulated SGD, and the stability of fixed points."""

import numpy as np
import pytest

from cameraready.methods.relu_landscape import Landscape, drift_spectrum, sgd_ode, simulate_sgd
from cameraready.methods.relu_landscape.orbits import Pattern, solve_orbits
from cameraready.methods.relu_landscape.sgd import gaussian_points, gradient_noise


def test_the_noise_of_one_student_that_faces_an_orthogonal_teacher_is_an_elementary_integral():
    # N = E[(s+ - t+)^2 1(s > 0)] = 1/2 - 2 * 1/(2 pi) + 1/4 for independent standard normal s, t.
    N = gradient_noise(np.eye(1), np.zeros((1, 1)), np.eye(1), points=gaussian_points(2**16, 2, seed=0))
    assert N[0, 0] == pytest.approx(0.75 - 1 / np.pi, abs=1e-3)


def test_the_noise_is_that_of_gradients_on_random_examples():
    """E[(g_k . g_l)] = d N_kl for g = Delta 1(w.x > 0) x; false alarm below 1e-4 at four standard errors."""
    rng = np.random.default_rng(0)
    d, n = 400, 20_000
    W, V = rng.normal(size=(2, d)) / 20, rng.normal(size=(2, d)) / 20
    x = rng.normal(size=(n, d))
    delta = np.maximum(x @ W.T, 0).sum(1) - np.maximum(x @ V.T, 0).sum(1)
    active = (x @ W.T > 0) * delta[:, None]
    sizes = (x**2).sum(1) / d
    products = active[:, 0] * active[:, 1] * sizes, active[:, 0] ** 2 * sizes
    N = gradient_noise(W @ W.T, W @ V.T, V @ V.T, points=gaussian_points(2**14, 4, seed=1))
    for sample, exact in zip(products, (N[0, 1], N[0, 0]), strict=True):
        # |x|^2 / d is 1 up to 1/d on average, given the few fields: 2 (K + M) / d is a generous bound of that bias.
        assert abs(sample.mean() - exact) < 4 * sample.std() / np.sqrt(n) + 8 / d * exact


def test_the_noiseless_ode_is_gradient_flow():
    land = Landscape(3, K=2)
    W = np.random.default_rng(0).normal(size=(2, 8)) / 3
    path = sgd_ode(*land.stats(W), eta=0.5, t_max=4, noise=False, n_times=5)
    step = 1e-3
    for _ in range(int(4 * 0.5 / step)):
        half = W - step / 2 * land.grad(W)
        W = W - step * land.grad(half)
    np.testing.assert_allclose(path.Q[-1], W @ W.T, atol=1e-5)
    assert path.loss[-1] == pytest.approx(land.loss(W), abs=1e-6)
    assert (np.diff(path.loss) < 0).all()


def test_simulated_sgd_follows_the_ode_and_not_gradient_flow():
    """At d = 2000 deviations are near 0.03; leaving out the noise term is off by more than 0.1."""
    land = Landscape(2, K=2)
    start = np.random.default_rng(0).normal(size=(2, 4)) / 2
    d, eta = 2000, 0.8
    frame = np.linalg.qr(np.random.default_rng(1).normal(size=(d, 4)))[0].T
    run = simulate_sgd(start @ frame, np.eye(2, 4) @ frame, lr=eta / d, steps=5 * d, seed=2, n_times=11)
    path = sgd_ode(*land.stats(start), eta=eta, t_max=5, n_times=11)
    flow = sgd_ode(*land.stats(start), eta=eta, t_max=5, n_times=11, noise=False)
    np.testing.assert_allclose(run.t, path.t)
    assert np.abs(run.Q - path.Q).max() < 0.1
    assert np.abs(run.Q - path.Q).max() < np.abs(run.Q - flow.Q).max() / 2


def test_larger_batches_have_less_noise():
    V = np.eye(2, 100)
    W = np.random.default_rng(0).normal(size=(2, 100)) / 10
    one, many = (simulate_sgd(W, V, lr=0.01, steps=300, seed=1, batch=b).loss[-1] for b in (1, 20))
    assert many < one
    assert simulate_sgd(W, V, lr=0.01, steps=300, seed=1).loss[-1] == one


def test_the_drift_spectrum_is_that_of_the_hessian_and_of_pairs_of_a():
    land = Landscape(8, K=8)
    W = solve_orbits(Pattern.defects(8, 1)).weights()
    A = land.hessian(np.pad(W, ((0, 0), (0, 1)))).reshape(8, 9, 8, 9)[:, 8, :, 8]
    a = np.linalg.eigvalsh(A)
    pairs = [a[i] + a[j] for i in range(8) for j in range(i + 1)]
    expected = np.sort(np.concatenate([np.linalg.eigvalsh(land.hessian(W)), pairs]))
    spectrum = -drift_spectrum(*land.stats(W))
    np.testing.assert_allclose(spectrum.real, expected, atol=1e-10)
    assert np.abs(spectrum.imag).max() < 1e-7
    assert spectrum[0].real == pytest.approx(0.0213466, abs=1e-7)
