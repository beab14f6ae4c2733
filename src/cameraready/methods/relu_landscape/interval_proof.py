"""Computer-assisted proofs with ball arithmetic (FLINT's arb, through python-flint).

`prove_critical_point` encloses gradient and Hessian over a box around W and applies the Krawczyk operator

    K(X) = W - Y g(W) + (I - Y H(X)) (X - W),   Y ~ H(W)^-1

When K(X) lies inside the box X, exactly one critical point lies in X. The sign of the curvature is then proved over
the whole box. Teacher and student are taken as the float64 numbers they are, so the statement is about those numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from flint import arb, arb_mat, ctx
from numpy.typing import NDArray

from cameraready.methods.relu_landscape.search import eigen

Floats = NDArray[np.float64]
PRECISION = 100  # bits
RADII = (1e-11, 1e-10, 1e-9, 1e-8, 1e-7)


@dataclass(frozen=True)
class CurvatureBounds:
    """Proved bounds of the smallest eigenvalue: ``lower <= lambda_min <= upper``."""

    lower: float
    upper: float


@dataclass(frozen=True)
class Proof:
    """Exactly one critical point lies within ``radius`` (largest entry) of the given weights, in the teachers' span.

    ``inside`` bounds the smallest Hessian eigenvalue in that span, ``outside`` that of A, the Hessian in every
    direction orthogonal to it.
    """

    radius: float
    inside: CurvatureBounds
    outside: CurvatureBounds


def prove_critical_point(W: Floats, V: Floats, hessian: Floats) -> Proof | None:
    """Prove that a critical point lies near ``W`` (K, r); ``hessian`` is the float one there. None where it fails."""
    n = W.size
    with _precision():
        try:
            preconditioner = _matrix(np.linalg.inv(hessian.reshape(n, n)))
        except np.linalg.LinAlgError:
            return None
        teacher = _rows(V)
        step = preconditioner * enclose_gradient(_rows(W), teacher)
        for radius in RADII:
            box = _rows(W, radius)
            H = enclose_hessian(box, teacher)
            spread = arb_mat(n, 1, [arb(0, radius)] * n)
            image = (_identity(n) - preconditioner * H) * spread - step
            if all(entry.abs_upper() < radius for entry in image.entries()):
                return Proof(radius, bound_curvature(H), bound_curvature(enclose_coefficients(box, teacher)))
    return None


def curvature_of_split(
    merged: Floats, V: Floats, proof: Proof, *, shares: Sequence[float], parent: Sequence[int], outside: bool = True
) -> CurvatureBounds:
    """Bounds of the smallest Hessian eigenvalue after neurons were split; ``outside`` adds directions beyond the span.

    Student k of the split network is ``shares[k]`` times row ``parent[k]`` of the proved critical point ``merged``; it
    is a critical point of the larger network, because the gradient depends on its own neuron by direction only.
    """
    with _precision():
        box, teacher = _rows(merged, proof.radius), _rows(V)
        students = [box[p] * arb(float(a)) for p, a in zip(parent, shares, strict=True)]
        twins = {(k, j) for k in range(len(parent)) for j in range(len(parent)) if k != j and parent[k] == parent[j]}
        inside = bound_curvature(enclose_hessian(students, teacher, twins))
        if not outside:
            return inside
        across = bound_curvature(enclose_coefficients(students, teacher, twins))
    return CurvatureBounds(min(inside.lower, across.lower), min(inside.upper, across.upper))


def enclose_gradient(students: list[arb_mat], teachers: list[arb_mat]) -> arb_mat:
    """The gradient as one column (K r, 1)."""
    entries: list[arb] = []
    for k, w in enumerate(students):
        own, total = arb(0), w * arb("0.5")
        for _, v, sign in _others(k, students, teachers):
            sine, angle = _sine_angle(w, v)
            own += sign * _norm(v) * sine
            total += v * (sign * (arb.pi() - angle) / _two_pi())
        entries += (total + w * (own / (_two_pi() * _norm(w)))).entries()
    return arb_mat(len(entries), 1, entries)


def enclose_coefficients(
    students: list[arb_mat], teachers: list[arb_mat], twins: Collection[tuple[int, int]] = ()
) -> arb_mat:
    """The matrix A (K, K)."""
    K = len(students)
    A = [[arb("0.5")] * K for _ in range(K)]
    for k, w in enumerate(students):
        own = arb(0)
        for j, v, sign in _others(k, students, teachers):
            if (k, j) in twins:
                continue  # parallel: angle 0, sine 0, and A_kj = pi / (2 pi)
            sine, angle = _sine_angle(w, v)
            own += sign * _norm(v) * sine
            if j < K:
                A[k][j] = (arb.pi() - angle) / _two_pi()
        A[k][k] = arb("0.5") + own / (_two_pi() * _norm(w))
    return arb_mat(A)


def enclose_hessian(
    students: list[arb_mat], teachers: list[arb_mat], twins: Collection[tuple[int, int]] = ()
) -> arb_mat:
    """The Hessian (K r, K r); ``twins`` are pairs of students known to be exactly parallel."""
    K, r = len(students), students[0].nrows()
    blocks = [[_identity(r) * arb("0.5") for _ in range(K)] for _ in range(K)]
    for k, w in enumerate(students):
        u = w / _norm(w)
        for j, v, sign in _others(k, students, teachers):
            if (k, j) in twins:
                continue
            length = _norm(v)
            direction = v / length
            cosine = _dot(u, direction)
            sine, angle = _sine(cosine), cosine.acos()
            n = (direction - u * cosine) / sine
            bend = _identity(r) - u * u.transpose() + n * n.transpose()
            blocks[k][k] += bend * (sign * length * sine / (_two_pi() * _norm(w)))
            if j < K:
                m = (u - direction * cosine) / sine
                mixed = u * (direction * sine - m * cosine).transpose() + direction * m.transpose()
                blocks[k][j] = (mixed + _identity(r) * (arb.pi() - angle)) / _two_pi()
    tables = [[block.tolist() for block in row] for row in blocks]
    return arb_mat([[x for table in row for x in table[i]] for row in tables for i in range(r)])


def bound_curvature(H: arb_mat) -> CurvatureBounds:
    """Bounds of the smallest eigenvalue of every symmetric matrix in ``H``: Gershgorin after diagonalisation."""
    n = H.nrows()
    middle = np.array([float(x.mid()) for x in H.entries()]).reshape(n, n)
    _, vectors = eigen((middle + middle.T) / 2)
    X = _matrix(vectors)
    rotated, gram = X.transpose() * H * X, X.transpose() * X
    low = min((_disc(rotated, i, -1) for i in range(n)), key=_down)
    # x'Hx / x'x over the orthogonal-up-to-rounding basis X: divide by what X'X can be at most or at least.
    stretch = max((_disc(gram, i, 1) for i in range(n)), key=lambda x: -_down(-x))
    shrink = min((_disc(gram, i, -1) for i in range(n)), key=_down)
    if not shrink > 0:
        return CurvatureBounds(-np.inf, np.inf)
    low /= stretch if low > 0 else shrink
    high = min((rotated[i, i] / gram[i, i] for i in range(n)), key=lambda x: -_down(-x))
    return CurvatureBounds(_down(low), -_down(-high))


def _disc(matrix: arb_mat, i: int, side: int) -> arb:
    radius = sum((matrix[i, j].abs_upper() for j in range(matrix.ncols()) if j != i), arb(0))
    return matrix[i, i] + side * radius


def _down(x: arb) -> float:
    return float(np.nextafter(float(x.lower()), -np.inf))


def _others(k: int, students: list[arb_mat], teachers: list[arb_mat]) -> Iterator[tuple[int, arb_mat, int]]:
    for j, v in enumerate([*students, *teachers]):
        if j != k:
            yield j, v, 1 if j < len(students) else -1


def _sine_angle(u: arb_mat, v: arb_mat) -> tuple[arb, arb]:
    cosine = _dot(u, v) / (_norm(u) * _norm(v))
    return _sine(cosine), cosine.acos()


def _sine(cosine: arb) -> arb:
    return ((1 - cosine) * (1 + cosine)).sqrt()


def _dot(u: arb_mat, v: arb_mat) -> arb:
    return (u.transpose() * v)[0, 0]


def _norm(u: arb_mat) -> arb:
    return _dot(u, u).sqrt()


def _two_pi() -> arb:
    return 2 * arb.pi()


def _rows(W: Floats, radius: float = 0.0) -> list[arb_mat]:
    return [arb_mat(W.shape[1], 1, [arb(float(x), radius) for x in row]) for row in W]


def _matrix(values: Floats) -> arb_mat:
    return arb_mat(values.shape[0], values.shape[1], [arb(float(x)) for x in values.ravel()])


def _identity(n: int) -> arb_mat:
    return arb_mat(n, n, [arb(int(i == j)) for i in range(n) for j in range(n)])


@contextmanager
def _precision() -> Iterator[None]:
    before, ctx.prec = ctx.prec, PRECISION
    try:
        yield
    finally:
        ctx.prec = before
