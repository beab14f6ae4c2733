"""One-pass SGD on fresh Gaussian examples: its high-dimensional ODE in the order parameters, and the real thing.

With the step ``w_k <- w_k - (eta / d) Delta 1(w_k.x > 0) x``, Delta = student - teacher, and time t = steps / d, the
order parameters follow, as d grows,

    dR/dt = -eta (A R + C T)
    dQ/dt = -eta (A Q + C R' + transposed) + eta^2 N,     N_kl = E[Delta^2 1(w_k.x > 0) 1(w_l.x > 0)]

(the N term because |x|^2 is close to d). At finite d the order parameters fluctuate about it by O(d^-1/2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray
from scipy import integrate, special
from scipy.stats import qmc
from threadpoolctl import threadpool_limits

from cameraready.coverage import NotCovered
from cameraready.methods.relu_landscape.order_parameters import check_feasible, drift, loss_from_statistics

Floats = NDArray[np.float64]
JITTER = 1e-12  # keeps the Cholesky factor of an Omega in which a student has become its teacher
WHOLE = ("n_times", "n_points", "steps", "batch")
BLOWN_UP = 1e4  # growth of the trace of Q over that of T from which the dynamics count as divergent


@dataclass(frozen=True)
class Trajectory:
    """Order parameters along training: times t (n,), Q (n, K, K), R (n, K, M), and the population loss (n,)."""

    t: Floats
    Q: Floats
    R: Floats
    loss: Floats


def sgd_ode(
    Q0: ArrayLike,
    R0: ArrayLike,
    T: ArrayLike,
    *,
    eta: float,
    t_max: float,
    noise: bool = True,
    n_times: int = 201,
    n_points: int = 4096,
    seed: int = 0,
) -> Trajectory:
    """Integrate the ODE of one-pass SGD with step ``eta / d`` up to t = steps / d = ``t_max``.

    Parameters
    ----------
    Q0, R0, T : order parameters at the start, (K, K), (K, M) and (M, M); `Landscape.stats(W0)` gives them.
    eta : learning rate times d.
    noise : False leaves out the eta^2 term: gradient flow at speed eta, the limit of small steps.
    n_times : number of recorded times, evenly spaced from 0.
    n_points : scrambled Sobol points (a power of two) that estimate N, the same at all times; the error of an entry of
        N is typically 1 to 2 % at 4096 and falls like n_points^(-1/2).

    Raises
    ------
    NotCovered : the dynamics diverge at this eta, or a student shrinks to 0.

    Examples
    --------
    >>> from cameraready.methods.relu_landscape import Landscape, sgd_ode
    >>> path = sgd_ode(*Landscape(2, K=2).random_stats(seed=0), eta=0.2, t_max=100)
    >>> bool(path.loss[-1] < 1e-3 * path.loss[0])
    True
    """
    Q0, R0, T = check_feasible(Q0, R0, T)
    _check_positive(eta=eta, t_max=t_max, n_times=n_times, n_points=n_points)
    K, M = R0.shape
    points = gaussian_points(n_points, K + M, seed=seed) if noise else None
    limit = BLOWN_UP * (np.trace(T) + np.trace(Q0))

    def unpack(y: Floats) -> tuple[Floats, Floats]:
        return y[: K * K].reshape(K, K), y[K * K :].reshape(K, M)

    def field(_: float, y: Floats) -> Floats:
        Q, R = unpack(y)
        dQ, dR = drift(Q, R, T)
        dQ, dR = eta * dQ, eta * dR
        if points is not None:
            dQ = dQ + eta**2 * gradient_noise(Q, R, T, points=points)
        return np.concatenate([dQ.ravel(), dR.ravel()])

    def blown_up(_: float, y: Floats) -> float:
        return float(limit - np.trace(unpack(y)[0]))

    blown_up.terminal = True  # type: ignore[attr-defined]
    times = np.linspace(0, t_max, n_times)
    # The sampled N jumps by 1 / n_points where a point changes sign: tighter tolerances would chase these jumps.
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if noise else {"rtol": 1e-8, "atol": 1e-10}
    start = np.concatenate([Q0.ravel(), R0.ravel()])
    with threadpool_limits(1):
        path = integrate.solve_ivp(field, (0, t_max), start, t_eval=times, events=blown_up, **tolerance)
    if path.status != 0:
        raise NotCovered(f"at eta={eta:g} the dynamics diverge (|w|^2 grew {BLOWN_UP:g}-fold); take a smaller eta")
    Q, R = path.y[: K * K].T.reshape(-1, K, K), path.y[K * K :].T.reshape(-1, K, M)
    return Trajectory(path.t, Q, R, loss_from_statistics(Q, R, T))


def gaussian_points(n: int, dim: int, *, seed: int) -> Floats:
    """Scrambled Sobol points as standard normal ones, (dim, n), a point a column."""
    sample = qmc.Sobol(dim, rng=np.random.default_rng(seed)).random(n)
    return np.ascontiguousarray(special.ndtri(np.clip(sample, 1e-12, 1 - 1e-12)).T)


def gradient_noise(Q: Floats, R: Floats, T: Floats, *, points: Floats) -> Floats:
    """N (K, K) = E[Delta^2 1(w_k.x > 0) 1(w_l.x > 0)] over standard normal ``points`` (K + M, n)."""
    K, M = R.shape
    # Teachers first: their fields then stay the same while the students move, which keeps N(t) smooth.
    omega = np.block([[T, R.T], [R, Q]])
    try:
        root = np.linalg.cholesky(omega + JITTER * np.eye(K + M))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(omega)
        root = vectors * np.sqrt(np.clip(values, 0, None))
    fields = root @ points
    outputs = np.maximum(fields, 0)
    signs = np.concatenate([-np.ones(M), np.ones(K)])
    weighted = (fields[M:] > 0) * (signs @ outputs)
    return weighted @ weighted.T / points.shape[1]


def simulate_sgd(
    W0: ArrayLike, V: ArrayLike, *, lr: float, steps: int, seed: int, batch: int = 1, n_times: int = 201
) -> Trajectory:
    """Train on ``steps`` fresh batches x ~ N(0, I_d) and record the order parameters at ``n_times`` even times.

    Parameters
    ----------
    W0, V : student (K, d) and teacher (M, d).
    lr : step size; that of `sgd_ode` is ``eta = lr * d``, its time ``t = steps / d``.
    batch : examples averaged in a step; the ODE describes 1.
    """
    W, V = np.array(W0, dtype=np.float64, order="C"), np.array(V, dtype=np.float64, order="C")
    if W.ndim != 2 or V.ndim != 2 or W.shape[1] != V.shape[1] or not W.size or not V.size:
        raise ValueError(f"W0 {W.shape} and V {V.shape} must be (K, d) and (M, d) of one d")
    if not (np.isfinite(W).all() and np.isfinite(V).all()):
        raise ValueError("W0 or V holds values that are not finite")
    _check_positive(lr=lr, steps=steps, batch=batch, n_times=n_times)
    marks = np.unique(np.linspace(0, steps, n_times).astype(np.int64))
    # A stream of its own: a W0 or V drawn by default_rng(seed) must not come back as the first examples.
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    path = _train(W, V, lr, marks, batch, rng)
    Q, R = path @ path.swapaxes(1, 2), path @ V.T
    if not np.isfinite(Q).all():
        raise NotCovered(f"SGD diverges at lr={lr:g}; take a smaller one")
    return Trajectory(marks / W.shape[1], Q, R, loss_from_statistics(Q, R, V @ V.T))


@njit(cache=True)
def _train(W: Floats, V: Floats, lr: float, marks: NDArray[np.int64], batch: int, rng: np.random.Generator) -> Floats:
    """SGD; the weights at every step of ``marks``, (n, K, d)."""
    K, d = W.shape
    path = np.empty((marks.size, K, d))
    path[0] = W
    gradient = np.empty((K, d))
    for i in range(1, marks.size):
        for _ in range(marks[i] - marks[i - 1]):
            gradient[:] = 0
            for _ in range(batch):
                x = rng.standard_normal(d)
                student = W @ x
                delta = np.maximum(student, 0).sum() - np.maximum(V @ x, 0).sum()
                for k in range(K):
                    if student[k] > 0:
                        gradient[k] += delta * x
            W -= lr / batch * gradient
        path[i] = W
    return path


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < np.inf:
            raise ValueError(f"{name}={value} must be positive and finite")
        if name in WHOLE and value != int(value):
            raise ValueError(f"{name}={value} must be a whole number")
