"""What is refused, and with which words."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from cameraready.methods.relu_landscape import (
    AuditTorch,
    Landscape,
    NotCovered,
    Pattern,
    as_benchmark_problem,
    barrier,
    basins,
    drift_spectrum,
    plot_disconnectivity,
    read_pattern,
    sgd_ode,
    simulate_sgd,
    solve_orbits,
    split_neuron,
)
from cameraready.methods.relu_landscape.order_parameters import check_feasible


def test_impossible_landscapes_are_refused():
    with pytest.raises(ValueError, match="K=0"):
        Landscape(3, K=0)
    with pytest.raises(ValueError, match="teacher=0"):
        Landscape(0, K=2)
    with pytest.raises(ValueError, match=r"teacher rows \[1\] are zero"):
        Landscape([[1.0, 0.0], [0.0, 0.0]], K=2)
    with pytest.raises(ValueError, match="1 values that are not finite"):
        Landscape([[1.0, np.nan]], K=2)
    with pytest.raises(ValueError, match="not positive semidefinite"):
        Landscape.from_gram([[1.0, 2.0], [2.0, 1.0]], K=2)
    for size in (1e150, 1e-150):  # products of four lengths leave the range of float64
        with pytest.raises(ValueError, match="rescale"):
            Landscape(size * np.eye(2), K=2)
    with pytest.raises(TypeError, match="complex"):
        Landscape(1j * np.eye(2), K=2)
    with pytest.raises(ValueError, match="not symmetric"):
        Landscape.from_gram([[1.0, 0.5], [0.0, 1.0]], K=2)


def test_weights_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"W has shape \(3, 4\).*K=2"):
        Landscape(3, K=2).loss(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="d=5"):
        Landscape(np.ones((1, 5)), K=2).grad(np.zeros((2, 6)))
    with pytest.raises(ValueError, match="no weights"):
        Landscape(3, K=2).loss(np.zeros((0, 2, 3)))
    with pytest.raises(TypeError, match=r"torch\.int64"):  # the teacher would be rounded to whole numbers
        Landscape(np.full((3, 3), 0.5), K=2).loss(torch.ones(2, 3, dtype=torch.int64))
    for function in (Landscape(3, K=2).loss_q, Landscape(3, K=2).classify):
        with pytest.raises(ValueError, match="do not fit K=2 students and M=3 teachers"):
            function(np.eye(3), np.eye(3))
    for scale in (0, np.nan, np.inf, 2e10):
        with pytest.raises(ValueError, match="starts at the teacher"):
            Landscape(2, K=2).find_minima(1, scale=scale)
        with pytest.raises(ValueError, match="starts at the teacher"):
            Landscape(2, K=2).random_stats(seed=0, scale=scale)
    with pytest.raises(ValueError, match="n_starts=0"):
        Landscape(2, K=2).find_minima(0)
    with pytest.raises(ValueError, match="init='uniform'"):
        Landscape(2, K=2).find_minima(1, init="uniform")


def test_only_critical_points_are_certified():
    with pytest.raises(ValueError, match="not a critical point"):
        Landscape(2, K=2).certify([[1.0, 0.2], [0.0, 1.0]])
    with pytest.raises(ValueError, match="leaves the teachers' span"):
        Landscape(2, K=2).certify([[1.0, 0.0, 0.3], [0.0, 1.0, 0.0]])


def test_infeasible_order_parameters_are_projected_with_a_warning():
    with pytest.warns(UserWarning, match="infeasible"):
        stats = check_feasible(np.eye(1) * 0.5, np.ones((1, 1)), np.eye(1))
    assert stats.Q[0, 0] == pytest.approx(1.0)  # |w|^2 is at least the square of its overlap
    land = Landscape(1, K=1)
    batch = np.array([[[0.5]], [[1.0]]]), np.ones((2, 1, 1))
    with pytest.warns(UserWarning, match="infeasible"):
        np.testing.assert_allclose(land.loss_q(*batch), 0, atol=1e-12)  # both are then the teacher itself
    with pytest.raises(ValueError, match="not finite"):
        land.loss_q(np.full((1, 1), np.nan), np.ones((1, 1)))
    with pytest.raises(ValueError, match="do not fit"):
        check_feasible(np.eye(2), np.ones((1, 1)), np.eye(1))


def test_outside_the_regime_the_answer_is_not_covered():
    stats = Landscape(3, K=3).random_stats(seed=0)
    with pytest.raises(NotCovered, match="diverge"):
        sgd_ode(*stats, eta=50.0, t_max=100)
    with pytest.raises(NotCovered, match="parallel"):
        drift_spectrum(np.eye(2), np.eye(2), np.eye(2))
    with pytest.raises(NotCovered, match="orthogonal teachers of one norm"):
        Landscape(np.diag([1.0, 2.0]), K=2).from_orbits(Pattern.defects(2, 1))
    with pytest.raises(NotCovered, match="parallel or of norm 0"):
        solve_orbits(Pattern((8,), (0,)))  # every student on its teacher
    with pytest.raises(NotCovered, match="K = M"):
        read_pattern(Landscape(3, K=2).random_stats(seed=0))
    turning = 0.1 * np.array([[8.0, 1.0, 2.0], [2.0, 8.0, 1.0], [1.0, 2.0, 8.0]])  # equal profiles, no full symmetry
    with pytest.raises(NotCovered, match="no such symmetry"):
        read_pattern(Landscape(3, K=3).stats(turning))


def test_settings_out_of_range_are_refused():
    stats = Landscape(2, K=2).random_stats(seed=0)
    with pytest.raises(ValueError, match="eta=0"):
        sgd_ode(*stats, eta=0, t_max=1)
    with pytest.raises(ValueError, match="eta=inf"):
        sgd_ode(*stats, eta=np.inf, t_max=1)
    with pytest.raises(ValueError, match=r"steps=2\.5"):
        simulate_sgd(np.eye(2), np.eye(2), lr=0.1, steps=2.5, seed=0)
    with pytest.raises(ValueError, match="not finite"):
        simulate_sgd(np.full((2, 2), np.nan), np.eye(2), lr=0.1, steps=2, seed=0)
    with pytest.raises(ValueError, match="5 values, all finite"):
        solve_orbits(Pattern.defects(8, 1), start=[np.nan] * 5)
    with pytest.raises(ValueError, match="of one d"):
        simulate_sgd(np.eye(2), np.eye(3), lr=0.1, steps=1, seed=0)
    with pytest.raises(ValueError, match="share=1"):
        split_neuron(np.eye(2), 0, share=1)
    for k in (2, 0.5):
        with pytest.raises(ValueError, match=f"k={k}"):
            split_neuron(np.eye(2), k)
    with pytest.raises(ValueError, match="optimiser='rmsprop'"):
        basins(2, [2], optimiser="rmsprop")
    with pytest.raises(ValueError, match="d=2 is smaller"):
        as_benchmark_problem(3, 3, d=2)
    with pytest.raises(TypeError, match=r"d=3\.5"):
        as_benchmark_problem(3, 3, d=3.5)
    for settings in ({"n": 2.5}, {"t_max": np.inf}, {"scale": 0}):
        with pytest.raises(ValueError, match="positive and finite"):
            basins(2, [2], **settings)
    with pytest.raises(ValueError, match="Ks is empty"):
        basins(2, [])
    with pytest.raises(ValueError, match="of one d"):
        simulate_sgd(np.zeros((0, 2)), np.eye(2), lr=0.1, steps=1, seed=0)
    with pytest.raises(ValueError, match="blocks"):
        Pattern((np.inf,), (0,))
    with pytest.raises(ValueError, match="students"):
        Pattern((3,), (0.5,))
    for call in (solve_orbits, Landscape(4, K=4).from_orbits):
        with pytest.raises(TypeError, match="pass a Pattern"):
            call("7 and 1")
    with pytest.raises(ValueError, match="n_images=2"):
        barrier(Landscape(2, K=2), np.eye(2), np.eye(2), n_images=2)
    with pytest.raises(ValueError, match="two shapes"):
        barrier(Landscape(2, K=2), np.eye(2), np.eye(2, 3))
    with pytest.raises(ValueError, match="n_defects=4"):
        Pattern.defects(4, 4)
    with pytest.raises(ValueError, match="the pattern has"):
        Landscape(4, K=4).from_orbits(Pattern.defects(5, 1))
    with pytest.raises(ValueError, match="5 values"):
        solve_orbits(Pattern.defects(8, 1), start=[1.0])
    with pytest.raises(ValueError, match="1 minima"):
        plot_disconnectivity(Landscape(2, K=2), Landscape(2, K=2).find_minima(2))


def network(width, *, d=5, bias=False, last=None):
    return nn.Sequential(nn.Linear(d, width, bias=bias), nn.ReLU(), last or nn.Linear(width, 1, bias=False))


def test_networks_outside_the_theory_are_refused():
    good = network(3)
    good[2].weight.data.abs_()
    with pytest.raises(ValueError, match="bias in its first layer"):
        AuditTorch(network(3, bias=True), good)
    negative = network(3)
    negative[2].weight.data.fill_(-1)
    with pytest.raises(ValueError, match="3 negative output weights"):
        AuditTorch(good, negative)
    with pytest.raises(ValueError, match="2 outputs"):
        AuditTorch(network(3, last=nn.Linear(3, 2, bias=False)), good)
    with pytest.raises(ValueError, match="not a weighted sum"):
        AuditTorch(network(3, last=nn.Softmax(dim=-1)), good)
    with pytest.raises(ValueError, match="Tanh"):
        AuditTorch(nn.Sequential(nn.Linear(5, 3, bias=False), nn.Tanh(), nn.Linear(3, 1, bias=False)), good)
    other = network(3, d=4)
    other[2].weight.data.abs_()
    with pytest.raises(ValueError, match="d=5"):
        AuditTorch(good, other)


def test_a_diverged_network_or_unusable_inputs_are_refused_and_not_left_out():
    good, broken = network(3), network(3)
    for model in (good, broken):
        model[2].weight.data.abs_()
    with torch.no_grad():
        broken[0].weight[0] = float("nan")
    with pytest.raises(ValueError, match="5 weights that are not finite"):
        AuditTorch(broken, good)
    for inputs in (torch.zeros(4, 7), torch.zeros(1, 5), torch.full((4, 5), float("nan"))):
        with pytest.raises(ValueError, match="expected finite examples"):
            AuditTorch(good, good).run(inputs)


def test_the_reason_survives_the_way_back_from_another_process():
    assert str(pickle.loads(pickle.dumps(NotCovered("no such thing")))) == "not covered: no such thing"


def test_results_can_be_pickled():
    land = Landscape(3, K=3)
    for result in (
        land,
        land.find_minima(3),
        solve_orbits(Pattern.defects(8, 1)),
        as_benchmark_problem(2, 2, n_starts=1),
    ):
        assert type(pickle.loads(pickle.dumps(result))) is type(result)
