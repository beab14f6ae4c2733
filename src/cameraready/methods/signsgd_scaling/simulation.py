"""One-pass training of a linear model on Gaussian features, step by step.

Given the model, the residual is ``u^T (theta - theta*) + sqrt(P_inf) xi`` with ``xi`` independent of ``u ~ N(0, K)``
(for jointly Gaussian data this is exact, as the least-squares residual is independent of the features). So a step costs
O(d^2) for drawing u, as one triangular matrix product for many steps, and O(d) for the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg.blas import strmm

OPTIMIZERS = {"sgd": 0, "signsgd": 1, "adam": 2, "lion": 3}
BETAS = {"adam": (0.9, 0.999), "lion": (0.9, 0.99)}
ADAM_EPS = 1e-8
CHUNK_VALUES = 2_000_000  # float32 values of features held at a time: 8 MB

Array = NDArray[Any]


def simulate_risk(
    root: NDArray[np.float64],
    start: NDArray[np.float64],
    floor: float,
    *,
    rates: NDArray[np.float64],
    optimizer: str,
    batch: int,
    momentum: float,
    betas: tuple[float, float],
    generators: Sequence[np.random.Generator],
    record: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Exact population risk, ``P_inf + |root delta|^2``, of every run at the recorded steps; shape (runs, records).

    Parameters
    ----------
    root : upper triangular (d, d) with ``root^T root = K``.
    start : ``delta = theta - theta*`` at step 0, shape (d,).
    floor : P_inf.
    rates : learning rate at every step, shape (steps,).
    record : increasing numbers of steps done, from 0 to at most ``steps``.
    """
    risks = np.empty((len(generators), len(record)))
    features_root = np.asfortranarray(root, dtype=np.float32)
    for run, rng in enumerate(generators):
        risks[run] = _one_run(root, features_root, start, floor, rates, optimizer, batch, momentum, betas, rng, record)
    return risks


def _one_run(
    root: Array,
    features_root: Array,
    start: Array,
    floor: float,
    rates: Array,
    optimizer: str,
    batch: int,
    momentum: float,
    betas: tuple[float, float],
    rng: np.random.Generator,
    record: Array,
) -> Array:
    d = len(start)
    delta, first, second = start.copy(), np.zeros(d), np.zeros(d)
    longest = max(1, CHUNK_VALUES // (d * batch))
    risks = np.full(len(record), np.inf)
    done = 0
    for index, target in enumerate(record):
        while done < target:
            steps = min(longest, target - done)
            features = draw_features(features_root, steps * batch, rng)
            noise = np.sqrt(floor) * rng.standard_normal(steps * batch)
            advance(
                delta,
                first,
                second,
                features,
                noise,
                rates[done : done + steps],
                OPTIMIZERS[optimizer],
                batch,
                momentum,
                betas[0],
                betas[1],
                ADAM_EPS,
                done,
            )
            done += steps
        with np.errstate(over="ignore", invalid="ignore"):
            risk = floor + np.sum((root @ delta) ** 2)
        if not np.isfinite(risk):
            break
        risks[index] = risk
    return risks


def draw_features(features_root: Array, count: int, rng: np.random.Generator) -> Array:
    """``count`` draws of N(0, K) as rows, float32; the triangular product halves the cost of a full one."""
    z = rng.standard_normal((count, len(features_root)), dtype=np.float32)
    return np.asarray(strmm(1.0, features_root, z.T, trans_a=1, overwrite_b=1).T)


# Sums may be reordered, so that they vectorise; infinities and NaN keep their meaning, as SGD may diverge.
@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def advance(delta, first, second, features, noise, rates, kind, batch, momentum, beta1, beta2, eps, done):  # type: ignore[no-untyped-def]
    """Run ``len(rates)`` steps in place; ``first`` and ``second`` are the optimiser's moments."""
    d = delta.shape[0]
    gradient = np.empty(d)
    for step in range(rates.shape[0]):
        gradient[:] = 0.0
        for sample in range(step * batch, (step + 1) * batch):
            residual = noise[sample]
            for i in range(d):
                residual += features[sample, i] * delta[i]
            for i in range(d):
                gradient[i] += residual * features[sample, i] / batch
        rate = rates[step]
        if kind == 0:
            for i in range(d):
                first[i] = momentum * first[i] + gradient[i]
                delta[i] -= rate * first[i]
        elif kind == 1:
            for i in range(d):
                first[i] = momentum * first[i] + (1 - momentum) * gradient[i]
                delta[i] -= rate * np.sign(first[i])
        elif kind == 2:
            scale1 = 1 - beta1 ** (done + step + 1)
            scale2 = 1 - beta2 ** (done + step + 1)
            for i in range(d):
                first[i] = beta1 * first[i] + (1 - beta1) * gradient[i]
                second[i] = beta2 * second[i] + (1 - beta2) * gradient[i] ** 2
                delta[i] -= rate * (first[i] / scale1) / (np.sqrt(second[i] / scale2) + eps)
        else:
            for i in range(d):
                delta[i] -= rate * np.sign(beta1 * first[i] + (1 - beta1) * gradient[i])
                first[i] = beta2 * first[i] + (1 - beta2) * gradient[i]
