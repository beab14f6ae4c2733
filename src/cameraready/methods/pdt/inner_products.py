"""Inner products of long vectors in double precision, a slice at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

SLICE = 2**15  # numbers worked on at once: half a dozen vectors of as many doubles stay in a core's cache
SLICE_ON_ACCELERATORS = 2**22  # where starting an operation costs more than memory traffic


def slices(length: int, device: torch.device) -> Iterator[slice]:
    """``range(length)`` in parts, which bound what is allocated beside the snapshots."""
    size = SLICE if device.type == "cpu" else SLICE_ON_ACCELERATORS
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def products(vectors: Sequence[Tensor], *, newest: int | None = None) -> Tensor:
    """``vectors[i] . vectors[j]`` for vectors of one length, j being among the last ``newest`` (None for all).

    DMD on weights subtracts nearly equal numbers: single precision would leave no correct digit, so products are
    formed in double precision, except on Apple's GPUs, which have none.
    """
    device, first = vectors[0].device, 0 if newest is None else len(vectors) - newest
    precision = torch.float32 if device.type == "mps" else torch.float64
    total = torch.zeros(len(vectors), len(vectors) - first, dtype=precision, device=device)
    for part in slices(vectors[0].numel(), device):
        rows = torch.stack([vector[part] for vector in vectors]).to(precision)
        total += rows @ rows[first:].T
    return total
