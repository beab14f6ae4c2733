"""Loss, gradient and Hessian against Monte-Carlo, autograd, finite differences and each other."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cameraready.methods.relu_landscape import Landscape
from cameraready.methods.relu_landscape.order_parameters import drift, gradient_coefficients
from cameraready.methods.relu_landscape.peers import sampled_loss


def pair(K=3, M=4, d=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(K, d)), Landscape(rng.normal(size=(M, d)), K=K)


def numerical(function, W, step=1e-5):
    """Fourth-order central differences of a function of W, a row for each entry of W."""
    columns = []
    for index in np.ndindex(W.shape):
        D = np.zeros_like(W)
        D[index] = step
        columns.append(
            (8 * (function(W + D) - function(W - D)) - (function(W + 2 * D) - function(W - 2 * D))) / 12 / step
        )
    return np.array(columns)


def test_the_loss_is_that_of_a_million_samples_within_four_standard_errors():
    """False alarm about 6e-5. The error is 0.15 % of the loss, so one constant off by 1 % fails."""
    W, land = pair()
    total, squares, n = 0.0, 0.0, 10
    generator = torch.Generator().manual_seed(0)
    for _ in range(n):
        x = torch.randn(100_000, 6, generator=generator, dtype=torch.float64).numpy()
        losses = (np.maximum(x @ W.T, 0).sum(1) - np.maximum(x @ land.V.T, 0).sum(1)) ** 2 / 2
        total, squares = total + losses.mean() / n, squares + losses.var() / n
    error = math.sqrt(squares / 1e6)
    assert error < 0.0025 * total
    assert abs(land.loss(W) - total) < 4 * error


def test_the_loss_of_one_student_and_one_teacher_is_that_of_elementary_integrals():
    # Orthogonal unit vectors: 1/2 (1/2 - 2 * 1/(2 pi) + 1/2); opposite ones: h = 0, so 1/2; equal ones: 0.
    land = Landscape(1, K=1)
    assert land.loss([[0.0, 1.0]]) == pytest.approx(0.5 - 1 / (2 * math.pi), abs=1e-15)
    assert land.loss([[-1.0]]) == pytest.approx(0.5, abs=1e-15)
    assert land.loss([[1.0]]) == pytest.approx(0.0, abs=1e-15)


def test_the_gradient_is_that_of_finite_differences():
    W, land = pair()
    assert np.abs(numerical(land.loss, W).reshape(W.shape) - land.grad(W)).max() < 1e-8


def test_loss_and_gradient_in_one_pass_are_those_of_two():
    W, land = pair()
    loss, gradient = land.loss_and_grad(W)
    assert loss == land.loss(W)
    np.testing.assert_array_equal(gradient, land.grad(W))
    with pytest.raises(ValueError, match="for batches"):
        land.loss_and_grad(W[None])


def test_the_hessian_is_that_of_finite_differences():
    W, land = pair()
    difference = numerical(lambda w: land.grad(w).ravel(), W) - land.hessian(W)
    assert np.abs(difference).max() < 1e-8


def test_the_hessian_is_that_of_autograd_through_the_loss_in_order_parameters():
    W, land = pair(K=2, M=3, d=4, seed=3)
    second = torch.func.hessian(land.loss)(torch.tensor(W)).reshape(8, 8).numpy()
    np.testing.assert_allclose(second, land.hessian(W), atol=1e-9)


def test_the_hessian_where_a_student_is_parallel_to_a_teacher_is_the_limit_of_its_neighbours():
    rng = np.random.default_rng(0)
    V = rng.normal(size=(3, 4))
    land = Landscape(V, K=2)
    for sign in (1, -1):
        W = np.stack([sign * 0.7 * V[0], rng.normal(size=4)])
        nearby = land.hessian(W + 1e-7 * rng.normal(size=W.shape))
        np.testing.assert_allclose(land.hessian(W), nearby, atol=1e-5)


def test_the_gradient_from_order_parameters_is_that_of_the_full_space():
    W, land = pair(K=5, M=4, d=50)
    A, C = gradient_coefficients(*land.stats(W))
    np.testing.assert_allclose(A @ W + C @ land.V, land.grad(W), atol=1e-13)


def test_the_drift_is_the_chain_rule_through_the_order_parameters():
    W, land = pair(K=3, M=2, d=7)
    Q, R, T = land.stats(W)
    dQ, dR = drift(Q, R, T)
    motion = -land.grad(W)
    np.testing.assert_allclose(dR, motion @ land.V.T, atol=1e-13)
    np.testing.assert_allclose(dQ, motion @ W.T + W @ motion.T, atol=1e-13)


def test_batches_numpy_and_torch_give_the_same_numbers():
    _, land = pair()
    W = np.random.default_rng(1).normal(size=(2, 5, 3, 6))
    Q, R = W @ W.swapaxes(-1, -2), W @ land.V.T
    assert land.loss(W).shape == (2, 5)
    assert land.grad(W).shape == W.shape
    assert land.hessian(W).shape == (2, 5, 18, 18)
    np.testing.assert_allclose(land.loss_q(Q, R), land.loss(W), atol=1e-12)
    np.testing.assert_allclose(land.loss_q(torch.tensor(Q), torch.tensor(R)).numpy(), land.loss(W), atol=1e-12)
    np.testing.assert_allclose(land.loss(torch.tensor(W)).numpy(), land.loss(W), atol=1e-12)


def test_the_sampled_peer_estimates_the_same_gradient():
    """Root mean square error of the sample is about 1 % of the gradient; the margin is five times that."""
    W, land = pair(K=4, M=4, d=5, seed=2)
    x = torch.randn(200_000, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss, gradient = sampled_loss(W, land.V, x)
    assert loss == pytest.approx(float(land.loss(W)), rel=0.02)
    assert np.linalg.norm(gradient - land.grad(W)) < 0.05 * np.linalg.norm(gradient)


def test_at_a_neuron_of_norm_zero_the_gradient_is_the_limit_along_the_residual():
    _, land = pair(K=2, M=3, d=4)
    W = np.stack([np.zeros(4), np.random.default_rng(5).normal(size=4)])
    along = land.V.sum(0) - W.sum(0)
    near = W + np.outer([1e-9, 0], along)
    np.testing.assert_allclose(land.grad(W), land.grad(near), atol=1e-7)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 10))
def test_loss_is_invariant_under_rotation_and_renumbering_and_quadratic_in_scale(seed, scale):
    rng = np.random.default_rng(seed)
    K, M, d = rng.integers(1, 5, size=3)
    d += 1
    V, W = rng.normal(size=(M, d)), rng.normal(size=(K, d))
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
    loss = Landscape(V, K=K).loss(W)
    assert loss >= -1e-12
    moved = Landscape(scale * rng.permutation(V) @ rotation, K=K).loss(scale * rng.permutation(W) @ rotation)
    assert moved == pytest.approx(scale**2 * loss, rel=1e-9, abs=1e-11 * scale**2)


def test_nearly_parallel_neurons_keep_full_precision():
    # At distance 1e-7 from the teacher the gradient is near 1e-7; through arccos of the cosine its noise would be 1e-8.
    land = Landscape(2, K=2)
    W = np.eye(2) + 1e-7 * np.array([[1.0, 2.0], [-1.0, 1.0]])
    expected = land.hessian(np.eye(2)) @ (W - np.eye(2)).ravel()
    np.testing.assert_allclose(land.grad(W).ravel(), expected, atol=1e-13)
