"""Objectives with known symmetries, to be maximised: synthetic functions, access points, particle clusters.

Each problem carries its bounds, its group and, where it is known, its optimum; calling it evaluates designs ``(n, d)``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from cameraready.methods.max_kernel.closed_forms import BlockPermutations, CyclicShifts, SignedPermutations, SignFlips
from cameraready.methods.max_kernel.groups import Group
from cameraready.methods.max_kernel.listed import Matrices
from cameraready.methods.max_kernel.rotations import Rotations


@dataclass(frozen=True, eq=False)
class Problem:
    """An objective to maximise, its box ``(2, d)``, its group in the box's units, its optimum (None: unknown)."""

    name: str
    function: Callable[[Tensor], Tensor]
    bounds: Tensor
    group: Group
    optimum: float | None = None

    def __call__(self, X: Tensor) -> Tensor:
        return self.function(X)


def ackley(dim: int) -> Problem:
    """Negative Ackley function on [-16, 16]^d: invariant under permutations and reflections."""

    def function(X: Tensor) -> Tensor:
        radius = X.square().mean(-1).sqrt()
        return 20 * torch.exp(-0.2 * radius) - 20 + torch.exp(torch.cos(2 * math.pi * X).mean(-1)) - math.e

    return Problem(f"Ackley d={dim}", function, _cube(dim, 16.0), SignedPermutations(dim, center=0.0), 0.0)


def rastrigin(dim: int) -> Problem:
    """Negative Rastrigin function on [-5.12, 5.12]^d: invariant under permutations and reflections."""

    def function(X: Tensor) -> Tensor:
        return -(10 + X.square() - 10 * torch.cos(2 * math.pi * X)).sum(-1)

    return Problem(f"Rastrigin d={dim}", function, _cube(dim, 5.12), SignedPermutations(dim, center=0.0), 0.0)


def griewank(dim: int) -> Problem:
    """Negative Griewank function on [-10, 10]^d: invariant under reflections (its coordinates have unequal scales)."""
    scale = torch.arange(1, dim + 1, dtype=torch.float64).sqrt()

    def function(X: Tensor) -> Tensor:
        return torch.cos(X / scale).prod(-1) - X.square().sum(-1) / 4000 - 1

    return Problem(f"Griewank d={dim}", function, _cube(dim, 10.0), SignFlips(dim, center=0.0), 0.0)


def radial(dim: int) -> Problem:
    """A wave in the radius on [-10, 10]^d, highest on the sphere of radius 4: invariant under all rotations.

    The rotations leave the box; pass ``check_box=False`` to `bo_loop`.
    """

    def function(X: Tensor) -> Tensor:
        offset = torch.linalg.vector_norm(X, dim=-1) - 4.0
        return torch.cos(1.5 * offset) * torch.exp(-0.15 * offset.square()) - 1.0

    return Problem(f"radial d={dim}", function, _cube(dim, 10.0), Rotations(dim, center=0.0), 0.0)


def template_match(length: int, *, seed: int) -> Problem:
    """Agreement of a cyclic signal with a hidden template at its best shift, on [-1, 1]^length.

    ``f(x) = max over shifts of h(x - shift(template))`` with the Griewank-like ``h(z) = prod cos(3 z_i) - |z|^2 - 1``.
    """
    generator = torch.Generator().manual_seed(seed)
    template = 1.6 * torch.rand(length, dtype=torch.float64, generator=generator) - 0.8
    shifts = torch.stack([template.roll(shift) for shift in range(length)])

    def function(X: Tensor) -> Tensor:
        offset = X.unsqueeze(-2) - shifts
        return (torch.cos(3 * offset).prod(-1) - offset.square().sum(-1) - 1).amax(-1)

    return Problem(f"template match d={length}", function, _cube(length, 1.0), CyclicShifts(length, center=0.0), 0.0)


def access_points(n_points: int = 4, n_users: int = 16, *, seed: int) -> Problem:
    """Sum rate (bit/s/Hz) of users in the unit square served by identical access points, to be placed.

    Path loss exponent 3; every user listens to the strongest point and hears the others as interference:
    ``sum over users of log2(1 + SINR)``. A design lists ``(x, y)`` of each point.
    """
    generator = torch.Generator().manual_seed(seed)
    users = torch.rand(n_users, 2, dtype=torch.float64, generator=generator)

    def function(X: Tensor) -> Tensor:
        places = X.unflatten(-1, (n_points, 2))
        square = (users[:, None, :] - places.unsqueeze(-3)).square().sum(-1)
        power = (square + 1e-3).pow(-1.5)  # a user is never nearer than about 3 cm to the antenna
        signal = power.amax(-1)
        noise = 1.0  # the power received at distance 1
        return torch.log2(1 + signal / (power.sum(-1) - signal + noise)).sum(-1)

    bounds = torch.stack([torch.zeros(2 * n_points), torch.ones(2 * n_points)]).double()
    return Problem(f"{n_points} access points", function, bounds, BlockPermutations(n_points, 2))


#: ground-state energies of Lennard-Jones clusters in units of the well depth (Cambridge Cluster Database)
_LJ_GROUND_3D = {3: -3.0, 4: -6.0, 5: -9.103852, 6: -12.712062, 7: -16.505384}
_LJ_GROUND_2D = {2: -1.0, 3: -3.0}


def lennard_jones(n_atoms: int, dim: int = 2, *, worst: float = 10.0) -> Problem:
    """Negative energy of a Lennard-Jones cluster in [-1.5, 1.5]^(n dim), in well depths; cut above ``worst``.

    Invariant under relabelling the atoms and under the rotations and reflections of the cube.
    """

    def function(X: Tensor) -> Tensor:
        atoms = X.unflatten(-1, (n_atoms, dim))
        i, j = torch.triu_indices(n_atoms, n_atoms, 1)
        inverse = (atoms[..., i, :] - atoms[..., j, :]).square().sum(-1).clamp_min(1e-4).pow(-3)
        return -(4 * (inverse.square() - inverse)).sum(-1).clamp_max(worst)

    group = BlockPermutations(n_atoms, dim, center=0.0) * Matrices(_cube_symmetries(dim, n_atoms), center=0.0)
    ground = (_LJ_GROUND_2D if dim == 2 else _LJ_GROUND_3D).get(n_atoms)
    return Problem(
        f"Lennard-Jones {n_atoms} in {dim}-D",
        function,
        _cube(n_atoms * dim, 1.5),
        group,
        None if ground is None else -ground,
    )


def _cube_symmetries(dim: int, n_copies: int) -> list[Tensor]:
    """The rotations and reflections of the cube (8 in the plane, 48 in space), acting on all atoms together."""
    matrices = []
    for order in itertools.permutations(range(dim)):
        for signs in itertools.product((1.0, -1.0), repeat=dim):
            matrix = torch.zeros(dim, dim, dtype=torch.float64)
            matrix[torch.arange(dim), list(order)] = torch.tensor(signs, dtype=torch.float64)
            matrices.append(torch.block_diag(*[matrix] * n_copies))
    return matrices


def _cube(dim: int, half: float) -> Tensor:
    return torch.tensor([[-half] * dim, [half] * dim], dtype=torch.float64)


def make(name: str, *, seed: int) -> Problem:
    """A problem by name: "Ackley 3", "Griewank 4", "Rastrigin 2", "radial 3", "template match 6", "access points 4" or
    "Lennard-Jones 3 in 2-D". The seed draws templates and users.

    >>> make("Lennard-Jones 4 in 3-D", seed=0).group.order
    1152
    """
    kind, *numbers = re.split(r" (\d+)(?: in (\d+)-D)?$", name)
    makers: dict[str, Callable[..., Problem]] = {
        "Ackley": ackley,
        "Griewank": griewank,
        "Rastrigin": rastrigin,
        "radial": radial,
        "template match": partial(template_match, seed=seed),
        "access points": partial(access_points, seed=seed),
        "Lennard-Jones": lennard_jones,
    }
    if kind not in makers or not numbers:
        raise ValueError(
            f"no problem is called {name!r}; write one of {', '.join(makers)} and a size, such as 'Ackley 3'"
        )
    return makers[kind](*(int(number) for number in numbers if number))
