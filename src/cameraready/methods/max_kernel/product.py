"""Direct products of two groups that commute."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from cameraready.methods.max_kernel.enumeration import gather_images, widest_chunk
from cameraready.methods.max_kernel.groups import Generator, Group

_TOLERANCE = 1e-9
_FEW_ELEMENTS = 400  # up to here one matrix product beats a closed form for each element of the other factor


class Product(Group):
    """Direct product of two groups that commute, such as relabelling particles and rotating the cloud.

    The smaller finite factor is enumerated, the other keeps its closed form: ``min_a d_B(x1, a x2)`` is exact.

    Raises
    ------
    ValueError : factors that act on different dimensions or about different points, that do not commute, or that are
        both infinite.
    """

    def __init__(self, first: Group, second: Group) -> None:
        if first.dim != second.dim:
            raise ValueError(
                f"the factors act on {first.dim} and {second.dim} coordinates; both must act on all of them"
            )
        if not torch.equal(first.center, second.center):
            raise ValueError("the factors act about different points; give both the same center=")
        if not (first.is_finite or second.is_finite):
            raise ValueError(
                "both factors are infinite and neither can be enumerated; "
                "replace one by Matrices with a finite subgroup"
            )
        X = torch.rand(4, first.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        for a in first.generators():
            for b in second.generators():
                if not torch.allclose(a.apply(b.apply(X)), b.apply(a.apply(X)), atol=_TOLERANCE):
                    raise ValueError(
                        f"{a.name} and {b.name} do not commute, so the two groups have no direct product; "
                        "list the elements of the group they generate with Matrices, "
                        "or use SignedPermutations for sign flips and permutations"
                    )
        super().__init__(first.dim, first.order * second.order, center=first.center)
        self.has_default_center = first.has_default_center and second.has_default_center
        self.is_linear = first.is_linear and second.is_linear
        self.enumerated, self.other = sorted((first, second), key=lambda group: group.order)

    def generators(self) -> Iterator[Generator]:
        yield from self.enumerated.generators()
        yield from self.other.generators()

    def _orbit(self, Z: Tensor) -> Tensor:
        if not self.other.is_finite:
            return super()._orbit(Z)
        return self.other._orbit(self.enumerated._orbit(Z)).flatten(-3, -2)

    def _sq_distance(self, Z1: Tensor, Z2: Tensor, chunk_bytes: int) -> Tensor:
        if self.order <= _FEW_ELEMENTS:
            return super()._sq_distance(Z1, Z2, chunk_bytes)
        point_bytes = self.enumerated.order * self.dim * Z2.element_size() * math.prod(Z2.shape[:-2])
        width = widest_chunk(point_bytes, chunk_bytes)  # whose images fit into the limit
        if width < Z2.shape[-2]:
            return torch.cat([self._sq_distance(Z1, part, chunk_bytes) for part in Z2.split(width, dim=-2)], dim=-1)

        def distances(images: Tensor) -> Tensor:  # (..., n2, k, d) -> (..., k, n1, n2)
            return self.other._sq_distance(Z1.unsqueeze(-3), images.transpose(-3, -2), chunk_bytes)

        images = self.enumerated._orbit(Z2)
        batch = torch.broadcast_shapes(Z1.shape[:-2], Z2.shape[:-2])
        pairs = Z1.shape[-2] * Z2.shape[-2] * max(1, math.prod(batch))
        width = widest_chunk(self.dim * pairs * Z1.element_size(), chunk_bytes)
        with torch.no_grad():
            best, winner = None, None
            for start in range(0, images.shape[-2], width):
                least, index = distances(images[..., start : start + width, :]).min(-3)
                if best is None:
                    best, winner = least, index
                else:
                    winner = torch.where(least < best, index + start, winner)
                    best = torch.minimum(best, least)
        if not (torch.is_grad_enabled() and (Z1.requires_grad or Z2.requires_grad)):
            return best
        nearest = gather_images(images, winner)
        single = self.other._sq_distance(Z1[..., :, None, None, :], nearest.unsqueeze(-2), chunk_bytes)
        return single[..., 0, 0]
