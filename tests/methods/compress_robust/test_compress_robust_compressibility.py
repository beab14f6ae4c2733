import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from cameraready.methods.compress_robust import compressibility, decompose
from cameraready.methods.compress_robust.compressibility import effective_rank, pq_index, stable_rank


def matrices(count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        h, p = rng.integers(1, 24, size=2)
        scale = np.exp(rng.normal(size=(h, 1)) * rng.uniform(0, 3))
        yield rng, torch.from_numpy(rng.standard_t(3, size=(h, p)) * scale)


def test_both_norms_are_energy_times_concentration_times_spread_on_500_matrices():
    for rng, W in matrices(500):
        nu = W.abs().sum(dim=1)
        k = int(rng.integers(1, len(nu) + 1))
        parts = decompose(nu, norm="inf", k=k)
        assert parts.norm == pytest.approx(np.linalg.norm(W.numpy(), np.inf), rel=1e-12)
        assert parts.energy == pytest.approx(W.abs().sum().item(), rel=1e-12)

        sigma = torch.linalg.svdvals(W)
        k = int(rng.integers(1, len(sigma) + 1))
        parts = decompose(sigma, norm="2", k=k)
        assert parts.norm == pytest.approx(np.linalg.norm(W.numpy(), 2), rel=1e-10)
        assert parts.energy == pytest.approx(np.linalg.norm(W.numpy(), "fro"), rel=1e-10)


def test_concentration_and_spread_are_those_of_their_definitions():
    for rng, W in matrices(100):
        nu = np.sort(W.abs().sum(dim=1).numpy())[::-1]
        k = int(rng.integers(1, len(nu) + 1))
        parts = decompose(torch.from_numpy(nu.copy()), norm="inf", k=k)
        eps = nu[k:].sum() / nu.sum()
        assert parts.concentration == pytest.approx((1 - eps) / k, rel=1e-10)
        assert parts.spread == pytest.approx(nu[0] / nu[:k].mean(), rel=1e-10)
        assert 1 - 1e-12 <= parts.spread <= nu[0] / nu[k - 1] * (1 + 1e-12)

        sigma = np.linalg.svd(W.numpy(), compute_uv=False)
        k = int(rng.integers(1, len(sigma) + 1))
        parts = decompose(torch.from_numpy(sigma.copy()), norm="2", k=k)
        eps = math.sqrt((sigma[k:] ** 2).sum() / (sigma**2).sum())
        assert parts.concentration == pytest.approx(math.sqrt((1 - eps**2) / k), rel=1e-8)
        assert parts.spread == pytest.approx(sigma[0] / math.sqrt((sigma[:k] ** 2).mean()), rel=1e-10)


@pytest.mark.parametrize(("axis", "q"), [("rows", 1), ("rows", 2), ("spectrum", 2), ("all", 2), ("all", 1)])
def test_the_curve_is_the_best_k_term_error(axis, q):
    W = torch.from_numpy(np.random.default_rng(1).normal(size=(6, 4, 3, 3)))
    flat = W.flatten(1).numpy()
    values = {
        "rows": np.linalg.norm(flat, q, axis=1),
        "spectrum": np.linalg.svd(flat, compute_uv=False),
        "all": np.abs(flat).ravel(),
    }[axis]
    curve = compressibility(W, axis=axis, q=q)
    values = np.sort(values)[::-1]
    for k in range(len(values) + 1):
        expected = np.linalg.norm(values[k:], q) / np.linalg.norm(values, q) if k < len(values) else 0.0
        assert curve.epsilon[k] == pytest.approx(expected, rel=1e-10)
    k = curve.k_at(0.3)
    assert curve.epsilon[k] <= 0.3 < curve.epsilon[k - 1]


def test_ranks_and_pq_index_have_their_closed_forms():
    sigma = torch.from_numpy(np.abs(np.random.default_rng(2).normal(size=17)))
    assert effective_rank(sigma) == pytest.approx(np.exp(entropy(sigma.numpy())), rel=1e-12)
    assert stable_rank(sigma) == pytest.approx((np.linalg.norm(sigma) / sigma.max().item()) ** 2, rel=1e-12)
    assert effective_rank(torch.tensor([3.0, 3.0, 3.0, 0.0])) == pytest.approx(3)
    assert pq_index(torch.ones(9)) == pytest.approx(0, abs=1e-12)
    assert pq_index(torch.eye(9)[0]) == pytest.approx(1 - 1 / 9)  # h^(1/q - 1/p) = 1 / h
    by_hand = 1 - 17 ** (1 / 1 - 1 / 0.5) * np.sqrt(sigma.numpy()).sum() ** 2 / sigma.numpy().sum()
    assert pq_index(sigma) == pytest.approx(by_hand, rel=1e-12)
    assert pq_index(sigma * 7) == pytest.approx(pq_index(sigma), rel=1e-12)


def test_zero_layers_and_tiny_and_huge_weights_survive():
    zero = decompose(torch.zeros(4), norm="2")
    assert (zero.norm, zero.spread, compressibility(torch.zeros(3, 3)).k_at()) == (0, 1, 1)
    for scale in (1e-170, 1e170):
        assert decompose(torch.tensor([3.0, 4.0], dtype=torch.float64) * scale, norm="2", k=2).energy > 0
    assert effective_rank(torch.zeros(3)) == stable_rank(torch.zeros(3)) == pq_index(torch.zeros(3)) == 0


def test_complex_and_half_precision_weights_have_curves():
    W = torch.randn(5, 4, dtype=torch.complex64)
    assert compressibility(W).values == pytest.approx(np.sort(W.abs().sum(dim=1).double().numpy())[::-1], rel=1e-6)
    assert compressibility(torch.eye(3).half(), axis="spectrum").values.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compressibility(torch.ones(3)), "no rows"),
        (lambda: compressibility(torch.ones(0, 3)), "no weights"),
        (lambda: compressibility(torch.tensor([[math.nan]])), "1 of 1 weights are not finite"),
        (lambda: compressibility(torch.eye(2), axis="columns"), "axis='columns'"),
        (lambda: compressibility(torch.eye(2), q=0.5), "q=0.5"),
        (lambda: compressibility(torch.eye(2)).k_at(1.5), "eps=1.5"),
        (lambda: decompose(torch.ones(3), norm="inf", k=4), "k=4"),
        (lambda: decompose(torch.ones(3), norm="1"), "norm='1'"),
        (lambda: pq_index(torch.ones(3), p=2.0), "p=2.0"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
