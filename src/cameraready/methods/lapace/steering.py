"""Steering of latent points towards the constraints, by gradients through the decoder; the model is never called."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cameraready.methods.lapace.columns import Array
from cameraready.methods.lapace.constraints import BoundConstraints
from cameraready.methods.lapace.mixture_vae import LGMVAE

# lam_p, lam_m, lam_d. A heavier penalty keeps the constraints better and leaves the class: of the settings tried, these
# lose few points and give the most plausible ones.
PENALTY, MAHALANOBIS, DISTANCE = 10.0, 1.0, 0.1
LEARNING_RATE, STEPS, ENOUGH = 0.05, 100, 1e-4
COMPACT_EVERY = 10  # steps after which the points that are done leave the batch


def steer(model: LGMVAE, z: Tensor, bound: BoundConstraints, rows: NDArray[np.intp], *, target: int) -> Tensor:
    """Minimise lam_p penalty(x(z)) + lam_m Mahalanobis^2(z; nearest component) + lam_d |z - z_path|^2 by Adam.

    Parameters
    ----------
    z : path points (m, L). rows : the input of each (m,). target : label whose components z should stay near.

    Returns
    -------
    Steered points (m, L); a point stops as soon as its penalty is below 1e-4.
    """
    penalty = Penalty(bound, z)
    steered, left = z.clone(), torch.arange(len(z), device=z.device)
    batch_rows = torch.as_tensor(rows, device=z.device)
    # Adam by hand on a shrinking batch: torch.optim keeps one state for a tensor of fixed shape.
    point, first, second = z.clone(), torch.zeros_like(z), torch.zeros_like(z)
    for step in range(1, STEPS + 1):
        point.requires_grad_(True)
        violation = penalty(model.decode(point), batch_rows[left])
        near = model.distance_to_components(point, target)
        away = (point - z[left]).square().sum(dim=-1)
        total = PENALTY * violation + MAHALANOBIS * near + DISTANCE * away
        (gradient,) = torch.autograd.grad(total.sum(), point)
        with torch.no_grad():
            open_ = (violation >= ENOUGH)[:, None]
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient.square(), 0.001)
            move = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
            point = torch.where(open_, point - LEARNING_RATE * move, point).detach()
            if step % COMPACT_EVERY == 0 or step == STEPS:
                steered[left] = point
                keep = open_.squeeze(1)
                point, left, first, second = point[keep], left[keep], first[keep], second[keep]
                if not len(left):
                    break
    return steered.detach()


class Penalty:
    """The constraints as a differentiable penalty on encoded rows: hinges squared, (m, D) to (m,)."""

    def __init__(self, bound: BoundConstraints, like: Tensor) -> None:
        space = bound.space
        lower, upper = bound.lower.copy(), bound.upper.copy()
        lower[:, bound.fixed] = upper[:, bound.fixed] = bound.inputs[:, bound.fixed]
        encoded_inputs = space.scale(bound.inputs)
        n = len(bound.inputs)
        low, high = np.full((n, space.n_encoded), -np.inf), np.full((n, space.n_encoded), np.inf)
        banned = np.zeros(space.n_encoded)
        A = np.zeros((len(bound.b), space.n_encoded))
        b = bound.b.copy()
        for i, (column, block) in enumerate(zip(space.columns, space.blocks, strict=True)):
            if column.constant:
                b -= bound.A[:, i] * column.low  # its value, whatever the decoder says
            elif column.kind == "categorical":
                if bound.fixed[i]:
                    low[:, block] = high[:, block] = encoded_inputs[:, block]
                elif i in bound.allowed:
                    banned[block.start : block.start + len(bound.allowed[i])] = ~bound.allowed[i]
            else:
                first = block.start
                low[:, first] = np.nan_to_num(_encoded(lower[:, i], column), nan=-np.inf, neginf=-np.inf)
                high[:, first] = np.nan_to_num(_encoded(upper[:, i], column), nan=np.inf, posinf=np.inf)
                A[:, first] = bound.A[:, i] * column.span
                b -= bound.A[:, i] * column.low
        size = np.linalg.norm(A, axis=1)
        size[size == 0] = 1.0
        as_tensor = lambda array: torch.as_tensor(array, dtype=like.dtype, device=like.device)  # noqa: E731
        self.low, self.high, self.banned = as_tensor(low), as_tensor(high), as_tensor(banned)
        self.A, self.b = as_tensor(A / size[:, None]), as_tensor(b / size)

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        outside = (self.low[rows] - x).relu().square() + (x - self.high[rows]).relu().square()
        total = outside.sum(dim=-1) + (x * self.banned).square().sum(dim=-1)
        return total + (x @ self.A.T - self.b).relu().square().sum(dim=-1)


def _encoded(bounds: Array, column: object) -> Array:
    return (bounds - column.low) / column.span  # type: ignore[attr-defined]
