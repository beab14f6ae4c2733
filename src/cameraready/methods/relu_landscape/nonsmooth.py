"""Directional derivatives at a neuron of norm 0, the only points where the loss has no gradient."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from cameraready.methods.relu_landscape.pair_kernel import loss_and_gradient
from cameraready.methods.relu_landscape.search import Problem

Floats = NDArray[np.float64]


def steepest_slope_at_zero(problem: Problem, W: Floats) -> float:
    """The least directional derivative of L when one neuron of norm 0 grows along a unit vector e.

    It is D(e) = sum_l h(e, w_l) - sum_m h(e, v_m), minimised over the sphere of the teachers' span from every teacher,
    every student and their opposites.
    """
    V = problem.in_span().V
    others = W[np.linalg.norm(W, axis=1) > 0]
    at_zero = np.eye(V.shape[1])[0]

    def slope(x: Floats) -> tuple[float, Floats]:
        e = x / np.linalg.norm(x)
        # The loss of the single student e against "teachers" v has the cross terms wanted, once its own |e|^2 / 4 goes.
        toward, pull = loss_and_gradient(e[None], V, at_zero, 0.0)
        away, push = loss_and_gradient(e[None], others, at_zero, 0.0) if len(others) else (0.25, e[None] / 2)
        gradient = pull[0] - push[0]
        return toward - away, (gradient - (gradient @ e) * e) / np.linalg.norm(x)

    starts = [sign * row for row in (*V, *others) for sign in (1, -1)]
    return min(float(optimize.minimize(slope, start, jac=True, method="L-BFGS-B").fun) for start in starts)
