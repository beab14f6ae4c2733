"""What processing before the plug-in classifier gains or loses, in closed form: how much signal may be lost."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from cameraready.methods.preprocess_gain.plugin_accuracy import Array, _checked, _plain, acc_plugin


def kept_energy_pca(
    m: ArrayLike, d: ArrayLike, n_unlabelled: ArrayLike, sigma: ArrayLike = 1.0, share: ArrayLike = 0.5
) -> Array | float:
    """Share of |mu|^2 that the first principal component of unlabelled inputs keeps, for large d and n_unlabelled.

    The unlabelled mixture has one spike: variance sigma^2 (1 + l) along mu, l = 4 share (1 - share) m^2 / sigma^2,
    and sigma^2 elsewhere. With gamma = d / n_unlabelled the squared cosine tends to (1 - gamma/l^2) / (1 + gamma/l)
    if l^2 > gamma and to 0 otherwise (Baik, Ben Arous, Peche; Paul 2007).

    Parameters
    ----------
    m, d, sigma : as in `acc_plugin`.
    n_unlabelled : inputs that the component is fitted on.
    share : share of one class among them, between 0 and 1; an imbalanced pool shows less of mu.

    Returns
    -------
    The share, between 0 and 1. It is a limit: near l^2 = gamma, and for d below about 50, single fits scatter widely.

    Examples
    --------
    >>> round(kept_energy_pca(1.0, 100, 1000), 3)
    0.818
    >>> kept_energy_pca(0.5, 100, 1000)
    0.0
    """
    m, d, n, sigma, share = _checked(m=m, d=d, n_unlabelled=n_unlabelled, sigma=sigma, share=share)
    if (share > 1).any():
        raise ValueError(f"share={share.max():g}; the share of one class must be at most 1")
    gamma, spike = d / n, 4 * share * (1 - share) * (m / sigma) ** 2
    seen = spike**2 > gamma
    spike = np.where(seen, spike, 1.0)
    return _plain(np.where(seen, (1 - gamma / spike**2) / (1 + gamma / spike), 0.0))


def break_even(m: ArrayLike, d: ArrayLike, k: ArrayLike, n: ArrayLike, sigma: ArrayLike = 1.0) -> Array | float:
    """Share c of |mu|^2 that a projection on k dimensions must keep to be as good as no processing.

    Solves Acc(sqrt(c) m, k, n) = Acc(m, d, n). Below it processing harms, above it helps.

    Parameters
    ----------
    m, d, n, sigma : as in `acc_plugin`; m above 0.
    k : dimension after processing, from 1 to d.

    Raises
    ------
    ValueError : k above d, m = 0, or an argument that is out of range.

    Examples
    --------
    >>> break_even(1.0, 200, 10, [20, 200, 2000]).round(2).tolist()
    [0.26, 0.54, 0.91]
    """
    m, d, k, n, sigma = _checked(m=m, d=d, k=k, n=n, sigma=sigma)
    if (k > d).any():
        raise ValueError(f"k={k[k > d].flat[0]:g} is larger than d={d[k > d].flat[0]:g}; a projection has at most d")
    if (m == 0).any():
        raise ValueError("m=0: the classes are the same, so no processing helps or harms")
    return _plain(np.vectorize(_break_even, otypes=[float])(m / sigma, d, k, n))


def efficiency(acc_raw: ArrayLike, acc_processed: ArrayLike, acc_best: ArrayLike = 1.0) -> Array | float:
    """Share of the raw classifier's error that processing removes: (processed - raw) / (best - raw).

    Parameters
    ----------
    acc_raw, acc_processed : accuracies between 0 and 1.
    acc_best : 1 for the relative error removed; `acc_bayes` for the share of what can be gained at all.

    Raises
    ------
    ValueError : acc_raw at or above acc_best, where nothing can be gained.

    Examples
    --------
    >>> efficiency(0.8, 0.9)
    0.5
    """
    raw, processed, best = (np.asarray(value, dtype=float) for value in (acc_raw, acc_processed, acc_best))
    if (raw >= best).any():
        raise ValueError(f"acc_raw={raw.max():g} is not below acc_best={best.min():g}: there is nothing to gain")
    return _plain((processed - raw) / (best - raw))


def _break_even(m: float, d: float, k: float, n: float) -> float:
    if k == d or np.isinf(n):
        return 1.0
    target = acc_plugin(m, d, n)
    return float(brentq(lambda c: acc_plugin(np.sqrt(c) * m, k, n) - target, 0.0, 1.0, xtol=1e-10))
