"""Other solvers of the same problem (p=2), each run to a target objective on per-task Gram matrices.

The Gram matrices take the rows out of every iteration, the most favourable form of these methods; building them is
part of each call.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from .admm import Quadratic, admm, quadratic_model
from .problem import Problem
from .solver import Settings, run, tune_eta0


def rip(problem: Problem, target: float, *, seed: int, passes: int = 4**5) -> NDArray:
    """This library: "rip" for one pass over the rows, then 4, 16, ..., each tuned and started at the last iterate."""
    W, n = None, len(problem.y)
    for T in (n * 4**k for k in range(20) if 4**k <= passes):
        eta0 = tune_eta0(problem, T, settings=Settings(), seed=seed, start=W)
        W = run(problem, T, settings=Settings(eta0=eta0), seed=seed + T, start=W).W
        if problem.objective(W) <= target:
            return W
    raise RuntimeError(f"rip did not reach {target:.6g} in {passes} passes")


class GramObjective:
    """F from Gram matrices: 1/2 w'Hw - b.w + constant, plus the ties; costs nothing in n."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.model: Quadratic = quadratic_model(problem, np.zeros(problem.shape))
        self.constant = 0.5 * float(problem.y @ problem.y) / len(problem.y)

    def smooth(self, W: NDArray) -> tuple[float, NDArray]:
        HW = np.einsum("tij,tj->ti", self.model.H, W)
        return 0.5 * float((W * HW).sum()) - float((self.model.b * W).sum()) + self.constant, HW - self.model.b

    def __call__(self, W: NDArray) -> float:
        return self.smooth(W)[0] + self.problem.penalty.value(W)


def consensus_admm(problem: Problem, target: float) -> NDArray:
    """SnapVX's splitting: copies of both rows on every edge, adaptive penalty parameter.

    For the logistic loss each round of iterations has its own second-order model, built from all rows.
    """
    squared = problem.loss == "squared"
    objective = GramObjective(problem) if squared else problem.objective
    iterations = 4 if squared else 64
    W, Y, rho = np.zeros(problem.shape), None, None
    for _ in range(1000):
        model = objective.model if squared else quadratic_model(problem, W)
        found = admm(problem, model, start=W, dual=Y, rho=rho, max_iter=iterations, tol=1e-6)
        W, Y, rho = found.W, found.Y, found.rho
        if objective(W) <= target:
            return W
        iterations = min(2 * iterations, 64)
    raise RuntimeError("ADMM did not reach the target")


def clarabel(problem: Problem, target: float, *, tolerance: float = 1e-3) -> NDArray:
    """cvxpy with Clarabel on the Gram matrices' Cholesky factors, edges vectorised by one incidence matrix.

    ``tolerance`` is Clarabel's on the gap, ten times finer than the 1 % that the target asks for; it is tightened
    where the target was missed.
    """
    import cvxpy as cp

    objective = GramObjective(problem)
    K, D = problem.shape
    factors = np.linalg.cholesky(objective.model.H + 1e-12 * np.eye(D))
    right = np.linalg.solve(factors, objective.model.b[..., None])[..., 0]
    R = sparse.block_diag([factor.T for factor in factors], format="csr")
    W = cp.Variable((K, D))
    fit = 0.5 * cp.sum_squares(R @ cp.vec(W, order="C") - right.ravel())
    ties = cp.norm(problem.penalty.graph.incidence() @ W, 2, axis=1)
    whole = cp.Problem(cp.Minimize(fit + problem.penalty.strengths @ ties))
    while tolerance > 1e-9:
        whole.solve(solver="CLARABEL", tol_gap_abs=tolerance, tol_gap_rel=tolerance, tol_feas=tolerance)
        if objective(W.value) <= target:
            return W.value
        tolerance /= 10
    raise RuntimeError("Clarabel did not reach the target")


def copt_primal_dual(problem: Problem, target: float) -> NDArray:
    """copt's primal-dual splitting with line search (Malitsky and Pock), full gradients."""
    from copt.splitting import minimize_primal_dual

    objective = GramObjective(problem)
    K, D = problem.shape
    m = len(problem.penalty.strengths)
    L = sparse.csr_array(sparse.kron(problem.penalty.graph.incidence(), sparse.eye_array(D)))
    start = np.zeros(K * D)

    def f_grad(w: NDArray, return_gradient: bool = True) -> tuple[float, NDArray]:
        value, gradient = objective.smooth(w.reshape(K, D))
        return value, gradient.ravel()

    def prox(z: NDArray, step: float) -> NDArray:
        rows = z.reshape(m, D)
        norms = np.sqrt(np.einsum("ed,ed->e", rows, rows))
        kept = np.maximum(0.0, 1 - step * problem.penalty.strengths / np.maximum(norms, 1e-300))
        return (rows * kept[:, None]).ravel()

    def not_there(state: dict) -> bool:
        return state["it"] % 10 != 9 or objective(state["x"].reshape(K, D)) > target

    step = 1 / float(np.linalg.eigvalsh(objective.model.H)[:, -1].max())
    found = minimize_primal_dual(
        f_grad, start, None, prox, L, tol=0.0, max_iter=50_000, callback=not_there, step_size=step
    )
    W = found.x.reshape(K, D)
    if not objective(W) <= target:
        raise RuntimeError("copt's primal-dual splitting did not reach the target")
    return W


def pyproximal_primal_dual(problem: Problem, target: float) -> NDArray:
    """pyproximal's Chambolle-Pock iteration: exact prox of the loss (a small solve a task), L21 of differences."""
    import pylops
    import pyproximal

    objective = GramObjective(problem)
    K, D = problem.shape
    weights = problem.penalty.strengths
    L = sparse.csr_matrix(sparse.kron(sparse.eye_array(D), problem.penalty.graph.incidence()))
    bound = float(np.sqrt(problem.penalty.curvature))
    # Both step sizes 1/||D||, balanced by the loss's curvature: it is flat, about 1/K a task.
    balance = float(np.trace(objective.model.H, axis1=1, axis2=2).mean()) / D
    tau, mu = 0.99 / (bound * balance), 0.99 * balance / bound
    inverse = np.linalg.inv(np.eye(D) + tau * objective.model.H)

    class Loss(pyproximal.ProxOperator):
        def __init__(self) -> None:
            super().__init__(None, False)

        def __call__(self, w: NDArray) -> float:
            return objective.smooth(w.reshape(D, K).T)[0]

        def prox(self, w: NDArray, step: float) -> NDArray:
            return np.einsum("tij,tj->it", inverse, w.reshape(D, K).T + step * objective.model.b).ravel()

    class Reached(Exception):
        pass

    count, W = 0, np.zeros((K, D))

    def look(w: NDArray) -> None:
        nonlocal count, W
        count += 1
        if count % 10 == 0 and objective(w.reshape(D, K).T) <= target:
            W = w.reshape(D, K).T.copy()
            raise Reached

    if not np.allclose(weights, weights[0]):
        raise ValueError("pyproximal's L21 takes one strength for all edges")
    penalty = pyproximal.L21(ndim=D, sigma=float(weights[0]))
    operator = pylops.MatrixMult(L)
    try:
        pyproximal.optimization.primaldual.PrimalDual(
            Loss(), penalty, operator, np.zeros(K * D), tau=tau, mu=mu, niter=50_000, callback=look
        )
    except Reached:
        return W
    raise RuntimeError("pyproximal's primal-dual iteration did not reach the target")
