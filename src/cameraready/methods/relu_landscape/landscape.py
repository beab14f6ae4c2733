"""The population loss landscape of a two-layer ReLU student that learns a two-layer ReLU teacher."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from joblib import Parallel, delayed, effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from cameraready.methods.relu_landscape import order_parameters, search, starts
from cameraready.methods.relu_landscape.certificate import Certificate, certify
from cameraready.methods.relu_landscape.coordinates import Coordinates
from cameraready.methods.relu_landscape.families import ZERO_LOSS, Family, family_of, same_class
from cameraready.methods.relu_landscape.orbits import (
    OrbitPoint,
    Pattern,
    check_pattern,
    orthonormal_scale,
    solve_orbits,
)
from cameraready.methods.relu_landscape.order_parameters import Stats
from cameraready.methods.relu_landscape.pair_kernel import hessian, loss_and_gradient, missing_direction
from cameraready.methods.relu_landscape.table import CriticalPoint, MinimaTable

Floats = NDArray[np.float64]
OUTSIDE = 1e-8  # how far a critical point may lie from the teachers' span
NORMS = (1e-60, 1e60)  # of the teachers: beyond, products of four lengths leave the range of float64
LARGEST_START = 1e10  # of a start over the teachers: descent from further out runs out of digits


class Landscape:
    """Exact loss, gradient, Hessian and minima of L(W) = 1/2 E (sum_k ReLU(w_k.x) - sum_m ReLU(v_m.x))^2, x ~ N(0, I).

    Mind the factor 1/2, which part of the literature leaves out.

    Parameters
    ----------
    teacher : number M of orthonormal teacher neurons, or their weights (M, d).
    K : number of student neurons.

    Attributes
    ----------
    V : the teacher, (M, d); T : its Gram matrix; rank : the dimension of its span.
    problem : the loss in the coordinates that are searched: those of the teachers' span, then orthogonal ones.
    coordinates : the way from these to weights and back.
    n_orthogonal : how many directions orthogonal to the teacher are searched: min(K, d - rank), and K where the teacher
        is a number or a Gram matrix, which says nothing of d. With that many the result is exact for every larger d.

    Raises
    ------
    ValueError : K < 1, zero teacher rows, values that are not finite.

    Examples
    --------
    >>> land = Landscape(8, K=8)
    >>> table = land.find_minima(n_starts=40, seed=0)
    >>> table.frame.loc[1, ["family", "status"]].tolist()
    ['1 defect', 'certified minimum']
    >>> float(round(table.frame.loc[1, "loss"], 7))
    0.021508

    References
    ----------
    Huang, Loureiro, Sarao Mannelli, "Sharp description of local minima in the loss landscape of high-dimensional
    two-layer ReLU neural networks", ICML 2026.
    """

    def __init__(self, teacher: int | ArrayLike, K: int) -> None:
        fixed = not isinstance(teacher, (int, np.integer))
        if not fixed and teacher < 1:
            raise ValueError(f"teacher={teacher}; a teacher has at least one neuron")
        self._set(_as_teacher(teacher) if fixed else np.eye(int(teacher)), K, d_is_fixed=fixed)

    @classmethod
    def from_gram(cls, T: ArrayLike, K: int) -> Landscape:
        """The landscape of any teacher with the Gram matrix T = V V' (M, M), in every dimension that holds it."""
        values, vectors = np.linalg.eigh(order_parameters.check_gram(T))
        kept = values > 1e-12 * values[-1]
        land = cls.__new__(cls)
        land._set(vectors[:, kept] * np.sqrt(values[kept]), K, d_is_fixed=False)
        return land

    def _set(self, V: Floats, K: int, *, d_is_fixed: bool) -> None:
        if not isinstance(K, (int, np.integer)) or K < 1:
            raise ValueError(f"K={K!r}; a student has at least one neuron, K >= 1")
        if not NORMS[0] <= (largest := float(np.abs(V).max())) <= NORMS[1]:
            raise ValueError(
                f"teacher weights reach {largest:.3g}; rescale them to between {NORMS[0]:g} and {NORMS[1]:g} "
                "(the loss is of degree two in all weights)"
            )
        self.V, self.K, self.M = np.array(V, order="C"), int(K), len(V)
        self.T = V @ V.T
        self.d_is_fixed = d_is_fixed
        self.coordinates = Coordinates.of(V, None if d_is_fixed else self.K, self.K)
        self.problem = self.coordinates.problem
        self.rank = self.problem.rank
        self.n_orthogonal = self.problem.V.shape[1] - self.rank
        self._energy = self.problem.teacher_energy * self.coordinates.scale**2

    @property
    def teacher_loss(self) -> float:
        """The loss of the student that is always 0: the scale of the loss."""
        return self._energy / 2

    def loss(self, W: Any) -> Any:
        """Population loss of W (..., K, d): numpy gives numpy, torch gives torch with derivatives of every order.

        Torch derivatives are NaN at a neuron of norm 0; `grad` takes a limit there.
        """
        if isinstance(W, torch.Tensor):
            order_parameters.check_floating(W, "W")
            V = torch.as_tensor(self._teacher_for(W.shape), dtype=W.dtype, device=W.device)
            return order_parameters.loss_from_statistics(W @ W.mT, W @ V.mT, V @ V.mT)
        return self._map(W, lambda w, V, e: loss_and_gradient(w, V, e, self._energy)[0])

    def grad(self, W: ArrayLike) -> Floats:
        """Gradient of the loss, of the shape of W (..., K, d). At a neuron of norm 0, the limit along the residual."""
        return self._map(W, lambda w, V, e: loss_and_gradient(w, V, e, self._energy)[1])

    def loss_and_grad(self, W: ArrayLike) -> tuple[float, Floats]:
        """Loss and gradient (K, d) of one W (K, d) in one pass, as optimisers want them."""
        W = np.require(W, np.float64, ["C", "W"])  # one layout, so that the kernels are compiled once
        if W.ndim != 2:
            raise ValueError(f"W has shape {W.shape}; expected one (K, d), use loss and grad for batches")
        V = self._teacher_for(W.shape)
        return loss_and_gradient(W, V, missing_direction(W, V), self._energy)

    def hessian(self, W: ArrayLike) -> Floats:
        """Hessian of the loss, (..., K d, K d), rows of W one after the other."""
        return self._map(W, lambda w, V, e: hessian(w, V, e).reshape(w.size, w.size))

    def loss_q(self, Q: Any, R: Any) -> Any:
        """Population loss from the order parameters Q (..., K, K) and R (..., K, M), numpy or torch.

        In numpy, (Q, R) that no weights have are projected, with a warning; torch tensors, which may need derivatives,
        are taken as they are.
        """
        if isinstance(Q, torch.Tensor):
            order_parameters.check_floating(Q, "Q")
            self._check_statistics(Q, R)
            return order_parameters.loss_from_statistics(Q, R, torch.as_tensor(self.T, dtype=Q.dtype, device=Q.device))
        Q, R = np.asarray(Q, dtype=np.float64), np.asarray(R, dtype=np.float64)
        self._check_statistics(Q, R)
        return order_parameters.loss_from_statistics(*order_parameters.made_feasible(Q, R, self.T))

    def stats(self, W: ArrayLike) -> Stats:
        """The order parameters (Q, R, T) of W (K, d)."""
        W = self.checked(W)
        return Stats(W @ W.T, W @ self._teacher_for(W.shape).T, self.T)

    def random_stats(self, *, seed: int, scale: float = 1.0) -> Stats:
        """Order parameters of a random student of ``scale`` times the teachers' norm, to start `sgd_ode`."""
        _check_scale(scale)
        shape = (self.K, self.rank + self.n_orthogonal)
        W = starts.gaussian_starts(1, shape, scale=scale, rng=np.random.default_rng(seed))[0]
        return self.coordinates.stats(W)

    def find_minima(
        self,
        n_starts: int = 200,
        *,
        seed: int = 0,
        init: Literal["gaussian", "structured"] = "gaussian",
        scale: float = 1.0,
        n_jobs: int = 1,
        max_unknowns: int = 256,
    ) -> MinimaTable:
        """Descend from ``n_starts`` starts, polish to rounding precision, group equal minima, and certify each class.

        Parameters
        ----------
        n_starts : number of descents.
        seed : the starts depend on it alone, whatever ``n_jobs``.
        scale : typical norm of a student neuron at the start, in units of the teachers' root mean square norm.
        init : "gaussian" rows, or "structured": teachers merged and split at random.
        n_jobs : processes (joblib).
        max_unknowns : the largest K * rank for which a proof is tried; it takes seconds there, and grows with its cube.

        Returns
        -------
        MinimaTable : one row a class, by loss. Classes whose status is a saddle are kept: a start that ends on one is
            not a start that found a minimum.
        """
        if not isinstance(n_starts, (int, np.integer)) or n_starts < 1:
            raise ValueError(f"n_starts={n_starts!r}; at least one descent is needed")
        _check_scale(scale)
        rng, shape = np.random.default_rng(seed), (self.K, self.problem.V.shape[1])
        if init == "gaussian":
            points = starts.gaussian_starts(n_starts, shape, scale=scale, rng=rng)
        elif init == "structured":
            points = starts.structured_starts(n_starts, self.problem.V, self.K, scale=scale, rng=rng)
        else:
            raise ValueError(f"init={init!r}; choose 'gaussian' or 'structured'")
        workers = effective_n_jobs(n_jobs)
        chunks = np.array_split(points, min(n_starts, 4 * workers) if workers > 1 else 1)
        found = Parallel(n_jobs=n_jobs)(delayed(_descend_all)(self.problem, chunk) for chunk in chunks)
        return self.tabulate([W for part in found for W in part], max_unknowns=max_unknowns)

    def tabulate(self, points: list[Floats], *, max_unknowns: int = 256) -> MinimaTable:
        """Group critical points, each in `coordinates` of the span (K, rank), into classes and certify one of each."""
        span = self.problem.in_span()
        T = span.V @ span.V.T
        rows = sorted(((span.fun(W)[0], i) for i, W in enumerate(points)), key=lambda row: row[0])
        classes: list[tuple[float, Stats, list[int]]] = []
        zero = ZERO_LOSS * self.problem.teacher_energy / 2
        for loss, i in rows:
            stats = Stats(points[i] @ points[i].T, points[i] @ span.V.T, T)
            for known, known_stats, hits in reversed(classes):
                # Zero loss is one class, a continuum of points for K > M.
                if max(loss, known) <= zero or same_class(stats, known_stats, (loss, known)):
                    hits.append(i)
                    break
            else:
                classes.append((loss, stats, [i]))
        with threadpool_limits(1):
            found = [self._point(points[hits[0]], len(hits), max_unknowns) for _, _, hits in classes]
        return MinimaTable(tuple(found), self.K >= self.M)

    def certify(self, W: ArrayLike, *, max_unknowns: int = 256) -> Certificate:
        """Say what kind of critical point W (K, d) is, with a proof where there is one.

        Raises
        ------
        ValueError : W is not a critical point; `refine` polishes one that is near, `descend` goes down to a minimum.
        """
        with threadpool_limits(1):
            found = self._certificate(self._into_span(W), max_unknowns)
        if found.status == "not converged":
            raise ValueError(
                f"W is not a critical point: {found.reason}; pass land.refine(W) if one is near, else land.descend(W)"
            )
        return found

    def refine(self, W: ArrayLike) -> Floats:
        """The critical point near W (K, d), of any index, by Newton. From far away Newton may stop short of one."""
        W = self.checked(W)
        with threadpool_limits(1):
            inner = search.refine(self.problem.in_span(), self.coordinates.inside(W))
        return self.coordinates.weights(inner, W.shape[1])

    def descend(self, W: ArrayLike) -> Floats:
        """The critical point that descent from W (K, d) ends in, polished to rounding precision."""
        W = self.checked(W)
        with threadpool_limits(1):
            inner = search.find_critical_point(self.problem, self.coordinates.searched(W))
        return self.coordinates.weights(inner, W.shape[1])

    def classify(self, Q: ArrayLike, R: ArrayLike) -> Family:
        """The family of the configuration with these order parameters (projected, with a warning, if infeasible)."""
        self._check_statistics(np.asarray(Q), np.asarray(R))
        stats = order_parameters.check_feasible(Q, R, self.T)
        return family_of(stats, float(order_parameters.loss_from_statistics(*stats)), self.teacher_loss)

    def from_orbits(self, pattern: Pattern, start: ArrayLike | None = None) -> OrbitPoint:
        """The critical point of a symmetric ``pattern`` for this (orthonormal) teacher, from its few orbit values.

        Raises
        ------
        NotCovered : teachers that are not orthogonal and of one norm.
        ValueError : a pattern of other sizes than K and M.
        """
        check_pattern(pattern)
        scale = orthonormal_scale(self.T)
        if (pattern.n_students, pattern.n_teachers) != (self.K, self.M):
            sizes = f"{pattern.n_students:g} students and {pattern.n_teachers:g} teachers"
            raise ValueError(f"the pattern has {sizes}, the landscape K={self.K} and M={self.M}")
        return solve_orbits(pattern, start=start).scaled(scale)

    def _point(self, W: Floats, count: int, max_unknowns: int) -> CriticalPoint:
        certificate = self._certificate(W, max_unknowns)
        stats = self.coordinates.stats(W)
        family = family_of(stats, certificate.loss, self.teacher_loss)
        return CriticalPoint(self.coordinates.weights(W), stats.Q, stats.R, count, family, certificate)

    def _certificate(self, inner: Floats, max_unknowns: int) -> Certificate:
        """In the user's units: the loss is of degree two in the scale, its gradient one, its Hessian zero."""
        found, scale = certify(self.problem, inner, max_unknowns=max_unknowns), self.coordinates.scale
        proof = found.proof and replace(found.proof, radius=found.proof.radius * scale)
        return replace(found, loss=found.loss * scale**2, gradient_norm=found.gradient_norm * scale, proof=proof)

    def _into_span(self, W: ArrayLike) -> Floats:
        W = self.checked(W)
        if (gap := float(np.linalg.norm(self.coordinates.outside(W)))) > OUTSIDE:
            raise ValueError(f"W leaves the teachers' span by {gap:.2g} of its scale; pass land.refine(W)")
        return self.coordinates.inside(W)

    def checked(self, W: ArrayLike) -> Floats:
        """W as float64 (K, d), or a ValueError that says what is wrong with it."""
        W = np.asarray(W, dtype=np.float64)
        if W.ndim != 2 or len(W) != self.K:
            raise ValueError(f"W has shape {W.shape}; expected (K, d) with K={self.K}")
        if not np.isfinite(W).all():
            raise ValueError(f"W holds {np.count_nonzero(~np.isfinite(W))} values that are not finite")
        self._teacher_for(W.shape)
        return W

    def _check_statistics(self, Q: Any, R: Any) -> None:
        if tuple(Q.shape[-2:]) != (self.K, self.K) or tuple(R.shape[-2:]) != (self.K, self.M):
            raise ValueError(
                f"Q {tuple(Q.shape)} and R {tuple(R.shape)} do not fit K={self.K} students and M={self.M} teachers; "
                "expected (..., K, K) and (..., K, M)"
            )

    def _teacher_for(self, shape: tuple[int, ...]) -> Floats:
        """The teacher in the dimension of W: as it is, or padded where it stands for every dimension."""
        d = self.V.shape[1]
        if len(shape) < 2 or shape[-2] != self.K or shape[-1] < d or (self.d_is_fixed and shape[-1] != d):
            wanted = f"d={d}" if self.d_is_fixed else f"d >= {d}"
            raise ValueError(f"W has shape {tuple(shape)}; expected (..., K, d) with K={self.K} and {wanted}")
        return self.V if shape[-1] == d else np.pad(self.V, ((0, 0), (0, shape[-1] - d)))

    def _map(self, W: ArrayLike, function: Any) -> Floats:
        W = np.require(W, np.float64, ["C", "W"])  # one layout, so that the kernels are compiled once
        V = self._teacher_for(W.shape)
        if not W.size:
            raise ValueError(f"W has shape {W.shape}: no weights")
        flat = W.reshape(-1, *W.shape[-2:])
        values = np.stack([np.asarray(function(w, V, missing_direction(w, V))) for w in flat])
        return values.reshape(W.shape[:-2] + values.shape[1:])[()]


def _as_teacher(teacher: ArrayLike) -> Floats:
    if np.iscomplexobj(teacher):
        raise TypeError("teacher is complex; weights are real numbers")
    V = np.asarray(teacher, dtype=np.float64)
    if V.ndim != 2 or not V.size:
        raise ValueError(f"teacher has shape {V.shape}; expected a number of neurons or weights (M, d)")
    if not np.isfinite(V).all():
        raise ValueError(f"teacher holds {np.count_nonzero(~np.isfinite(V))} values that are not finite")
    if (zero := np.flatnonzero(~V.any(axis=1))).size:
        raise ValueError(f"teacher rows {zero.tolist()} are zero; drop these neurons")
    return np.ascontiguousarray(V)


def _check_scale(scale: float) -> None:
    if not 0 < scale <= LARGEST_START:
        raise ValueError(
            f"scale={scale} is not in (0, {LARGEST_START:g}]; 1.0 starts at the teacher's order of magnitude"
        )


def _descend_all(problem: search.Problem, points: Floats) -> list[Floats]:
    with threadpool_limits(1):
        return [search.find_critical_point(problem, start) for start in points]
