"""What the tasks tell each other: reward-weighted statistics, and the few samples that carry them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Knowledge:
    """The tasks' last generation, weighted by their rewards.

    Attributes
    ----------
    scale : mean change s_t = sigma_t/sigma_t^prev of the step size.
    stretch : (slots,), mean change q_tj of the standard deviation in every slot.
    mean : (slots,), mean position in the unit box.
    """

    scale: float
    stretch: np.ndarray
    mean: np.ndarray


def aggregate(
    reward: np.ndarray,
    scale: np.ndarray,
    stretch: np.ndarray,
    mean: np.ndarray,
    *,
    owner: np.ndarray,
    slot: np.ndarray,
    n_slots: int,
) -> Knowledge:
    """Mean over the tasks that own a slot, with their rewards as weights.

    Parameters
    ----------
    reward, scale : (T,); the rewards sum to 1.
    stretch, mean : (N,), all coordinates of all tasks behind one another.
    owner, slot : (N,), whose coordinate it is and which slot it fills.

    Notes
    -----
    Where all owners of a slot have reward zero, they count alike.
    """
    values = np.stack([stretch, mean])

    def averages(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        each = weights[owner]
        total = np.bincount(slot, each, n_slots)
        sums = np.stack([np.bincount(slot, each * row, n_slots) for row in values])
        return sums / np.where(total > 0, total, 1.0), total

    weighted, total = averages(reward)
    if not total.all():
        weighted = np.where(total > 0, weighted, averages(np.ones_like(reward))[0])
    return Knowledge(scale=float(reward @ scale), stretch=weighted[0], mean=weighted[1])


def inject(y: Tensor, z: Tensor, *, sigma: Tensor, pull: Tensor, spread: Tensor, counts: Tensor) -> Tensor:
    """Replace the last samples of each task by ones that follow the others.

    Parameters
    ----------
    y, z : (k, popsize, n), a generation's steps (x - mean)/sigma and the normal numbers that they came from.
    sigma : (k,).
    pull : (k, n), the others' mean minus the task's own.
    spread : (k, n), standard deviations of a sample that copies the others' last change of scale, over sigma.
    counts : (k,), how many samples of each of the two kinds.

    Notes
    -----
    "Phenotypic": u = pull + sigma y, shortened or stretched to the generation's mean step; "genotypic": spread z.
    The first has the usual step length whatever the others say, and the second differs from it by their last change
    of scale alone, so that a bad hint cannot inflate the step size: it costs its evaluations, no more.
    """
    most, popsize = int(counts.max()), y.shape[1]
    length = torch.linalg.vector_norm(y, dim=2).mean(1)
    y = y.clone()
    for j in range(most):
        given = (counts > j)[:, None]
        towards = pull + sigma[:, None] * y[:, popsize - 1 - j]
        norm = torch.linalg.vector_norm(towards, dim=1, keepdim=True)
        phenotypic = towards * (length[:, None] / norm.clamp_min(torch.finfo(y.dtype).tiny))
        y[:, popsize - 1 - j] = torch.where(given, phenotypic, y[:, popsize - 1 - j])
        mine = popsize - 1 - most - j
        y[:, mine] = torch.where(given, spread * z[:, mine], y[:, mine])
    return y
