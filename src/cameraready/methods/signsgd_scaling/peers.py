"""The scaling-law fit without structure that is used elsewhere: a parametric form in model size and steps."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import curve_fit


def chinchilla_fit(runs: pd.DataFrame) -> NDArray[np.float64]:
    """``log E, log A, a, log B, b`` of ``loss = E + A d^-a + B N^-b``, fitted to the log loss from several starts.

    The form has no learning rate: it is given the best run of every (N, d).
    """
    best = runs.loc[runs.groupby(["N", "d"])["loss"].idxmin()]
    at, target = (np.log(best["d"].to_numpy(float)), np.log(best["N"].to_numpy(float))), np.log(best["loss"].to_numpy())
    found, least = None, np.inf
    for a in (0.3, 0.8, 1.5):
        for b in (0.3, 0.8, 1.5):
            start = (target.min() - 1, 0.0, a, 0.0, b)
            try:
                theta, _ = curve_fit(
                    _form, at, target, start, bounds=([-30, -20, 0, -20, 0], [10, 20, 5, 20, 5]), max_nfev=2000
                )
            except RuntimeError:  # no convergence from this start
                continue
            cost = float(np.sum((_form(at, *theta) - target) ** 2))
            if cost < least:
                found, least = theta, cost
    if found is None:
        raise RuntimeError("the parametric fit did not converge from any of 9 starts")
    return np.asarray(found)


def chinchilla_predict(theta: ArrayLike, N: ArrayLike, d: ArrayLike) -> NDArray[np.float64]:
    """Loss predicted by `chinchilla_fit`."""
    return np.asarray(np.exp(_form((np.log(d), np.log(N)), *theta)))


def _form(at, log_e, log_a, a, log_b, b):  # type: ignore[no-untyped-def]
    log_d, log_n = at
    return np.logaddexp(np.logaddexp(log_e, log_a - a * log_d), log_b - b * log_n)
