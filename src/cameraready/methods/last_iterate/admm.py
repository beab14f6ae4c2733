"""ADMM on a quadratic model of the loss: exact solutions, and dual points for certificates.

Every edge keeps copies of its two rows; the rows' update is a small linear solve a task, the edges' a projection.
With Gram matrices instead of rows it costs nothing in n, but K D^2 numbers of memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .problem import Problem

LARGEST_GRAM = 20_000_000  # entries, 160 MB
REBALANCE = (10, 30, 70, 150, 310, 630)  # iterations after which the penalty parameter may change


@dataclass(frozen=True)
class Quadratic:
    """sum_t 1/2 w_t' H_t w_t - b_t . w_t: H (K, D, D), b (K, D)."""

    H: NDArray[np.float64]
    b: NDArray[np.float64]


@dataclass(frozen=True)
class Solution:
    """Primal point W (K, D), dual point Y (m, width) with ||y_e||_q <= lam a_e, and the penalty parameter reached."""

    W: NDArray[np.float64]
    Y: NDArray[np.float64]
    rho: float
    n_iter: int
    residual: float


def fits_in_memory(problem: Problem) -> bool:
    K, D = problem.shape
    return K * D * D <= LARGEST_GRAM


def quadratic_model(problem: Problem, W: NDArray) -> Quadratic:
    """f at W to second order; exact for the squared loss."""
    n, (K, D) = len(problem.y), problem.shape
    margins = problem.margins(W)
    slopes = problem.loss_gradients(margins)
    if problem.loss == "squared":
        bends = np.ones(n)
    elif problem.loss == "logistic":
        bends = np.abs(slopes) * (1 - np.abs(slopes))
    else:
        bends = np.zeros(n)
    H = np.zeros((K, D, D))
    order = np.argsort(problem.task, kind="stable")
    ends = np.cumsum(problem.rows_of_task)
    X = problem.X[order]
    for t in np.flatnonzero(problem.rows_of_task):
        rows = slice(int(ends[t] - problem.rows_of_task[t]), int(ends[t]))
        dense = X[rows].toarray()
        H[t] = (dense * (bends[order[rows]] / n)[:, None]).T @ dense
    # H w - b must be the gradient at W: b = H W - grad f.
    b = np.einsum("tij,tj->ti", H, W) - problem.sum_by_task(slopes / n)
    if problem.l2:
        r = np.arange(problem.ridge_width)
        for t in np.flatnonzero(problem.rows_of_task):
            H[t, r, r] += problem.l2
    return Quadratic(H, b)


def admm(
    problem: Problem,
    model: Quadratic,
    *,
    start: NDArray | None = None,
    dual: NDArray | None = None,
    rho: float | None = None,
    max_iter: int = 2000,
    tol: float = 1e-10,
    relax: float = 1.6,
) -> Solution:
    """Minimise the model plus the edge penalty; stops at a relative residual ``tol`` or after ``max_iter``."""
    edges, p, width = problem.penalty.graph.edges, problem.penalty.p, problem.width
    strengths = problem.penalty.strengths
    K, D = problem.shape
    u, v = edges[:, 0], edges[:, 1]
    degree = np.bincount(edges.ravel(), minlength=K)
    D_T = problem.penalty.graph.incidence().T.tocsr()
    total = abs(D_T)
    trace = np.trace(model.H, axis1=1, axis2=2).mean() / D
    rho = rho or max(trace, 1e-12)
    W = np.zeros((K, D)) if start is None else start.copy()
    Y = np.zeros((len(edges), width)) if dual is None else dual.copy()
    if len(edges) == 0 or problem.penalty.lam == 0:
        return Solution(_solve(model.H, model.b), np.zeros_like(Y), rho, 0, 0.0)
    inverse = _inverse(model.H, rho * degree, width)
    mean, half = 0.5 * (W[u, :width] + W[v, :width]), 0.5 * (W[u, :width] - W[v, :width])
    residual = np.inf
    for iteration in range(1, max_iter + 1):
        right = model.b.copy()
        right[:, :width] += rho * (total @ mean + D_T @ (half - Y / rho))
        W = np.einsum("tij,tj->ti", inverse, right)
        wu, wv = W[u, :width], W[v, :width]
        mean_w, half_w = 0.5 * (wu + wv), 0.5 * (wu - wv)
        # Over-relaxation mixes the rows with the edges' last copies.
        mean_r, half_r = relax * mean_w + (1 - relax) * mean, relax * half_w + (1 - relax) * half
        target = half_r + Y / rho
        # y/rho is the projection of the scaled half-difference, what is left of it the new copies' half-difference.
        new_Y = _project(rho * target, strengths, p)
        new_half = target - new_Y / rho
        primal = np.sqrt(2 * (((mean_w - mean_r) ** 2).sum() + ((half_w - new_half) ** 2).sum()))
        moved = rho * np.sqrt(2 * (((mean_r - mean) ** 2).sum() + ((new_half - half) ** 2).sum()))
        size = max(np.sqrt((wu**2).sum() + (wv**2).sum()), 1e-300)
        dual_size = max(np.sqrt(2 * (new_Y**2).sum()), 1e-300)
        mean, half, Y = mean_r, new_half, new_Y
        residual = max(primal / size, moved / dual_size)
        if residual <= tol:
            break
        if iteration in REBALANCE:  # balance the two residuals; Y does not depend on rho
            balance = np.sqrt((primal / size) / max(moved / dual_size, 1e-300))
            if balance > 2 or balance < 0.5:
                rho *= float(np.clip(balance, 0.1, 10))
                inverse = _inverse(model.H, rho * degree, width)
    return Solution(W, Y, rho, iteration, float(residual))


def _inverse(H: NDArray, weights: NDArray, width: int) -> NDArray:
    shifted = H.copy()
    diagonal = np.arange(width)
    shifted[:, diagonal, diagonal] += weights[:, None]
    # A task without rows or neighbours has a zero matrix; a tiny shift makes it solvable and changes nothing else.
    every = np.arange(H.shape[1])
    shifted[:, every, every] += 1e-13 * max(float(np.trace(H, axis1=1, axis2=2).max()), 1e-300)
    return np.linalg.inv(shifted)


def _solve(H: NDArray, b: NDArray) -> NDArray:
    return np.einsum("tij,tj->ti", np.linalg.pinv(H, hermitian=True, rcond=1e-13), b)


def _project(Y: NDArray, bounds: NDArray, p: int) -> NDArray:
    if p == 1:
        return np.clip(Y, -bounds[:, None], bounds[:, None])
    norms = np.sqrt(np.einsum("ed,ed->e", Y, Y))
    return Y * np.minimum(1.0, bounds / np.maximum(norms, 1e-300))[:, None]
