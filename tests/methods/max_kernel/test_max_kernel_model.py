"""The kernel and `MaxKernelGP` inside BoTorch: fitting, acquisition, fantasies, transforms."""

import copy

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qKnowledgeGradient, qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputStandardize, Normalize, Warp
from botorch.models.transforms.outcome import Standardize
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from cameraready.methods.max_kernel import (
    BlockPermutations,
    FromOrbit,
    MaxKernel,
    MaxKernelGP,
    Permutations,
    SignFlips,
    invariance_defect,
)

M = 3
GROUP = BlockPermutations(M, 2)


def cost(X):
    """Invariant under relabelling the M points of a design."""
    places = X.view(*X.shape[:-1], M, 2)
    return (places - 0.3).square().sum(-1).sqrt().prod(-1, keepdim=True)


def data(n=12, scale=1.0, seed=0):
    X = torch.rand(n, 2 * M, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return scale * X, cost(X)


def fitted(**options):
    X, Y = data()
    gp = MaxKernelGP(X, Y, group=GROUP, **options)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


@pytest.fixture(scope="module")
def gp():
    return fitted()


@pytest.mark.parametrize("q", [1, 3])
def test_the_kernel_drops_into_single_task_gp_fitting_and_acquisition(q):
    X, Y = data()
    gp = SingleTaskGP(X, Y, covar_module=ScaleKernel(MaxKernel(MaternKernel(nu=2.5), GROUP)))
    before = gp.covar_module.base_kernel.base_kernel.lengthscale.item()
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    assert gp.covar_module.base_kernel.base_kernel.lengthscale.item() != before
    acquisition = LogExpectedImprovement(gp, Y.max()) if q == 1 else qLogExpectedImprovement(gp, Y.max())
    bounds = torch.tensor([[0.0] * 6, [1.0] * 6], dtype=torch.float64)
    candidates, value = optimize_acqf(acquisition, bounds, q=q, num_restarts=2, raw_samples=16, options={"maxiter": 20})
    assert candidates.shape == (q, 6)
    assert torch.isfinite(value)
    assert invariance_defect(gp, GROUP, X) < 1e-8


def test_the_example_of_the_interface_runs_with_data_in_metres():
    X, Y = data(scale=100.0)
    gp = MaxKernelGP(X, -Y, group=GROUP, input_transform=Normalize(2 * M), outcome_transform=Standardize(1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    assert invariance_defect(gp, GROUP, X) < 1e-8
    bounds = torch.tensor([[0.0] * 6, [100.0] * 6], dtype=torch.float64)
    candidate, _ = optimize_acqf(LogExpectedImprovement(gp, (-Y).max()), bounds, q=1, num_restarts=2, raw_samples=16)
    assert (candidate >= 0).all()
    assert (candidate <= 100).all()
    assert gp.max_kernel.projection_error().rank > 0


def test_normalize_without_bounds_gets_equal_ranges_for_all_particles():
    X, Y = data(scale=torch.tensor([10.0, 1.0] * M, dtype=torch.float64))
    bounds = MaxKernelGP(X, Y, group=GROUP, input_transform=Normalize(2 * M)).input_transform.bounds.squeeze()
    assert torch.equal(bounds[:, :2].repeat(1, M), bounds)
    assert bounds[1, 0] == X.view(-1, 2)[:, 0].max()


def test_posterior_near_the_data_has_small_variance_and_far_away_the_prior_variance(gp):
    X, _ = data()
    near, far = gp.posterior(X[:1]).variance, gp.posterior(X[:1] + 50.0).variance
    prior = gp.covar_module.outputscale * gp.outcome_transform.stdvs.square()
    assert near < 0.05 * far
    assert torch.allclose(far, prior)


def test_posterior_of_a_batch_equals_single_posteriors(gp):
    X, _ = data(8, seed=3)
    single = torch.cat([gp.posterior(x.unsqueeze(0)).mean for x in X])
    assert torch.allclose(gp.posterior(X.unsqueeze(1)).mean.squeeze(1), single)
    assert gp.posterior(X.view(2, 2, 2, 6)).mean.shape == (2, 2, 2, 1)


def test_samples_of_two_designs_of_one_orbit_are_equal(gp):
    X, _ = data(1, seed=4)
    pair = torch.cat([X, X.view(M, 2).flip(0).reshape(1, -1)])
    samples = gp.posterior(pair).rsample(torch.Size([5])).squeeze(-1)
    assert torch.allclose(samples[:, 0], samples[:, 1], atol=1e-2 * float(samples.std()))


def test_conditioning_equals_a_model_built_on_all_data(gp):
    X, Y = data()
    new_X, new_Y = data(3, seed=5)
    X_test, _ = data(4, seed=6)
    gp.posterior(X_test)
    conditioned = gp.condition_on_observations(new_X, new_Y)
    rebuilt = MaxKernelGP(
        torch.cat([X, new_X]), torch.cat([Y, new_Y]), group=GROUP, outcome_transform=copy.deepcopy(gp.outcome_transform)
    )
    rebuilt.load_state_dict(gp.state_dict())
    rebuilt.outcome_transform = gp.outcome_transform
    rebuilt.set_train_data(targets=gp.outcome_transform(torch.cat([Y, new_Y]))[0].squeeze(-1), strict=False)
    for moment in ("mean", "variance"):
        ours, theirs = (getattr(model.eval().posterior(X_test), moment) for model in (conditioned, rebuilt))
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-8)
    assert conditioned.max_kernel.landmarks.shape == (15, 6)
    assert gp.max_kernel.landmarks.shape == (12, 6)


def test_set_train_data_moves_the_landmarks():
    gp = fitted()
    new_X, new_Y = data(20, seed=7)
    gp.eval().set_train_data(new_X, new_Y.squeeze(-1), strict=False)
    assert torch.equal(gp.max_kernel.landmarks, new_X)
    gp.train()
    gp.set_train_data(new_X[:9], new_Y[:9].squeeze(-1), strict=False)
    assert torch.equal(gp.eval().max_kernel.landmarks, new_X[:9])


@pytest.mark.parametrize("transform", [None, Normalize(2 * M)])
def test_fantasies_have_their_own_landmarks_and_interpolate(transform):
    gp = fitted(input_transform=transform)
    new_X, _ = data(2, seed=8)
    fantasy = gp.fantasize(new_X.unsqueeze(1), SobolQMCNormalSampler(torch.Size([3]), seed=0))
    assert fantasy.max_kernel.landmarks.shape == (2, 13, 6)
    posterior = fantasy.posterior(new_X.unsqueeze(1))
    assert posterior.mean.shape == (3, 2, 1, 1)
    assert (posterior.variance < 0.2 * gp.posterior(new_X).variance.unsqueeze(1)).all()
    twice = fantasy.fantasize(new_X[:1] + 0.1, SobolQMCNormalSampler(torch.Size([2]), seed=0))
    assert torch.isfinite(twice.posterior(new_X[:1]).mean).all()


def test_look_ahead_gradient_agrees_with_finite_differences(gp):
    X, _ = data(4, seed=9)
    X = X.unsqueeze(0).requires_grad_()
    acquisition = qKnowledgeGradient(gp, num_fantasies=3, sampler=SobolQMCNormalSampler(torch.Size([3]), seed=0))
    (gradient,) = torch.autograd.grad(acquisition(X).sum(), X)
    for point, coordinate in ((0, 1), (2, 3)):  # the fantasised design, then one of the inner maximisers
        step = torch.zeros_like(X)
        step[0, point, coordinate] = 1e-5
        numeric = (acquisition(X + step) - acquisition(X - step)) / 2e-5
        assert torch.allclose(gradient[0, point, coordinate], numeric[0], rtol=1e-3, atol=1e-8)


def test_several_outputs_share_the_landmarks():
    X, Y = data()
    gp = MaxKernelGP(X, torch.cat([Y, Y.sin()], dim=-1), group=GROUP)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    assert gp.posterior(X[:5]).mean.shape == (5, 2)
    assert invariance_defect(lambda X: gp.posterior(X).mean.sum(-1), GROUP, X) < 1e-8


def test_known_noise_and_a_single_training_point_work():
    X, Y = data(1)
    gp = MaxKernelGP(X, Y, torch.full_like(Y, 1e-4), group=GROUP, outcome_transform=None).eval()
    assert torch.isfinite(gp.posterior(data(3, seed=2)[0]).variance).all()


def test_an_explicit_centre_is_in_the_units_of_the_data():
    X = 10 * torch.rand(15, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    Y = (X - 4.0).square().sum(-1, keepdim=True)
    group = SignFlips(2, center=4.0)
    gp = MaxKernelGP(X, Y, group=group, input_transform=Normalize(2))
    assert torch.allclose(gp.max_kernel.group.center, torch.full((2,), 0.5, dtype=torch.float64))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    assert invariance_defect(gp, group, X) < 1e-8


@pytest.mark.parametrize("middle_of_cube", [0.5, 0.0])
def test_a_default_centre_is_the_middle_of_the_bounds(middle_of_cube):
    X = torch.rand(8, 2, dtype=torch.float64) * 6 - 2
    transform = Normalize(2, bounds=torch.tensor([[-2.0, -2.0], [4.0, 4.0]]), center=middle_of_cube)
    gp = MaxKernelGP(X, X.square().sum(-1, keepdim=True), group=SignFlips(2), input_transform=transform)
    assert invariance_defect(gp, SignFlips(2, center=1.0), X) < 1e-8
    with pytest.raises(ValueError, match="learns the middle"):
        MaxKernelGP(X, X[:, :1], group=SignFlips(2), input_transform=Normalize(2))


def test_an_orbit_callable_is_carried_through_the_transform():
    X, Y = data(scale=100.0)
    listed = FromOrbit(GROUP.orbit, 6, dim=6)
    gp = MaxKernelGP(X, Y, group=listed, input_transform=Normalize(6, bounds=torch.tensor([[0.0] * 6, [100.0] * 6])))
    assert invariance_defect(gp, GROUP, X) < 1e-8


def test_transforms_that_break_the_symmetry_are_refused():
    X, Y = data()
    unequal = Normalize(6, bounds=torch.tensor([[0.0] * 6, [1.0, 2.0, 3.0, 1.0, 1.0, 1.0]]))
    with pytest.raises(ValueError, match="breaks the symmetry"):
        MaxKernelGP(X, Y, group=GROUP, input_transform=unequal)
    with pytest.raises(ValueError, match="breaks the symmetry"):
        MaxKernelGP(X, Y, group=GROUP, input_transform=InputStandardize(6))


def test_transforms_that_are_not_affine_are_refused():
    X, Y = data()
    with pytest.raises(ValueError, match="Warp is not affine"):
        MaxKernelGP(X, Y, group=GROUP, input_transform=Warp(d=6, indices=list(range(6))))


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (lambda X: X.fill_(float("nan")), ValueError, "NaN"),
        (lambda X: X.fill_(float("inf")), ValueError, "NaN or infinity"),
        (lambda X: X.long(), TypeError, "double"),
        (lambda X: X[:, :5], ValueError, "needs"),
    ],
)
def test_bad_training_inputs_are_refused(bad, error, message):
    X, Y = data()
    with pytest.raises(error, match=message):
        MaxKernelGP(bad(X), Y, group=GROUP)


def test_state_dict_moves_hyper_parameters_between_models(gp):
    X, Y = data()
    twin = MaxKernelGP(X, Y, group=GROUP)
    twin.load_state_dict(gp.state_dict())
    assert torch.allclose(twin.posterior(X[:3]).mean, gp.posterior(X[:3]).mean)


def test_permutations_use_the_max_kernel_as_it_stands():
    X = torch.rand(10, 3, dtype=torch.float64)
    gp = MaxKernelGP(X, X.prod(-1, keepdim=True), group=Permutations(3)).eval()
    joint = torch.rand(4, 3, dtype=torch.float64)
    assert torch.equal(gp.max_kernel(joint).to_dense(), gp.max_kernel.k_max(joint, joint))
