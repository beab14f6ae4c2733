"""Which tasks deserve the next evaluations, and what that is worth."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

FORMS = ("bounded", "paper")


def improvement(old: np.ndarray, new: np.ndarray, first: np.ndarray, *, form: str = "bounded") -> np.ndarray:
    """The improvement reward of each task, of shape (T,); zero where a value is missing.

    Parameters
    ----------
    old, new : best values before and after a generation.
    first : best value of the first generation.
    form : "bounded" is (old - new)/(first - new), the share of all improvement so far that was made now, in [0, 1].
        "paper" is (old - new)/(first - old + 1e-12), which gives everything to a task that improves for the first time.

    Examples
    --------
    >>> improvement(np.array([4.0, 8.0]), np.array([2.0, 8.0]), np.array([10.0, 9.0]))
    array([0.25, 0.  ])
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        gain = np.maximum(0.0, old - new)
        reward = gain / (first - new if form == "bounded" else first - old + 1e-12)
    return np.where(np.isfinite(reward) & (gain > 0), reward, 0.0)


def diversity(spread: np.ndarray) -> np.ndarray:
    """The diversity reward: the spread of each distribution, scaled over the tasks to [0, 1]."""
    low, high = spread.min(), spread.max()
    return (spread - low) / (high - low) if 0 < high - low < np.inf else np.zeros_like(spread)


def normalised(reward: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Rewards of the active tasks with sum 1; uniform over them where all are zero or the sum is not finite."""
    reward = np.where(active, reward, 0.0)
    total = reward.sum()
    if total > 0 and np.isfinite(total):
        return reward / total
    return active / max(1, active.sum())


def expected_gain_ratio(reward: ArrayLike) -> float:
    """Gain of a generation given in proportion to ``reward`` over that of one given to a task at random.

    If task t's next improvement is proportional to r_t, a weighted draw gains Σ r²/Σ r a generation and a uniform one
    Σ r/T. Their ratio T Σ r²/(Σ r)² is at least 1, and 1 only where all rewards are equal (Cauchy-Schwarz).

    Raises
    ------
    ValueError : no reward, a negative or infinite one, or all zero.

    Examples
    --------
    >>> expected_gain_ratio([1.0, 1.0, 1.0]), expected_gain_ratio([3.0, 0.0, 0.0])
    (1.0, 3.0)
    """
    r = np.asarray(reward, dtype=float).ravel()
    if r.size == 0 or not np.isfinite(r).all() or (r < 0).any() or not r.any():
        raise ValueError(f"reward={reward!r}: pass finite rewards of at least 0, one a task and one of them positive")
    r = r / r.max()
    return float(r.size * np.sum(r**2) / np.sum(r) ** 2)
