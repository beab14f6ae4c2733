"""Bad input is refused with a message that helps; what should survive does."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel
from linear_operator.utils.errors import NanError
from scipy.optimize import linear_sum_assignment

from cameraready.methods.max_kernel import (
    BlockPermutations,
    FromOrbit,
    Matrices,
    MaxKernel,
    MaxKernelGP,
    Permutations,
    augment,
    bo_loop,
    invariance_defect,
)
from cameraready.methods.max_kernel.closed_forms import _assign_by_subsets

PAIR = BlockPermutations(2, 2)
X = torch.rand(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = X.sum(-1, keepdim=True)
BOUNDS = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.float64)


def total(designs):
    return designs.sum(-1)


def run(f=total, **options):
    return bo_loop(f, BOUNDS, PAIR, **({"n_init": 4, "n_iter": 1, "optimizer": "candidates"} | options))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: PAIR.orbit(X * torch.nan), ValueError, "NaN or infinity"),
        (lambda: PAIR.orbit(X.numpy()), TypeError, "as_tensor"),
        (lambda: Permutations(2, center=float("nan")), ValueError, "finite coordinates"),
        (lambda: Matrices([]), ValueError, "square"),
        (lambda: Matrices([torch.eye(2), torch.eye(3)]), ValueError, "all of one size"),
        (lambda: Matrices([torch.eye(2), torch.zeros(2, 2)]), ValueError, "singular"),
        (lambda: Matrices([torch.eye(2), torch.eye(2)]), ValueError, "distinct"),
        (lambda: FromOrbit(lambda X: [X], 1, dim=2), ValueError, "must be"),
        (lambda: MaxKernel(MaternKernel(), BlockPermutations), TypeError, "instance"),
        (lambda: MaxKernelGP(X, Y, group=BlockPermutations), TypeError, "instance"),
        (lambda: MaxKernel(MaternKernel(), PAIR).set_landmarks(X[:0]), ValueError, "at least one landmark"),
        (lambda: augment(X, Y[:3], PAIR), ValueError, r"\(8, 4\) and \(3, 1\)"),
        (lambda: augment(X.unsqueeze(0), Y, PAIR), ValueError, "pass"),
        (lambda: invariance_defect(lambda X: X, PAIR, X), ValueError, "one value each"),
        (lambda: run(noise_std=-1.0), ValueError, "noise_std=-1.0"),
        (lambda: run(noise_std=float("nan")), ValueError, "noise_std=nan"),
        (lambda: run(lambda X: X.sum()), ValueError, "1 values for 4 designs"),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_new_designs_that_are_not_finite_are_refused_instead_of_predicted():
    kernel = MaxKernel(MaternKernel(nu=2.5), PAIR).double().eval()
    kernel.set_landmarks(X)
    with pytest.raises(ValueError, match="NaN"):
        kernel(X[:2] * torch.nan).to_dense()


def test_a_kernel_that_overflows_raises_what_botorch_expects_of_a_failed_fit():
    kernel = MaxKernel(MaternKernel(nu=2.5), PAIR).double().train()
    with pytest.raises(NanError, match="normalise"):
        kernel(X * 1e200).to_dense()


def test_an_objective_that_carries_a_gradient_is_evaluated_without_it():
    weight = torch.ones(4, dtype=torch.float64, requires_grad=True)
    assert np.isfinite(run(lambda X: X @ weight, n_iter=2).Y).all()


def test_a_constant_objective_and_a_single_initial_design_survive():
    assert run(lambda X: 0 * X.sum(-1), n_iter=2).values.tolist() == [0.0] * 6
    assert len(run(n_init=1, n_iter=2).values) == 3


def test_a_model_may_change_its_precision_after_it_has_predicted():
    gp = MaxKernelGP(X, Y, group=PAIR).eval()
    gp.max_kernel(X[:3]).to_dense()
    with pytest.warns(UserWarning, match="single precision"):
        gp.float().train().eval()
    assert gp.max_kernel.landmarks.dtype == torch.float32
    assert gp.max_kernel(X[:3].float()).to_dense().dtype == torch.float32


def test_the_diagonal_in_training_mode_is_that_of_the_projection():
    kernel = MaxKernel(MaternKernel(nu=2.5), BlockPermutations(2, 2)).double().train()
    assert torch.allclose(kernel(X, diag=True), kernel(X).to_dense().diagonal())


def test_read_only_strided_and_repeated_inputs_survive():
    frozen = X.numpy().copy()
    frozen.flags.writeable = False
    strided = torch.from_numpy(np.asfortranarray(frozen))
    plain, other = (MaxKernelGP(points, Y, group=PAIR).eval().posterior(X).mean for points in (X, strided))
    assert torch.allclose(plain, other)
    repeated = MaxKernelGP(X[:1].expand(6, 4), Y[:6], group=PAIR).eval()
    assert torch.isfinite(repeated.posterior(X).variance).all()


@pytest.mark.parametrize("m", [1, 2, 6, 7])
@pytest.mark.parametrize("values", ["distinct", "tied", "equal"])
def test_assignments_by_recursion_are_as_good_as_scipys(m, values):
    rng = np.random.default_rng(0)
    gains = {
        "distinct": rng.normal(size=(200, m, m)),
        "tied": rng.integers(0, 3, size=(200, m, m)).astype(float),
        "equal": np.full((200, m, m), -1.0),
    }[values]
    ours = _assign_by_subsets(gains)
    assert (np.sort(ours, axis=1) == np.arange(m)).all()
    scipys = np.stack([linear_sum_assignment(gain, maximize=True)[1] for gain in gains])
    reached, best = (np.take_along_axis(gains, p[:, :, None], 2).sum((1, 2)) for p in (ours, scipys))
    assert np.allclose(reached, best)


@pytest.mark.parametrize("n_particles", [6, 7, 8])
def test_many_pairs_get_the_distances_that_few_pairs_get(n_particles):
    group = BlockPermutations(n_particles, 2)
    points = torch.rand(70, group.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = group.sq_orbit_distance(points, points)
    for row in (0, 33, 69):
        alone = group.sq_orbit_distance(points[row : row + 1], points[:60])
        assert torch.allclose(together[row : row + 1, :60], alone, atol=1e-12)


def test_a_product_lists_the_images_of_few_points_at_a_time_where_memory_is_short():
    quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    turns = Matrices([torch.block_diag(*[torch.linalg.matrix_power(quarter, k)] * 6) for k in range(4)])
    group = BlockPermutations(6, 2) * turns
    points = torch.rand(9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(
        group.sq_orbit_distance(points, points, chunk_bytes=2 * 4 * 12 * 8), group.sq_orbit_distance(points, points)
    )
