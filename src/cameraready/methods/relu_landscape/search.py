"""From a start to a critical point: L-BFGS on the exact loss, then damped Newton to rounding precision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

from cameraready.methods.relu_landscape.order_parameters import gradient_coefficients
from cameraready.methods.relu_landscape.pair_kernel import hessian, loss_and_gradient, missing_direction

Floats = NDArray[np.float64]
FLAT = 1e-7  # Hessian eigenvalues of smaller size count as zero
DESCENT_TOLERANCE = 1e-7  # where L-BFGS hands over to Newton
NEWTON_TOLERANCE = 1e-13
CONVERGED = 1e-10  # of the gradient's norm
ESCAPES = 3
RETURNS = 3


@dataclass(frozen=True)
class Problem:
    """The loss in coordinates whose first ``rank`` axes span the teachers; the others are orthogonal to all of them."""

    V: Floats  # (M, rank + extra), zero in the extra axes
    rank: int
    teacher_energy: float

    def fun(self, W: Floats) -> tuple[float, Floats]:
        return loss_and_gradient(np.ascontiguousarray(W), self.V, self.at_zero(W), self.teacher_energy)

    def hess(self, W: Floats) -> Floats:
        """Hessian as a (K d, K d) matrix."""
        return hessian(np.ascontiguousarray(W), self.V, self.at_zero(W)).reshape(W.size, W.size)

    def at_zero(self, W: Floats) -> Floats:
        """The direction from which limits at a neuron of norm 0 are taken."""
        return missing_direction(np.ascontiguousarray(W), self.V)

    def in_span(self) -> Problem:
        """The same problem for weights in the span of the teachers."""
        return Problem(np.ascontiguousarray(self.V[:, : self.rank]), self.rank, self.teacher_energy)


def find_critical_point(problem: Problem, start: Floats) -> Floats:
    """The minimum that descent from ``start`` (K, d0) reaches, as weights in the span of the teachers (K, rank).

    A critical point where A is nonsingular lies in that span, so Newton runs there. Where Newton ends on a saddle (a
    slow plateau looked like a minimum), descent goes on from beside it. Where Newton stalls (beside a kink of the
    curvature, at nearly parallel neurons), descent goes on to the last digit.
    """
    W = refine(problem.in_span(), descend(problem, start)[:, : problem.rank])
    for _ in range(RETURNS):
        if np.linalg.norm(problem.in_span().fun(W)[1]) <= CONVERGED:
            break
        lower = descend(problem, embed(W, problem), tolerance=1e-12)
        W = refine(problem.in_span(), lower[:, : problem.rank])
    for _ in range(ESCAPES):
        downhill = escape_direction(problem, W)
        if downhill is None:
            break
        lower = descend(problem, embed(W, problem) + 0.05 * downhill)
        W = refine(problem.in_span(), lower[:, : problem.rank])
    return W


def descend(problem: Problem, start: Floats, *, tolerance: float = DESCENT_TOLERANCE) -> Floats:
    """L-BFGS until the largest gradient entry is below ``tolerance``."""

    def fun(x: Floats) -> tuple[float, Floats]:
        value, gradient = problem.fun(x.reshape(start.shape))
        return value, gradient.ravel()

    # ftol=0: on the plateaus of this landscape a small decrease does not mean convergence.
    options = {"maxiter": 20_000, "maxfun": 40_000, "gtol": tolerance, "ftol": 0.0, "maxcor": 20}
    found = optimize.minimize(fun, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    return found.x.reshape(start.shape)


def refine(problem: Problem, W: Floats, *, tolerance: float = NEWTON_TOLERANCE, max_steps: int = 60) -> Floats:
    """Levenberg-Marquardt on the gradient equations: converges to the nearest critical point of any index."""
    _, gradient = problem.fun(W)
    size, damping = np.linalg.norm(gradient), 1e-3
    for _ in range(max_steps):
        if size <= tolerance:
            break
        values, vectors = eigen(problem.hess(W))
        along = vectors.T @ gradient.ravel()
        for _ in range(8):
            step = vectors @ (along * values / (values**2 + damping * size))
            trial = W - step.reshape(W.shape)
            _, trial_gradient = problem.fun(trial)
            trial_size = np.linalg.norm(trial_gradient)
            if trial_size < size:
                break
            damping *= 10
        else:
            break
        W, gradient, size, damping = trial, trial_gradient, trial_size, damping / 10
    return W


def eigen(H: Floats) -> tuple[Floats, Floats]:
    """Eigenvalues (ascending) and eigenvectors of a symmetric matrix.

    LAPACK's divide and conquer can fail on finite Hessians with many equal eigenvalues, which symmetric minima have;
    there the slower QR iteration is used.
    """
    try:
        values, vectors = np.linalg.eigh(H)
    except np.linalg.LinAlgError:
        values, vectors = linalg.eigh(H, driver="ev")
    return values, vectors


def escape_direction(problem: Problem, W: Floats) -> Floats | None:
    """The unit direction (K, d0) of the most negative curvature at the critical point ``W`` of the span, or None.

    Orthogonal to the teachers the Hessian is A (x) I, so its eigenvectors there are those of the K x K matrix A.
    """
    if (np.linalg.norm(W, axis=1) == 0).any():
        return None
    inside, within = eigen(problem.in_span().hess(W))
    if inside[0] < -FLAT:
        return embed(within[:, 0].reshape(W.shape), problem)
    if problem.V.shape[1] == problem.rank:
        return None
    outside, across = eigen(orthogonal_hessian(problem, W))
    if outside[0] >= -FLAT:
        return None
    direction = np.zeros((len(W), problem.V.shape[1]))
    direction[:, problem.rank] = across[:, 0]
    return direction


def orthogonal_hessian(problem: Problem, W: Floats) -> Floats:
    """A (K, K), the Hessian in any one direction orthogonal to teachers and students."""
    span = problem.in_span()
    return gradient_coefficients(W @ W.T, W @ span.V.T, span.V @ span.V.T).A


def embed(W: Floats, problem: Problem) -> Floats:
    """Weights of the span as weights of the problem's space."""
    return np.pad(W, ((0, 0), (0, problem.V.shape[1] - W.shape[1])))
