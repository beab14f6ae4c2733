"""The landscape as a test function for optimisers: exact derivatives and known minima, no sampling noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cameraready.methods.relu_landscape.landscape import Landscape
from cameraready.methods.relu_landscape.table import MinimaTable

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BenchmarkProblem:
    """A non-convex function of ``dim`` = K d numbers in the form that `scipy.optimize.minimize` takes.

    ``minima`` holds the known minima and their losses; ``gap(x)`` is the loss above the global minimum, which is 0.
    """

    landscape: Landscape
    d: int
    minima: MinimaTable

    @property
    def dim(self) -> int:
        return self.landscape.K * self.d

    def fun(self, x: Floats) -> float:
        """Loss at x (K d,)."""
        return float(self.landscape.loss(self._weights(x)))

    def grad(self, x: Floats) -> Floats:
        """Gradient (K d,)."""
        return self.landscape.grad(self._weights(x)).ravel()

    def hess(self, x: Floats) -> Floats:
        """Hessian (K d, K d)."""
        return self.landscape.hessian(self._weights(x))

    def start(self, *, seed: int, scale: float = 1.0) -> Floats:
        """A random start (K d,) with neurons of norm near ``scale``."""
        return np.random.default_rng(seed).normal(scale=scale / np.sqrt(self.d), size=self.dim)

    def reached(self, x: Floats, *, tolerance: float = 1e-6) -> str:
        """The family of the known minimum with the loss of x, or "none"."""
        value = self.fun(x)
        return next((p.family.name for p in self.minima if abs(p.loss - value) <= tolerance), "none")

    def _weights(self, x: Floats) -> Floats:
        return np.asarray(x, dtype=np.float64).reshape(self.landscape.K, self.d)


def as_benchmark_problem(
    M: int, K: int, *, d: int | None = None, n_starts: int = 100, seed: int = 0
) -> BenchmarkProblem:
    """K students, M orthonormal teachers in d >= M dimensions (M by default), with the minima of ``n_starts`` searches.

    Examples
    --------
    >>> from scipy.optimize import minimize
    >>> problem = as_benchmark_problem(3, 3, n_starts=5)
    >>> found = minimize(problem.fun, problem.start(seed=0), jac=problem.grad, method="BFGS")
    >>> problem.reached(found.x)
    'global'
    """
    for name, value in {"M": M, "d": M if d is None else d}.items():
        if not isinstance(value, (int, np.integer)):
            raise TypeError(f"{name}={value!r} is not a whole number; for teachers of your own use Landscape")
    if d is not None and d < M:
        raise ValueError(f"d={d} is smaller than M={M}; orthonormal teachers need d >= M")
    land = Landscape(M, K)
    return BenchmarkProblem(land, M if d is None else d, land.find_minima(n_starts, seed=seed))
