"""Orbit distances by listing all group elements, in chunks that keep to a memory limit."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

CHUNK_BYTES = 2**28
CACHE_BYTES = 2**21  # a block of scores that stays in cache is searched about twice as fast
Orbit = Callable[[Tensor], Tensor]


def widest_chunk(bytes_each: float, chunk_bytes: int) -> int:
    """How many items of this size fit into the limit, at least one."""
    return max(1, int(chunk_bytes // max(bytes_each, 1)))


def sq_distance_by_enumeration(Z1: Tensor, Z2: Tensor, orbit: Orbit, order: int, *, chunk_bytes: int) -> Tensor:
    """``min_g ||z1 - g z2||^2`` over all images of z2, shape ``(..., n1, n2)``.

    The winner is searched without gradient by one matrix product,
    ``||z1 - g z2||^2 = ||z1||^2 - 2 (z1.gz2 - ||gz2||^2/2)``, and its distance is then taken from the difference, which
    is exact near 0 and differentiable.

    Raises
    ------
    ValueError : the orbit of a single point is larger than ``chunk_bytes``.
    """
    point_bytes = order * Z2.shape[-1] * Z2.element_size() * math.prod(Z2.shape[:-2])
    if point_bytes > chunk_bytes:
        raise ValueError(
            f"the orbit of one point has {order} images and takes {point_bytes} bytes, more than "
            f"chunk_bytes={chunk_bytes}; use a closed form (Permutations, SignedPermutations, BlockPermutations, "
            "CyclicShifts, Rotations or a product of them), or raise chunk_bytes"
        )
    if Z2.ndim == 2 and Z1.ndim > 2:  # one list of images for all batches: a single tall product
        flat = sq_distance_by_enumeration(Z1.flatten(0, -2), Z2, orbit, order, chunk_bytes=chunk_bytes)
        return flat.unflatten(0, Z1.shape[:-1])
    batch = torch.broadcast_shapes(Z1.shape[:-2], Z2.shape[:-2])
    columns = []
    for block in Z2.split(widest_chunk(point_bytes, chunk_bytes), dim=-2):
        images = orbit(block)
        row_bytes = batch.numel() * block.shape[-2] * order * Z1.element_size()
        rows = Z1.split(widest_chunk(row_bytes, min(chunk_bytes, CACHE_BYTES)), dim=-2)
        columns.append(torch.cat([_sq_distance_to_nearest(part, images) for part in rows], dim=-2))
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-1)


def _sq_distance_to_nearest(Z1: Tensor, images: Tensor) -> Tensor:
    winner = nearest_image(Z1, images)
    return (Z1.unsqueeze(-2) - gather_images(images, winner)).square().sum(-1)


@torch.no_grad()
def nearest_image(Z1: Tensor, images: Tensor) -> Tensor:
    """Index of the image of each point 2 that is nearest to each point 1: ``(..., n1, n2)``.

    ``images`` has shape ``(..., n2, order, d)``.
    """
    flat = images.flatten(-3, -2)
    half_square = 0.5 * flat.square().sum(-1).unsqueeze(-2)
    score = torch.matmul(Z1, flat.transpose(-1, -2)).sub_(half_square)
    return score.unflatten(-1, images.shape[-3:-1]).argmax(-1)


def gather_images(images: Tensor, index: Tensor) -> Tensor:
    """``images[..., j, index[..., i, j], :]``.

    ``images`` has shape ``(..., n2, order, d)``, ``index`` ``(..., n1, n2)``, the result ``(..., n1, n2, d)``.
    """
    n2, order, dim = images.shape[-3:]
    flat = images.flatten(-3, -2)
    position = index + order * torch.arange(n2, device=index.device)
    if images.ndim == 3:
        return flat.index_select(0, position.flatten()).reshape(*index.shape, dim)
    flat = flat.expand(*index.shape[:-2], *flat.shape[-2:])
    return torch.take_along_dim(flat, position.flatten(-2).unsqueeze(-1), dim=-2).unflatten(-2, index.shape[-2:])
