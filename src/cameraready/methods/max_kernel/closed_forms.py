"""Groups of relabellings and reflections of coordinates whose orbit distance has a closed form."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from cameraready.methods.max_kernel.enumeration import CACHE_BYTES, widest_chunk
from cameraready.methods.max_kernel.groups import Centre, Generator, Group

MOST_LISTED = 50_000
# Listing few elements costs one matrix product, which beats a transform or an assignment a pair.
_FEW_SHIFTS = 48
_FEW_RELABELLINGS = 120
# Up to this size, and for enough pairs, a recursion over all pairs at once beats a call of SciPy a pair.
_MOST_BY_SUBSETS = 7
_PAIRS_A_BLOCK = 4096


class SignedRelabelling(Group):
    """A finite group whose elements permute coordinates about the centre and flip signs: ``(g z)_i = s_i z_{p_i}``.

    Subclasses list its elements and its generators as pairs of index and sign vectors.
    """

    def _elements(self) -> tuple[Tensor, Tensor]:
        """Indices and signs of all elements, each ``(order, d)``, the identity first."""
        raise NotImplementedError

    def _named_generators(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        raise NotImplementedError

    def generators(self) -> Iterator[Generator]:
        for name, index, sign in self._named_generators():
            yield Generator(name, self._action(index, sign))

    def _action(self, index: Tensor, sign: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda X: (X - self.center.to(X))[..., index] * sign.to(X) + self.center.to(X)

    def _orbit(self, Z: Tensor) -> Tensor:
        if self.order > MOST_LISTED:
            raise ValueError(
                f"{type(self).__name__} has {self.order} elements, more than the {MOST_LISTED} that are listed; "
                "use its closed-form sq_orbit_distance (MaxKernel) or a subgroup"
            )
        index, sign = self._elements()
        return Z[..., index.to(Z.device)] * sign.to(Z)

    def _identity(self) -> tuple[Tensor, Tensor]:
        return torch.arange(self.dim), torch.ones(self.dim)


class _ByCanonicalForm(SignedRelabelling):
    """Groups with a representative map that preserves orbit distances: ``d(x, x') = ||c(x) - c(x')||``."""

    canonical_is_isometric = True

    def _sq_distance(self, Z1: Tensor, Z2: Tensor, chunk_bytes: int) -> Tensor:
        return pairwise_sq_distance(self._canonical(Z1), self._canonical(Z2))


class Permutations(_ByCanonicalForm):
    """All permutations of d coordinates: ``d(x, x') = ||sort x - sort x'||``.

    Examples
    --------
    >>> import torch
    >>> from cameraready.methods.max_kernel import Permutations
    >>> Permutations(3).canonical(torch.tensor([[3.0, 1.0, 2.0]])).tolist()
    [[1.0, 2.0, 3.0]]
    """

    def __init__(self, dim: int, *, center: Centre | None = None) -> None:
        super().__init__(dim, math.factorial(dim), center=center)

    def _canonical(self, Z: Tensor) -> Tensor:
        return Z.sort(-1).values

    def _elements(self) -> tuple[Tensor, Tensor]:
        index = torch.tensor(list(itertools.permutations(range(self.dim))))
        return index, torch.ones(1, self.dim)

    def _named_generators(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        yield from _swaps(self, 1)


class SignFlips(_ByCanonicalForm):
    """All reflections of coordinates at the centre: ``d(x, x') = || |z| - |z'| ||``."""

    def __init__(self, dim: int, *, center: Centre | None = None) -> None:
        super().__init__(dim, 2**dim, center=center)

    def _canonical(self, Z: Tensor) -> Tensor:
        return Z.abs()

    def _elements(self) -> tuple[Tensor, Tensor]:
        return torch.arange(self.dim)[None], _all_signs(self.dim)

    def _named_generators(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        yield from _flips(self)


class SignedPermutations(_ByCanonicalForm):
    """All permutations and reflections, the symmetries of the cube: ``d(x, x') = ||sort|z| - sort|z'| ||``."""

    def __init__(self, dim: int, *, center: Centre | None = None) -> None:
        super().__init__(dim, 2**dim * math.factorial(dim), center=center)

    def _canonical(self, Z: Tensor) -> Tensor:
        return Z.abs().sort(-1).values

    def _elements(self) -> tuple[Tensor, Tensor]:
        index = torch.tensor(list(itertools.permutations(range(self.dim))))
        sign = _all_signs(self.dim)
        return index.repeat_interleave(len(sign), 0), sign.repeat(len(index), 1)

    def _named_generators(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        yield from _swaps(self, 1)
        yield from _flips(self)


class CyclicShifts(SignedRelabelling):
    """Cyclic shifts of a signal of ``length`` samples, all ``rows`` of it shifted together.

    A design is the flattened array ``(rows, length)``. All shifts of a pair are compared by one Fourier
    cross-correlation, O(d log d), where there are more than a few.
    """

    def __init__(self, length: int, rows: int = 1, *, center: Centre | None = None) -> None:
        super().__init__(length * rows, length, center=center)
        self.length, self.rows = length, rows

    def _sq_distance(self, Z1: Tensor, Z2: Tensor, chunk_bytes: int) -> Tensor:
        if self.length <= _FEW_SHIFTS:
            return super()._sq_distance(Z1, Z2, chunk_bytes)
        B = Z2.unflatten(-1, (self.rows, self.length))
        row_bytes = 8 * self.dim * math.prod(torch.broadcast_shapes(Z1.shape[:-2], Z2.shape[:-2])) * Z2.shape[-2]
        blocks = Z1.unflatten(-1, (self.rows, self.length)).split(widest_chunk(row_bytes, CACHE_BYTES), dim=-3)
        spectrum = torch.fft.rfft(B.detach())
        return torch.cat([self._shifted_sq_distance(A, B, spectrum) for A in blocks], dim=-2)

    def _shifted_sq_distance(self, A: Tensor, B: Tensor, spectrum_B: Tensor) -> Tensor:
        with torch.no_grad():
            spectrum = torch.einsum("...irk,...jrk->...ijk", torch.fft.rfft(A).conj(), spectrum_B)
            shift = torch.fft.irfft(spectrum, n=self.length).argmax(-1)  # (..., n1, n2)
            source = (torch.arange(self.length, device=A.device) + shift.unsqueeze(-1)) % self.length
            source = source.unsqueeze(-2).expand(*source.shape[:-1], self.rows, self.length)
        shifted = torch.gather(B.unsqueeze(-4).expand(source.shape), -1, source)
        return (A.unsqueeze(-3) - shifted).square().sum((-1, -2))

    def _elements(self) -> tuple[Tensor, Tensor]:
        start = torch.arange(self.length)[:, None]
        row = (torch.arange(self.length) + start) % self.length
        index = torch.cat([row + self.length * r for r in range(self.rows)], dim=1)
        return index, torch.ones(1, self.dim)

    def _named_generators(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        yield "the shift by one sample", self._elements()[0][1 % self.length], torch.ones(self.dim)


class BlockPermutations(SignedRelabelling):
    """Relabellings of ``n_blocks`` identical particles with ``block_size`` coordinates each.

    A design lists particle after particle, ``(x_1, y_1, x_2, y_2, ...)`` for ``block_size=2``. The orbit distance is a
    linear assignment of particles to particles (for up to five particles, all relabellings are listed; six and seven
    are assigned for all pairs of designs at once, more by one call of SciPy a pair).

    Examples
    --------
    >>> import torch
    >>> from cameraready.methods.max_kernel import BlockPermutations
    >>> group = BlockPermutations(2, 2)
    >>> a, b = torch.tensor([[0.0, 1.0, 2.0, 3.0]]), torch.tensor([[2.0, 3.0, 0.0, 1.0]])
    >>> float(group.sq_orbit_distance(a, b))
    0.0
    """

    def __init__(self, n_blocks: int, block_size: int, *, center: Centre | None = None) -> None:
        super().__init__(n_blocks * block_size, math.factorial(n_blocks), center=center)
        self.n_blocks, self.block_size = n_blocks, block_size

    def _sq_distance(self, Z1: Tensor, Z2: Tensor, chunk_bytes: int) -> Tensor:
        if self.order <= _FEW_RELABELLINGS:
            return super()._sq_distance(Z1, Z2, chunk_bytes)
        A = Z1.unflatten(-1, (self.n_blocks, self.block_size))
        B = Z2.unflatten(-1, (self.n_blocks, self.block_size))
        with torch.no_grad():  # minimising the squared distances is maximising the inner products
            partner = _assign(torch.einsum("...iac,...jbc->...ijab", A, B))  # (..., n1, n2, n_blocks)
            source = partner.unsqueeze(-1).expand(*partner.shape, self.block_size)
        matched = torch.gather(B.unsqueeze(-4).expand(source.shape), -2, source)
        return (A.unsqueeze(-3) - matched).square().sum((-1, -2))

    def _canonical(self, Z: Tensor) -> Tensor:
        """Blocks sorted by their first coordinate: invariant, but discontinuous where two of them cross."""
        blocks = Z.unflatten(-1, (self.n_blocks, self.block_size))
        order = blocks[..., 0].argsort(-1).unsqueeze(-1).expand(blocks.shape)
        return torch.gather(blocks, -2, order).flatten(-2)

    def _elements(self) -> tuple[Tensor, Tensor]:
        blocks = torch.tensor(list(itertools.permutations(range(self.n_blocks)))).unsqueeze(-1)
        index = (blocks * self.block_size + torch.arange(self.block_size)).flatten(1)
        return index, torch.ones(1, self.dim)

    def _named_generators(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        yield from _swaps(self, self.block_size)


def pairwise_sq_distance(A: Tensor, B: Tensor) -> Tensor:
    """``||a_i - b_j||^2`` from differences (exact near 0), shape ``(..., n1, n2)``."""
    return torch.cdist(A, B, compute_mode="donot_use_mm_for_euclid_dist").square()


def _assign(gain: Tensor) -> Tensor:
    """The permutation p of largest ``sum_i gain[i, p_i]``: ``(..., m, m)`` to ``(..., m)``."""
    matrices = gain.reshape(-1, *gain.shape[-2:]).cpu().numpy()
    columns = np.empty(matrices.shape[:2], dtype=np.int64)
    if gain.shape[-1] <= _MOST_BY_SUBSETS and len(matrices) >= 2**_MOST_BY_SUBSETS:
        for start in range(0, len(matrices), _PAIRS_A_BLOCK):
            block = slice(start, start + _PAIRS_A_BLOCK)
            columns[block] = _assign_by_subsets(matrices[block])
    else:
        for number, matrix in enumerate(matrices):
            columns[number] = linear_sum_assignment(matrix, maximize=True)[1]
    return torch.from_numpy(columns).to(gain.device).reshape(gain.shape[:-1])


def _assign_by_subsets(gain: NDArray[np.float64]) -> NDArray[np.int64]:
    """Best assignments of many small matrices at once, by Bellman's recursion over sets of columns S (as bits).

    ``best(S) = max over c in S of best(S - c) + gain[|S| - 1, c]`` for the first ``|S|`` rows: ``m 2^(m-1)`` vector
    operations on all matrices ``(n, m, m)`` instead of n searches.
    """
    n, m, _ = gain.shape
    by_cell = np.ascontiguousarray(gain.transpose(1, 2, 0))  # (row, column, n)
    best = np.full((2**m, n), -np.inf, dtype=gain.dtype)
    best[0] = 0.0
    total = np.empty(n, dtype=gain.dtype)
    for columns in range(1, 2**m):
        row = columns.bit_count() - 1
        for column in range(m):
            if columns >> column & 1:
                np.add(best[columns ^ 1 << column], by_cell[row, column], out=total)
                np.maximum(best[columns], total, out=best[columns])
    chosen = np.empty((n, m), dtype=np.int64)
    left, every = np.full(n, 2**m - 1), np.arange(n)
    for row in reversed(range(m)):
        reached = best[left, every]
        for column in range(m):
            without = best[left & ~(1 << column), every] + by_cell[row, column]
            chosen[(left >> column & 1 == 1) & (without == reached), row] = column
        left &= ~(1 << chosen[:, row])
    return chosen


def _all_signs(dim: int) -> Tensor:
    return torch.tensor(list(itertools.product((1.0, -1.0), repeat=dim)))


def _swaps(group: SignedRelabelling, size: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    what = "coordinates" if size == 1 else "blocks"
    for block in range(group.dim // size - 1):
        index, sign = group._identity()
        here = torch.arange(block * size, (block + 1) * size)
        index[here], index[here + size] = here + size, here
        yield f"the swap of {what} {block} and {block + 1}", index, sign


def _flips(group: SignedRelabelling) -> Iterator[tuple[str, Tensor, Tensor]]:
    for coordinate in range(group.dim):
        index, sign = group._identity()
        sign[coordinate] = -1.0
        yield f"the reflection of coordinate {coordinate}", index, sign
