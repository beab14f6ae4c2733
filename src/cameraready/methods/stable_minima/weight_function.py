"""The weight g that a stable minimum's path norm carries: how much the data hold on to a half-space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
BLOCK = 1 << 22  # entries of a block of projections: 32 MB


@dataclass(frozen=True)
class HalfSpaces:
    """What the data say of the half-spaces u.x > t, all arrays of shape (k,).

    Attributes
    ----------
    active : share of the points inside, P(X.u > t).
    inside : g~(u, t) = P^2 E[X.u - t | X.u > t] sqrt(1 + |E[X | X.u > t]|^2); 0 where no point is inside.
    outside : g~(-u, -t), the same of the opposite half-space.
    """

    active: Floats
    inside: Floats
    outside: Floats

    @property
    def weight(self) -> Floats:
        """g(u, t) = min(g~(u, t), g~(-u, -t))."""
        return np.minimum(self.inside, self.outside)


def half_spaces(X: Floats, U: Floats, t: Floats, *, has_bias: bool = True) -> HalfSpaces:
    """Weights of the half-spaces U[k].x > t[k] under the empirical law of the rows of X.

    Parameters
    ----------
    X : points, (n, d).
    U : unit normals, (k, d).
    t : thresholds, (k,).
    has_bias : whether the thresholds are trained; where not, the 1 under the root of g~ is absent.
    """
    active, inside = _one_side(X, U, t, has_bias)
    _, outside = _one_side(X, -U, -t, has_bias)
    return HalfSpaces(active, inside, outside)


def _one_side(X: Floats, U: Floats, t: Floats, has_bias: bool) -> tuple[Floats, Floats]:
    """P(X.u > t) and g~(u, t) = P E[X.u - t; X.u > t] sqrt(1 + |E[X | X.u > t]|^2)."""
    n, rows = len(X), max(1, BLOCK // max(len(U), 1))
    count, excess, sums = np.zeros(len(U)), np.zeros(len(U)), np.zeros(U.shape)
    for start in range(0, n, rows):
        block = X[start : start + rows]
        gap = block @ U.T - t
        inside = (gap > 0).astype(float)
        count += inside.sum(axis=0)
        excess += np.maximum(gap, 0.0).sum(axis=0)
        sums += inside.T @ block
    means = np.linalg.norm(sums, axis=1) / np.maximum(count, 1.0)
    return count / n, count * excess / n**2 * np.sqrt(float(has_bias) + means**2)


def weight_function(X: ArrayLike, U: ArrayLike, t: ArrayLike) -> Floats:
    """g(u, t) of half-spaces under the empirical law of X: small where few points, or all but few, are inside.

    A stable minimum can put large weights only on neurons whose half-space has a small g.

    Parameters
    ----------
    X : points, (n, d).
    U : normals, (k, d), of any length but 0; they are normalised, and t with them.
    t : thresholds, (k,): the half-space is u.x > t.

    Examples
    --------
    >>> X = [[-1.0], [1.0], [3.0]]
    >>> weight_function(X, [[1.0]], [2.0]).round(4)  # (1/3)^2 * (3 - 2) * sqrt(1 + 3^2)
    array([0.3514])
    """
    X, U, t = (np.asarray(value, dtype=np.float64) for value in (X, U, t))
    if X.ndim != 2 or U.ndim != 2 or t.shape != (len(U),) or X.shape[1] != U.shape[1] or not len(X):
        raise ValueError(f"X {X.shape}, U {U.shape}, t {t.shape}; expected (n, d), (k, d) and (k,) with n >= 1")
    if not all(np.isfinite(value).all() for value in (X, U, t)):
        raise ValueError("X, U or t hold values that are not finite")
    norms = np.linalg.norm(U, axis=1)
    if (norms == 0).any():
        raise ValueError(f"normals {np.flatnonzero(norms == 0).tolist()} are zero; a half-space needs a direction")
    return half_spaces(X, U / norms[:, None], t / norms).weight
