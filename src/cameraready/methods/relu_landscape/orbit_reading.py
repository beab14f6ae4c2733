"""Read the symmetric pattern of a minimum that a search found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from cameraready.coverage import NotCovered
from cameraready.methods.relu_landscape.families import ALIGNED
from cameraready.methods.relu_landscape.orbits import Pattern, orthonormal_scale
from cameraready.methods.relu_landscape.order_parameters import Stats, check_feasible

Floats = NDArray[np.float64]
SAME_ORBIT = 1e-5
FORBIDDEN = 1e6


@dataclass(frozen=True)
class OrbitReading:
    """The pattern of a configuration, its orbit values (for teachers of norm 1), and the order of neurons."""

    pattern: Pattern
    values: Floats
    students: NDArray[np.intp]
    teachers: NDArray[np.intp]


def read_pattern(stats: Stats | tuple[Floats, Floats, Floats]) -> OrbitReading:
    """Pair every student with a teacher, group equal pairs into blocks, and read off the orbit values.

    An aligned student belongs to its teacher; a free one to the teacher that it looks away from most.

    Raises
    ------
    NotCovered : teachers that are not orthonormal up to scale, K != M, or entries that are not equal within the blocks.
    """
    Q, R, T = check_feasible(*stats)
    scale = orthonormal_scale(T)
    R, norms = R / scale**2, np.sqrt(np.diag(Q)) / scale
    if R.shape[0] != R.shape[1]:
        raise NotCovered(f"K={R.shape[0]} students and M={R.shape[1]} teachers: patterns are read for K = M")
    teachers = _pairs(R, norms)
    own = R[np.arange(len(R)), teachers]
    paired = R[:, teachers]  # student i's own teacher is column i
    rest = np.sort(np.where(np.eye(len(R), dtype=bool), np.inf, paired), axis=1)[:, :-1]
    profiles = np.column_stack([own, norms, rest])
    blocks: list[list[int]] = []
    for i in range(len(R)):
        home = next((b for b in blocks if np.abs(profiles[b[0]] - profiles[i]).max() < SAME_ORBIT), None)
        blocks.append([i]) if home is None else home.append(i)
    blocks.sort(key=len, reverse=True)
    order = np.concatenate([np.array(block) for block in blocks])
    pattern = Pattern(tuple(float(len(block)) for block in blocks), tuple(range(len(blocks))))
    arranged = paired[np.ix_(order, order)]
    values = _block_values(arranged, pattern)
    gap = float(np.abs(pattern.layout.expand(values) - arranged).max())
    if gap > SAME_ORBIT:
        raise NotCovered(f"entries differ by {gap:.2g} within their blocks: the configuration has no such symmetry")
    return OrbitReading(pattern, values, order, teachers[order])


def _pairs(R: Floats, norms: Floats) -> NDArray[np.intp]:
    """The teacher of each student."""
    on = ALIGNED * norms[:, None] < R
    free = ~on.any(axis=1)[:, None] & ~on.any(axis=0)[None, :]
    return linear_sum_assignment(np.where(on, -R, np.where(free, R, FORBIDDEN)))[1]


def _block_values(arranged: Floats, pattern: Pattern) -> Floats:
    edges = np.concatenate([[0], np.cumsum(pattern.blocks)]).astype(int)
    values = []
    for p, b, own in pattern.layout.values:
        block = arranged[edges[p] : edges[p + 1], edges[b] : edges[b + 1]]
        if p != b:
            values.append(block.mean())
        elif own:
            values.append(np.diag(block).mean())
        else:
            values.append(block[~np.eye(len(block), dtype=bool)].mean())
    return np.array(values)
