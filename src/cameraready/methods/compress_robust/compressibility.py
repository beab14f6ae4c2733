"""How compressible a weight tensor is, and what its compressibility does to its operator norm.

A vector z is (q, k, eps)-compressible when its k largest entries leave out at most the share eps of its length:
||z - top_k(z)||_q <= eps ||z||_q. For a layer W (h x p) the vectors are the row norms and the singular values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Axis = Literal["rows", "spectrum", "all"]
Norm = Literal["inf", "2"]
TOLERANCE = 0.1  # the eps at which "k of h" is reported


@dataclass(frozen=True)
class CompressibilityCurve:
    """What is lost by keeping the k largest of h entries.

    Attributes
    ----------
    values : the entries' magnitudes, largest first, (h,).
    epsilon : ||z - top_k(z)||_q / ||z||_q for k = 0, ..., h, (h + 1,); 1 at k = 0 and 0 at k = h.
    q : the norm.
    """

    values: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    q: float

    def k_at(self, eps: float = TOLERANCE) -> int:
        """The smallest k >= 1 that leaves out at most ``eps``."""
        if not 0 <= eps <= 1:
            raise ValueError(f"eps={eps}; it is a share of the norm, from 0 to 1")
        return max(1, int(np.argmax(self.epsilon <= eps)))

    def __str__(self) -> str:
        return f"{self.k_at()} of {len(self.values)} entries hold all but {TOLERANCE:.0%} (q={self.q:g})"


def compressibility(tensor: Tensor, *, axis: Axis = "rows", q: float | None = None) -> CompressibilityCurve:
    """The compressibility curve of a weight tensor.

    Parameters
    ----------
    tensor : a Linear weight (out, in), a convolution's (out, in, *kernel), or, with ``axis="all"``, any shape.
    axis : "rows": the l_q norms of the rows (neurons, filters). "spectrum": the singular values of the out x rest
        matrix. "all": single weights.
    q : the norm; by default 1 for rows (what the l_inf operator norm is made of) and 2 for the others.

    Raises
    ------
    ValueError : no rows to speak of, weights that are not finite, q below 1, an unknown axis.

    Examples
    --------
    >>> import torch
    >>> curve = compressibility(torch.diag(torch.tensor([8.0, 1.0, 1.0])))
    >>> curve.epsilon.tolist(), curve.k_at(0.1)
    ([1.0, 0.2, 0.1, 0.0], 2)
    """
    if axis not in ("rows", "spectrum", "all"):
        raise ValueError(f"axis={axis!r}; choose 'rows', 'spectrum' or 'all'")
    q = (1.0 if axis == "rows" else 2.0) if q is None else float(q)
    if not 1 <= q < math.inf:
        raise ValueError(f"q={q}; it must be at least 1 and finite")
    if axis == "all":
        return curve(_finite(tensor).abs().double().flatten(), q=q)
    matrix = as_matrix(tensor)
    return curve(row_norms(matrix, q) if axis == "rows" else singular_values(matrix), q=q)


def curve(values: Tensor, *, q: float) -> CompressibilityCurve:
    """The curve of a vector of magnitudes (h,)."""
    ordered = np.sort(values.detach().cpu().double().numpy())[::-1]
    top = ordered[0] if len(ordered) and ordered[0] > 0 else 1.0
    powers = (ordered / top) ** q
    left = np.append(np.cumsum(powers[::-1])[::-1], 0.0)  # summed from the small end: no cancellation
    epsilon = np.zeros(len(left)) if left[0] == 0 else (left / left[0]) ** (1 / q)
    return CompressibilityCurve(values=ordered, epsilon=epsilon, q=q)


def as_matrix(tensor: Tensor) -> Tensor:
    """The weight as an out x rest matrix in double precision (complex stays complex)."""
    if tensor.ndim < 2:
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} has no rows; pass a weight of two or more dimensions"
        )
    matrix = _finite(tensor).detach().flatten(1)
    return matrix.to(torch.complex128 if matrix.is_complex() else torch.float64)


def row_norms(matrix: Tensor, q: float) -> Tensor:
    """l_q norms of the rows of (..., h, p)."""
    return torch.linalg.vector_norm(matrix, ord=q, dim=-1)


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values, largest first."""
    return torch.linalg.svdvals(matrix)


def effective_rank(values: Tensor) -> float:
    """exp of the entropy of sigma / sum(sigma); 0 for a zero layer."""
    total = values.sum()
    if total == 0:
        return 0.0
    share = values / total
    return float(torch.exp(torch.special.entr(share).sum()))


def stable_rank(values: Tensor) -> float:
    """||W||_F^2 / sigma_1^2; 0 for a zero layer."""
    top = values.max()
    return float(((values / top) ** 2).sum()) if top > 0 else 0.0


def pq_index(values: Tensor, *, p: float = 0.5, q: float = 1.0) -> float:
    """The PQ-index 1 - h^(1/q - 1/p) ||v||_p / ||v||_q, from 0 (all equal) to nearly 1 (one entry); 0 < p < q."""
    if not 0 < p < q:
        raise ValueError(f"p={p}, q={q}; the index needs 0 < p < q")
    values = values.abs().double()
    if not (top := values.max()) > 0:
        return 0.0
    values = values / top
    ratio = (values**p).sum() ** (1 / p) / (values**q).sum() ** (1 / q)
    return float(1 - len(values) ** (1 / q - 1 / p) * ratio)


@dataclass(frozen=True)
class Decomposition:
    """A matrix norm as the product energy * concentration * spread, exactly.

    For "inf": nu_1 = ||nu||_1 * (1 - eps_k) / k * s_k, with nu the rows' l1 norms and s_k = nu_1 / mean(top-k nu).
    For "2": sigma_1 = ||W||_F * sqrt((1 - eps_k^2) / k) * s_k, with s_k = sigma_1 / rms(top-k sigma).
    At a fixed energy, a layer that few entries describe (small k at small eps) has the larger operator norm.
    """

    energy: float
    concentration: float
    spread: float
    k: int

    @property
    def norm(self) -> float:
        return self.energy * self.concentration * self.spread


def decompose(values: Tensor, *, norm: Norm, k: int | None = None) -> Decomposition:
    """Decompose the largest of ``values``: row l1 norms (h,) for "inf", singular values for "2".

    Parameters
    ----------
    values : (h,), in any order.
    norm : "inf" or "2".
    k : entries counted as kept, 1 to h; by default those that hold all but a tenth (`CompressibilityCurve.k_at`).

    Examples
    --------
    >>> import torch
    >>> parts = decompose(torch.tensor([3.0, 1.0, 0.0, 0.0]), norm="inf", k=2)
    >>> parts.energy, parts.concentration, parts.spread, parts.norm
    (4.0, 0.5, 1.5, 3.0)
    """
    if norm not in ("inf", "2"):
        raise ValueError(f"norm={norm!r}; choose 'inf' or '2'")
    q = 1.0 if norm == "inf" else 2.0
    seen = curve(values, q=q)
    k = seen.k_at() if k is None else k
    if not 1 <= k <= len(seen.values):
        raise ValueError(f"k={k} of {len(seen.values)} entries; choose 1 to {len(seen.values)}")
    top = float(seen.values[0])
    shares = (
        seen.values / top if top > 0 else seen.values
    ) ** q  # of the largest: squares that neither vanish nor blow up
    return Decomposition(
        energy=top * float(shares.sum()) ** (1 / q),
        concentration=float((1 - seen.epsilon[k] ** q) / k) ** (1 / q),
        spread=float(shares[:k].mean()) ** (-1 / q) if top > 0 else 1.0,
        k=k,
    )


def _finite(tensor: Tensor) -> Tensor:
    if tensor.numel() == 0:
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has no weights")
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise ValueError(f"{bad} of {tensor.numel()} weights are not finite; did the training diverge?")
    return tensor
