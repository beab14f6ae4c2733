"""Bounds and sharp predictions of federated and decentralised descent, as functions of numbers and small arrays.

Bounds hold for whole classes of problems and are loose. Fixed points are sharp: they say where the iteration ends, from
the clients' derivatives at the optimum.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg, optimize

Array = np.ndarray
Third = Callable[[Array], Array]


@dataclass(frozen=True)
class FixedPoint:
    """Where the iteration ends.

    ``offset`` : (d,) of the server's, or the consensus', theta - theta*. ``floor`` : 1/2 offset' H offset.
    ``nodes`` : (n, d), each client's offset: after its local steps (federated), after mixing (decentralised).
    ``spread`` : sqrt(sum p_i ||nodes_i - mean||^2). ``node_floor`` : sum p_i 1/2 nodes_i' H nodes_i.
    ``rate`` : factor by which the distance shrinks, a round or a mixing. ``remainder`` : what third derivatives
    add to the clients' paths (or the nodes' offsets), relative to these: the size of the neglected terms. On choice
    data floors were predicted to 10 % up to 0.2, and to a factor of 2.5 at 0.5. Zero without third derivatives.
    """

    offset: Array
    floor: float
    nodes: Array
    spread: float
    node_floor: float
    rate: float
    remainder: float


def fedavg_bound(*, D: float, lr: float, K: int, R: int, M: float, sigma2: float, zeta2: float, L: float) -> float:
    """Bound on the mean of f - f* over all iterates of federated averaging; convex clients, all taking part.

    D^2 / (2 lr K R) + lr sigma^2 / M + 4 K lr^2 L sigma^2 + 18 K^2 lr^2 L zeta^2: start, noise, noise in the drift,
    heterogeneity in the drift. The iterates are the means over clients after every local step.

    Parameters
    ----------
    D : ||theta_0 - theta*||. lr : step, at most 1 / (4 L); a warning above. K : local steps. R : rounds.
    M : number of clients, or 1 / sum p_i^2 when weights differ.
    sigma2 : E ||minibatch gradient - gradient||^2. zeta2 : bound on ||grad f_i - grad f||^2, for all i and theta.
    L : smoothness of every f_i.

    Examples
    --------
    >>> fedavg_bound(D=1.0, lr=0.25, K=1, R=100, M=1, sigma2=0.0, zeta2=0.0, L=1.0)
    0.02
    """
    _check_steps(K, lr=lr, R=R)
    _warn_of_large_step(lr, L=L)
    start, noise, drift = _fedavg_terms(D=D, K=K, R=R, M=M, sigma2=sigma2, zeta2=zeta2, L=L)
    return start / lr + noise * lr + drift * lr**2


def rounds_to(
    eps: float, *, K: int, D: float, M: float, sigma2: float, zeta2: float, L: float, most: int = 10**9
) -> tuple[int, float]:
    """Rounds until `fedavg_bound` is at most ``eps``, and the step that achieves it.

    Raises
    ------
    ValueError : not within ``most`` rounds.
    """
    if eps <= 0:
        raise ValueError(f"eps={eps}; it must be positive")

    def best(R: int) -> tuple[float, float]:
        return _best_step(*_fedavg_terms(D=D, K=K, R=R, M=M, sigma2=sigma2, zeta2=zeta2, L=L), L=L)

    if best(most)[0] > eps:
        raise ValueError(f"eps={eps:g} is not reached within {most} rounds; take a larger eps")
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if best(middle)[0] <= eps else (middle, high)
    return high, best(high)[1]


def best_local_steps(
    budget: float,
    *,
    round_cost: float,
    step_cost: float,
    D: float,
    M: float,
    sigma2: float,
    zeta2: float,
    L: float,
    most: int = 1000,
) -> tuple[int, int, float]:
    """The K that minimises `fedavg_bound` when R rounds cost R (round_cost + K step_cost) <= budget.

    Returns
    -------
    K, R and the step.
    """
    found = []
    for K in range(1, most + 1):
        R = int(budget / (round_cost + K * step_cost))
        if R < 1:
            break
        value, lr = _best_step(*_fedavg_terms(D=D, K=K, R=R, M=M, sigma2=sigma2, zeta2=zeta2, L=L), L=L)
        found.append((value, K, R, lr))
    if not found:
        raise ValueError(f"budget={budget} does not pay for one round of one step: {round_cost} + {step_cost}")
    return min(found)[1:]


def nonconvex_terms(
    *, delta0: float, lr: float, K: int, R: int, M: float, sigma2: float, zeta2: float, L: float
) -> Array:
    """The four terms, without constants, that bound the mean of ||grad f||^2 for smooth clients, convex or not.

    delta0 / (lr K R), lr L sigma^2 / M, K lr^2 L^2 sigma^2, K^2 lr^2 L^2 zeta^2; delta0 = f(theta_0) - inf f. Theory
    gives orders only: fit the constants once, on a calibration run, by `fit_constants`, and leave them.
    """
    _check_steps(K, lr=lr, R=R)
    return np.array([delta0 / (lr * K * R), lr * L * sigma2 / M, K * (lr * L) ** 2 * sigma2, (K * lr * L) ** 2 * zeta2])


def fit_constants(terms: ArrayLike, measured: ArrayLike) -> Array:
    """Non-negative c that minimise the relative errors of terms @ c; ``terms`` (runs, 4), ``measured`` (runs,)."""
    terms, measured = np.asarray(terms, dtype=float), np.asarray(measured, dtype=float)
    scale = np.maximum(terms.max(axis=0), np.finfo(float).tiny)
    return optimize.nnls(terms / scale / measured[:, None], np.ones(len(measured)))[0] / scale


def drift_to_first_order(*, lr: float, K: int, sigma2: float, zeta2: float, M: float = math.inf) -> float:
    """sum p_i ||theta_i^K - mean||^2 = lr^2 (K^2 zeta^2 + K (1 - 1 / M) sigma^2), while lr K L is small.

    For any smooth clients, convex or not; M = 1 / sum p_i^2 clients share the mean, which takes some noise out.
    """
    _check_steps(K, lr=lr)
    return lr**2 * (K**2 * zeta2 + K * (1 - 1 / M) * sigma2)


def fedavg_fixed_point(
    H: ArrayLike, g: ArrayLike, *, lr: float, K: int, p: ArrayLike, third: Third | None = None
) -> FixedPoint:
    """Where federated averaging with exact gradients ends, from the clients' derivatives at theta*.

    With M_i = lr sum_{k<K} (I - lr H_i)^k the quadratic model ends at offset = -(sum p_i M_i H_i)^-1 sum p_i M_i g_i.
    As sum p_i g_i = 0, what is first order in heterogeneity cancels, and the offset is a product of gradients and
    *differences* of the M_i: second order. The losses' third derivatives add as much, so that the quadratic model is
    right only where Hessians differ more than their change along the drift. ``third`` adds them: half of T_i[v, v]
    along the quadratic model's local path. What remains is third order in the drift, lr K ||g_i|| / ||H_i|| at most.

    Parameters
    ----------
    H : (n, d, d) Hessians. g : (n, d) gradients. p : (n,) weights.
    third : maps (n, d) directions v_i to (n, d) vectors T_i[v_i, v_i].

    Examples
    --------
    >>> at = fedavg_fixed_point([[[1.0]], [[3.0]]], [[1.0], [-1.0]], lr=0.1, K=1, p=[0.5, 0.5])
    >>> bool(at.floor == 0.0)  # one local step is gradient descent
    True
    """
    H, g, p = (np.asarray(x, dtype=float) for x in (H, g, p))
    _check_steps(K, lr=lr)
    _check_derivatives(H, g)
    if len(p) != len(H) or abs(p.sum() - 1) > 1e-6:
        raise ValueError(f"p has {len(p)} weights of sum {p.sum():g} for {len(H)} clients; one each, of sum 1")
    powers, sums = _local_map(H, lr=lr, K=K)  # (I - lr H_i)^K and M_i
    response = np.eye(H.shape[1]) - np.einsum("n,nij->ij", p, powers)  # sum p_i M_i H_i
    # for K = 1 exactly zero, and not the rounding errors of sum p_i g_i
    offset = -linalg.solve(response, np.einsum("n,nij,nj->i", p, sums, g)) if K > 1 else np.zeros(H.shape[1])
    bend, remainder = np.zeros_like(g), 0.0
    if third is not None and K > 1:
        bend, remainder = _bend(H, g, np.broadcast_to(offset, g.shape), lr=lr, K=K, third=third)
        offset = offset + linalg.solve(response, p @ bend)
    nodes = np.einsum("nij,j->ni", powers, offset) - np.einsum("nij,nj->ni", sums, g) + bend
    rate = _radius(np.einsum("n,nij->ij", p, powers))
    return _fixed_point(offset, nodes, H, p, rate, remainder)


def consensus_contraction(W: ArrayLike) -> float:
    """rho = max(|lambda_2|, |lambda_n|): a mixing shrinks disagreement by this factor, at least.

    Examples
    --------
    >>> consensus_contraction([[0.75, 0.25], [0.25, 0.75]])
    0.5
    """
    W = np.asarray(W, dtype=float)
    values = linalg.eigvalsh(W - np.full_like(W, 1 / len(W)))
    return float(np.abs(values).max())


def mixing_time(eps: float, *, W: ArrayLike) -> float:
    """Mixings until disagreement is at most ``eps`` times the initial one: log(eps) / log(rho)."""
    if not 0 < eps < 1:
        raise ValueError(f"eps={eps} is not in (0, 1)")
    rho = consensus_contraction(W)
    return 1.0 if rho < 1e-12 else math.inf if rho >= 1 else max(1.0, math.log(eps) / math.log(rho))


def consensus_bound(*, lr: float, rho: float, zeta: float, sigma: float = 0.0) -> float:
    """Bound on the RMS disagreement of decentralised descent, lr rho sqrt(zeta^2 + sigma^2) / (1 - rho).

    For convex L-smooth clients and lr <= 1 / L, whose steps do not expand distances; zeta^2 bounds the mean over
    clients of ||grad f_i(x) - grad f(x)||^2 at every x. Tight for constant gradients along the slowest eigenvector.
    """
    return math.inf if rho >= 1 else lr * rho * math.hypot(zeta, sigma) / (1 - rho)


def dsgd_bound(*, D: float, lr: float, T: int, n: int, rho: float, sigma2: float, zeta2: float, L: float) -> float:
    """Bound on the mean of f(average of the nodes) - f* over T steps; convex clients, lr <= 1 / (4 L).

    D^2 / (2 lr T) + lr sigma^2 / n + L lr^2 rho^2 (zeta^2 + sigma^2) / (1 - rho)^2: start, noise, network, the last
    being L times the square of `consensus_bound`.
    """
    _check_steps(1, lr=lr, R=T)
    _check_sizes(D=D, sigma2=sigma2, zeta2=zeta2, L=L)
    _warn_of_large_step(lr, L=L)
    network = L * consensus_bound(lr=lr, rho=rho, zeta=math.sqrt(zeta2), sigma=math.sqrt(sigma2)) ** 2
    return D**2 / (2 * lr * T) + lr * sigma2 / n + network


def dsgd_fixed_point(
    W: ArrayLike, H: ArrayLike, g: ArrayLike, *, lr: float, K: int = 1, third: Third | None = None
) -> FixedPoint:
    """Where decentralised descent with exact gradients ends: (I - (W kron I) A) delta = -(W kron I) M g.

    A = blockdiag((I - lr H_i)^K) and M as in `fedavg_fixed_point`, with K steps between mixings; K = 1 gives
    (I - (W kron I) blockdiag(I - lr H_i)) delta = -lr (W kron I) g. ``third`` adds the third derivatives' effect, to
    second order in delta. Clients count alike; scale H_i and g_i by n p_i for weights p_i.
    """
    W, H, g = (np.asarray(x, dtype=float) for x in (W, H, g))
    _check_steps(K, lr=lr)
    _check_derivatives(H, g)
    n, d = g.shape
    if W.shape != (n, n):
        raise ValueError(f"W has shape {W.shape} for {n} clients; a node each is needed")
    powers, sums = _local_map(H, lr=lr, K=K)
    mix = np.kron(W, np.eye(d))
    step = mix @ linalg.block_diag(*powers)
    system = linalg.lu_factor(np.eye(n * d) - step)
    nodes = linalg.lu_solve(system, -mix @ np.einsum("nij,nj->ni", sums, g).ravel()).reshape(n, d)
    remainder = 0.0
    if third is not None:
        bend, _ = _bend(H, g, nodes, lr=lr, K=K, third=third)
        more = linalg.lu_solve(system, mix @ bend.ravel()).reshape(n, d)
        remainder = _largest_ratio(more, nodes)
        nodes = nodes + more
    return _fixed_point(nodes.mean(axis=0), nodes, H, np.full(n, 1 / n), _radius(step), remainder)


def _fedavg_terms(
    *, D: float, K: int, R: int, M: float, sigma2: float, zeta2: float, L: float
) -> tuple[float, float, float]:
    """Coefficients of 1 / lr, lr and lr^2."""
    _check_sizes(D=D, sigma2=sigma2, zeta2=zeta2, L=L)
    return D**2 / (2 * K * R), sigma2 / M, 4 * K * L * sigma2 + 18 * K**2 * L * zeta2


def _best_step(start: float, noise: float, drift: float, *, L: float) -> tuple[float, float]:
    """The least start / lr + noise lr + drift lr^2 over lr <= 1 / (4 L), and its lr: convex, so a root or the end."""

    def slope(lr: float) -> float:
        return -start + noise * lr**2 + 2 * drift * lr**3

    largest = 1 / (4 * L)
    lr = largest if slope(largest) <= 0 else optimize.brentq(slope, 0, largest, xtol=1e-15 * largest)
    return start / lr + noise * lr + drift * lr**2, lr


def _local_map(H: Array, *, lr: float, K: int) -> tuple[Array, Array]:
    values, vectors = np.linalg.eigh(H)
    shrink = 1 - lr * values
    flat = np.abs(values) < 1e-14
    sums = np.where(flat, lr * K, (1 - shrink**K) / np.where(flat, 1, values))

    def rebuilt(diagonal: Array) -> Array:
        return np.einsum("nik,nk,njk->nij", vectors, diagonal, vectors)

    return rebuilt(shrink**K), rebuilt(sums)


def _bend(H: Array, g: Array, start: Array, *, lr: float, K: int, third: Third) -> tuple[Array, float]:
    """What third derivatives add to K local steps along the quadratic model's path from ``start``, and its share."""
    path, bend = np.array(start), np.zeros_like(g)
    for _ in range(K):
        bend = bend - lr * (np.einsum("nij,nj->ni", H, bend) + third(path) / 2)
        path = path - lr * (g + np.einsum("nij,nj->ni", H, path))
    return bend, _largest_ratio(bend, path)


def _largest_ratio(more: Array, first: Array) -> float:
    """Of the largest norms; 0 where there is nothing but rounding errors."""
    size = np.linalg.norm(first, axis=1).max()
    return 0.0 if size < 1e-12 else float(np.linalg.norm(more, axis=1).max() / size)


def _fixed_point(offset: Array, nodes: Array, H: Array, p: Array, rate: float, remainder: float) -> FixedPoint:
    mean_H = np.einsum("n,nij->ij", p, H)
    return FixedPoint(
        offset=offset,
        floor=float(offset @ mean_H @ offset / 2),
        nodes=nodes,
        spread=float(np.sqrt(p @ ((nodes - p @ nodes) ** 2).sum(axis=1))),
        node_floor=float(p @ np.einsum("ni,ij,nj->n", nodes, mean_H, nodes) / 2),
        rate=rate,
        remainder=remainder,
    )


def _radius(matrix: Array) -> float:
    return float(np.abs(np.linalg.eigvals(matrix)).max())


def _warn_of_large_step(lr: float, *, L: float) -> None:
    if lr * L > 0.25 * (1 + 1e-9):
        warnings.warn(f"lr={lr:g} is above 1 / (4 L) = {1 / (4 * L):g}: the bound is not proven there", stacklevel=3)


def _check_sizes(**sizes: float) -> None:
    for name, value in sizes.items():
        if not value >= 0:
            raise ValueError(f"{name}={value}; it must be at least 0")


def _check_derivatives(H: Array, g: Array) -> None:
    if H.ndim != 3 or g.shape != H.shape[:2] or H.shape[1] != H.shape[2]:
        raise ValueError(f"H has shape {H.shape} and g {g.shape}; (n, d, d) and (n, d) are needed")


def _check_steps(K: int, *, lr: float, R: int = 1) -> None:
    if R < 1:
        raise ValueError(f"{R} rounds or steps; at least 1 is needed")
    if K < 1 or int(K) != K:
        raise ValueError(f"K={K} local steps; it must be a whole number of at least 1")
    if not lr > 0:
        raise ValueError(f"lr={lr}; it must be positive")
