"""Groups that the user lists: a finite set of matrices, or a callable that returns all images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from cameraready.methods.max_kernel.groups import Centre, Generator, Group

_TOLERANCE = 1e-8


class Matrices(Group):
    """A finite group given by all its matrices, acting about the centre.

    Parameters
    ----------
    matrices : sequence of (d, d) matrices
        Every element of the group, the identity among them, in any order.
    center : see `Group`.

    Raises
    ------
    ValueError : not square, not finite, without the identity, listed twice, singular, or not closed under
        multiplication.

    Examples
    --------
    >>> import torch
    >>> from cameraready.methods.max_kernel import Matrices
    >>> quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> group = Matrices([torch.linalg.matrix_power(quarter, k) for k in range(4)], center=0.0)
    >>> float(group.sq_orbit_distance(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])))
    1.0
    """

    def __init__(self, matrices: Sequence[Tensor] | Tensor, *, center: Centre | None = None) -> None:
        listed = [torch.as_tensor(matrix, dtype=torch.float64) for matrix in matrices]
        shapes = {tuple(matrix.shape) for matrix in listed}
        shape = next(iter(shapes), ())
        if len(shapes) != 1 or len(shape) != 2 or shape[0] != shape[1]:
            raise ValueError(f"matrices have shapes {sorted(shapes)}; pass square d x d matrices, all of one size")
        stack = torch.stack(listed)
        if not torch.isfinite(stack).all():
            raise ValueError("a matrix holds NaN or infinity; pass finite entries")
        super().__init__(stack.shape[1], len(stack), center=center)
        is_identity = (stack - torch.eye(self.dim, dtype=stack.dtype)).abs().amax((1, 2)) < _TOLERANCE
        if not is_identity.any():
            raise ValueError(f"none of the {len(stack)} matrices is the identity; list every element of the group")
        first = int(is_identity.nonzero()[0])
        stack = torch.cat([stack[first : first + 1], stack[:first], stack[first + 1 :]])
        _check_closed(stack)
        self.register_buffer("matrices", stack, persistent=False)

    def generators(self) -> Iterator[Generator]:
        for number, matrix in enumerate(self.matrices[1:], start=1):
            yield Generator(f"matrix {number}", _about(self.center, matrix))

    def _orbit(self, Z: Tensor) -> Tensor:
        stacked = self.matrices.to(Z).flatten(0, 1)  # (order * d, d): one product for all images
        return (Z @ stacked.T).unflatten(-1, (int(self.order), self.dim))


class FromOrbit(Group):
    """A finite group given by a callable that returns all images of each point; the action need not be linear.

    Parameters
    ----------
    orbit : callable
        ``orbit(X)`` maps ``(..., n, d)`` to ``(..., n, order, d)``, differentiable, the elements always in the same
        order and the identity among them.
    order : int
        Number of group elements.
    dim : int
        Dimension of a design.

    Raises
    ------
    ValueError : a wrong shape, or no image that equals the point.
    """

    is_linear = False

    def __init__(self, orbit: Callable[[Tensor], Tensor], order: int, *, dim: int) -> None:
        super().__init__(dim, order, center=0.0)
        self._callable = orbit
        X = torch.rand(5, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        images = orbit(X)
        if getattr(images, "shape", None) != (5, order, dim):
            raise ValueError(
                f"orbit(X) has shape {tuple(getattr(images, 'shape', ()))} for X of shape (5, {dim}); "
                f"it must be (5, {order}, {dim}): all order={order} images of each point"
            )
        distance = (images - X.unsqueeze(1)).abs().amax((0, 2))
        if distance.min() > _TOLERANCE:
            raise ValueError(
                f"no image of orbit(X) equals X (the nearest differs by {float(distance.min()):.3g}); "
                "include the identity"
            )
        self._identity = int(distance.argmin())

    def generators(self) -> Iterator[Generator]:
        for number in range(int(self.order)):
            if number != self._identity:
                yield Generator(f"image {number} of the orbit", lambda X, i=number: self._callable(X)[..., i, :])

    def _orbit(self, Z: Tensor) -> Tensor:
        images = self._callable(Z)
        return torch.cat([images[..., self._identity :, :], images[..., : self._identity, :]], dim=-2)

    def recentred(self, center: Centre) -> Group:
        raise ValueError(
            "a group given by an orbit callable has no centre; write the callable in the kernel's coordinates"
        )

    def in_coordinates(self, scale: Tensor, offset: Tensor) -> Group:
        def orbit(Z: Tensor) -> Tensor:
            unit, zero = scale.detach().to(Z), offset.detach().to(Z)
            return (self._callable(Z * unit + zero) - zero) / unit

        return FromOrbit(orbit, int(self.order), dim=self.dim)


def _about(center: Tensor, matrix: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda X: (X - center.to(X)) @ matrix.to(X).T + center.to(X)


def _check_closed(stack: Tensor) -> None:
    """Every element must be invertible and listed once, every product (of a random sample, for large groups) listed."""
    if (torch.linalg.det(stack).abs() < _TOLERANCE).any():
        raise ValueError("a matrix is singular; a symmetry can be undone, so every matrix of a group is invertible")
    n_distinct = len(torch.unique((stack / _TOLERANCE / 10).round(), dim=0))
    if n_distinct < len(stack):
        raise ValueError(f"only {n_distinct} of the {len(stack)} matrices are distinct; list every element once")
    pick = torch.Generator().manual_seed(0)
    sample = stack if len(stack) <= 64 else stack[torch.randperm(len(stack), generator=pick)[:32]]
    products = (sample[:, None] @ sample[None]).flatten(0, 1).flatten(1)
    distance = torch.cdist(products, stack.flatten(1)).amin(1)
    if distance.max() > _TOLERANCE * math.sqrt(products.shape[1]) * 10:
        raise ValueError(
            f"the {len(stack)} matrices are not closed under multiplication (a product is "
            f"{float(distance.max()):.3g} away from every matrix); list every element of the group"
        )
