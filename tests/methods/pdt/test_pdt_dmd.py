"""The decomposition, against a flat SVD and against pydmd."""

import numpy as np
import pytest
import torch

from cameraready.methods.pdt import fit_dmd
from cameraready.methods.pdt.inner_products import SLICE, products
from cameraready.methods.pdt.reduced_dmd import choose_rank, reduce

SHAPES = [(7, 5), (300,), (2, 3, 4)]


def random_run(seed, n_snapshots, dtype=torch.float32):
    """Noisy linear dynamics, which no fit reproduces exactly."""
    generator = torch.Generator().manual_seed(seed)
    state = [torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES]
    run = [state]
    for _ in range(n_snapshots - 1):
        state = [0.9 * t + 0.3 * torch.randn(t.shape, generator=generator, dtype=dtype) for t in state]
        run.append(state)
    return run


def flat(run):
    return torch.stack([torch.cat([t.reshape(-1) for t in snapshot]) for snapshot in run], dim=1).double()


def flat_operator(columns, rank):
    """U, A~ of the textbook form: a thin SVD of the N x (h - 1) matrix."""
    x, y = columns[:, :-1], columns[:, 1:]
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    if rank == "ght":
        beta = x.shape[1] / x.shape[0]
        omega = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
        rank = max(1, int((s > omega * s.median()).sum()))  # torch's median is the lower one
    u, s, vh = u[:, :rank], s[:rank], vh[:rank]
    return u, u.T @ y @ vh.T / s


@pytest.mark.parametrize("rank", ["ght", 1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_forecast_from_inner_products_is_that_of_the_flat_svd(seed, rank):
    run = random_run(seed, 5)
    columns = flat(run)
    u, operator = flat_operator(columns, rank)
    last = columns[:, -1]
    for steps in (1, 5):
        coordinates = torch.linalg.matrix_power(operator, steps) @ (u.T @ last) - u.T @ last
        expected = last + u @ coordinates
        found = flat([fit_dmd(run, rank=rank).predict(steps)])[:, 0]
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_differential_forecast_is_the_sum_of_forecast_moves():
    run = random_run(0, 6)
    columns = flat(run)
    moves = columns.diff(dim=1)
    u, operator = flat_operator(moves, 3)
    state, expected = u.T @ moves[:, -1], columns[:, -1].clone()
    for _ in range(4):
        state = operator @ state
        expected += u @ state
    found = flat([fit_dmd(run, rank=3, differential=True).predict(4)])[:, 0]
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_complex_eigenvectors_give_the_same_forecast():
    """The paper's form: Re[Phi (Lambda^tau - I) Phi^+ w] with the projected modes Phi = U W."""
    columns = flat(random_run(3, 5))
    u, operator = flat_operator(columns, 4)
    values, vectors = torch.linalg.eig(operator)
    modes = u.to(vectors.dtype) @ vectors
    last = columns[:, -1].to(modes.dtype)
    powered = modes @ ((values**5 - 1) * (torch.linalg.pinv(modes) @ last))
    found = flat([fit_dmd(random_run(3, 5), rank=4).predict(5)])[:, 0]
    assert values.imag.abs().max() > 0
    assert torch.allclose(found, columns[:, -1] + powered.real, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_eigenvalues_are_those_of_pydmd(rank):
    pydmd = pytest.importorskip("pydmd")
    run = random_run(1, 7, torch.float64)
    reference = pydmd.DMD(svd_rank=rank, opt=False).fit(flat(run).numpy())
    found = fit_dmd(run, rank=rank)
    assert found.rank == rank
    assert np.allclose(np.sort_complex(found.eigenvalues), np.sort_complex(reference.eigs), atol=1e-6)


def test_a_share_of_the_energy_gives_the_rank_of_pydmd():
    pydmd = pytest.importorskip("pydmd")
    run = random_run(2, 7, torch.float64)
    for share in (0.5, 0.8, 0.95, 0.999):
        reference = pydmd.DMD(svd_rank=share, opt=False).fit(flat(run).numpy())
        assert fit_dmd(run, rank=share).rank == len(reference.eigs)


def test_linear_dynamics_are_recovered_and_forecast():
    generator = torch.Generator().manual_seed(0)
    modes = torch.linalg.qr(torch.randn(50, 3, generator=generator, dtype=torch.float64))[0]
    rates = torch.tensor([1.01, 0.9, 0.5], dtype=torch.float64)
    run = [[modes @ rates**t] for t in range(6)]
    found = fit_dmd(run, rank=3)
    assert np.allclose(found.eigenvalues.real, rates, atol=1e-6)
    assert torch.allclose(found.predict(10)[0], modes @ rates**15, atol=1e-6)


def test_threshold_uses_the_lower_median():
    values = np.array([10.0, 3.0, 2.0, 1.0])
    # lower median 2, threshold 2.86: two are above; the mean of the middle two, 2.5, would give 3.575 and one
    assert choose_rank(values, "ght", n_parameters=10**9) == 2


def test_singular_values_that_are_rounding_are_dropped():
    assert choose_rank(np.array([1.0, 1e-3, 1e-7]), 3, n_parameters=100) == 2


def test_the_spectral_radius_is_clamped():
    z = np.array([[1.0, 2.0, 4.0, 8.0]])
    free = reduce(z.T @ z, n_parameters=1, rank=1, rho_max=None)
    bound = reduce(z.T @ z, n_parameters=1, rank=1, rho_max=1.0)
    assert free.rho == pytest.approx(2.0)
    assert bound.operator.item() == pytest.approx(1.0)
    assert bound.rho == pytest.approx(2.0)  # reported as fitted


def test_products_do_not_depend_on_how_they_are_sliced():
    vector = torch.randn(2 * SLICE + 17, generator=torch.Generator().manual_seed(0))
    found = products([vector.bfloat16(), vector], newest=1)
    expected = torch.stack([vector.bfloat16().double(), vector.double()]) @ vector.double()
    assert torch.allclose(found[:, 0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("snapshots", "options", "message"),
    [
        ([[torch.ones(3)]] * 2, {}, "2 snapshots are fewer than the 3"),
        ([[torch.ones(3)]] * 3, {"differential": True}, "fewer than the 4"),
        ([[torch.ones(3)], [torch.ones(3)], [torch.ones(4)]], {}, "snapshot 2 has tensors"),
        ([[torch.full((3,), torch.nan)]] * 3, {}, "not finite"),
        ([[torch.zeros(3)]] * 4, {}, "no dynamics"),
        ([[torch.ones(3)]] * 4, {"differential": True}, "all alike"),
        ([[torch.ones(3)]] * 4, {"rank": 4}, "rank=4 is not between 1 and the 3"),
        ([[torch.ones(3)]] * 4, {"rank": 1.5}, "rank=1.5"),
        ([[torch.ones(3)]] * 4, {"rank": "best"}, "rank='best'"),
        ([[], [], []], {}, "no tensors"),
    ],
)
def test_what_cannot_be_fitted_is_refused(snapshots, options, message):
    with pytest.raises(ValueError, match=message):
        fit_dmd(snapshots, **options)


def test_a_forecast_needs_a_step():
    with pytest.raises(ValueError, match="steps=0"):
        fit_dmd(random_run(0, 5)).predict(0)


def test_a_fit_prints_its_spectrum():
    assert "rank 2" in str(fit_dmd(random_run(0, 5), rank=2))
