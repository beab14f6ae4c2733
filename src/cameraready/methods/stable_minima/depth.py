"""Half-space depth of a cloud of points: how few points one has to cut off to cut off a given one.

Depth is what a single ReLU threshold can isolate: a point of depth 1/n has a half-space to itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Floats = NDArray[np.float64]
BLOCK = 256  # directions sorted at once


def candidate_directions(X: Floats, *, n_random: int, rng: np.random.Generator) -> Floats:
    """Unit directions: ``n_random`` random ones, each centred point, and each centred point whitened twice.

    The latter, S^-1 (x - mean) with the covariance S, is the normal of the ellipsoid through the point: for an
    elliptical cloud the direction that cuts it off with the fewest others. X has full column rank.
    """
    centred = X - X.mean(axis=0)
    covariance = centred.T @ centred / len(X)
    random = rng.normal(size=(n_random, X.shape[1]))
    # Random in the whitened space, so that the meter does not depend on the units of the columns.
    roots = np.linalg.cholesky(np.linalg.inv(covariance))
    directions = np.vstack([random @ roots.T, centred, np.linalg.solve(covariance, centred.T).T])
    norms = np.linalg.norm(directions, axis=1)
    kept = norms > 1e-12 * max(norms.max(initial=0.0), 1e-300)
    return directions[kept] / norms[kept, None]


def half_space_depth(X: Floats, directions: Floats, *, steps: int = 20) -> Floats:
    """For each row of X the least share of rows, itself included, in a closed half-space through it, (n,).

    Exact minimisation is combinatorial. Here: the best of the ``directions`` and their opposites, then ``steps`` of
    subgradient descent on the sphere from there, on the count with its step made a sigmoid. The answer is never below
    the true depth.
    """
    points, back, counts = np.unique(X, axis=0, return_inverse=True, return_counts=True)
    back = back.reshape(-1)
    best, chosen = _best_direction(points, counts.astype(float), directions)
    if steps and len(points) > 2:
        best = _refine(points, counts.astype(float), best, chosen, steps)
    return best[back] / len(X)


def _best_direction(points: Floats, counts: Floats, directions: Floats) -> tuple[Floats, Floats]:
    n, total = len(points), counts.sum()
    best, chosen = np.full(n, np.inf), np.zeros_like(points)
    everyone = np.arange(n)
    for start in range(0, len(directions), BLOCK):
        block = directions[start : start + BLOCK]
        order = np.argsort(block @ points.T, axis=1)
        upto = np.cumsum(counts[order], axis=1)
        from_low = np.empty_like(upto)  # points at or below, in the direction
        np.put_along_axis(from_low, order, upto, axis=1)
        from_high = total - from_low + counts
        for sign, cut in ((-1.0, from_low), (1.0, from_high)):
            row = cut.argmin(axis=0)
            value = cut[row, everyone]
            better = value < best
            best[better], chosen[better] = value[better], sign * block[row[better]]
    return best, chosen


def _refine(points: Floats, counts: Floats, best: Floats, U: Floats, steps: int) -> Floats:
    best, U = best.copy(), U.copy()
    open_ = np.flatnonzero(best > counts)  # the others can't get shallower
    for step in range(steps):
        if not len(open_):
            break
        gap = U[open_] @ points.T
        gap -= (U[open_] * points[open_]).sum(axis=1, keepdims=True)
        width = gap.std(axis=1, keepdims=True) * (0.2 / (1 + step)) + 1e-300
        soft = expit(gap / width)
        slope = soft * (1 - soft) * counts / width
        gradient = slope @ points - slope.sum(axis=1, keepdims=True) * points[open_]
        gradient -= (gradient * U[open_]).sum(axis=1, keepdims=True) * U[open_]
        length = np.linalg.norm(gradient, axis=1, keepdims=True)
        move = U[open_] - gradient / np.where(length > 0, length, 1.0) * (0.3 / (1 + step))
        U[open_] = move / np.linalg.norm(move, axis=1, keepdims=True)
        side = U[open_] @ points.T
        inside = side >= (U[open_] * points[open_]).sum(axis=1, keepdims=True)
        inside[np.arange(len(open_)), open_] = True
        best[open_] = np.minimum(best[open_], inside @ counts)
        open_ = open_[best[open_] > counts[open_]]
    return best


def depth_curve(depths: Floats, n: int, *, upto: float = 0.1, size: int = 64) -> tuple[Floats, Floats]:
    """tau, log-spaced in [1/n, upto], and S(tau), the share of points with a depth of at most tau.

    ``n`` is the number of points of one cloud; ``depths`` may be those of several.
    """
    tau = np.geomspace(1 / n, max(upto, 1 / n), size)
    return tau, (depths[None, :] <= tau[:, None] * (1 + 1e-9)).mean(axis=1)


def shallow_area(depths: Floats, n: int, *, upto: float = 0.1) -> float:
    """Area under S(tau) over log tau in [1/n, upto], in [0, 1]; exact, as S is a step function of the depths.

    1 when every point can be cut off alone. With too few points for the interval, the share that can.
    """
    if 1 / n >= upto:
        return float((depths <= (1 + 1e-9) / n).mean())
    return float(np.clip(np.log(upto / depths) / np.log(upto * n), 0.0, 1.0).mean())
