"""Carrying a group, given in the user's units, into the coordinates that the kernel sees."""

from __future__ import annotations

import copy

import torch
from botorch.models.transforms.input import InputTransform, Normalize
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from cameraready.methods.max_kernel.groups import Group


def fit_transform_to_group(
    transform: InputTransform | None, group: Group, train_X: Tensor
) -> tuple[InputTransform | None, Group]:
    """The transform to use, and the group in transformed coordinates.

    A `Normalize` that would learn its bounds from the data gets the same range for all coordinates that the group
    mixes: with a range of its own for each, the symmetry would be lost. Other transforms are used as they are if they
    are affine in each coordinate and respect the symmetry.

    Raises
    ------
    ValueError : a transform that is not affine in each coordinate, or one that breaks the symmetry.
    """
    if transform is None:
        return None, group
    if isinstance(transform, Normalize) and transform.learn_coefficients and not hasattr(transform, "indices"):
        transform = Normalize(group.dim, bounds=_bounds_of_orbits(group, train_X), center=transform.center)
    transform = copy.deepcopy(transform)
    transform.to(train_X)
    transform.train()
    transform(train_X)  # one that learns from the data does so here, and then keeps what it learned
    transform.learn_coefficients = False
    scale, offset = _affine_parts(transform, train_X)
    if group.has_default_center:  # the middle of the kernel's cube, in the user's units
        group = group.recentred(offset + getattr(transform, "center", 0.5) * scale)
    return transform, group.in_coordinates(scale, offset)


def _affine_parts(transform: InputTransform, train_X: Tensor) -> tuple[Tensor, Tensor]:
    """``scale`` and ``offset`` of ``z = (x - offset) / scale``, read off the transform and checked on the data."""
    transform.eval()
    probe = train_X.reshape(-1, train_X.shape[-1])[:8].detach()
    probe = torch.cat([torch.zeros_like(probe[:1]), torch.ones_like(probe[:1]), probe])
    with torch.no_grad():
        Z = transform.preprocess_transform(probe)
    scale = 1.0 / (Z[1] - Z[0]) if Z.shape == probe.shape else torch.full_like(probe[0], torch.nan)
    offset = -Z[0] * scale if Z.shape == probe.shape else scale
    transform.train()
    if not (torch.isfinite(scale).all() and torch.allclose((probe - offset) / scale, Z, rtol=1e-6, atol=1e-9)):
        raise ValueError(
            f"input_transform {type(transform).__name__} is not affine in each coordinate, so the group does not "
            "act linearly after it; use Normalize(d, bounds=...), or transform X first and give the group in "
            "the new coordinates with FromOrbit"
        )
    return scale, offset


def _bounds_of_orbits(group: Group, X: Tensor) -> Tensor:
    """Lowest and highest value over all coordinates that the group mixes, ``(2, d)``."""
    X = X.reshape(-1, X.shape[-1]).detach()
    label = torch.as_tensor(_mixed_coordinates(group), device=X.device)
    low, high = X.amin(0), X.amax(0)
    bounds = X.new_empty(2, group.dim)
    depends_on_center = _depends_on_center(group, label)
    if depends_on_center and group.has_default_center:
        raise ValueError(
            "Normalize without bounds learns the middle of the box from the data, but this group acts about a "
            "point; pass Normalize(d, bounds=...), or center= in the units of X"
        )
    for number in range(int(label.max()) + 1):
        members = label == number
        bounds[0, members], bounds[1, members] = low[members].min(), high[members].max()
        if depends_on_center:
            middle = group.center.to(X)[members]
            reach = torch.maximum((low[members] - middle).abs(), (high[members] - middle).abs()).max()
            bounds[0, members], bounds[1, members] = middle - reach, middle + reach
    constant = bounds[1] - bounds[0] < 1e-8
    bounds[1, constant] = bounds[0, constant] + 1.0
    return bounds


def _mixed_coordinates(group: Group) -> Tensor:
    """A label for each coordinate; those that some symmetry maps onto each other share it."""
    mixes = torch.eye(group.dim, dtype=torch.bool)
    for symmetry in group.generators():
        image = symmetry.apply(group.center + torch.eye(group.dim, dtype=torch.float64)) - group.center
        mixes |= image.abs() > 1e-9
    return torch.from_numpy(connected_components(mixes.numpy(), directed=False)[1])


def _depends_on_center(group: Group, label: Tensor) -> bool:
    if not group.is_linear:
        return False
    X = torch.rand(4, group.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    elsewhere = group.recentred(1.0 + label.double().cpu())
    return any(
        not torch.allclose(here.apply(X), there.apply(X))
        for here, there in zip(group.recentred(0.0).generators(), elsewhere.generators(), strict=True)
    )
