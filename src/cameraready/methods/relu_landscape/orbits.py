"""Symmetric critical points from a handful of numbers, for orthonormal teachers of any (even real) number M.

A pattern divides the teachers into blocks of interchangeable members. A student block attached to teacher block a has
one student for each of its teachers and is permuted together with them; an unattached student stands alone. Student i
of block p then has one coordinate on its own teacher, one on the others of its block, one on each other block:

    w_(p,i) = delta_p e_i + sum_b c_pb 1_b

so the K M weights are 5 to 20 orbit values, and every sum over neurons is a polynomial in the block sizes, which may be
real numbers: a minimum can be followed in M. Splitting every block into (1, 1, rest) makes the reduced Hessian contain
each eigenvalue of the full one, because every irreducible part of a permuted pair of indices has a vector that the
permutations of the rest leave fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from cameraready.coverage import NotCovered
from cameraready.methods.relu_landscape.orbit_loss import Layout, reduced_loss

Floats = NDArray[np.float64]
LARGEST_STEP = 1.25  # of M in a continuation


@dataclass(frozen=True)
class Pattern:
    """Block sizes of the teachers, and for each student block the teacher block it is attached to (None: alone).

    Examples
    --------
    >>> Pattern((7, 1), (0, 1))  # seven students on seven teachers, one student that misses the eighth
    Pattern(blocks=(7, 1), students=(0, 1))
    >>> Pattern.defects(8, 1).n_values
    5
    """

    blocks: tuple[float, ...]
    students: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if not self.blocks or any(not 1 <= size < np.inf for size in self.blocks):
            raise ValueError(f"blocks={self.blocks}; at least one block, and every size at least 1 and finite")
        if not self.students or any(a is not None and a not in range(len(self.blocks)) for a in self.students):
            raise ValueError(f"students={self.students} must name teacher blocks 0 to {len(self.blocks) - 1}, or None")

    @classmethod
    def defects(cls, M: float, n_defects: int) -> Pattern:
        """K = M students of which ``n_defects`` miss their teacher, in a symmetric way."""
        if not 1 <= n_defects < M:
            raise ValueError(f"n_defects={n_defects} is not in [1, M={M:g})")
        return cls((M - n_defects, n_defects), (0, 1))

    @property
    def n_teachers(self) -> float:
        return sum(self.blocks)

    @property
    def n_students(self) -> float:
        return sum(1 if a is None else self.blocks[a] for a in self.students)

    @property
    def n_values(self) -> int:
        return len(self.layout.multiplicity)

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.blocks, self.students)

    def refined(self) -> tuple[Pattern, list[int]]:
        """Every block split into (1, 1, rest), and for each new value the old value that it equals."""
        pieces = [_pieces(size) for size in self.blocks]
        blocks = [(a, size) for a, sizes in enumerate(pieces) for size in sizes]
        students: list[int | None] = []
        parents: list[int] = []
        for p, a in enumerate(self.students):
            for position in [None] if a is None else [i for i, (block, _) in enumerate(blocks) if block == a]:
                students.append(position)
                parents.append(p)
        fine = Pattern(tuple(size for _, size in blocks), tuple(students))
        origin = []
        for q, b, own in fine.layout.values:
            p, block = parents[q], blocks[b][0]
            same_teacher = own and fine.students[q] is not None and self.students[p] == block
            origin.append(self.layout.position(p, block, same_teacher))
        return fine, origin


@dataclass(frozen=True)
class OrbitPoint:
    """A critical point of a pattern: its orbit values, and what they say about the full landscape.

    Attributes
    ----------
    loss : population loss of the full network.
    lambda_min : smallest eigenvalue of the full Hessian, in every ambient dimension.
    lambda_min_orthogonal : that of A, in directions orthogonal to the teachers.
    """

    pattern: Pattern
    values: Floats
    loss: float
    lambda_min: float
    lambda_min_orthogonal: float
    scale: float = 1.0

    def weights(self) -> Floats:
        """The full weights (K, M) in the basis of the teachers; the block sizes must be whole numbers."""
        sizes = [int(size) for size in self.pattern.blocks]
        if tuple(sizes) != tuple(self.pattern.blocks):
            raise ValueError(f"blocks={self.pattern.blocks} are not whole numbers; no such network exists")
        return self.scale * self.pattern.layout.expand(self.values)

    def scaled(self, scale: float) -> OrbitPoint:
        """The same point for teachers of norm ``scale``: the loss is of degree two, its Hessian of degree zero."""
        return replace(self, scale=self.scale * scale, loss=self.loss * scale**2)


def solve_orbits(pattern: Pattern, *, start: ArrayLike | None = None) -> OrbitPoint:
    """Minimise the loss within a pattern (trust region with exact Hessian), from ``start`` or from aligned students.

    Raises
    ------
    NotCovered : two neurons of the pattern become parallel, as at a global minimum; or no critical point is found.
    """
    check_pattern(pattern)
    x, loss = _minimise(pattern, default_start(pattern) if start is None else np.asarray(start, dtype=np.float64))
    inside, outside = spectra(pattern, x)
    return OrbitPoint(pattern, x, loss, float(min(inside[0], outside[0])), float(outside[0]))


def check_pattern(pattern: Pattern) -> None:
    """Refuse what is no `Pattern`."""
    if not isinstance(pattern, Pattern):
        raise TypeError(f"pattern is of type {type(pattern).__name__}; pass a Pattern, such as Pattern.defects(8, 1)")


def _minimise(pattern: Pattern, x: Floats) -> tuple[Floats, float]:
    if x.shape != (pattern.n_values,) or not np.isfinite(x).all():
        raise ValueError(f"start={x} of shape {x.shape}; the pattern has {pattern.n_values} values, all finite")
    weight = np.sqrt(pattern.layout.multiplicity)
    fun, grad, hess = _derivatives(pattern.layout)
    if not (np.isfinite(grad(x)).all() and np.isfinite(hess(x)).all()):
        raise NotCovered(f"two neurons of {pattern} are parallel or of norm 0 at this start: pass another start")
    found = optimize.minimize(
        lambda y: fun(y / weight),
        x * weight,
        jac=lambda y: grad(y / weight) / weight,
        hess=lambda y: hess(y / weight) / np.outer(weight, weight),
        method="trust-exact",
        options={"gtol": 1e-6},
    )
    y = found.x
    for _ in range(4):  # to rounding precision
        step = np.linalg.lstsq(hess(y / weight) / np.outer(weight, weight), grad(y / weight) / weight, rcond=1e-12)[0]
        y = y - step
    x = y / weight
    residual = np.abs(grad(x) / weight).max()
    if not residual < 1e-8:
        raise NotCovered(f"no smooth critical point of {pattern} from this start (gradient {residual:.2g})")
    return x, float(fun(x))


def spectra(pattern: Pattern, values: Floats) -> tuple[Floats, Floats]:
    """The distinct eigenvalues of the full Hessian in the teachers' span, and of A, each ascending."""
    fine, origin = pattern.refined()
    inside = np.asarray(values)[origin]
    layout = Layout(fine.blocks, fine.students, orthogonal=True)
    x = np.concatenate([inside, np.zeros(len(fine.students))])
    _, _, hess = _derivatives(layout)
    weight = np.sqrt(layout.multiplicity)
    H = hess(x) / np.outer(weight, weight)
    n = len(inside)
    return np.linalg.eigvalsh(H[:n, :n]), np.linalg.eigvalsh(H[n:, n:])


def follow(family: Callable[[float], Pattern], sizes: Iterable[float]) -> pd.DataFrame:
    """Follow one minimum through M: columns M, loss, lambda_min, lambda_min_orthogonal.

    Parameters
    ----------
    family : M to its pattern, for instance ``lambda M: Pattern.defects(M, 1)``.
    sizes : increasing values of M, real numbers allowed; in between, M grows by at most a quarter a step.
    """
    rows: list[dict[str, float]] = []
    reached, x = 0.0, None
    for target in sizes:
        if not reached < target < np.inf:
            raise ValueError(f"sizes must increase and be finite; {target:g} follows {reached:g}")
        while reached != target:
            reached = target if x is None else min(target, reached * LARGEST_STEP)
            x, _ = _minimise(family(reached), default_start(family(reached)) if x is None else x)
        point = solve_orbits(family(target), start=x)
        rows.append(
            {
                "M": float(target),
                "loss": point.loss,
                "lambda_min": point.lambda_min,
                "lambda_min_orthogonal": point.lambda_min_orthogonal,
            }
        )
    return pd.DataFrame(rows)


def default_start(pattern: Pattern) -> Floats:
    """The first attached block aligned with its teachers, the others turned away: the known spurious shape."""
    M = pattern.n_teachers
    x = np.empty(pattern.n_values)
    for i, (p, b, own) in enumerate(pattern.layout.values):
        first = p == 0
        if own:
            x[i] = 1.0 if first else -0.6
        elif first:
            x[i] = 1.9 / M if b != pattern.students[0] else 0.0
        else:
            x[i] = 1.3 / M if b == pattern.students[0] else 0.0
    return x


def orthonormal_scale(T: Floats) -> float:
    """The common norm of orthogonal teachers; other teachers are outside what orbits describe."""
    scale = float(np.sqrt(T[0, 0]))
    if np.abs(T - scale**2 * np.eye(len(T))).max() > 1e-10 * scale**2:
        raise NotCovered("orbit patterns need orthogonal teachers of one norm (T = s^2 I); use find_minima for this T")
    return scale


def _derivatives(
    layout: Layout,
) -> tuple[Callable[[Floats], float], Callable[[Floats], Floats], Callable[[Floats], Floats]]:
    pairs = layout.pairs  # outside torch.func, whose wrapped tensors must not be kept

    def loss(x: torch.Tensor) -> torch.Tensor:
        return reduced_loss(layout, x, pairs=pairs)

    gradient, second = torch.func.grad(loss), torch.func.jacrev(torch.func.grad(loss))

    def tensor(x: Floats) -> torch.Tensor:
        return torch.as_tensor(x, dtype=torch.float64)

    return (
        lambda x: float(loss(tensor(x))),
        lambda x: gradient(tensor(x)).numpy(),
        lambda x: second(tensor(x)).numpy(),
    )


def _pieces(size: float) -> list[float]:
    if size <= 2:
        if size not in (1, 2):
            raise NotCovered(f"a block of size {size:g}: the spectrum is known for 1, 2 and sizes of at least 3")
        return [1] * int(size)
    if size < 3:
        raise NotCovered(f"a block of size {size:g}: the spectrum is known for 1, 2 and sizes of at least 3")
    return [1, 1, size - 2]
