"""Where descents start."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def gaussian_starts(n: int, shape: tuple[int, int], *, scale: float, rng: np.random.Generator) -> Floats:
    """Rows w_k ~ N(0, scale^2 I / d0) in the d0 dimensions that matter: norms near ``scale``. Shape (n, K, d0)."""
    return rng.normal(scale=scale / np.sqrt(shape[1]), size=(n, *shape))


def structured_starts(n: int, V: Floats, K: int, *, scale: float, rng: np.random.Generator) -> Floats:
    """The teachers dealt to the students at random, with a little noise: shape (n, K, d0) for ``V`` (M, d0).

    A student that gets several teachers starts as their sum; one that gets none takes half of another's. These are the
    merged and split configurations that minima of other sizes suggest.
    """
    M, d0 = V.shape
    starts = np.empty((n, K, d0))
    for i in range(n):
        owner = rng.integers(K, size=M)
        W = np.stack([V[owner == k].sum(axis=0) for k in range(K)])
        busy = np.flatnonzero(np.bincount(owner, minlength=K))
        for k in np.flatnonzero(np.bincount(owner, minlength=K) == 0):
            donor = rng.choice(busy)
            W[donor] /= 2
            W[k] = W[donor]
        starts[i] = W + rng.normal(scale=0.1 * scale / np.sqrt(d0), size=W.shape)
    return starts


def split_neuron(W: Floats, k: int, *, share: float = 0.5) -> Floats:
    """The same function with one neuron more: student ``k`` becomes ``share`` of itself, a new last row the rest.

    A critical point stays one, because the gradient depends on the own neuron by its direction only.

    Raises
    ------
    ValueError : a share outside (0, 1), a row that is not there.
    """
    W = np.asarray(W, dtype=np.float64)
    if W.ndim != 2:
        raise ValueError(f"W has shape {W.shape}; expected (K, d)")
    if not 0 < share < 1:
        raise ValueError(f"share={share} is not in (0, 1); 0.5 splits the neuron in halves")
    if not isinstance(k, (int, np.integer)) or not 0 <= k < len(W):
        raise ValueError(f"k={k!r}, but W has rows 0 to {len(W) - 1}")
    split = np.vstack([W, (1 - share) * W[k]])
    split[k] *= share
    return split
