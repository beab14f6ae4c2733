"""The CMA-ES distributions of all tasks of one dimension, updated together."""

from __future__ import annotations

import torch
from torch import Tensor

from cameraready.methods.mes_ret.constants import strategy_constants
from cameraready.methods.mes_ret.covariance import DiagonalCovariance, FullCovariance

LARGEST_LOG_STEP = 1.0  # of sigma, in one generation
SMALLEST_SPREAD = 1e-12


class Population:
    """Means, step sizes, paths and covariances in the unit box; ``rows`` (k,) selects tasks in every method.

    Attributes
    ----------
    mean, path_c, path_sigma : tensors of shape (tasks, n).
    sigma, generations : tensors of shape (tasks,).
    covariance : `FullCovariance` or `DiagonalCovariance`.
    """

    def __init__(self, tasks: int, n: int, *, diagonal: bool, device: str, dtype: torch.dtype) -> None:
        self.n = n
        place = {"device": device, "dtype": dtype}
        self.mean, self.path_c, self.path_sigma = (torch.zeros(tasks, n, **place) for _ in range(3))
        self.sigma, self.generations = torch.ones(tasks, **place), torch.zeros(tasks, **place)
        self.covariance = (DiagonalCovariance if diagonal else FullCovariance)(tasks, n, **place)

    def start(self, row: int, mean: Tensor, sigma: float) -> None:
        """Put one task's distribution at N(mean, sigma² I)."""
        self.mean[row], self.sigma[row], self.generations[row] = mean, sigma, 0
        self.path_c[row], self.path_sigma[row] = 0.0, 0.0
        self.covariance.reset(torch.tensor([row], device=self.mean.device))

    def update(self, rows: Tensor, y: Tensor, popsize: int) -> None:
        """One generation of CMA-ES from the mu best steps ``y = (x - mean)/sigma``, (k, mu, n), best first."""
        c = strategy_constants(self.n, popsize, diagonal=self.covariance.diagonal)
        weights = torch.as_tensor(c.weights, dtype=y.dtype, device=y.device)
        step = (weights[:, None] * y).sum(1)
        self.mean[rows] += self.sigma[rows, None] * step
        self.generations[rows] += 1
        path_sigma = (1 - c.c_sigma) * self.path_sigma[rows]
        path_sigma = path_sigma + (c.c_sigma * (2 - c.c_sigma) * c.mu_eff) ** 0.5 * self.covariance.whiten(rows, step)
        length = torch.linalg.vector_norm(path_sigma, dim=1)
        # h_sigma stalls the rank-one path while the step size is still growing fast; its clock is the task's own.
        settled = (1 - (1 - c.c_sigma) ** (2 * self.generations[rows])).sqrt()
        h = (length / settled < (1.4 + 2 / (self.n + 1)) * c.chi).to(y.dtype)
        path_c = (1 - c.c_c) * self.path_c[rows]
        path_c = path_c + (h * (c.c_c * (2 - c.c_c) * c.mu_eff) ** 0.5)[:, None] * step
        keep = 1 - c.c_1 - c.c_mu + c.c_1 * (1 - h) * c.c_c * (2 - c.c_c)
        self.covariance.update(rows, keep, c.c_1, path_c, c.c_mu, weights.sqrt()[:, None] * y)
        growth = (c.c_sigma / c.d_sigma * (length / c.chi - 1)).clamp_max(LARGEST_LOG_STEP)
        self.sigma[rows] *= growth.exp()
        self.path_sigma[rows], self.path_c[rows] = path_sigma, path_c

    def deviations(self, rows: Tensor) -> Tensor:
        """sqrt(diag C), of shape (k, n)."""
        return self.covariance.variances(rows).clamp_min(0).sqrt()

    def diversity(self, rows: Tensor) -> Tensor:
        """sigma tr(C)/n, of shape (k,)."""
        return self.sigma[rows] * self.covariance.variances(rows).mean(1)

    def exhausted(self, rows: Tensor) -> Tensor:
        """Tasks that no longer move, or whose numbers have overflowed."""
        spread = torch.maximum(self.path_c[rows].abs(), self.deviations(rows)).amax(1) * self.sigma[rows]
        sound = torch.isfinite(spread) & torch.isfinite(self.mean[rows]).all(1)
        return (spread < SMALLEST_SPREAD) | ~sound
