"""The expected risk over time as a recursion of d modes, in a thousand blocks instead of a million steps.

signSGD, modes of ``A = diag(K)^(-1/4) K diag(K)^(-1/4)`` with weights ``y_i^2``, gain ``kappa`` of `drift_gain`::

    y_i^2 <- (1 - 2 kappa eta lam_i / sqrt(P)) y_i^2 + eta^2 n_i,      P = P_inf + sum_i lam_i y_i^2

as ``E sign = kappa rho`` to first order (drift normalisation: divided by sqrt(P)) and ``E sign sign^T = K_s`` (noise
reshaping: not proportional to P). The second moment of the sign already holds the square of its mean, so the factor is
``1 - 2g`` and not ``(1 - g)^2``. SGD, modes of K, exact for Gaussian features and a batch of B::

    y_i^2 <- (1 - 2 g l_i + (1 + 1/B) g^2 l_i^2) y_i^2 + g^2 l_i P / B

Within a block P is frozen at the geometric mean of its ends, which makes the block second order in its length.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

TOLERANCE = 0.02  # change of the risk within a block
SHARE = 0.02  # length of a block over the steps done before it
RATE_CHANGE = 0.05  # change of the learning rate within a block
DIVERGED = 1e12  # growth of the risk that counts as divergence


def risk_curve(
    eigenvalues: NDArray[np.float64],
    weights: NDArray[np.float64],
    noise: NDArray[np.float64],
    floor: float,
    *,
    sign_gain: float | None,
    batch: int,
    rates: NDArray[np.float64],
    record: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Expected risk after the recorded numbers of steps; inf once it has diverged.

    Parameters
    ----------
    eigenvalues, weights : of the modes and their ``y_i^2`` at step 0, shape (d,).
    noise : ``n_i`` for signSGD; not read for SGD.
    floor : P_inf.
    sign_gain : ``kappa`` for signSGD, None for SGD.
    rates : learning rate at every step, shape (steps,).
    record : increasing numbers of steps done.
    """
    first = np.concatenate([[0.0], np.cumsum(rates)])
    second = np.concatenate([[0.0], np.cumsum(rates**2)])
    gain = 0.0 if sign_gain is None else sign_gain
    return np.asarray(
        _blocks(eigenvalues, weights.copy(), noise, floor, gain, batch, rates, first, second, record.astype(np.int64))
    )


@njit(cache=True)
def _step_modes(eigenvalues, weights, noise, gain, batch, risk, rate, square, steps, out):  # type: ignore[no-untyped-def]
    """``steps`` steps with the risk frozen; writes the new weights to ``out`` and returns the new excess risk."""
    excess = 0.0
    root = np.sqrt(risk)
    for i in range(eigenvalues.shape[0]):
        lam = eigenvalues[i]
        if gain > 0:
            shrink = 2 * gain * rate * lam / root  # 1 - factor
            added = square * noise[i]
        else:
            shrink = 2 * rate * lam - (1 + 1 / batch) * square * lam * lam
            added = square * lam * risk / batch
        # factor^steps - 1 and its geometric sum, without cancellation; a mode faster than a step relaxes at once
        power = -1.0 if shrink >= 1 else np.expm1(steps * np.log1p(-shrink))
        total = steps if shrink == 0 else -power / shrink
        out[i] = (1 + power) * weights[i] + added * total
        excess += lam * out[i]
    return excess


@njit(cache=True)
def _blocks(eigenvalues, weights, noise, floor, gain, batch, rates, first, second, record):  # type: ignore[no-untyped-def]
    risks = np.full(record.shape[0], np.inf)
    out = np.empty_like(weights)
    risk = floor + np.sum(eigenvalues * weights)
    limit = DIVERGED * max(risk, floor)
    done, length = 0, 1
    for index in range(record.shape[0]):
        while done < record[index]:
            length = min(2 * length, max(1, int(SHARE * done)), record[index] - done)
            while length > 1 and abs(rates[done + length - 1] - rates[done]) > RATE_CHANGE * rates[done]:
                length //= 2
            while True:
                rate = (first[done + length] - first[done]) / length
                square = (second[done + length] - second[done]) / length
                if length == 1:
                    excess = _step_modes(eigenvalues, weights, noise, gain, batch, risk, rate, square, 1, out)
                    break
                ahead = floor + _step_modes(eigenvalues, weights, noise, gain, batch, risk, rate, square, length, out)
                if abs(ahead - risk) <= TOLERANCE * risk:
                    middle = np.sqrt(risk * ahead)
                    excess = _step_modes(eigenvalues, weights, noise, gain, batch, middle, rate, square, length, out)
                    break
                length //= 2
            weights, out = out, weights
            risk = floor + excess
            done += length
            if not risk < limit:
                return risks
            if risk == 0.0:
                risks[index:] = 0.0
                return risks
        risks[index] = risk
    return risks
