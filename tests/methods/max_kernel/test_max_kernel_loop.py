"""The optimisation loop, augmentation, the invariance check, and the benchmark problems."""

import numpy as np
import pytest
import torch

from cameraready.methods.max_kernel import (
    BlockPermutations,
    Permutations,
    Rotations,
    SignFlips,
    augment,
    bo_loop,
    invariance_defect,
)
from cameraready.methods.max_kernel.fitting import METHODS
from cameraready.methods.max_kernel.problems import (
    access_points,
    ackley,
    griewank,
    lennard_jones,
    radial,
    rastrigin,
    template_match,
)

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
QUICK = {"n_init": 4, "n_iter": 2, "optimizer": "candidates"}


def peak(X):
    return -(X.sort(-1).values - torch.tensor([0.2, 0.7])).square().sum(-1)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_starts_from_the_same_designs_and_keeps_to_the_budget(method):
    trace = bo_loop(peak, BOUNDS, Permutations(2), method=method, optimum=0.0, seed=3, **QUICK)
    reference = bo_loop(peak, BOUNDS, Permutations(2), method="random", optimum=0.0, seed=3, **QUICK)
    assert trace.X.shape == (6, 2)
    assert np.array_equal(trace.X[:4], reference.X[:4])
    assert ((trace.X >= 0) & (trace.X <= 1)).all()
    assert np.allclose(trace.simple_regret, -trace.best)
    assert np.isclose(trace.cumulative_regret[-1], -trace.values[4:].sum())


def test_a_run_is_repeatable_and_leaves_torch_random_state_alone():
    torch.manual_seed(5)
    first = bo_loop(peak, BOUNDS, Permutations(2), seed=1, **QUICK)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))
    assert np.array_equal(first.X, bo_loop(peak, BOUNDS, Permutations(2), seed=1, **QUICK).X)


def test_optimisation_beats_random_search_on_an_easy_problem():
    regrets = {
        method: bo_loop(
            peak, BOUNDS, Permutations(2), method=method, n_init=4, n_iter=10, optimum=0.0, optimizer="candidates"
        ).simple_regret[-1]
        for method in ("max", "random")
    }
    assert regrets["max"] < 0.1 * regrets["random"]


@pytest.mark.parametrize(
    "options", [{"acq": "ucb"}, {"q": 2}, {"hyper": "base"}, {"noise_std": 0.1}, {"refit_every": 2}]
)
def test_options_of_the_loop_run(options):
    n_iter = 2 if "refit_every" in options else 1
    settings = {"n_init": 4, "n_iter": n_iter, "optimizer": "lbfgs" if options.get("q") else "candidates"}
    trace = bo_loop(peak, BOUNDS, Permutations(2), **settings, **options)
    assert len(trace.values) == 4 + n_iter * options.get("q", 1)
    assert np.isfinite(trace.Y).all()
    assert ("noise_std" in options) == bool((trace.values != trace.Y).any())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "maximal"}, "choose one of max"),
        ({"acq": "ei"}, "logei"),
        ({"n_init": 0}, "n_init=0"),
        ({"q": 2}, "lbfgs"),
        ({"bounds": torch.tensor([[0.0, 1.0], [1.0, 1.0]])}, "below the high end"),
        ({"bounds": torch.zeros(2, 3)}, "2 coordinates"),
        ({"group": SignFlips(2, center=0.0)}, "outside it in coordinate 0"),
        ({"group": Rotations(2)}, "random rotation"),
        ({"f": lambda X: X[:, 0] / 0.0}, "finite"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    settings = {"f": peak, "bounds": BOUNDS, "group": Permutations(2), **QUICK} | change
    with pytest.raises(ValueError, match=message):
        bo_loop(settings.pop("f"), settings.pop("bounds"), settings.pop("group"), **settings)


def test_rotations_are_allowed_where_the_caller_vouches_for_them():
    problem = radial(2)
    trace = bo_loop(problem, problem.bounds, problem.group, check_box=False, optimum=0.0, **QUICK)
    assert np.isfinite(trace.simple_regret).all()


def test_augmentation_copies_values_along_orbits_and_caps_the_copies():
    X, Y = torch.rand(3, 6, dtype=torch.float64), torch.arange(3.0).unsqueeze(-1)
    group = BlockPermutations(3, 2)
    all_X, all_Y = augment(X, Y, group)
    assert all_X.shape == (18, 6)
    assert (all_Y.view(3, 6) == Y).all()
    some_X, some_Y = augment(X, Y, group, max_copies=2)
    assert torch.equal(some_X[::2], X)
    assert torch.equal(some_Y.view(3, 2)[:, 1:], Y)
    turned, _ = augment(X, Y, Rotations(6), max_copies=4)
    assert torch.allclose((turned - 0.5).norm(dim=-1).view(3, 4), (X - 0.5).norm(dim=-1, keepdim=True))
    with pytest.raises(ValueError, match="infinite"):
        augment(X, Y, Rotations(6))
    with pytest.raises(ValueError, match="max_copies=0"):
        augment(X, Y, group, max_copies=0)


def test_invariance_defect_measures_a_broken_symmetry():
    X = torch.rand(5, 2, dtype=torch.float64)
    assert invariance_defect(peak, Permutations(2), X) == 0.0
    broken = invariance_defect(lambda X: X[:, 0], Permutations(2), X)
    assert broken == pytest.approx(float((X[:, 0] - X[:, 1]).abs().max()))


@pytest.mark.parametrize(
    "problem",
    [
        ackley(3),
        griewank(2),
        rastrigin(2),
        radial(3),
        template_match(5, seed=1),
        access_points(seed=1),
        lennard_jones(3),
        lennard_jones(4, 3),
    ],
    ids=lambda problem: problem.name,
)
def test_problems_are_invariant_and_never_exceed_their_optimum(problem):
    low, high = problem.bounds
    X = low + (high - low) * torch.rand(200, problem.group.dim, dtype=torch.float64)
    assert invariance_defect(problem, problem.group, X[:5]) < 1e-8
    if problem.optimum is not None:
        assert problem(X).max() <= problem.optimum + 1e-9
    if problem.name.split()[0] in ("Ackley", "Rastrigin", "Griewank"):
        assert problem(torch.zeros(1, problem.group.dim, dtype=torch.float64)).item() == pytest.approx(0.0, abs=1e-9)


def test_optima_that_are_known_are_reached():
    triangle = torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.5, 0.75**0.5]], dtype=torch.float64) * 2 ** (1 / 6)
    cluster = lennard_jones(3)
    assert cluster(triangle).item() == pytest.approx(cluster.optimum)
    ring = torch.tensor([[4.0, 0.0]], dtype=torch.float64)
    assert radial(2)(ring).item() == pytest.approx(0.0)
