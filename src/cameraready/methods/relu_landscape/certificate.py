"""What kind of critical point it is, and how far that is proved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from cameraready.methods.relu_landscape.families import ZERO_LOSS
from cameraready.methods.relu_landscape.interval_proof import Proof, curvature_of_split, prove_critical_point
from cameraready.methods.relu_landscape.nonsmooth import steepest_slope_at_zero
from cameraready.methods.relu_landscape.search import FLAT, Problem, orthogonal_hessian

Floats = NDArray[np.float64]
Status = Literal[
    "certified minimum", "certified saddle", "degenerate minimum", "nonsmooth", "numerical", "not converged"
]
SAME_DIRECTION = 1e-6  # angle (radians) below which two students count as one neuron that was split
ZERO_NORM = 1e-9
CRITICAL = 1e-8


@dataclass(frozen=True)
class Certificate:
    """Nature of a critical point.

    Attributes
    ----------
    status : "certified minimum" and "certified saddle" are proved; "degenerate minimum" has flat directions that are
        all explained (splits of one neuron, or zero loss); "nonsmooth" has a neuron of norm 0; "numerical" is what
        floating point says without a proof; "not converged" is no critical point: a descent came to no end there.
    reason : one sentence on what the status rests on.
    loss : population loss (with the factor 1/2).
    gradient_norm : Euclidean norm of the gradient.
    lambda_min : smallest Hessian eigenvalue, in every direction of the ambient space.
    lambda_min_in_span, lambda_min_orthogonal : the same within the teachers' span and orthogonal to it (that of A; NaN
        when the ambient space has no such direction).
    n_flat : number of Hessian eigenvalues in the span below 1e-7 in size.
    proof : radius and proved eigenvalue bounds; for a split point, of the point with its twins merged.
    """

    status: Status
    reason: str
    loss: float
    gradient_norm: float
    lambda_min: float
    lambda_min_in_span: float
    lambda_min_orthogonal: float
    n_flat: int
    proof: Proof | None

    def __str__(self) -> str:
        return f"{self.status}: loss {self.loss:.6g}, lambda_min {self.lambda_min:.4g}; {self.reason}"


def certify(problem: Problem, W: Floats, *, max_unknowns: int) -> Certificate:
    """Certify the critical point ``W`` (K, rank), given in the span of the teachers."""
    span = problem.in_span()
    loss, gradient = span.fun(W)
    size = float(np.linalg.norm(gradient))
    lengths = np.linalg.norm(W, axis=1)
    if (lengths <= ZERO_NORM).any():
        return _nonsmooth(problem, W, loss, size)
    H = span.hess(W)
    values = np.linalg.eigvalsh(H)
    across = np.linalg.eigvalsh(orthogonal_hessian(problem, W))[0] if _has_outside(problem) else np.nan
    n_flat = int((np.abs(values) < FLAT).sum())
    lowest = float(np.nanmin([values[0], across]))

    def verdict(status: Status, reason: str, proof: Proof | None = None) -> Certificate:
        return Certificate(status, reason, max(loss, 0.0), size, lowest, float(values[0]), float(across), n_flat, proof)

    if size > CRITICAL:
        return verdict("not converged", f"|gradient| = {size:.2g} > {CRITICAL:g} at teachers of norm 1")
    if loss <= ZERO_LOSS * problem.teacher_energy / 2:
        if len(W) == len(span.V) and lowest > FLAT and _is_teacher(W, span.V):
            return verdict("certified minimum", "zero loss at the teacher's own weights, and no loss is negative")
        return verdict("degenerate minimum", f"zero loss, which is the least there is; {n_flat} flat directions")
    merged, parent, shares = merge_twins(W)
    if merged.size > max_unknowns:
        return verdict("numerical", f"{merged.size} unknowns, more than max_unknowns={max_unknowns}: no proof tried")
    split = len(merged) < len(W)
    proof = prove_critical_point(merged, span.V, span.hess(merged))
    if proof is None:
        return verdict("numerical", f"the Krawczyk test failed; {n_flat} flat directions")
    inside, outside = proof.inside, proof.outside
    if split:
        inside = outside = curvature_of_split(
            merged, span.V, proof, shares=shares, parent=parent, outside=_has_outside(problem)
        )
    if inside.upper < 0 or (_has_outside(problem) and outside.upper < 0):
        return verdict("certified saddle", "existence, uniqueness and a direction of descent are proved", proof)
    if not split and inside.lower > 0 and (outside.lower > 0 or not _has_outside(problem)):
        return verdict("certified minimum", "existence, uniqueness and a positive definite Hessian are proved", proof)
    if split and n_flat == len(W) - len(merged) and lowest > -FLAT:
        return verdict("degenerate minimum", f"{n_flat} flat directions, all from split neurons", proof)
    return verdict("numerical", f"the sign of the curvature is not decided; {n_flat} flat directions", proof)


def merge_twins(W: Floats) -> tuple[Floats, list[int], list[float]]:
    """Sum students of the same direction: the merged weights, each student's row in them, and its share of that row."""
    lengths = np.linalg.norm(W, axis=1)
    units = W / lengths[:, None]
    parent: list[int] = []
    leaders: list[int] = []
    for k in range(len(W)):
        twin = next((i for i, j in enumerate(leaders) if np.linalg.norm(units[k] - units[j]) < SAME_DIRECTION), None)
        if twin is None:
            twin = len(leaders)
            leaders.append(k)
        parent.append(twin)
    merged = np.stack([W[[k for k in range(len(W)) if parent[k] == i]].sum(axis=0) for i in range(len(leaders))])
    totals = np.linalg.norm(merged, axis=1)
    return merged, parent, [float(lengths[k] / totals[parent[k]]) for k in range(len(W))]


def _nonsmooth(problem: Problem, W: Floats, loss: float, size: float) -> Certificate:
    slope = steepest_slope_at_zero(problem, W)
    what = "growing it descends" if slope < 0 else "no direction of growth descends"
    nan = float("nan")
    reason = f"a student has norm 0, where the loss has no gradient; {what} (steepest slope {slope:.3g})"
    return Certificate("nonsmooth", reason, max(loss, 0.0), size, nan, nan, nan, 0, None)


def _is_teacher(W: Floats, V: Floats) -> bool:
    gaps = np.linalg.norm(W[:, None] - V[None], axis=-1)
    return bool(gaps[linear_sum_assignment(gaps)].max() < 1e-6)


def _has_outside(problem: Problem) -> bool:
    return problem.V.shape[1] > problem.rank
