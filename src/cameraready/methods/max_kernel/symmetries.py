"""The groups that the experiments need besides those of the problems: subgroups, and groups written as plain lists."""

from __future__ import annotations

import torch

from cameraready.methods.max_kernel.closed_forms import (
    BlockPermutations,
    CyclicShifts,
    Permutations,
    SignedPermutations,
)
from cameraready.methods.max_kernel.groups import Group
from cameraready.methods.max_kernel.listed import FromOrbit, Matrices
from cameraready.methods.max_kernel.product import Product
from cameraready.methods.max_kernel.rotations import PointCloudRotations, Rotations

MOST_LISTED = 2000


def listable_part(group: Group) -> Group:
    """The group, or where it has more than 2000 elements the largest part of it that has not."""
    parts = [group]
    if isinstance(group, Product):
        parts += [group.enumerated, group.other]
    if isinstance(group, (Rotations, SignedPermutations)):
        parts += [kind(group.dim, center=group.center) for kind in (SignedPermutations, Permutations)]
    return max((part for part in parts if part.order <= MOST_LISTED), key=lambda part: part.order)


def known_part(order: int) -> Matrices:
    """Signed permutations of the first coordinates of R^4, the others left alone: 2, 8, 48 or 384 elements."""
    return on_first_coordinates(SignedPermutations({2: 1, 8: 2, 48: 3, 384: 4}[order], center=0.0))


def listed_group(order: int) -> Matrices:
    """A group of 6, 24, 48 or 384 elements on R^4 about the middle of the cube, as a list of matrices."""
    return on_first_coordinates(
        {6: Permutations(3), 24: Permutations(4), 48: SignedPermutations(3), 384: SignedPermutations(4)}[order]
    )


def on_first_coordinates(part: Group) -> Matrices:
    """The linear group ``part`` acting on the first coordinates of R^4."""
    origin = part.recentred(0.0)
    images = origin.orbit(torch.eye(part.dim, dtype=torch.float64)).transpose(0, 1)  # (order, d, d): rows are g e_i
    rest = torch.eye(4 - part.dim, dtype=torch.float64)
    return Matrices([torch.block_diag(image.T, rest) for image in images], center=part.center[0])


def definite_or_not(name: str) -> tuple[Group, str]:
    """A group by name, and whether its max kernel is "definite" (valid without projection) or "indefinite"."""
    quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    turns = Matrices([torch.block_diag(*[torch.linalg.matrix_power(quarter, k)] * 3) for k in range(4)])
    definite = {"SignedPermutations": SignedPermutations(3), "Permutations": Permutations(4)}
    if name in definite:  # as a plain list, so that nothing but the projection is tested
        closed = definite[name]
        return FromOrbit(closed.orbit, int(closed.order), dim=closed.dim), "definite"
    return {
        "CyclicShifts": CyclicShifts(3, 2),
        "BlockPermutations": BlockPermutations(3, 2),
        "PointCloudRotations": PointCloudRotations(3, 2),
        "particles and turns": BlockPermutations(3, 2) * turns,
    }[name], "indefinite"
