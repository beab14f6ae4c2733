"""The distributions of all tasks, whatever their dimensions: one `Population` for each dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cameraready.methods.mes_ret.constants import strategy_constants
from cameraready.methods.mes_ret.population import Population
from cameraready.methods.mes_ret.tasks import TaskSpec
from cameraready.methods.mes_ret.transfer import Knowledge, aggregate, inject

DIAGONAL_ABOVE = 200  # coordinates: covariance="auto" is diagonal beyond


@dataclass(frozen=True)
class Spread:
    """Step sizes (T,), standard deviations of all coordinates of all tasks (N,) and diversities sigma tr(C)/n (T,)."""

    sigma: np.ndarray
    deviation: np.ndarray
    diversity: np.ndarray


class Fleet:
    """Samples and updates any set of tasks; those of equal dimension and population size as one batch.

    ``tasks`` in the methods are lists of task numbers with equal dimension, as `groups` gives them.
    """

    def __init__(self, specs: Sequence[TaskSpec], *, covariance: str, device: str, dtype: torch.dtype) -> None:
        self.specs, self.place = specs, {"device": device, "dtype": dtype}
        members = {n: [t for t, s in enumerate(specs) if s.n == n] for n in sorted({s.n for s in specs})}
        self.members = members
        self.row = np.array([members[s.n].index(t) for t, s in enumerate(specs)])
        self.lower = {n: np.stack([specs[t].lower for t in each]) for n, each in members.items()}
        self.upper = {n: np.stack([specs[t].upper for t in each]) for n, each in members.items()}
        flat = [t for each in members.values() for t in each]
        self.owner = np.repeat(flat, [specs[t].n for t in flat])
        layouts = [np.arange(s.n) if s.layout is None else s.layout for s in specs]
        used, places = np.unique(np.concatenate(layouts), return_inverse=True)  # slots may have any numbers
        self.n_slots = len(used)
        self.layouts = np.split(places, np.cumsum([s.n for s in specs])[:-1])
        self.slot = np.concatenate([self.layouts[t] for t in flat])
        self.populations = {}
        for n, each in members.items():
            diagonal = covariance == "diag" or (covariance == "auto" and n > DIAGONAL_ABOVE)
            self.populations[n] = Population(len(each), n, diagonal=diagonal, **self.place)

    def groups(self, tasks: Sequence[int], popsize: np.ndarray) -> list[tuple[int, list[int]]]:
        """Population sizes and the tasks that share one and their dimension."""
        found: dict[tuple[int, int], list[int]] = {}
        for t in tasks:
            found.setdefault((self.specs[t].n, int(popsize[t])), []).append(t)
        return [(size, group) for (_, size), group in found.items()]

    def start(self, t: int, unit_mean: np.ndarray, sigma: float) -> None:
        """Put one task's distribution at N(unit_mean, sigma² I) of the unit box."""
        self._of([t]).start(int(self.row[t]), torch.as_tensor(unit_mean, **self.place), sigma)

    def sample(
        self, tasks: list[int], z: np.ndarray, *, clip: bool, knowledge: Knowledge | None, hints: np.ndarray
    ) -> tuple[np.ndarray, Tensor]:
        """Points of the unit box (k, popsize, n) and their steps (x - mean)/sigma, from normal numbers ``z``.

        ``hints`` (k,) says how many samples of each kind follow ``knowledge``; see `inject`.
        """
        population, rows = self._of(tasks), self._rows(tasks)
        normal = torch.as_tensor(z, **self.place)
        y = population.covariance.color(rows, normal)
        mean, sigma = population.mean[rows], population.sigma[rows]
        if knowledge is not None:
            slots = np.stack([self.layouts[t] for t in tasks])
            pull = torch.as_tensor(knowledge.mean[slots], **self.place) - mean
            spread = torch.as_tensor(knowledge.scale * knowledge.stretch[slots], **self.place)
            spread = spread * population.deviations(rows)
            counts = torch.as_tensor(hints, device=mean.device)
            y = inject(y, normal, sigma=sigma, pull=pull, spread=spread, counts=counts)
        x = mean[:, None, :] + sigma[:, None, None] * y
        if clip:
            x = x.clamp(0, 1)
            y = (x - mean[:, None, :]) / sigma[:, None, None]
        return x.cpu().numpy(), y

    def update(self, tasks: list[int], y: list[Tensor], order: np.ndarray) -> None:
        """One generation, from each task's steps and the order of its points (k, popsize), best first."""
        popsize, n = order.shape[1], self.specs[tasks[0]].n
        best = torch.as_tensor(order[:, : strategy_constants(n, popsize).mu], device=self.place["device"])
        chosen = torch.take_along_dim(torch.stack(y), best[:, :, None], dim=1)
        self._of(tasks).update(self._rows(tasks), chosen, popsize)

    def exhausted(self, tasks: list[int]) -> list[int]:
        """Those that no longer move."""
        over = self._of(tasks).exhausted(self._rows(tasks)).cpu().numpy()
        return [t for t, done in zip(tasks, over, strict=True) if done]

    def spread(self) -> Spread:
        """How wide every distribution is now."""
        sigma, diversity, deviation = np.empty(len(self.specs)), np.empty(len(self.specs)), []
        for n, population in self.populations.items():
            rows = torch.arange(len(self.members[n]), device=self.place["device"])
            sigma[self.members[n]] = population.sigma.cpu().numpy()
            diversity[self.members[n]] = population.diversity(rows).cpu().numpy()
            deviation.append(population.deviations(rows).cpu().numpy().ravel())
        return Spread(sigma, np.concatenate(deviation), diversity)

    def share(self, reward: np.ndarray, before: Spread, after: Spread) -> Knowledge:
        """What the last generation of all tasks says, weighted by ``reward``."""
        mean = np.concatenate([p.mean.cpu().numpy().ravel() for p in self.populations.values()])
        with np.errstate(divide="ignore", invalid="ignore"):
            changes = after.sigma / before.sigma, after.deviation / before.deviation
        scale, stretch = (np.where(np.isfinite(change), change, 1.0) for change in changes)
        mean = np.where(np.isfinite(mean), mean, 0.5)
        return aggregate(reward, scale, stretch, mean, owner=self.owner, slot=self.slot, n_slots=self.n_slots)

    def to_user(self, tasks: list[int], unit: np.ndarray, *, walls: bool) -> np.ndarray:
        """Points (k, popsize, n) of the unit box in the user's units; with ``walls`` the nearest inside."""
        n, rows = unit.shape[2], self.row[tasks]
        lower, upper = self.lower[n][rows, None, :], self.upper[n][rows, None, :]
        points = lower + unit * (upper - lower)
        return np.clip(points, lower, upper) if walls else points

    def _of(self, tasks: list[int]) -> Population:
        return self.populations[self.specs[tasks[0]].n]

    def _rows(self, tasks: list[int]) -> Tensor:
        return torch.as_tensor(self.row[tasks], device=self.place["device"])
