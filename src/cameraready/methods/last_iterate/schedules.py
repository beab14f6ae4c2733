"""Step sizes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SCHEDULES = ("linear", "constant", "anytime")


def step_sizes(
    schedule: str, eta0: float, L: float, T: int, *, first: int = 0, count: int | None = None
) -> NDArray[np.float64]:
    """Steps ``first`` to ``first + count - 1`` of a run of T, none above 1/(2 L).

    Parameters
    ----------
    schedule : "constant", eta0/(L sqrt(T)); "linear", 2 eta0/(L sqrt(T)) (1 - k/T), whose decay removes the logarithm
        from the last iterate's rate; "anytime", eta0/(L sqrt(k+1)), which does not need T.
    eta0 : dimensionless; L is the largest smoothness constant of the f_i.

    Examples
    --------
    >>> step_sizes("linear", 1.0, 1.0, 16)[[0, 8, 15]]
    array([0.5    , 0.25   , 0.03125])
    """
    k = np.arange(first, first + (T - first if count is None else count))
    if schedule == "constant":
        h = np.full(len(k), eta0 / (L * np.sqrt(T)))
    elif schedule == "linear":
        h = 2 * eta0 / (L * np.sqrt(T)) * (1 - k / T)
    elif schedule == "anytime":
        h = eta0 / (L * np.sqrt(k + 1))
    else:
        raise ValueError(f"schedule={schedule!r} is unknown; pass one of {', '.join(map(repr, SCHEDULES))}")
    return np.minimum(h, 1 / (2 * L))
