"""Contract what the stochastic run has fused, and solve the smooth problem that is left."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from .problem import Problem

FUSED = 1e-6  # times the size of W: below it, two rows are one
LADDER = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1, np.inf)


def scale_of(W: NDArray) -> float:
    """The size that "fused" is measured against: the largest entry."""
    return float(np.abs(W).max(initial=0.0)) or 1.0


def fused_edges(problem: Problem, W: NDArray, *, tol: float = FUSED) -> NDArray[np.bool_]:
    """(m,) whether the two rows of an edge are equal up to ``tol`` times the size of W."""
    return problem.penalty.sizes(W[:, : problem.width]) <= tol * scale_of(W)


def polish(problem: Problem, W: NDArray) -> NDArray[np.float64]:
    """The best of W and the solutions of reduced problems, by the objective.

    Rows closer than a threshold become one parameter (for p=1, coefficient by coefficient); between what is left apart
    the penalty is smooth, so that L-BFGS applies. The threshold climbs a ladder from 1e-6 to infinity times the size of
    W, each solution starting from the one before: the stochastic run ends near the optimum and rarely on it, and the
    objective, not the threshold, decides which groups are real.
    """
    best, best_value = W, problem.objective(W)
    current, seen, worse = W, None, 0
    for threshold in LADDER:
        if worse >= 2 and np.isfinite(threshold):
            continue  # the groups were found; one model for each component is always tried
        labels = _labels(problem, current, threshold * scale_of(current) if np.isfinite(threshold) else np.inf)
        if seen is not None and np.array_equal(labels, seen):
            continue
        seen = labels
        candidate = _solve(problem, current, labels)
        value = problem.objective(candidate)
        if value < best_value:
            best, best_value, worse = candidate, value, 0
        else:
            worse += 1
        if value > best_value + 1e-3 * abs(best_value) and np.isfinite(threshold):
            continue  # too coarse a contraction is no good start for the next
        current = candidate
    return best


def _labels(problem: Problem, W: NDArray, threshold: float) -> NDArray[np.int64]:
    """(K, D) number of the parameter that each entry of W shares."""
    K, D = W.shape
    graph, width = problem.penalty.graph, problem.width
    edges = graph.edges
    labels = np.empty((K, D), dtype=np.int64)
    tied = problem.penalty.strengths > 0
    difference = np.abs(W[edges[:, 0], :width] - W[edges[:, 1], :width])
    found = 0
    if problem.penalty.p == 2:
        close = tied & (np.sqrt((difference**2).sum(axis=1)) <= threshold)
        columns = [graph.components(close)] * width
    else:
        columns = [graph.components(tied & (difference[:, j] <= threshold)) for j in range(width)]
    columns += [np.arange(K)] * (D - width)
    for j, column in enumerate(columns):
        labels[:, j] = found + column
        found += int(column.max()) + 1
    return labels


def _solve(problem: Problem, W: NDArray, labels: NDArray) -> NDArray:
    flat = labels.ravel()
    counts = np.bincount(flat)
    start = np.bincount(flat, weights=W.ravel()) / counts
    edges, p, width = problem.penalty.graph.edges, problem.penalty.p, problem.width
    strengths = problem.penalty.strengths
    u, v = edges[:, 0], edges[:, 1]

    def value_and_gradient(theta: NDArray) -> tuple[float, NDArray]:
        V = theta[labels]
        value, gradient = problem.smooth(V)
        difference = V[u, :width] - V[v, :width]
        if p == 2:
            norms = np.sqrt((difference**2).sum(axis=1))
            value += float(strengths @ norms)
            slope = difference * (strengths / np.maximum(norms, 1e-300))[:, None]
        else:
            value += float(strengths @ np.abs(difference).sum(axis=1))
            slope = np.sign(difference) * strengths[:, None]
        np.add.at(gradient, (u, slice(width)), slope)
        np.subtract.at(gradient, (v, slice(width)), slope)
        return value, np.bincount(flat, weights=gradient.ravel())

    # Preconditioning by the diagonal: tasks differ in rows, parameters in how many tasks share them.
    bend = problem.squares_by_task() / len(problem.y) + problem.l2
    diagonal = np.sqrt(np.bincount(flat, weights=bend.ravel()))
    diagonal[diagonal <= 1e-8 * diagonal.max(initial=0)] = 1.0

    def scaled(z: NDArray) -> tuple[float, NDArray]:
        value, gradient = value_and_gradient(z / diagonal)
        return value, gradient / diagonal

    z = start * diagonal
    for _ in range(3):  # a fresh start gains digits that the last history no longer gives
        done = minimize(
            scaled, z, jac=True, method="L-BFGS-B",
            options={"maxiter": 5000, "maxfun": 10_000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 20},
        )  # fmt: skip
        z = done.x
        if done.nit <= 2:
            break
    return (z / diagonal)[labels]
