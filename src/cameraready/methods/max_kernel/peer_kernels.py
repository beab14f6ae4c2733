"""The invariant kernels that the max kernel is compared with: the average over the orbit, and canonical forms."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cameraready.methods.max_kernel.enumeration import CACHE_BYTES, widest_chunk
from cameraready.methods.max_kernel.groups import Group
from cameraready.methods.max_kernel.max_kernel import is_same

_BLOCK_BYTES = CACHE_BYTES // 2  # a Matern kernel holds several copies of its block: in cache it is twice as fast


class OrbitAverageKernel(Kernel):
    r"""The orbit average ``k(x, x') = 1/|G| sum_g k_b(x, g x')`` of a base kernel that the group leaves invariant.

    Parameters
    ----------
    base_kernel : gpytorch Kernel
    group : Group
        A finite group acting by isometries.
    normalize : bool
        Divide by ``sqrt(k(x, x) k(x', x'))``. The raw average has the largest prior variance at symmetric points and
        spends evaluations there; the normalised one is the stronger peer. Default True.

    Raises
    ------
    ValueError : an infinite group.
    """

    has_lengthscale = False

    def __init__(self, base_kernel: Kernel, group: Group, *, normalize: bool = True) -> None:
        if not group.is_finite:
            raise ValueError(
                "the average runs over all group elements, and this group is infinite; "
                "pass Matrices with a finite subgroup"
            )
        super().__init__(batch_shape=base_kernel.batch_shape)
        self.base_kernel = base_kernel
        self.group = group
        self.normalize = normalize

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        same = is_same(x1, x2)
        if diag:
            value = self._variance(x1) if same else self._average(x1.unsqueeze(-2), x2.unsqueeze(-2))[..., 0, 0]
        else:
            value = self._average(x1, x2)
        if not self.normalize:
            return value
        variance1 = self._variance(x1)
        variance2 = variance1 if same else self._variance(x2)
        if diag:
            return value / (variance1 * variance2).sqrt()
        return value / (variance1.unsqueeze(-1) * variance2.unsqueeze(-2)).sqrt()

    def _average(self, x1: Tensor, x2: Tensor) -> Tensor:
        if _is_repeated(x2):  # one training set for all designs of an acquisition: a single tall matrix
            return self._average(x1.flatten(0, -2), x2.flatten(0, -3)[0]).unflatten(0, x1.shape[:-1])
        if x1.shape[-2] < x2.shape[-2] and x1.ndim > 2:  # list the images of the fewer points
            return self._average(x2, x1).transpose(-1, -2)
        images = self.group.orbit(x2)
        flat = images.flatten(-3, -2)
        batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
        row_bytes = batch.numel() * flat.shape[-2] * x1.element_size()
        blocks = [
            self.base_kernel(rows, flat).to_dense().unflatten(-1, images.shape[-3:-1]).mean(-1)
            for rows in x1.split(widest_chunk(row_bytes, _BLOCK_BYTES), dim=-2)
        ]
        return torch.cat(blocks, dim=-2)

    def _variance(self, x: Tensor) -> Tensor:
        if _is_repeated(x):
            return self._variance(x.flatten(0, -3)[0]).expand(x.shape[:-1])
        images = self.group.orbit(x)
        return self.base_kernel(x.unsqueeze(-2).expand(images.shape), images, diag=True).mean(-1)


def _is_repeated(x: Tensor) -> bool:
    """Whether a batch holds the same points in every member (GPyTorch expands the training inputs so)."""
    return x.ndim > 2 and x.shape[:-2].numel() > 1 and not x.requires_grad and bool((x == x.flatten(0, -3)[0]).all())


class CanonicalKernel(Kernel):
    """The base kernel between orbit representatives, ``k_b(c(x), c(x'))``.

    Parameters
    ----------
    base_kernel : gpytorch Kernel
    group : Group
        One whose `canonical` exists. Where that map is not continuous, neither is the kernel.

    Raises
    ------
    ValueError : a group without representatives.
    """

    has_lengthscale = False

    def __init__(self, base_kernel: Kernel, group: Group) -> None:
        probe = torch.zeros(1, group.dim, dtype=torch.float64)
        if group.canonical(probe) is None:
            raise ValueError("this group has no canonical representatives; use MaxKernel")
        super().__init__(batch_shape=base_kernel.batch_shape)
        self.base_kernel = base_kernel
        self.group = group

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        first = self._representatives(x1)
        second = first if is_same(x1, x2) else self._representatives(x2)
        value = self.base_kernel(first, second, diag=diag, **params)
        return value if diag else value.to_dense()

    def _representatives(self, x: Tensor) -> Tensor:
        if _is_repeated(x):
            return self.group.canonical(x.flatten(0, -3)[0]).expand(x.shape)
        return self.group.canonical(x)
