"""Everything that depends on the order parameters Q = W W', R = W V', T = V V' alone; numpy or torch, batched.

Loss, the coefficients of the gradient ``A W + C V`` and the drift of one-pass SGD are functions of (Q, R, T): the
dimension d enters nowhere but in which (Q, R) are feasible. Arrays are (..., K, K), (..., K, M) and (M, M), float64.
"""

from __future__ import annotations

import math
import warnings
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from cameraready.coverage import NotCovered

TWO_PI = 2 * math.pi
PSD_TOLERANCE = 1e-10
Array = Any  # numpy.ndarray or torch.Tensor, the same kind throughout a call


class Stats(NamedTuple):
    """Order parameters of one student and its teacher: Q (K, K), R (K, M), T (M, M)."""

    Q: Array
    R: Array
    T: Array


class Coefficients(NamedTuple):
    """Coefficients of the gradient: dL/dw_k = sum_l A_kl w_l + sum_m C_km v_m."""

    A: Array
    C: Array


def loss_from_statistics(Q: Array, R: Array, T: Array) -> Array:
    """Population loss 1/2 E (student - teacher)^2 of shape (...), from the order parameters.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.eye(1)
    >>> float(loss_from_statistics(one, 0 * one, one))  # orthogonal single neurons: 1/2 - 1/(2 pi)
    0.3408450569081046
    """
    q, t = _norms(_namespace(Q), Q), _norms(_namespace(T), T)
    own = _kernel_sum(Q, q, q, distinct=True) + Q.diagonal(0, -2, -1).sum(-1) / 2
    target = _kernel_sum(T, t, t, distinct=True) + T.diagonal(0, -2, -1).sum(-1) / 2
    return (own - 2 * _kernel_sum(R, q, t, distinct=False) + target) / 2


def gradient_coefficients(Q: Array, R: Array, T: Array) -> Coefficients:
    """A (..., K, K) and C (..., K, M) of the population gradient ``A W + C V``.

    Raises
    ------
    NotCovered : a student of norm 0, where the loss has no gradient.
    """
    xp = _namespace(Q)
    q, t = _norms(xp, Q), _norms(xp, T)
    if xp is np and (q == 0).any():
        raise NotCovered("a student neuron of norm 0 has no gradient; step away from it or use Landscape.certify(W)")
    angles_q, sines_q = _angles(xp, Q, q, q)
    angles_r, sines_r = _angles(xp, R, q, t)
    off = 1 - xp.eye(Q.shape[-1], dtype=Q.dtype)
    pull = (off * sines_q * q[..., None, :]).sum(-1) - (sines_r * t[..., None, :]).sum(-1)
    diagonal = 0.5 + pull / (TWO_PI * q)
    A = off * (math.pi - angles_q) / TWO_PI + (1 - off) * diagonal[..., None]
    return Coefficients(A, -(math.pi - angles_r) / TWO_PI)


def drift(Q: Array, R: Array, T: Array) -> tuple[Array, Array]:
    """Time derivative of (Q, R) under gradient flow: dQ = -(A Q + C R') - transposed, dR = -(A R + C T)."""
    A, C = gradient_coefficients(Q, R, T)
    half = A @ Q + C @ R.swapaxes(-1, -2)
    return -(half + half.swapaxes(-1, -2)), -(A @ R + C @ T)


def check_gram(T: ArrayLike, name: str = "T") -> NDArray[np.float64]:
    """Return T as a symmetric positive semidefinite float64 matrix without zero rows, or raise."""
    T = np.asarray(T, dtype=np.float64)
    if T.ndim != 2 or T.shape[0] != T.shape[1] or not T.size:
        raise ValueError(f"{name} has shape {T.shape}; a Gram matrix is square, (M, M) with M >= 1")
    if not np.isfinite(T).all():
        raise ValueError(f"{name} holds {np.count_nonzero(~np.isfinite(T))} values that are not finite")
    scale = np.abs(T).max()
    if np.abs(T - T.T).max() > PSD_TOLERANCE * scale:
        raise ValueError(f"{name} is not symmetric (largest difference {np.abs(T - T.T).max():.2g}); pass V @ V.T")
    smallest = np.linalg.eigvalsh(T)[0]
    if smallest < -PSD_TOLERANCE * scale:
        raise ValueError(f"{name} is not positive semidefinite (smallest eigenvalue {smallest:.3g}); pass V @ V.T")
    if (zero := np.flatnonzero(np.diag(T) <= 0)).size:
        raise ValueError(f"teacher neurons {zero.tolist()} are zero; drop these rows")
    return (T + T.T) / 2


def check_feasible(Q: ArrayLike, R: ArrayLike, T: ArrayLike) -> Stats:
    """Order parameters that some (W, V) has: an Omega that is not PSD beyond 1e-10 is projected, with a warning.

    Raises
    ------
    ValueError : shapes that do not fit, a T that is not a Gram matrix.
    """
    T = check_gram(T)
    Q, R = np.asarray(Q, dtype=np.float64), np.asarray(R, dtype=np.float64)
    if Q.ndim != 2 or Q.shape[0] != Q.shape[1] or R.shape != (Q.shape[0], T.shape[0]):
        raise ValueError(f"Q {Q.shape}, R {R.shape} and T {T.shape} do not fit; expected (K, K), (K, M) and (M, M)")
    if not (np.isfinite(Q).all() and np.isfinite(R).all()):
        raise ValueError("Q or R holds values that are not finite")
    # T is given, so what must be PSD is the rest of Q when R is explained by the teachers (the Schur complement).
    Q = (Q + Q.T) / 2
    values, vectors = np.linalg.eigh(T)
    kept = values > 1e-12 * values[-1]
    span = vectors[:, kept] / np.sqrt(values[kept])
    feasible_R = R @ span @ span.T @ T
    explained = R @ span
    rest = Q - explained @ explained.T
    e, U = np.linalg.eigh(rest)
    scale = max(float(np.abs(T).max()), float(np.abs(Q).max()), float(np.abs(R).max()))
    worst = max(float(-e[0]), float(np.abs(feasible_R - R).max()))
    if worst > PSD_TOLERANCE * scale:
        warnings.warn(f"(Q, R) is infeasible by {worst:.2g}: no weights have it; projected", stacklevel=2)
    projected = explained @ explained.T + (U * np.clip(e, 0, None)) @ U.T
    return Stats(projected, feasible_R, T)


def made_feasible(Q: NDArray[np.float64], R: NDArray[np.float64], T: NDArray[np.float64]) -> Stats:
    """Batches (..., K, K) and (..., K, M) with every infeasible member replaced as in `check_feasible`."""
    if not (np.isfinite(Q).all() and np.isfinite(R).all()):
        raise ValueError("Q or R holds values that are not finite")
    batch = np.broadcast_shapes(Q.shape[:-2], R.shape[:-2])
    Q, R = np.broadcast_to(Q, batch + Q.shape[-2:]), np.broadcast_to(R, batch + R.shape[-2:])
    teachers = np.broadcast_to(T, batch + T.shape)
    omega = np.concatenate(
        [np.concatenate([Q, R], axis=-1), np.concatenate([R.swapaxes(-1, -2), teachers], axis=-1)], axis=-2
    )
    lowest, scale = np.linalg.eigvalsh(omega)[..., 0], np.abs(omega).max(axis=(-2, -1))
    wrong = np.argwhere(lowest < -PSD_TOLERANCE * scale)
    if len(wrong):
        Q, R = Q.copy(), R.copy()
    for index in map(tuple, wrong):
        Q[index], R[index], _ = check_feasible(Q[index], R[index], T)
    return Stats(Q, R, T)


def check_floating(tensor: torch.Tensor, name: str) -> None:
    """Refuse integer tensors, in whose type the teacher's weights would be rounded."""
    if not tensor.is_floating_point():
        raise TypeError(f"{name} is of {tensor.dtype}; pass {name}.double()")


def weights_of(stats: Stats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Some (W, V) with these order parameters, in K + M dimensions: the rows of a square root of Omega."""
    Q, R, T = (np.asarray(part) for part in stats)
    values, vectors = np.linalg.eigh(np.block([[Q, R], [R.T, T]]))
    root = vectors * np.sqrt(np.clip(values, 0, None))
    return root[: len(Q)], root[len(Q) :]


def _namespace(x: Array) -> ModuleType:
    return torch if isinstance(x, torch.Tensor) else np


def _norms(xp: ModuleType, gram: Array) -> Array:
    diagonal = gram.diagonal(0, -2, -1)
    return xp.sqrt(xp.where(diagonal > 0, diagonal, 0 * diagonal))


def _cosines(xp: ModuleType, gram: Array, rows: Array, columns: Array) -> Array:
    product = rows[..., :, None] * columns[..., None, :]
    if xp is np:
        return np.clip(gram / np.where(product > 0, product, 1.0), -1.0, 1.0)
    cosines = gram / xp.where(product > 0, product, 0 * product + 1)
    return xp.where(cosines > 1, 0 * cosines + 1, xp.where(cosines < -1, 0 * cosines - 1, cosines))


def _angles(xp: ModuleType, gram: Array, rows: Array, columns: Array) -> tuple[Array, Array]:
    """Angles and sines; the half-angle form keeps what digits the Gram matrix has left near 0 and pi."""
    cosines = _cosines(xp, gram, rows, columns)
    if xp is np:
        minus, plus = np.sqrt(1 - cosines), np.sqrt(1 + cosines)
        return 2 * np.arctan2(minus, plus), minus * plus
    inside = (cosines > -1) & (cosines < 1)
    safe = xp.where(inside, cosines, 0 * cosines)  # so that derivatives exist beside a parallel pair
    half = xp.arctan2(xp.sqrt(1 - safe), xp.sqrt(1 + safe))
    angles = xp.where(inside, 2 * half, xp.where(cosines > 0, 0 * cosines, 0 * cosines + math.pi))
    return angles, xp.where(inside, xp.sqrt((1 - safe) * (1 + safe)), 0 * cosines)


def _kernel_sum(gram: Array, rows: Array, columns: Array, *, distinct: bool) -> Array:
    """Sum of h over all pairs, or over the pairs k != l, whose own terms |w|^2 / 2 need no angle."""
    xp = _namespace(gram)
    angles, sines = _angles(xp, gram, rows, columns)
    # Where a pair is parallel `angles` carries no derivative, but d h / d cos = (pi - t) / (2 pi) is that of this form.
    kernel = sines + (math.pi - angles) * _cosines(xp, gram, rows, columns)
    if distinct:
        kernel = kernel * (1 - xp.eye(gram.shape[-1], dtype=gram.dtype))
    return (rows[..., :, None] * columns[..., None, :] * kernel).sum((-2, -1)) / TWO_PI
