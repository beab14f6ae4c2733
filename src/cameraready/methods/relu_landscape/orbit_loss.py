"""The population loss as a function of orbit values and (real) block sizes, for orthonormal teachers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

TWO_PI = 2 * math.pi


@dataclass(frozen=True)
class Pairs:
    """Index and counting tensors of a `Layout` with P student blocks and B teacher blocks."""

    spread: torch.Tensor  # (P, B): the value that student block p has on block b
    own: torch.Tensor  # (P,): the value on the own teacher
    attached: torch.Tensor  # (P, 1): the own block
    is_attached: torch.Tensor  # (P,): 1, or 0 for a student that stands alone
    count: torch.Tensor  # (P,): students
    n_same: torch.Tensor  # (P, P): pairs on the same teacher
    n_apart: torch.Tensor  # (P, P): pairs on different teachers
    n_others: torch.Tensor  # (P, B): pairs of a student and a teacher that is not its own


@dataclass(frozen=True)
class Layout:
    """Which orbit values there are, in order, and how often each occurs among the weights.

    With ``orthogonal`` every student block has one more value: a coordinate orthogonal to all teachers.
    """

    blocks: tuple[float, ...]
    students: tuple[int | None, ...]
    orthogonal: bool = False

    @cached_property
    def values(self) -> list[tuple[int, int, bool]]:
        """(student block, teacher block, whether on the student's own teacher), the orthogonal ones left out."""
        found = []
        for p, attached in enumerate(self.students):
            for b, size in enumerate(self.blocks):
                if b == attached:
                    found.append((p, b, True))
                if b != attached or size > 1:
                    found.append((p, b, False))
        return found

    @cached_property
    def multiplicity(self) -> NDArray[np.float64]:
        """How many of the K M weights share each value."""
        counts = []
        for p, b, own in self.values:
            others = self.blocks[b] - (b == self.students[p])
            counts.append(self.size(p) * (1 if own else others))
        return np.array(counts + [self.size(p) for p in range(len(self.students)) if self.orthogonal])

    @cached_property
    def pairs(self) -> Pairs:
        """Where the values go and how many pairs of neurons each inner product stands for."""
        P, where = len(self.students), {value: i for i, value in enumerate(self.values)}
        attached = [0 if a is None else a for a in self.students]
        is_attached = torch.tensor([float(a is not None) for a in self.students], dtype=torch.float64)
        # A block of one teacher has no "others": its own value takes their place and delta becomes 0.
        spread = [
            [where.get((p, b, False), where.get((p, b, True), 0)) for b in range(len(self.blocks))] for p in range(P)
        ]
        own = [where.get((p, a, True), 0) for p, a in enumerate(attached)]
        count = torch.tensor([self.size(p) for p in range(P)], dtype=torch.float64)
        together = torch.tensor(
            [[a is not None and a == b for b in self.students] for a in self.students], dtype=torch.float64
        ) + torch.diag(1 - is_attached)
        n_same = together * count
        n_others = torch.tensor(
            [[self.size(p) * (m - (b == a)) for b, m in enumerate(self.blocks)] for p, a in enumerate(self.students)],
            dtype=torch.float64,
        )
        return Pairs(
            torch.tensor(spread),
            torch.tensor(own),
            torch.tensor(attached)[:, None],
            is_attached,
            count,
            n_same,
            count[:, None] * count[None, :] - n_same,
            n_others,
        )

    def size(self, p: int) -> float:
        """How many students block p has."""
        attached = self.students[p]
        return 1.0 if attached is None else self.blocks[attached]

    def position(self, p: int, b: int, own: bool) -> int:
        return self.values.index((p, b, own))

    def expand(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The weights (K, M) with these values; whole sizes."""
        edges = np.concatenate([[0], np.cumsum(self.blocks)]).astype(int)
        rows = []
        for p, attached in enumerate(self.students):
            for i in range(int(self.size(p))):
                row = np.empty(edges[-1])
                for (q, b, own), value in zip(self.values, x, strict=False):
                    if q == p and not own:
                        row[edges[b] : edges[b + 1]] = value
                if attached is not None:
                    row[edges[attached] + i] = x[self.position(p, attached, True)]
                rows.append(row)
        return np.array(rows)


def reduced_loss(layout: Layout, x: torch.Tensor, *, pairs: Pairs) -> torch.Tensor:
    """1/2 (sum h(w, w') - 2 sum h(w, v) + sum h(v, v')), every sum taken orbit by orbit."""
    m = torch.tensor(layout.blocks, dtype=x.dtype)
    # w_(p,i) = delta_p e_i + sum_b c_pb 1_b
    c = x[pairs.spread]
    delta = (x[pairs.own] - c.gather(1, pairs.attached)[:, 0]) * pairs.is_attached
    reach = delta[:, None] * c.T[pairs.attached[:, 0]]  # delta_p c_(q, block of p)
    apart = (c * m) @ c.T + reach + reach.T  # inner products of students on different teachers
    if layout.orthogonal:
        side = x[len(layout.values) :]
        apart = apart + side[:, None] * side[None, :]
    same = apart + delta[:, None] * delta[None, :]
    norms = torch.sqrt(same.diagonal())
    lengths = norms[:, None] * norms[None, :]
    twin = pairs.n_same - torch.diag(pairs.count)  # a student with itself needs no angle
    students = _sum(pairs.n_apart, apart, lengths) + _sum(twin, same, lengths) + pairs.count @ norms**2 / 2
    width = norms[:, None].expand_as(c)
    cross = _sum(pairs.n_others, c, width) + _sum(pairs.count * pairs.is_attached, x[pairs.own], norms)
    M = sum(layout.blocks)
    return (students - 2 * cross + M / 2 + M * (M - 1) / TWO_PI) / 2


def _sum(counts: torch.Tensor, gram: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Sum of counts times h over the pairs that there are; the others would have no derivative where parallel."""
    there = counts > 0
    product = lengths[there]
    cosine = gram[there] / product
    sine = torch.sqrt((1 - cosine) * (1 + cosine))
    return counts[there] @ (product * (sine + (math.pi - torch.arccos(cosine)) * cosine)) / TWO_PI
