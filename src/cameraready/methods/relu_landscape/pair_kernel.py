"""The arc-cosine kernel h(u, v) = E ReLU(u.x) ReLU(v.x), x ~ N(0, I), with its first and second derivatives.

With t the angle between u and v, and u^ = u/|u|::

    h(u, v)       = |u||v| (sin t + (pi - t) cos t) / (2 pi),           h(u, u) = |u|^2 / 2
    grad_u h      = (|v| sin t u^ + (pi - t) v) / (2 pi)
    d2h/du2       = |v| sin t / (2 pi |u|) (I - u^ u^' + n n'),         n = (v^ - cos t u^) / sin t
    d2h/du dv     = (u^ (sin t v^ - cos t m)' + (pi - t) I + v^ m') / (2 pi),   m = (u^ - cos t v^) / sin t

At parallel or opposite vectors the limits are 0 for d2h/du2 and (pi - t)/(2 pi) I for d2h/du dv: h is twice
continuously differentiable there, with a kink in the second derivative. It is not differentiable at u = 0.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

TWO_PI = 2 * math.pi
NEARLY_PARALLEL = 0.99  # beyond this |cos t|, arccos would lose digits and the chords |u^ - v^|, |u^ + v^| are used
SINE_FLOOR = 1e-14  # below, the directions n and m are rounding noise and the limits are taken


@njit(cache=True)
def angle(cosine: float, u: NDArray[np.float64], v: NDArray[np.float64]) -> tuple[float, float, float]:
    """Angle, sine and cosine between the unit vectors ``u`` and ``v``, given their inner product, to full precision."""
    if abs(cosine) <= NEARLY_PARALLEL:
        return math.acos(cosine), math.sqrt((1 - cosine) * (1 + cosine)), cosine
    minus, plus = 0.0, 0.0
    for i in range(u.size):
        minus += (u[i] - v[i]) ** 2
        plus += (u[i] + v[i]) ** 2
    t = 2 * math.atan2(math.sqrt(minus), math.sqrt(plus))
    return t, math.sin(t), math.cos(t)


@njit(cache=True)
def unit_rows(W: NDArray[np.float64], at_zero: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Norms and unit vectors of the rows; a zero row gets the direction ``at_zero``, from which limits are taken."""
    norms = np.empty(W.shape[0])
    units = np.empty_like(W)
    for k in range(W.shape[0]):
        norms[k] = math.sqrt(np.dot(W[k], W[k]))
        units[k] = W[k] / norms[k] if norms[k] > 0 else at_zero
    return norms, units


@njit(cache=True)
def missing_direction(W: NDArray[np.float64], V: NDArray[np.float64]) -> NDArray[np.float64]:
    """The unit vector along sum v_m - sum w_k, what the student misses on average (the first axis where that is 0)."""
    missing = V.sum(axis=0) - W.sum(axis=0)
    norm = math.sqrt(np.dot(missing, missing))
    if norm == 0:
        missing[0] = norm = 1.0
    return missing / norm


@njit(cache=True)
def loss_and_gradient(
    W: NDArray[np.float64], V: NDArray[np.float64], at_zero: NDArray[np.float64], teacher_energy: float
) -> tuple[float, NDArray[np.float64]]:
    """L = 1/2 (sum h(w_k, w_l) - 2 sum h(w_k, v_m) + teacher_energy) and its gradient A W + C V, shape (K, d)."""
    K, M = W.shape[0], V.shape[0]
    w_norms, w_units = unit_rows(W, at_zero)
    v_norms, v_units = unit_rows(V, at_zero)
    ww, wv = w_units @ w_units.T, w_units @ v_units.T
    A, C, along = np.zeros((K, K)), np.empty((K, M)), np.zeros(K)
    loss = teacher_energy / 2
    for k in range(K):
        A[k, k] = 0.5
        loss += w_norms[k] ** 2 / 4
        for j in range(k):
            t, s, c = angle(ww[k, j], w_units[k], w_units[j])
            A[k, j] = A[j, k] = (math.pi - t) / TWO_PI
            along[k] += w_norms[j] * s / TWO_PI
            along[j] += w_norms[k] * s / TWO_PI
            loss += w_norms[k] * w_norms[j] * (s + (math.pi - t) * c) / TWO_PI
        for m in range(M):
            t, s, c = angle(wv[k, m], w_units[k], v_units[m])
            C[k, m] = -(math.pi - t) / TWO_PI
            along[k] -= v_norms[m] * s / TWO_PI
            loss -= w_norms[k] * v_norms[m] * (s + (math.pi - t) * c) / TWO_PI
    gradient = A @ W + C @ V
    for k in range(K):
        gradient[k] += along[k] * w_units[k]
    return loss, gradient


@njit(cache=True)
def _add_own(
    block: NDArray[np.float64], u: NDArray[np.float64], v: NDArray[np.float64], c: float, s: float, f: float
) -> None:
    """Add f (I - u u' + n n'), the form of d2h/du2."""
    for i in range(u.size):
        n_i = (v[i] - c * u[i]) / s
        for j in range(u.size):
            block[i, j] += f * (n_i * (v[j] - c * u[j]) / s - u[i] * u[j])
        block[i, i] += f


@njit(cache=True)
def hessian(W: NDArray[np.float64], V: NDArray[np.float64], at_zero: NDArray[np.float64]) -> NDArray[np.float64]:
    """Second derivative of L, shape (K, d, K, d); zero rows have none, their blocks are those without d2h/dw2."""
    K, M, d = W.shape[0], V.shape[0], W.shape[1]
    w_norms, w_units = unit_rows(W, at_zero)
    v_norms, v_units = unit_rows(V, at_zero)
    H = np.zeros((K, K, d, d))
    for k in range(K):
        u = w_units[k]
        for i in range(d):
            H[k, k, i, i] += 0.5
        for j in range(K + M):
            if j == k:
                continue
            v = w_units[j] if j < K else v_units[j - K]
            weight = w_norms[j] if j < K else -v_norms[j - K]
            t, s, c = angle(np.dot(u, v), u, v)
            if s > SINE_FLOOR and w_norms[k] > 0:
                _add_own(H[k, k], u, v, c, s, weight * s / (TWO_PI * w_norms[k]))
            if j < K:
                for a in range(d):
                    if s > SINE_FLOOR:
                        for b in range(d):
                            m_b = (u[b] - c * v[b]) / s
                            H[k, j, a, b] += (u[a] * (s * v[b] - c * m_b) + v[a] * m_b) / TWO_PI
                    H[k, j, a, a] += (math.pi - t) / TWO_PI
    return H.transpose((0, 2, 1, 3)).copy()
