"""How far from the optimum: a duality gap that is never below the true one, and exact solutions.

For any slopes a (n,) in the domain of the conjugate and edge duals Y with ||y_e||_q <= lam a_e, weak duality gives
F* >= -1/n sum_i phi*(a_i) + min over W of <R, W> + ridge(W), with R = 1/n sum_i a_i x_i (by task) + D'Y.
The minimum is -||R||^2/(2 l2) on ridged coordinates; on the others it is finite only where R = 0, which is made so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import lsmr
from scipy.special import xlogy

from .admm import admm, fits_in_memory, quadratic_model
from .problem import Problem


@dataclass(frozen=True)
class Certificate:
    """A lower bound of F*, and ``gap`` = F(W) - lower_bound, which is at least F(W) - F*."""

    gap: float
    objective: float
    lower_bound: float

    def __str__(self) -> str:
        return f"objective {self.objective:.6g}, at most {self.gap:.2g} above the optimum"


@dataclass(frozen=True)
class Exact:
    """A solution W with its certificate."""

    W: NDArray[np.float64]
    Y: NDArray[np.float64]
    certificate: Certificate


def certify(problem: Problem, W: NDArray, *, max_iter: int = 500) -> Certificate:
    """Bound F(W) - F* from above.

    The dual point comes from at most ``max_iter`` iterations of ADMM on the loss's quadratic model at W (repeated, for
    the logistic loss, at the model's solution); whatever it is, the bound is valid. Where no feasible dual point is
    found, 0 bounds F*. It keeps K D^2 numbers; beyond 2e7 of them that bound is all there is.
    """
    if not fits_in_memory(problem):
        objective = problem.objective(W)  # of a loss that is not negative
        return Certificate(objective, objective, 0.0)
    rounds = 1 if problem.loss == "squared" else 4
    (V, _), judge = _solve(problem, W, rounds=rounds, max_iter=max_iter, tol=1e-9)
    found = judge(W)
    if problem.loss == "logistic" and found.lower_bound <= 0:  # nearly separable rows: go closer, where it is easier
        found = _solve(problem, V, rounds=20, max_iter=4 * max_iter, tol=1e-9)[1](W)
    return found


def solve_exactly(problem: Problem, *, tol: float = 1e-10, max_iter: int = 20_000) -> Exact:
    """Solve to high accuracy by ADMM (Newton models for the logistic loss), for problems with K D^2 up to 2e7.

    Raises
    ------
    MemoryError : larger problems; `NetworkLassoRegressor` solves them.
    """
    if not fits_in_memory(problem):
        K, D = problem.shape
        raise MemoryError(
            f"an exact solution keeps K D^2 = {K * D * D:.2g} numbers, the limit is 2e7; use the estimators"
        )
    rounds = 1 if problem.loss == "squared" else 30
    (W, Y), judge = _solve(problem, np.zeros(problem.shape), rounds=rounds, max_iter=max_iter, tol=tol)
    return Exact(W, Y, judge(W))


def _solve(problem: Problem, W: NDArray, *, rounds: int, max_iter: int, tol: float):
    """((W, Y), W -> Certificate) after some Newton models."""
    Y, rho = None, None
    value = problem.objective(W)
    for _ in range(rounds):
        model = quadratic_model(problem, W)
        found = admm(problem, model, start=W, dual=Y, rho=rho, max_iter=max_iter, tol=tol)
        Y, rho = found.Y, found.rho
        step, moved = 1.0, found.W - W
        new = found.W
        while problem.loss != "squared" and not problem.objective(new) <= value + 1e-15 and step > 1e-6:
            step /= 2  # far from the optimum the model overshoots
            new = W + step * moved
        change = np.abs(new - W).max()
        W, value = new, problem.objective(new)
        if change <= tol * max(1.0, np.abs(W).max()):
            break
    bound = lower_bound(problem, W, Y)
    if problem.loss != "linear":
        bound = max(bound, 0.0)  # losses and penalties are not negative

    def judge(V: NDArray) -> Certificate:
        objective = problem.objective(V)
        return Certificate(max(objective - bound, 0.0), objective, bound)

    return (W, Y), judge


def lower_bound(problem: Problem, W: NDArray, Y: NDArray) -> float:
    """A lower bound of F* from a dual point near (phi'(X W), Y); -infinity where none is found.

    Slopes and edge duals are moved by the smallest amount (in the metric of phi'') that makes R zero where it must be,
    then shrunk together until the edge duals are feasible, which keeps R = 0. What rounding leaves of R is charged
    with ten times the norm of W.
    """
    n, (K, D) = len(problem.y), problem.shape
    m, width = Y.shape
    D_T = problem.penalty.graph.incidence().T.tocsr()
    # The per-task minimiser of the loss tilted by D'Y gives the slopes: one Newton step is exact for the squared loss.
    tilt = np.zeros((K, D))
    tilt[:, :width] = D_T @ Y
    model = quadratic_model(problem, W)
    tilted = np.einsum("tij,tj->ti", np.linalg.pinv(model.H, hermitian=True, rcond=1e-12), model.b - tilt)
    near = tilted if problem.loss == "squared" else W
    slopes = problem.loss_gradients(problem.margins(near))
    ridged = np.zeros((K, D), dtype=bool)
    if problem.l2:
        ridged[problem.rows_of_task > 0, : problem.ridge_width] = True

    def residual(a: NDArray, edge_dual: NDArray) -> NDArray:
        R = problem.sum_by_task(a / n)
        R[:, :width] += D_T @ edge_dual
        return R

    bend = np.ones(n) if problem.loss == "squared" else np.maximum(np.abs(slopes) * (1 - np.abs(slopes)), 0.0)
    size = float(np.abs(problem.sum_by_task(np.abs(slopes) / n)).max()) + float(np.abs(Y).max(initial=0)) + 1e-300
    root = np.sqrt(bend * n)
    system = _stationarity(problem, root / n)[~ridged.ravel()]
    for _ in range(3):  # each round of least squares gains some digits
        R = residual(slopes, Y)[~ridged]
        if np.abs(R).max(initial=0) <= 1e-15 * size:
            break
        z = lsmr(system, -R, atol=1e-15, btol=1e-15, conlim=0, maxiter=1000)[0]
        slopes = slopes + root * z[:n]
        if problem.penalty.lam > 0:
            Y = Y + z[n:].reshape(m, width)
    sizes = np.abs(Y).max(axis=1, initial=0) if problem.penalty.p == 1 else np.sqrt((Y**2).sum(axis=1))
    allowed = problem.penalty.strengths
    over = sizes > allowed
    shrink = float((allowed[over] / sizes[over]).min()) if over.any() else 1.0
    slopes, Y = shrink * slopes, shrink * Y
    conjugates = _conjugates(problem, slopes)
    R = residual(slopes, Y)
    bound = -float(conjugates.mean())
    if problem.l2:
        bound -= float((R[ridged] ** 2).sum()) / (2 * problem.l2)
    loose = np.where(ridged, 0.0, R)
    rest = float(np.linalg.norm(loose))
    if not rest <= 1e-9 * size * np.sqrt(K * D):
        return -np.inf
    radius = 10 * max(float(np.linalg.norm(W)), float(np.linalg.norm(tilted)), 1.0)
    rounding = 1e-14 * (1.0 + np.abs(conjugates).mean())
    bound -= rest * radius + rounding
    return bound if np.isfinite(bound) else -np.inf


def _stationarity(problem: Problem, factor: NDArray) -> sparse.csr_array:
    """(K D, n + m width): the matrix that maps slopes, times ``factor``, and edge duals to R; no edges if lam = 0."""
    D, width = problem.shape[1], problem.width
    parts = [(sparse.diags_array(factor) @ problem.design).T]
    if problem.penalty.lam > 0:
        D_T = problem.penalty.graph.incidence().T
        parts.append(sparse.kron(D_T, sparse.eye_array(D, width), format="csr"))
    return sparse.csr_array(sparse.hstack(parts, format="csr"))


def _conjugates(problem: Problem, slopes: NDArray) -> NDArray:
    """phi*(a) of every row: a^2/2 + a y; for the logistic loss, with q = -a y in [0, 1], q log q + (1-q) log(1-q)."""
    if problem.loss == "squared":
        return 0.5 * slopes**2 + slopes * problem.y
    if problem.loss == "logistic":
        q = -slopes * problem.y
        inside = (q >= 0) & (q <= 1)
        q = np.where(inside, q, 0.5)
        return np.where(inside, xlogy(q, q) + xlogy(1 - q, 1 - q), np.inf)
    return np.where(np.abs(slopes - problem.y) <= 1e-12, 0.0, np.inf)
