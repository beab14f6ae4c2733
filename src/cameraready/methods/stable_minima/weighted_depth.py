"""In how light a half-space a point lies: the depth of a cloud with the weight g in the place of the count."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cameraready.methods.stable_minima.depth import candidate_directions

Floats = NDArray[np.float64]
BLOCK = 1 << 21  # entries


def weighted_depth(points: Floats, cloud: Floats, directions: Floats) -> Floats:
    """The least weight of a half-space that holds a point, under the cloud's law, for each of the ``points``.

    Omega_s, where neurons with g < s act, is where this is below s. It is the infimum over the directions, in both
    orientations, of g~(u, t) at t = u.x and at lower t where u.x > t is the lighter side: beyond norm 1, g~ may fall
    as the half-space grows. A point beyond the whole cloud in one direction has depth 0.
    """
    n, d = cloud.shape
    least = np.full(len(points), np.inf)
    size = max(1, BLOCK // (n * d))
    inside = np.arange(n + 1.0)[:, None]
    for start in range(0, len(directions), size):
        for U in (directions[start : start + size], -directions[start : start + size]):
            reach = cloud @ U.T
            order = np.argsort(-reach, axis=0)
            ranked = np.take_along_axis(reach, order, axis=0)
            sums = np.concatenate([np.zeros((1, len(U), d)), np.cumsum(cloud[order], axis=0)])
            reach_sum = np.vstack([np.zeros(len(U)), np.cumsum(ranked, axis=0)])
            # g~ of the k farthest points is (reach_sum - k t) root / n^2, with root^2 = k^2 + |sum|^2.
            root = np.sqrt(inside**2 + (sums**2).sum(axis=2))
            root_outside = np.sqrt((n - inside) ** 2 + ((sums[-1] - sums) ** 2).sum(axis=2))
            # Between two points g~ falls with t: its least is at the next point, where k points are inside.
            steps = (reach_sum[1:] - inside[1:] * ranked) * root[1:]
            beyond = ((n - inside[1:]) * ranked - (reach_sum[-1] - reach_sum[1:])) * root_outside[1:]
            steps = np.where(steps <= beyond, steps, np.inf)
            lower = np.minimum.accumulate(np.vstack([steps, np.full(len(U), np.inf)])[::-1], axis=0)[::-1]
            t = points @ U.T
            for j in range(len(U)):
                k = np.searchsorted(-ranked[:, j], -t[:, j], side="left")  # how many lie beyond t
                here = (reach_sum[k, j] - k * t[:, j]) * root[k, j]
                np.minimum(least, np.minimum(here, lower[k, j]) / n**2, out=least)
    return np.maximum(least, 0.0)


def cutting_directions(points: Floats, W: Floats, n_random: int, rng: np.random.Generator) -> Floats:
    """`candidate_directions` of the points, also where they lie in a subspace, and the neurons' own."""
    norms = np.linalg.norm(W, axis=1)
    own = W[norms > 0] / norms[norms > 0, None]
    _, scales, axes = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    axes = axes[scales > 1e-9 * max(float(scales[0]), 1e-300)]
    if not len(axes):
        return own
    return np.vstack([candidate_directions(points @ axes.T, n_random=n_random, rng=rng) @ axes, own])
