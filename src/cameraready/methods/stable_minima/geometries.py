"""Data distributions whose geometry the theory speaks of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def sphere(n: int, d: int, *, rng: np.random.Generator) -> Floats:
    """``n`` points uniform on the unit sphere of R^d."""
    X = rng.normal(size=(n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def radial(n: int, d: int, alpha: float, *, rng: np.random.Generator) -> Floats:
    """``n`` isotropic points with P(1 - |x| < z) = z^alpha; alpha = 0 is the sphere.

    The smaller alpha, the more mass lies near the unit sphere. The uniform ball behaves as alpha = 1 there.
    """
    if not alpha >= 0 or n < 1 or d < 1:
        raise ValueError(f"n={n}, d={d}, alpha={alpha}: n and d must be at least 1 and alpha at least 0")
    points = sphere(n, d, rng=rng)
    return points if alpha == 0 else points * (1 - rng.uniform(size=(n, 1)) ** (1 / alpha))


def ball(n: int, d: int, *, rng: np.random.Generator) -> Floats:
    """``n`` points uniform in the unit ball of R^d."""
    return sphere(n, d, rng=rng) * rng.uniform(size=(n, 1)) ** (1 / d)


def balls(n: int, d: int, *, m: int, count: int, rng: np.random.Generator) -> Floats:
    """``n`` points in ``count`` uniform m-dimensional unit balls, each in a random m-dimensional subspace of R^d."""
    if not 1 <= m <= d or count < 1:
        raise ValueError(f"m={m}, count={count}: m must be between 1 and d={d}, count at least 1")
    frames = np.linalg.qr(rng.normal(size=(count, d, m)))[0]
    return np.einsum("ndm,nm->nd", frames[rng.integers(count, size=n)], ball(n, m, rng=rng))
