"""One-pass training on the rows of a real table, with the simulator's step loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cameraready.methods.signsgd_scaling.regression import GaussianRegression
from cameraready.methods.signsgd_scaling.simulation import ADAM_EPS, OPTIMIZERS, advance


def train_on_rows(
    problem: GaussianRegression,
    X: ArrayLike,
    y: ArrayLike,
    *,
    optimizer: str,
    lr: float,
    record: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Mean squared error over all rows after the recorded numbers of steps, each step on a row drawn at random.

    Parameters
    ----------
    problem : the regression of these rows (`GaussianRegression.from_data`), whose best coefficients are the origin.
    X, y : rows (n, d) and target (n,).
    record : increasing numbers of steps.
    """
    X, y = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
    residual = X @ problem.theta_star - y
    features = X.astype(np.float32)
    delta = -problem.theta_star
    moments = np.zeros((2, problem.d))
    errors, done = [], 0
    for target in record:
        rows = rng.integers(len(y), size=target - done)
        rates = np.full(len(rows), lr)
        # A trajectory that diverges ends at infinity, as in `simulate`.
        advance(
            delta,
            *moments,
            features[rows],
            residual[rows],
            rates,
            OPTIMIZERS[optimizer],
            1,
            0.0,
            0.0,
            0.0,
            ADAM_EPS,
            done,
        )
        done = int(target)
        with np.errstate(over="ignore", invalid="ignore"):
            error = float(np.mean((X @ delta + residual) ** 2))
        errors.append(error if np.isfinite(error) else np.inf)
    return np.array(errors)
