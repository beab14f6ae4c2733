"""Symmetry groups acting on designs: what every group offers.

Linear actions are about a fixed point, the centre: ``g(x) = A_g (x - c) + c``. Subclasses work in centred coordinates
``z = x - c`` and implement `_orbit`, `_sq_distance` and, where there is one, `_canonical`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cameraready.methods.max_kernel.enumeration import CHUNK_BYTES, sq_distance_by_enumeration

Centre = float | Sequence[float] | Tensor
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Generator:
    """One symmetry of the group: its name for messages, and its action on points ``(..., d) -> (..., d)``."""

    name: str
    apply: Callable[[Tensor], Tensor]


class Group(torch.nn.Module):
    """A group acting on R^d by symmetries of the objective.

    Parameters
    ----------
    dim : int
        Dimension d of a design.
    order : int or math.inf
        Number of group elements.
    center : float, d floats or None
        The point about which linear actions act, in the coordinates that the kernel sees. None (default) is 0.5 in
        every coordinate, the middle of BoTorch's unit cube.

    Raises
    ------
    ValueError : a centre that does not have d entries.
    """

    #: whether `canonical` preserves orbit distances, so that the max kernel is the base kernel after that map
    canonical_is_isometric = False
    #: whether every action is linear about the centre
    is_linear = True
    center: Tensor

    def __init__(self, dim: int, order: float, *, center: Centre | None = None) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"{type(self).__name__} acts on {dim} coordinates; it needs at least 1")
        point = torch.as_tensor(0.5 if center is None else center, dtype=torch.float64)
        if not torch.isfinite(point).all():
            raise ValueError(f"center={center} holds NaN or infinity; pass finite coordinates")
        if point.ndim > 1 or point.numel() not in (1, dim):
            raise ValueError(f"center has shape {tuple(point.shape)}; pass one number or {dim} numbers")
        self.dim = dim
        self.order = order
        self.has_default_center = center is None
        self.register_buffer("center", point.expand(dim).clone(), persistent=False)

    # -- what subclasses give, in centred coordinates -------------------------------------------------------------

    def generators(self) -> Iterator[Generator]:
        """Symmetries that generate the group (random ones, where it is continuous)."""
        raise NotImplementedError

    def _orbit(self, Z: Tensor) -> Tensor:
        raise ValueError(
            f"{type(self).__name__} has infinitely many elements and no finite orbit; "
            "use its sq_orbit_distance, or Matrices with a finite subgroup"
        )

    def _sq_distance(self, Z1: Tensor, Z2: Tensor, chunk_bytes: int) -> Tensor:
        return sq_distance_by_enumeration(Z1, Z2, self._orbit, int(self.order), chunk_bytes=chunk_bytes)

    def _canonical(self, Z: Tensor) -> Tensor | None:
        """The image that leans most towards one fixed generic direction: invariant, but not continuous everywhere."""
        if not self.is_finite:
            return None
        images = self._orbit(Z)
        direction = torch.linspace(1.0, 2.0, self.dim, dtype=Z.dtype, device=Z.device) ** 2
        winner = (images @ direction).argmax(-1)
        return torch.take_along_dim(images, winner[..., None, None], dim=-2).squeeze(-2)

    # -- the public face ------------------------------------------------------------------------------------------

    @property
    def is_finite(self) -> bool:
        return not math.isinf(self.order)

    @property
    def orthogonal(self) -> bool:
        """Whether every action preserves Euclidean distances (checked on random points)."""
        return self.preserves_metric(torch.ones(self.dim, dtype=torch.float64))

    def orbit(self, X: Tensor) -> Tensor:
        """All images of each point, the identity first: ``(..., n, d) -> (..., n, order, d)``. Finite groups only."""
        self.check_points(X)
        center = self.center.to(X)
        return self._orbit(X - center) + center

    def sq_orbit_distance(
        self, X1: Tensor, X2: Tensor, *, lengthscale: Tensor | None = None, chunk_bytes: int = CHUNK_BYTES
    ) -> Tensor:
        """Squared distance between orbits, ``min_g ||x1 - g x2||^2``.

        Differentiable through the winning group element, which is held fixed (envelope theorem).

        Parameters
        ----------
        X1, X2 : tensors of shape ``(..., n1, d)`` and ``(..., n2, d)``
        lengthscale : tensor of d positive numbers, optional
            Units in which each coordinate is measured; coordinates that the group mixes must share theirs.
        chunk_bytes : int
            Most memory that an enumeration holds at a time.

        Returns
        -------
        tensor of shape ``(..., n1, n2)``
        """
        self.check_points(X1)
        self.check_points(X2)
        unit = 1.0 if lengthscale is None else lengthscale
        center = self.center.to(X1)
        return self._sq_distance((X1 - center) / unit, (X2 - center) / unit, chunk_bytes)

    def canonical(self, X: Tensor) -> Tensor | None:
        """One representative of each orbit, ``(..., n, d) -> (..., n, d)``; None where the group has no such map."""
        self.check_points(X)
        center = self.center.to(X)
        representative = self._canonical(X - center)
        return None if representative is None else representative + center

    def random_images(self, X: Tensor, n_images: int, *, seed: int = 0) -> Tensor:
        """Images under random products of generators, ``(..., n, d) -> (..., n, n_images, d)``."""
        self.check_points(X)
        pick = torch.Generator().manual_seed(seed)
        symmetries = list(self.generators()) or [Generator("the identity", lambda points: points)]
        images = []
        for _ in range(n_images):
            image = X
            for index in torch.randint(len(symmetries), (2 * self.dim + 2,), generator=pick).tolist():
                image = symmetries[index].apply(image)
            images.append(image)
        return torch.stack(images, dim=-2)

    def preserves_metric(self, lengthscale: Tensor) -> bool:
        """Whether ``||(gx - gx') / l|| = ||(x - x') / l||`` for every g, checked on random points."""
        pick = torch.Generator().manual_seed(0)
        X = torch.rand(8, self.dim, dtype=torch.float64, generator=pick)
        unit = lengthscale.detach().to(X)
        before = torch.pdist(X / unit)
        return all(
            bool(((torch.pdist(g.apply(X) / unit) - before).abs() <= _TOLERANCE * before).all())
            for g in self.generators()
        )

    def check_bounds(self, bounds: Tensor) -> None:
        """Raise ValueError where a symmetry carries a corner or a random point of the box outside it.

        Parameters
        ----------
        bounds : tensor of shape ``(2, d)``
        """
        low, high = bounds[0].double(), bounds[1].double()
        slack = 1e-9 * (high - low)
        pick = torch.Generator().manual_seed(0)
        corners = torch.randint(2, (64, self.dim), generator=pick).double()
        inside = low + (high - low) * torch.cat([corners, torch.rand(64, self.dim, generator=pick).double()])
        for symmetry in self.generators():
            images = symmetry.apply(inside)
            outside = ((images < low - slack) | (images > high + slack)).any(0)
            if outside.any():
                worst = int(outside.nonzero()[0])
                raise ValueError(
                    f"{symmetry.name} carries points of the box outside it in coordinate {worst} (to "
                    f"{float(images[:, worst].min()):.4g} .. {float(images[:, worst].max()):.4g}, bounds "
                    f"{float(low[worst]):.4g} .. {float(high[worst]):.4g}); give mixed coordinates equal bounds and "
                    "set center= to the middle of the box, or take a subgroup that preserves it"
                )

    def recentred(self, center: Centre) -> Group:
        """A copy of this group that acts about another point."""
        point = torch.as_tensor(center, dtype=torch.float64).expand(self.dim)
        twin = copy.deepcopy(self)
        for part in twin.modules():
            if isinstance(part, Group):
                part.center = point.clone()
                part.has_default_center = False
        return twin

    def in_coordinates(self, scale: Tensor, offset: Tensor) -> Group:
        """This group for inputs ``z = (x - offset) / scale``; raises ValueError where that breaks the symmetry."""
        pick = torch.Generator().manual_seed(0)
        Z = torch.rand(8, self.dim, dtype=torch.float64, generator=pick) - 0.5
        scale, offset, center = scale.detach().to(Z), offset.detach().to(Z), self.center
        for symmetry in self.generators():
            acted = symmetry.apply(center + Z) - center
            gap = (symmetry.apply(center + scale * Z) - center - scale * acted).abs() / scale
            if bool((gap > _TOLERANCE * Z.abs().max()).any()):
                worst = int(gap.max(0).values.argmax())
                raise ValueError(
                    f"the input transform breaks the symmetry: {symmetry.name} mixes coordinate {worst} (scale "
                    f"{float(scale[worst]):.4g}) with one of another scale; pass Normalize(d, bounds=...) with equal "
                    "ranges for all coordinates that the group mixes"
                )
        return self.recentred((center - offset) / scale)

    def check_points(self, X: Tensor) -> None:
        """Raise unless ``X`` is a finite floating point tensor of shape ``(..., n, d)``."""
        if not isinstance(X, Tensor):
            raise TypeError(f"X is a {type(X).__name__}; pass a tensor, torch.as_tensor(X)")
        if not X.is_floating_point():
            raise TypeError(f"X has dtype {X.dtype}; convert it to floating point, X.double()")
        if X.ndim < 2 or X.shape[-1] != self.dim:
            raise ValueError(f"X has shape {tuple(X.shape)}; {type(self).__name__} needs (..., n, {self.dim})")
        if not torch.isfinite(X).all():
            raise ValueError("X holds NaN or infinity; remove these rows first")

    def __mul__(self, other: Group) -> Group:
        """The direct product, see `Product`."""
        from cameraready.methods.max_kernel.product import Product  # a product is a group itself

        return Product(self, other)
