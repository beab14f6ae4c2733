"""The kernel: claim 4 of the paper on every group, gradients, corrections, and what is refused."""

import copy
import pickle

import pytest
import torch
from gpytorch.kernels import CosineKernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from cameraready.methods.max_kernel import (
    BlockPermutations,
    CanonicalKernel,
    CyclicShifts,
    FromOrbit,
    Matrices,
    MaxKernel,
    OrbitAverageKernel,
    Permutations,
    PointCloudRotations,
    Rotations,
    SignedPermutations,
    SignFlips,
)

QUARTER_TURN = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
TURNS = [torch.linalg.matrix_power(QUARTER_TURN, k) for k in range(4)]
CLOUD = Matrices([torch.block_diag(*[turn] * 3) for turn in TURNS])
INDEFINITE = {
    "cyclic shifts": CyclicShifts(3, 2),
    "block permutations": BlockPermutations(3, 2),
    "turns of the plane": Matrices(TURNS),
    "cloud rotations": PointCloudRotations(3, 2),
    "particles and turns": BlockPermutations(3, 2) * CLOUD,
    "particles and rotations": BlockPermutations(3, 2) * PointCloudRotations(3, 2),
}
DEFINITE = {
    "permutations": Permutations(3),
    "sign flips": SignFlips(3),
    "signed permutations": SignedPermutations(3),
    "rotations": Rotations(3),
    "signed permutations, listed": FromOrbit(SignedPermutations(2).orbit, 8, dim=2),
}
GROUPS = INDEFINITE | DEFINITE


def points(n, group, seed=0):
    return torch.rand(n, group.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def kernel_on(group, n=25, seed=0, base=None, lengthscale=0.4, **options):
    base = base or MaternKernel(nu=2.5)
    base.lengthscale = lengthscale
    kernel = MaxKernel(base, group, **options).double().eval()
    kernel.set_landmarks(points(n, group, seed))
    return kernel


@pytest.mark.parametrize("variance", ["corrected", "nystrom"])
@pytest.mark.parametrize("name", GROUPS)
@given(seed=st.integers(0, 10_000), lengthscale=st.floats(0.05, 3.0))
@settings(max_examples=8, deadline=None)
def test_kernel_is_psd_on_training_and_new_points_and_invariant(name, variance, seed, lengthscale):
    group = GROUPS[name]
    kernel = kernel_on(group, seed=seed, lengthscale=lengthscale, variance=variance)
    new = points(5, group, seed + 1)
    images = group.random_images(new, 3)
    together = torch.cat([kernel.landmarks, new, images.flatten(0, 1)])
    with torch.no_grad():
        K = kernel(together).to_dense()
        moved = kernel(images.transpose(0, 1), together).to_dense()
        still = kernel(new, together).to_dense()
    assert torch.linalg.eigvalsh(0.5 * (K + K.T)).min() > -1e-8
    assert (moved - still).abs().max() < 1e-10


@pytest.mark.parametrize("name", INDEFINITE)
def test_raw_max_kernel_is_indefinite_and_the_projection_is_the_nearest_psd_matrix(name):
    kernel = kernel_on(INDEFINITE[name], n=60, lengthscale=1.0)
    with torch.no_grad():
        raw = kernel.k_max(kernel.landmarks, kernel.landmarks)
        projected = kernel(kernel.landmarks).to_dense()
    assert torch.linalg.eigvalsh(raw).min() < -1e-6
    assert kernel.projection_error().n_clipped > 0
    eigenvalues = torch.linalg.eigvalsh(raw)
    assert torch.allclose(torch.linalg.matrix_norm(raw - projected), eigenvalues.clamp_max(0).norm(), rtol=1e-4)


@pytest.mark.parametrize("name", DEFINITE)
def test_kernel_equals_the_max_kernel_on_the_data_where_that_is_psd(name):
    for variance in ("corrected", "nystrom"):
        kernel = kernel_on(DEFINITE[name], lengthscale=0.3, variance=variance)
        raw = kernel.k_max(kernel.landmarks, kernel.landmarks)
        assert torch.allclose(kernel(kernel.landmarks).to_dense(), raw, atol=1e-6)
        assert kernel.projection_error().n_clipped == 0


def test_listed_and_closed_form_group_give_the_same_kernel():
    closed, listed = kernel_on(SignedPermutations(2), n=8), kernel_on(DEFINITE["signed permutations, listed"], n=8)
    x = points(1, SignedPermutations(2), 5)
    assert torch.allclose(closed(x, closed.landmarks).to_dense(), listed(x, closed.landmarks).to_dense(), atol=1e-9)
    assert torch.allclose(closed(x).to_dense(), listed(x).to_dense(), atol=1e-9)


def test_training_mode_projects_and_remembers_the_points():
    group = INDEFINITE["cyclic shifts"]
    kernel = MaxKernel(MaternKernel(nu=2.5), group).double().train()
    X = points(30, group)
    trained = kernel(X).to_dense()
    assert torch.equal(kernel.landmarks, X)
    assert torch.allclose(trained, kernel.eval()(X).to_dense(), atol=1e-7)


def test_gradient_flows_through_projection_to_the_lengthscale():
    group = INDEFINITE["turns of the plane"]
    X = torch.cat([points(6, group), points(2, group)])  # two repeated rows: a repeated eigenvalue 0

    def matrix(lengthscale):
        base = MaternKernel(nu=2.5)
        kernel = MaxKernel(base, group).double().train()
        del base.raw_lengthscale
        base.raw_lengthscale = lengthscale
        return kernel(X).to_dense()

    assert torch.autograd.gradcheck(matrix, (torch.tensor([[0.3]], dtype=torch.float64, requires_grad=True),))


@pytest.mark.parametrize("variance", ["corrected", "nystrom"])
@pytest.mark.parametrize("name", ["cyclic shifts", "particles and turns", "cloud rotations", "permutations"])
def test_gradient_with_respect_to_the_designs_agrees_with_finite_differences(name, variance):
    kernel = kernel_on(GROUPS[name], n=7, variance=variance)
    x = points(2, kernel.group, 9).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kernel(x).to_dense(), (x,))
    assert torch.autograd.gradcheck(lambda x: kernel(x, kernel.landmarks).to_dense(), (x,))


def test_corrected_prior_variance_never_falls_below_that_of_the_max_kernel():
    group = BlockPermutations(3, 2)
    far = points(4, group, 1) + 30.0
    assert torch.allclose(kernel_on(group)(far, diag=True), torch.ones(4, dtype=torch.float64))
    assert kernel_on(group, variance="nystrom")(far, diag=True).max() < 1e-6


def test_correction_is_shared_by_points_of_one_orbit_alone():
    group = BlockPermutations(3, 2)
    kernel = kernel_on(group, lengthscale=0.1)
    x, other = points(1, group, 1), points(1, group, 2)
    joint = torch.cat([x, x.view(1, 3, 2).flip(1).reshape(1, 6), other])
    K = kernel(joint).to_dense()
    assert torch.allclose(K[0, 1], K[0, 0])
    features = kernel_on(group, lengthscale=0.1, variance="nystrom")(joint).to_dense()
    assert torch.allclose(K[0, 2], features[0, 2])
    assert torch.allclose(kernel(joint[:2], joint[1:], diag=True), torch.stack([K[0, 1], K[1, 2]]))


def test_predictions_do_not_depend_on_which_points_are_asked_together():
    kernel = kernel_on(INDEFINITE["turns of the plane"])
    X = points(6, kernel.group, 3)
    joint = kernel(torch.cat([kernel.landmarks, X])).to_dense()
    assert torch.allclose(joint[-6:, -6:], kernel(X).to_dense(), atol=1e-10)
    assert torch.allclose(joint[-1:, :-6], kernel(X[-1:], kernel.landmarks).to_dense(), atol=1e-10)


def test_batches_of_designs_equal_single_evaluations():
    kernel = kernel_on(BlockPermutations(3, 2))
    X = points(12, kernel.group, 4).view(4, 3, 6)
    batched = kernel(X).to_dense()
    assert batched.shape == (4, 3, 3)
    assert torch.allclose(batched[2], kernel(X[2]).to_dense())
    assert torch.allclose(kernel(X, diag=True), batched.diagonal(dim1=-2, dim2=-1))


def test_a_batch_of_lengthscales_gives_a_batch_of_kernels():
    group = CyclicShifts(4)
    base = MaternKernel(nu=2.5, batch_shape=torch.Size([2])).double()
    base.lengthscale = torch.tensor([0.2, 0.9]).view(2, 1, 1)
    kernel = MaxKernel(base, group).eval()
    kernel.set_landmarks(points(6, group))
    x = points(3, group, 1)
    both = kernel(x.expand(2, 3, 4)).to_dense()
    for index, lengthscale in enumerate((0.2, 0.9)):
        assert torch.allclose(both[index], kernel_on(group, n=6, lengthscale=lengthscale)(x).to_dense())
        assert torch.allclose(both[index], kernel[index](x).to_dense())


def test_duplicates_fixed_points_and_a_single_point_are_survived():
    group = BlockPermutations(2, 2)
    middle = torch.full((3, 4), 0.5, dtype=torch.float64)
    kernel = kernel_on(group)
    kernel.set_landmarks(torch.cat([middle, points(2, group), points(2, group)]))
    assert kernel.projection_error().rank == 3
    assert torch.isfinite(kernel(points(3, group, 1)).to_dense()).all()
    kernel.set_landmarks(middle[:1])
    assert torch.isfinite(kernel(points(3, group, 1)).to_dense()).all()


def test_single_precision_warns_and_drops_more_eigenvalues():
    group = BlockPermutations(3, 2)
    kernel = MaxKernel(RBFKernel(), group).eval()
    with pytest.warns(UserWarning, match="single precision"):
        kernel.set_landmarks(points(40, group).float())
    assert torch.linalg.eigvalsh(kernel(points(40, group).float()).to_dense()).min() > -1e-4


def test_all_base_kernels_of_distance_are_supported_also_scaled_and_added():
    group = BlockPermutations(2, 2)
    for base in (RBFKernel(), RQKernel(), ScaleKernel(MaternKernel(nu=0.5)), RBFKernel() + MaternKernel(nu=1.5)):
        kernel = MaxKernel(base, group).double().eval()
        X = points(5, group)
        listed = base(X, group.orbit(X).flatten(0, 1)).to_dense().view(5, 5, 2).amax(-1)
        assert torch.allclose(kernel.k_max(X, X), listed, atol=1e-7)


def test_double_maximum_equals_the_single_one_for_invariant_base_kernels():
    group = CyclicShifts(4)
    X = points(5, group)
    single, double = kernel_on(group), kernel_on(group, double_max=True)
    assert torch.allclose(single.k_max(X, X), double.k_max(X, X))
    assert torch.allclose(double.k_max.diagonal(X), torch.ones(5, dtype=torch.float64))


def test_unequal_lengthscales_need_the_double_maximum():
    group = Permutations(2)
    base = MaternKernel(nu=2.5, ard_num_dims=2).double()
    base.lengthscale = torch.tensor([[0.3, 0.6]])
    X = points(6, group)
    with pytest.raises(ValueError, match=r"lengthscales differ \(0.3, 0.6\).*double_max"):
        MaxKernel(base, group).k_max(X, X)
    K = MaxKernel(base, group, double_max=True, chunk_bytes=300).k_max(X, X)
    swapped = MaxKernel(base, group, double_max=True).k_max(X.flip(-1), X)
    assert torch.allclose(K, swapped)
    images = group.orbit(X)
    brute = torch.stack([torch.stack([base(A, B).to_dense().max() for B in images]) for A in images])
    assert torch.allclose(K, brute)


def test_lengthscales_that_the_group_respects_may_differ():
    group = BlockPermutations(2, 2)
    base = RBFKernel(ard_num_dims=4).double()
    base.lengthscale = torch.tensor([[0.3, 0.8, 0.3, 0.8]])
    X = points(5, group)
    listed = base(X, group.orbit(X).flatten(0, 1)).to_dense().view(5, 5, 2).amax(-1)
    assert torch.allclose(MaxKernel(base, group).k_max(X, X), listed)


def test_a_group_that_is_no_isometry_uses_the_double_maximum():
    shear = Matrices([torch.eye(2), torch.tensor([[1.0, 1.0], [0.0, -1.0]])])
    kernel = MaxKernel(RBFKernel(), shear).double()
    X = points(4, shear)
    K = kernel.k_max(X, X)
    assert not kernel.k_max.by_distance
    assert torch.allclose(kernel.k_max(shear.orbit(X)[:, 1], X), K)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variance": "full"}, "corrected"),
        ({"eig_tol": 0.0}, "eig_tol"),
    ],
)
def test_unknown_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MaxKernel(RBFKernel(), Permutations(2), **options)


def test_impossible_base_kernels_are_refused():
    with pytest.raises(ValueError, match="infinite"):
        MaxKernel(CosineKernel(), Rotations(2))
    with pytest.raises(ValueError, match="active_dims"):
        MaxKernel(RBFKernel(active_dims=(0,)), Permutations(2))
    with pytest.raises(ValueError, match="infinite"):
        OrbitAverageKernel(RBFKernel(), Rotations(2))
    with pytest.raises(ValueError, match="canonical"):
        CanonicalKernel(RBFKernel(), PointCloudRotations(2, 2))


def test_missing_landmarks_and_bad_landmarks_are_refused():
    kernel = MaxKernel(RBFKernel(), BlockPermutations(2, 2)).eval()
    with pytest.raises(RuntimeError, match="set_landmarks"):
        kernel(torch.rand(2, 4)).to_dense()
    with pytest.raises(ValueError, match="NaN"):
        kernel.set_landmarks(torch.full((2, 4), torch.nan))
    with pytest.raises(TypeError, match="double"):
        kernel.set_landmarks(torch.ones(2, 4, dtype=torch.int64))


def test_copies_and_pickles_evaluate_alike():
    kernel = kernel_on(CyclicShifts(4))
    x = points(3, kernel.group, 1)
    for twin in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert torch.equal(twin(x).to_dense(), kernel(x).to_dense())
        assert twin.base_kernel is not kernel.base_kernel


def test_changing_hyper_parameters_or_landmarks_changes_the_cached_eigenvectors():
    kernel = kernel_on(CyclicShifts(4))
    x = points(3, kernel.group, 1)
    kernel(x).to_dense()
    kernel.base_kernel.lengthscale = 0.9
    assert torch.allclose(kernel(x).to_dense(), kernel_on(CyclicShifts(4), lengthscale=0.9)(x).to_dense())
    kernel.set_landmarks(points(25, kernel.group, 7))
    assert torch.allclose(kernel(x).to_dense(), kernel_on(CyclicShifts(4), seed=7, lengthscale=0.9)(x).to_dense())


@pytest.mark.parametrize("normalize", [True, False])
def test_orbit_average_equals_its_definition(normalize):
    group, base = BlockPermutations(3, 2), MaternKernel(nu=2.5).double()
    kernel = OrbitAverageKernel(base, group, normalize=normalize).double()
    X1, X2 = points(4, group, 1), points(6, group, 2)

    def average(A, B):
        return base(A, group.orbit(B).flatten(0, 1)).to_dense().view(len(A), len(B), 6).mean(-1)

    expected = average(X1, X2)
    if normalize:
        expected = expected / (average(X1, X1).diagonal()[:, None] * average(X2, X2).diagonal()).sqrt()
    assert torch.allclose(kernel(X1, X2).to_dense(), expected)
    assert torch.allclose(kernel(X1, diag=True), kernel(X1).to_dense().diagonal())
