import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cameraready.methods.mes_ret import expected_gain_ratio
from cameraready.methods.mes_ret.constants import strategy_constants
from cameraready.methods.mes_ret.population import Population
from cameraready.methods.mes_ret.ranking import epsilon_level, order, outside, violation
from cameraready.methods.mes_ret.reward import diversity, improvement, normalised
from cameraready.methods.mes_ret.transfer import aggregate, inject

F64 = torch.float64


@pytest.mark.parametrize(("n", "popsize"), [(1, 4), (2, 6), (10, 20), (30, 14), (100, 17)])
def test_constants_are_those_of_cma(n, popsize):
    cma = pytest.importorskip("cma")
    es = cma.CMAEvolutionStrategy(np.zeros(max(n, 2)), 0.3, {"popsize": popsize, "verbose": -9})
    if n == 1:  # cma refuses one variable
        assert strategy_constants(1, 4).chi == pytest.approx(math.sqrt(2 / math.pi), rel=2e-2)
        return
    mine = strategy_constants(n, popsize)
    assert mine.mu_eff == pytest.approx(es.sp.weights.mueff, rel=1e-12)
    assert mine.c_1 == pytest.approx(es.sp.c1, rel=1e-12)
    assert mine.c_c == pytest.approx(es.sp.cc, rel=1e-12)
    assert mine.weights == pytest.approx(np.array(es.sp.weights)[: mine.mu], rel=1e-12)


def one_generation(state, y, popsize):
    """CMA-ES by the book, one task, plain numpy."""
    n, c = len(state["mean"]), strategy_constants(len(state["mean"]), popsize)
    values, B = np.linalg.eigh(state["C"])
    step = c.weights @ y
    state["g"] += 1
    state["mean"] = state["mean"] + state["sigma"] * step
    white = B @ ((B.T @ step) / np.sqrt(values))
    state["ps"] = (1 - c.c_sigma) * state["ps"] + math.sqrt(c.c_sigma * (2 - c.c_sigma) * c.mu_eff) * white
    length = np.linalg.norm(state["ps"])
    h = length / math.sqrt(1 - (1 - c.c_sigma) ** (2 * state["g"])) < (1.4 + 2 / (n + 1)) * c.chi
    state["pc"] = (1 - c.c_c) * state["pc"] + h * math.sqrt(c.c_c * (2 - c.c_c) * c.mu_eff) * step
    state["C"] = (
        (1 - c.c_1 - c.c_mu) * state["C"]
        + c.c_1 * (np.outer(state["pc"], state["pc"]) + (1 - h) * c.c_c * (2 - c.c_c) * state["C"])
        + c.c_mu * sum(w * np.outer(each, each) for w, each in zip(c.weights, y, strict=True))
    )
    state["sigma"] *= math.exp(min(1.0, c.c_sigma / c.d_sigma * (length / c.chi - 1)))


@pytest.mark.parametrize("n", [1, 3, 12])
def test_the_batch_equals_a_loop_by_the_book(n):
    rng, T, popsize = np.random.default_rng(n), 5, 10
    population = Population(T, n, diagonal=False, device="cpu", dtype=F64)
    states = []
    for t in range(T):
        population.start(t, torch.zeros(n, dtype=F64), 0.3)
        zeros = np.zeros(n)
        states.append({"mean": zeros, "ps": zeros, "pc": zeros, "C": np.eye(n), "sigma": 0.3, "g": 0})
    for generation in range(12):
        rows = [t for t in range(T) if (t + generation) % 3]  # some tasks sit out
        y = rng.standard_normal((len(rows), popsize // 2, n)) * (3.0 if generation == 4 else 1.0)
        population.update(torch.tensor(rows), torch.as_tensor(y), popsize)
        for t, each in zip(rows, y, strict=True):
            one_generation(states[t], each, popsize)
    for t, state in enumerate(states):
        assert population.mean[t].numpy() == pytest.approx(state["mean"], rel=1e-12, abs=1e-12)
        assert population.covariance.C[t].numpy() == pytest.approx(state["C"], rel=1e-12, abs=1e-12)
        assert population.path_sigma[t].numpy() == pytest.approx(state["ps"], rel=1e-11, abs=1e-12)
        assert float(population.sigma[t]) == pytest.approx(state["sigma"], rel=1e-12)


def test_a_diagonal_covariance_stays_what_a_full_one_has_on_its_diagonal():
    full, diagonal = (Population(1, 4, diagonal=d, device="cpu", dtype=F64) for d in (False, True))
    y = torch.eye(4, dtype=F64)[None, :3]
    rows = torch.tensor([0])
    for population in (full, diagonal):
        population.covariance.update(rows, torch.tensor([0.8], dtype=F64), 0.1, y[:, 0], 0.1, y)
    assert torch.equal(full.covariance.variances(rows), diagonal.covariance.variances(rows))


def test_a_step_size_never_grows_more_than_e_fold():
    population = Population(1, 2, diagonal=False, device="cpu", dtype=F64)
    population.update(torch.tensor([0]), torch.full((1, 3, 2), 1e6, dtype=F64), 6)
    assert float(population.sigma[0]) == pytest.approx(math.e)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(any))
def test_weighted_draws_never_gain_less_than_uniform_ones(rewards):
    ratio = expected_gain_ratio(rewards)
    assert 1 - 1e-9 <= ratio <= len(rewards) + 1e-9


def test_the_gain_ratio_is_what_draws_gain():
    r = np.array([0.1, 0.5, 2.0, 0.0])
    drawn = np.random.default_rng(0).choice(r, size=200_000, p=r / r.sum())
    # The standard error is 0.002 times the ratio: five of them.
    assert drawn.mean() / r.mean() == pytest.approx(expected_gain_ratio(r), rel=0.01)


@pytest.mark.parametrize("bad", [[], [0.0, 0.0], [-1.0, 2.0], [np.inf, 1.0]])
def test_rewards_that_decide_nothing_are_refused(bad):
    with pytest.raises(ValueError, match="reward"):
        expected_gain_ratio(bad)


def test_the_papers_reward_gives_all_to_a_first_improvement_and_the_bounded_one_does_not():
    old, new, first = np.array([10.0, 5.0]), np.array([9.0, 4.0]), np.array([10.0, 10.0])
    paper, bounded = (improvement(old, new, first, form=form) for form in ("paper", "bounded"))
    assert paper[0] / paper.sum() > 1 - 1e-9
    assert bounded == pytest.approx([1.0, 1 / 6])


def test_missing_and_worse_values_earn_nothing():
    infinite = np.array([np.inf, 1.0])
    assert not improvement(infinite, np.array([1.0, 2.0]), np.array([1.0, 3.0])).any()


def test_rewards_fall_back_to_all_active_tasks_alike():
    active = np.array([True, False, True])
    assert normalised(np.zeros(3), active).tolist() == [0.5, 0.0, 0.5]
    assert normalised(np.array([1.0, 5.0, 3.0]), active).tolist() == [0.25, 0.0, 0.75]
    assert diversity(np.array([2.0, 4.0, 3.0])).tolist() == [0.0, 1.0, 0.5]


def test_a_slot_is_averaged_over_its_owners_alone():
    # Task 0 owns slots 0 and 1, task 1 owns slots 1 and 2, task 2 owns slot 3 and has no reward.
    known = aggregate(
        np.array([0.25, 0.75, 0.0]), np.array([1.0, 2.0, 9.0]),
        np.array([1.0, 1.0, 3.0, 5.0, 7.0]), np.array([0.0, 0.4, 0.8, 0.6, 0.3]),
        owner=np.array([0, 0, 1, 1, 2]), slot=np.array([0, 1, 1, 2, 3]), n_slots=5,
    )  # fmt: skip
    assert known.scale == 1.75
    assert known.stretch == pytest.approx([1.0, 2.5, 5.0, 7.0, 0.0])
    assert known.mean == pytest.approx([0.0, 0.7, 0.6, 0.3, 0.0])


def test_injected_samples_have_the_usual_step_and_the_others_stay():
    rng = np.random.default_rng(0)
    z = torch.as_tensor(rng.standard_normal((2, 10, 4)))
    y = 2 * z
    pull = torch.full((2, 4), 1e6, dtype=F64)  # advice from far away
    out = inject(
        y, z, sigma=torch.ones(2, dtype=F64), pull=pull, spread=torch.full((2, 4), 0.5, dtype=F64),
        counts=torch.tensor([2, 0]),
    )  # fmt: skip
    assert torch.equal(out[1], y[1])
    assert torch.equal(out[0, :6], y[0, :6])
    length = torch.linalg.vector_norm(y[0], dim=1).mean()
    assert torch.linalg.vector_norm(out[0, 8:], dim=1).numpy() == pytest.approx(float(length))
    assert out[0, 8].numpy() == pytest.approx(float(length) / 2, rel=1e-4)  # it points to the advice
    assert torch.equal(out[0, 6:8], 0.5 * z[0, 6:8])


def test_points_outside_rank_behind_infeasible_ones_and_those_behind_feasible_ones():
    f, cv, beyond = np.array([[5.0, 1.0, 2.0, 0.0, np.inf]]), np.array([[0.0, 3.0, 0.0, 0.0, 0.0]]), np.zeros((1, 5))
    beyond[0, 3] = 1e-6
    assert order(f, cv, beyond, np.zeros(1))[0].tolist() == [2, 0, 4, 1, 3]
    assert order(f, cv, beyond, np.array([3.0]))[0].tolist() == [1, 2, 0, 4, 3]  # within epsilon


def test_violations_and_their_tolerance():
    assert outside(np.array([[1.05, 0.5], [1.15, -0.05]])) == pytest.approx([0.0, 0.01])
    assert violation(np.array([[1.0, -5.0, 2.0], [np.nan, 0.0, 0.0]])).tolist() == [3.0, np.inf]
    assert epsilon_level(np.array([2.0]), 0.0)[0] == 2.0
    assert epsilon_level(np.array([2.0]), 0.15)[0] == pytest.approx(2 / 2**8)
    assert epsilon_level(np.array([2.0]), 0.3)[0] == 0.0
