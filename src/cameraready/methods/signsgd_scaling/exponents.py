"""Compute-optimal exponents as a linear program.

With compute ``f = d N``, write ``d = f^x`` and a learning rate ``f^-y``. Every term of the risk is then a power of f,
and the best risk ``f^-e`` maximises e subject to ``e <= c0 + cx x + cy y`` for each term. The terms of SGD are those of
Paquette et al. (2024). Those of signSGD follow from its effective time, ``d tau = eta d^a P^(-1/2) dN`` with
``a = min(alpha, 1/2)`` (drift normalisation), and from its floor ``(eta S)^2`` with ``S ~ d^(1-a)`` (noise reshaping).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

Optimizer = Literal["sgd", "signsgd"]
Rate = Literal["optimal", "largest"]
ACTIVE = 1e-7
FINITE_TIME = 2 - 1e-4  # p above which drift ends in finite time; just below 2 its power would overflow the solver
LARGER_RATE = 1e-7  # breaks ties between optimal rates towards the larger one, without moving the exponent


class Term(NamedTuple):
    """``e <= c0 + cx x + cy y`` (``bounds_slope``), or ``0 <= c0 + cx x + cy y`` for a limit on the rate or the
    time.
    """

    name: str
    c0: float
    cx: float
    cy: float
    bounds_slope: bool = True


class Exponents(NamedTuple):
    """Solution: risk ``f^-slope``, model size ``f^size``, learning rate ``f^-rate``, and the terms that bind."""

    slope: float
    size: float
    rate: float
    active: tuple[str, ...]


def terms(alpha: float, beta: float, optimizer: Optimizer, *, rate: Rate = "optimal") -> list[Term]:
    """The terms of the risk whose largest decides.

    Parameters
    ----------
    rate : "optimal", or "largest" for the largest stable rate, at which SGD's exponents were published. They differ
        for 2 alpha < 1 only, and signSGD has no largest rate.
    """
    p = (2 * alpha + 2 * beta - 1) / (2 * alpha)
    approximation = Term("approximation", 0, 2 * alpha - max(0.0, 1 - 2 * beta), 0)
    aligned = alpha > 0.5 and beta > 0.5
    q = 1 - 1 / (2 * alpha)
    if optimizer == "sgd":
        found = [approximation, _power("drift", p, 1, -1, -1)]
        if aligned:
            found.append(_power("aligned features", q, 1, -1, -1, extra_x=1))
        # The kernel sum_j l_j^2 exp(-2 g l_j N) g^2 over the signal's time 1/g; below alpha = 1/4 its slowest modes
        # lead.
        m = max(0.0, 2 - 1 / (2 * alpha))
        found.append(Term("noise", m, -m - max(0.0, 1 - 4 * alpha), 1 - m))
        limit = max(0.0, 1 - 2 * alpha)  # the stable rate is d^-limit
        found.append(Term("stability", 0, -limit, 1, False))
        if rate == "largest":
            found.append(Term("largest rate", 0, limit, -1, False))
        return found
    a = min(alpha, 0.5)
    found = [approximation]
    # P = tau^-p and d tau = eta d^a P^(-1/2) dN give P = (eta d^a N)^(-2p/(2-p)); from p = 2 on in finite time.
    if p < FINITE_TIME:
        found.append(_power("drift", 2 * p / (2 - p), 1, a - 1, -1))
    else:
        found.append(Term("drift in finite time", 1, a - 1, -1, False))
    if aligned:
        found.append(_power("aligned features", 2 * q / (2 - q), 1, 0, -1, extra_x=1))
    found.append(Term("noise", 0, -(2 - 2 * a), 2))
    return found


def solve(problems: Sequence[Sequence[Term]]) -> list[Exponents]:
    """Solve many of these programs as one block-diagonal linear program.

    Three variables each: e, x, y with 0 <= x <= 1 and y >= 0.
    """
    rows, columns, values, bounds = [], [], [], []
    for block, problem in enumerate(problems):
        for term in problem:
            row = len(bounds)
            coefficients = (1.0 if term.bounds_slope else 0.0, -term.cx, -term.cy)
            rows += [row] * 3
            columns += [3 * block + i for i in range(3)]
            values += coefficients
            bounds.append(term.c0)
    count = len(problems)
    found = linprog(
        np.tile([-1.0, 0.0, LARGER_RATE], count),
        A_ub=csr_matrix((values, (rows, columns)), shape=(len(bounds), 3 * count)),
        b_ub=bounds,
        bounds=[(0, None), (0, 1), (0, None)] * count,
        method="highs",
    )
    if not found.success:
        raise RuntimeError(f"the linear program of the exponents failed: {found.message}")
    return [_read(problem, row) for problem, row in zip(problems, found.x.reshape(-1, 3), strict=True)]


def _read(problem: Sequence[Term], solution: NDArray[np.float64]) -> Exponents:
    slope, size, rate = (float(value) + 0.0 for value in solution)  # no -0.0
    active = [
        term.name
        for term in problem
        if (slope if term.bounds_slope else 0.0) >= term.c0 + term.cx * size + term.cy * rate - ACTIVE
    ]
    return Exponents(slope, size, rate, tuple(active))


def _power(name: str, exponent: float, c0: float, cx: float, cy: float, *, extra_x: float = 0.0) -> Term:
    """A base with log_f ``c0 + cx x + cy y`` to the power ``-exponent``, times ``d^-extra_x``."""
    return Term(name, exponent * c0, exponent * cx + extra_x, exponent * cy)
