"""The raw max kernel ``k_max(x, x') = max_{g, g'} k_b(g x, g' x')``, not positive semi-definite in general."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    MaternKernel,
    PiecewisePolynomialKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from torch import Tensor

from cameraready.methods.max_kernel.enumeration import gather_images, widest_chunk
from cameraready.methods.max_kernel.groups import Group

_DECREASING = (RBFKernel, MaternKernel, RQKernel, PiecewisePolynomialKernel)


class OrbitMaximum:
    """Evaluates ``k_max`` for one base kernel and one group by the cheapest way that is exact for them.

    - Base kernel a decreasing function phi of the (scaled) distance, group acting by isometries of that distance: one
      maximum suffices and equals ``phi(min_g d(x, g x'))``, a single evaluation of the base kernel a pair.
    - Otherwise both maxima run over the listed orbits.

    Raises
    ------
    ValueError : lengthscales that differ between coordinates which the group mixes, unless ``double_max``.
    """

    def __init__(self, base_kernel: Kernel, group: Group, *, double_max: bool, chunk_bytes: int) -> None:
        self.base_kernel = base_kernel
        self.group = group
        self.double_max = double_max
        self.chunk_bytes = chunk_bytes
        leaves = list(_leaves(base_kernel))
        if any(part.active_dims is not None for part in base_kernel.modules() if isinstance(part, Kernel)):
            raise ValueError(
                "the base kernel has active_dims, which hide coordinates from the group; "
                "drop active_dims and use a group that acts on all coordinates"
            )
        is_decreasing = all(isinstance(leaf, _DECREASING) for leaf in leaves)
        has_one_lengthscale = all((leaf.ard_num_dims or 1) == 1 for leaf in leaves)
        self.is_ard = not has_one_lengthscale
        self.by_distance = (
            is_decreasing
            and not double_max
            and group.orthogonal
            and (has_one_lengthscale or (len(leaves) == 1 and group.is_linear))
        )
        if self.is_ard and not self.by_distance and not double_max:
            raise ValueError(
                "an ARD base kernel needs a linear group that respects its lengthscales, and a single "
                "stationary kernel; use one lengthscale, or pass double_max=True"
            )
        if not self.by_distance and not group.is_finite:
            raise ValueError(
                "both maxima have to be listed for this base kernel, and the group is infinite; use a "
                "stationary decreasing kernel with one lengthscale (RBF, Matern, RQ)"
            )
        self._checked: Tensor | None = None

    @property
    def is_psd(self) -> bool:
        """Whether k_max is the base kernel after a distance-preserving map, hence positive semi-definite."""
        return self.by_distance and self.group.canonical_is_isometric

    def __call__(self, x1: Tensor, x2: Tensor) -> Tensor:
        """``k_max`` for all pairs: ``(..., n1, d)`` and ``(..., n2, d)`` to ``(..., n1, n2)``."""
        return self.of_distance(self.distance(x1, x2)) if self.by_distance else self._double(x1, x2)

    def distance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The orbit distance (in lengthscales, with an ARD base kernel)."""
        lengthscale = self._shared_lengthscale()
        square = self.group.sq_orbit_distance(x1, x2, lengthscale=lengthscale, chunk_bytes=self.chunk_bytes)
        return square.clamp_min(1e-30).sqrt()

    def diagonal(self, x: Tensor) -> Tensor:
        """``k_max(x, x)``: ``(..., n, d)`` to ``(..., n)``."""
        if self.base_kernel.is_stationary:
            return self.base_kernel(x, x, diag=True)
        return self._double(x.unsqueeze(-2), x.unsqueeze(-2))[..., 0, 0]

    def around(self, base_kernel: Kernel) -> OrbitMaximum:
        """The same for a copy of the base kernel."""
        twin = copy.copy(self)
        twin.base_kernel = base_kernel
        return twin

    def of_distance(self, distance: Tensor) -> Tensor:
        """The base kernel as a function of distance, evaluated on points of a line."""
        flat = distance.flatten(-2).unsqueeze(-1)
        if self.is_ard:  # distances are in units of the lengthscales: give them back the first one's
            flat = torch.nn.functional.pad(
                flat * next(_leaves(self.base_kernel)).lengthscale[..., :1], (0, self.group.dim - 1)
            )
        return self.base_kernel(torch.zeros_like(flat), flat, diag=True).unflatten(-1, distance.shape[-2:])

    def _shared_lengthscale(self) -> Tensor | None:
        if not self.is_ard:
            return None
        lengthscale = next(_leaves(self.base_kernel)).lengthscale
        if lengthscale.shape[:-1].numel() != 1:
            raise ValueError("an ARD base kernel with a batch of lengthscales is not supported; use one lengthscale")
        lengthscale = lengthscale.reshape(-1)
        if self._checked is None or not torch.equal(self._checked, lengthscale):
            if not self.group.preserves_metric(lengthscale):
                shown = ", ".join(f"{value:.4g}" for value in lengthscale.tolist())
                raise ValueError(
                    f"the group mixes coordinates whose lengthscales differ ({shown}), so the base kernel is "
                    "not invariant under it; use one lengthscale (ard_num_dims=None), or double_max=True"
                )
            self._checked = lengthscale.detach().clone()
        return lengthscale

    def _double(self, x1: Tensor, x2: Tensor) -> Tensor:
        images1, images2 = self.group.orbit(x1), self.group.orbit(x2)
        order = images1.shape[-2]
        batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
        with torch.no_grad():
            flat2 = images2.flatten(-3, -2)
            row_bytes = batch.numel() * order * flat2.shape[-2] * x1.element_size()
            winner1, winner2 = [], []
            for rows in images1.split(widest_chunk(row_bytes, self.chunk_bytes), dim=-3):
                values = self.base_kernel(rows.flatten(-3, -2), flat2).to_dense()
                values = values.unflatten(-1, (-1, order)).unflatten(-3, (-1, order)).transpose(-3, -2)
                best = values.flatten(-2).argmax(-1)  # (..., rows, n2) over pairs (g, g')
                winner1.append(best // order)
                winner2.append(best % order)
            index1, index2 = torch.cat(winner1, dim=-2), torch.cat(winner2, dim=-2)
        first = gather_images(images1, index1.transpose(-1, -2)).transpose(-3, -2)
        second = gather_images(images2, index2)
        return self.base_kernel(first.flatten(-3, -2), second.flatten(-3, -2), diag=True).unflatten(
            -1, index1.shape[-2:]
        )


def _leaves(kernel: Kernel) -> Iterator[Kernel]:
    if isinstance(kernel, ScaleKernel):
        yield from _leaves(kernel.base_kernel)
    elif isinstance(kernel, (AdditiveKernel, ProductKernel)):
        for part in kernel.kernels:
            yield from _leaves(part)
    else:
        yield kernel
