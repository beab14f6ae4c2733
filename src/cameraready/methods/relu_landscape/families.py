"""When two minima are the same, and what to call them.

Students can be renumbered, and teachers that the rest of T does not tell apart can be exchanged: minima equal up to
that are one class. Its family is named by its defects: the teachers that no student is aligned with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from cameraready.methods.relu_landscape.order_parameters import Stats

Floats = NDArray[np.float64]
ALIGNED = 0.9  # cosine from which on a student sits on a teacher
SAME_VALUE = 1e-6  # at teachers of norm 1
SAME_LOSS = 1e-8
ZERO_LOSS = 1e-10  # relative to the loss of a student that is always 0
ALIGNMENT_RESTARTS = 20


@dataclass(frozen=True)
class Family:
    """How the students sit on the teachers.

    ``name`` is "global" or counts the defects; ``layout`` says how many students are aligned with a teacher, how many
    teachers are shared by several students and how many students are free; ``distinct_q`` and ``distinct_r`` count the
    different entries of Q and R: few in a symmetric minimum, whatever its size.
    """

    name: str
    defects: int
    layout: str
    distinct_q: int
    distinct_r: int


def family_of(stats: Stats, loss: float, teacher_loss: float) -> Family:
    """The family of a point with these order parameters; ``teacher_loss`` is the loss of the zero student."""
    Q, R, T = stats
    lengths = np.sqrt(np.outer(np.diag(Q), np.diag(T)))
    cosines = np.divide(R, lengths, out=np.zeros_like(R), where=lengths > 0)
    on = cosines > ALIGNED
    visitors = on.sum(axis=0)
    defects = int((visitors == 0).sum())
    parts = [f"{int(on.any(axis=1).sum())} aligned"]
    if shared := int((visitors > 1).sum()):
        parts.append(f"{shared} shared")
    if free := int((~on.any(axis=1)).sum()):
        parts.append(f"{free} free")
    name = "global" if loss <= ZERO_LOSS * teacher_loss else f"{defects} defect{'s' * (defects != 1)}"
    unit = float(np.diag(T).mean())
    return Family(name, defects, ", ".join(parts), _n_distinct(Q / unit), _n_distinct(R / unit))


def same_class(a: Stats, b: Stats, losses: tuple[float, float]) -> bool:
    """Whether two critical points of one teacher are equal up to a renumbering."""
    if abs(losses[0] - losses[1]) > SAME_LOSS * max(1.0, abs(losses[0])):
        return False
    tolerance = 10 * SAME_VALUE * max(1.0, float(np.abs(a.Q).max()))
    spectra = (np.linalg.eigvalsh(a.Q) - np.linalg.eigvalsh(b.Q), _singular(a.R) - _singular(b.R))
    if any(np.abs(gap).max() > tolerance for gap in spectra):
        return False
    return renumbering(a, b, tolerance=tolerance) is not None


def renumbering(a: Stats, b: Stats, *, tolerance: float) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
    """Permutations (students, teachers) that carry ``b`` into ``a``, or None when none was found.

    The Hungarian assignment alternates between students and exchangeable teachers, from the sorted profile of each row
    and then from random orders.
    """
    groups = exchangeable_teachers(a.T)
    rng = np.random.default_rng(0)
    teachers = np.arange(len(a.T))
    for restart in range(ALIGNMENT_RESTARTS):
        cost = _profile_distance(a, b, groups) if restart == 0 else _distance(a.R, b.R[:, teachers])
        students = linear_sum_assignment(cost)[1]
        for _ in range(10):
            moved = b.R[students]
            for group in groups:
                order = linear_sum_assignment(_distance(a.R[:, group].T, moved[:, group].T))[1]
                teachers[group] = group[order]
            previous, students = students, linear_sum_assignment(_distance(a.R, b.R[:, teachers]))[1]
            if (previous == students).all():
                break
        gap_r = np.abs(a.R - b.R[np.ix_(students, teachers)]).max()
        gap_q = np.abs(a.Q - b.Q[np.ix_(students, students)]).max()
        if max(gap_r, gap_q) <= tolerance:
            return students, teachers
        for group in groups:
            teachers[group] = rng.permutation(group)
    return None


def exchangeable_teachers(T: Floats) -> list[NDArray[np.intp]]:
    """Groups of teachers any two of which can be swapped without changing T."""
    M = len(T)
    group = np.arange(M)
    for i in range(M):
        for j in range(i):
            swap = np.arange(M)
            swap[[i, j]] = j, i
            if np.allclose(T[np.ix_(swap, swap)], T, rtol=0, atol=1e-9 * np.abs(T).max()):
                group[i] = group[j]
                break
    return [np.flatnonzero(group == g) for g in np.unique(group)]


def _profile_distance(a: Stats, b: Stats, groups: list[NDArray[np.intp]]) -> Floats:
    def profile(stats: Stats) -> Floats:
        return np.hstack([np.diag(stats.Q)[:, None], *(np.sort(stats.R[:, group], axis=1) for group in groups)])

    return _distance(profile(a), profile(b))


def _distance(rows: Floats, columns: Floats) -> Floats:
    return ((rows[:, None] - columns[None]) ** 2).sum(axis=-1)


def _singular(R: Floats) -> Floats:
    return np.linalg.svd(R, compute_uv=False)


def _n_distinct(values: Floats) -> int:
    return 1 + int((np.diff(np.sort(values, axis=None)) > SAME_VALUE).sum())
