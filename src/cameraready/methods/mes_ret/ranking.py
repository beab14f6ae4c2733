"""The order of a generation's points: first by violation, then by objective."""

from __future__ import annotations

import numpy as np

MARGIN = 0.05  # of the unit box: points this far outside are not yet ranked behind
EPSILON_SHARE, EPSILON_POWER, EPSILON_QUANTILE = 0.3, 8, 0.2


def outside(x: np.ndarray) -> np.ndarray:
    """Squared distance of points in unit coordinates from [-0.05, 1.05]^n, over the last axis."""
    return np.sum((x - np.clip(x, -MARGIN, 1 + MARGIN)) ** 2, axis=-1)


def violation(constraints: np.ndarray) -> np.ndarray:
    """Σ max(0, g) over the last axis: how far g <= 0 is from holding; NaN counts as infinite."""
    return np.nan_to_num(np.maximum(0.0, constraints).sum(axis=-1), nan=np.inf, posinf=np.inf)


def epsilon_level(first: np.ndarray, share: float) -> np.ndarray:
    """Violations up to this level are ignored while the spent ``share`` of the budget is below 30 %.

    cv_max (1 - share/0.3)^8, where cv_max is the 20 % quantile of the first generation's violations.
    """
    return first * max(0.0, 1 - share / EPSILON_SHARE) ** EPSILON_POWER


def order(f: np.ndarray, cv: np.ndarray, beyond: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Indices that sort each row of points, best first; all arrays (k, popsize) but ``epsilon`` (k,).

    Points ``beyond`` the box come last, whatever their constraints say.
    """
    cv = np.where(cv <= epsilon[:, None], 0.0, cv)
    worst = cv.max(axis=1, keepdims=True)
    return np.lexsort((f, np.where(beyond > 0, beyond + worst, cv)), axis=-1)
