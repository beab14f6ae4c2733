"""Symmetric critical points against the full landscape."""

import numpy as np
import pytest

from cameraready.methods.relu_landscape import Landscape, Pattern, follow, read_pattern, solve_orbits
from cameraready.methods.relu_landscape.order_parameters import Stats


@pytest.mark.parametrize(("M", "n_defects"), [(8, 1), (10, 2), (12, 2), (16, 3)])
def test_orbit_values_give_loss_and_curvature_of_the_full_network(M, n_defects):
    point = solve_orbits(Pattern.defects(M, n_defects))
    land, W = Landscape(M, K=M), point.weights()
    assert np.linalg.norm(land.grad(W)) < 1e-12
    assert point.loss == pytest.approx(land.loss(W), abs=1e-11)
    in_larger_space = land.hessian(np.pad(W, ((0, 0), (0, 1))))
    assert point.lambda_min == pytest.approx(np.linalg.eigvalsh(in_larger_space)[0], abs=1e-10)


def test_a_student_block_may_hold_two_students_for_each_teacher_and_one_may_stand_alone():
    from cameraready.methods.relu_landscape.orbits import _derivatives

    pattern = Pattern((3, 2), (0, 0, 1, None))
    x = np.random.default_rng(0).normal(size=pattern.n_values)
    fun, grad, hess = _derivatives(pattern.layout)
    W = pattern.layout.expand(x)
    assert W.shape == (9, 5)
    assert fun(x) == pytest.approx(Landscape(5, K=9).loss(W), abs=1e-12)
    steps = np.eye(len(x)) * 1e-6
    np.testing.assert_allclose(grad(x), [(fun(x + s) - fun(x - s)) / 2e-6 for s in steps], atol=1e-7)
    np.testing.assert_allclose(hess(x), [(grad(x + s) - grad(x - s)) / 2e-6 for s in steps], atol=1e-6)


def test_a_found_minimum_is_read_and_solved_again_from_rounded_values():
    land = Landscape(10, K=10)
    for point in land.find_minima(40, seed=0).points[1:]:
        seen = read_pattern(Stats(point.Q, point.R, land.T))
        assert seen.pattern.blocks == (10 - point.family.defects, point.family.defects)
        again = solve_orbits(seen.pattern, start=np.round(seen.values, 1))
        assert again.loss == pytest.approx(point.loss, abs=1e-10)
        np.testing.assert_allclose(again.weights(), point.R[np.ix_(seen.students, seen.teachers)], atol=1e-8)


def test_the_one_defect_minimum_becomes_stable_between_five_and_six_teachers():
    curve = follow(lambda M: Pattern.defects(M, 1), [5, 5.5, 6, 8, 40])
    assert (curve["lambda_min"] > 0).tolist() == [False, False, True, True, True]
    assert curve.loc[3, "loss"] == pytest.approx(0.0215080, abs=1e-7)
    assert curve.loc[4, "loss"] < curve.loc[3, "loss"]


def test_orbits_scale_with_orthogonal_teachers_of_any_norm():
    land = Landscape(3 * np.eye(8), K=8)
    point = land.from_orbits(Pattern.defects(8, 1))
    assert point.loss == pytest.approx(land.loss(point.weights()), rel=1e-10)
    assert np.linalg.norm(land.grad(point.weights())) < 1e-12
