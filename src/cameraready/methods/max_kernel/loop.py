"""`bo_loop`: one optimisation run, the same for all kernels: priors, initial designs, acquisition and budget."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    UpperConfidenceBound,
    qLogExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.utils.sampling import draw_sobol_samples
from numpy.typing import NDArray
from torch import Tensor

from cameraready.methods.max_kernel.fitting import METHODS, Method, fit_model
from cameraready.methods.max_kernel.groups import Group


@dataclass(frozen=True, eq=False)
class BOTrace:
    """What one run evaluated and how long it took.

    Attributes
    ----------
    X : array (n_init + n_iter * q, d)
        Designs in the order of evaluation.
    Y : array (n_init + n_iter * q,)
        Observations, noise included.
    values : array (n_init + n_iter * q,)
        Values without noise.
    simple_regret : array (n_init + n_iter * q,)
        ``f* - max of the values so far``; NaN where f* is unknown.
    cumulative_regret : array (n_iter * q,)
        ``sum of f* - f(x_t)`` over the steps after the initial design; NaN where f* is unknown.
    fit_s, acq_s : arrays (n_iter,)
        Seconds to fit the model and to choose the next design.
    """

    X: NDArray[np.float64]
    Y: NDArray[np.float64]
    values: NDArray[np.float64]
    simple_regret: NDArray[np.float64]
    cumulative_regret: NDArray[np.float64]
    fit_s: NDArray[np.float64]
    acq_s: NDArray[np.float64]

    @property
    def best(self) -> NDArray[np.float64]:
        """Best value so far."""
        return np.maximum.accumulate(self.values)


def bo_loop(
    f: Callable[[Tensor], Tensor],
    bounds: Tensor,
    group: Group,
    *,
    method: Method = "max",
    n_init: int = 5,
    n_iter: int = 20,
    acq: Literal["logei", "ucb"] = "logei",
    q: int = 1,
    noise_std: float | None = None,
    seed: int = 0,
    optimum: float | None = None,
    optimizer: Literal["lbfgs", "candidates"] = "lbfgs",
    hyper: Literal["own", "base"] = "own",
    refit_every: int = 1,
    check_box: bool = True,
) -> BOTrace:
    """Maximise an expensive function that is invariant under a group.

    Parameters
    ----------
    f : callable
        Maps designs ``(n, d)`` to values ``(n,)`` or ``(n, 1)``, to be maximised; called only on new designs.
    bounds : tensor ``(2, d)``
        Lowest and highest value of each coordinate.
    group : Group
        Symmetries of f in the units of the bounds; a default centre is the middle of the bounds.
    method : str
        Model: "max" (`MaxKernelGP`), "max nystrom" (without variance correction), "average" and "raw average"
        (`OrbitAverageKernel`), "base" (no symmetry), "canonical" (`CanonicalKernel`), "augment" (data copied along
        orbits, at most 500 rows), "random" (Sobol designs, no model).
    n_init, n_iter, q : int
        Sobol designs before the first model, steps, designs a step.
    acq : {"logei", "ucb"}
        Log expected improvement, or the upper confidence bound with ``beta_t = d log(2t) / 2``.
    noise_std : float, optional
        Standard deviation of Gaussian noise added to every value; None adds none and the model infers its noise.
    seed : int
        Fixes the initial designs (the same for every method) and all randomness.
    optimum : float, optional
        Highest value of f, for the regrets.
    optimizer : {"lbfgs", "candidates"}
        `optimize_acqf` with 10 restarts from 512 samples as in the paper, or the best of 800 random and 200 local
        candidates (q=1; faster).
    hyper : {"own", "base"}
        Fit the hyper-parameters with the model's own marginal likelihood, or, as in the paper, fit the base kernel
        (Adam, 50 steps, rate 0.1) and copy them.
    refit_every : int
        Steps between fits of the hyper-parameters; the data is updated at every step.
    check_box : bool
        Raise where the group carries points of the box outside it (almost always a wrong centre). False where f is
        known to be invariant on the whole space.

    Returns
    -------
    BOTrace

    Raises
    ------
    ValueError : unknown options, bounds that are not increasing, a group that leaves the box, values that are not
        finite or not one a design.

    Examples
    --------
    >>> import torch
    >>> from cameraready.methods.max_kernel import Permutations, bo_loop
    >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    >>> trace = bo_loop(lambda X: -(X.sort(-1).values - 0.3).square().sum(-1), bounds, Permutations(2),
    ...                 n_init=4, n_iter=2, optimizer="candidates", optimum=0.0)
    >>> trace.X.shape, trace.simple_regret.shape, trace.cumulative_regret.shape
    ((6, 2), (6,), (2,))
    """
    low, high = _check_bounds(bounds, group)
    if method not in METHODS:
        raise ValueError(f"method={method!r}; choose one of {', '.join(METHODS)}")
    if acq not in ("logei", "ucb") or optimizer not in ("lbfgs", "candidates") or hyper not in ("own", "base"):
        raise ValueError(
            f"acq={acq!r}, optimizer={optimizer!r}, hyper={hyper!r}; choose acq 'logei' or 'ucb', optimizer "
            "'lbfgs' or 'candidates', hyper 'own' or 'base'"
        )
    if min(n_init, q, refit_every) < 1 or n_iter < 0:
        raise ValueError(
            f"n_init={n_init}, n_iter={n_iter}, q={q}, refit_every={refit_every}; all must be at least 1 "
            "(n_iter at least 0)"
        )
    if noise_std is not None and not 0 <= noise_std < float("inf"):
        raise ValueError(f"noise_std={noise_std}; pass a finite standard deviation, 0 or larger, or None")
    if optimizer == "candidates" and q > 1:
        raise ValueError(f"optimizer='candidates' chooses one design at a time, q={q}; use optimizer='lbfgs'")
    if group.has_default_center:
        group = group.recentred(0.5 * (low + high))
    if check_box:
        group.check_bounds(bounds)
    cube_group = group.in_coordinates(high - low, low)

    def evaluate(Z: Tensor) -> Tensor:
        values = torch.as_tensor(f(low + (high - low) * Z), dtype=torch.float64).detach().reshape(-1)
        if len(values) != len(Z):
            raise ValueError(f"f returned {len(values)} values for {len(Z)} designs; it maps (n, d) to (n,) or (n, 1)")
        if not torch.isfinite(values).all():
            raise ValueError(f"f returned {values.tolist()}; return finite values, or clip them")
        return values

    noise = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        cube = torch.stack([torch.zeros(group.dim), torch.ones(group.dim)]).double()
        n_sobol = n_init + (n_iter * q if method == "random" else 0)
        Z = draw_sobol_samples(cube, n_sobol, 1, seed=seed).squeeze(1)
        values = evaluate(Z)
        Y = values + (noise_std or 0.0) * torch.randn(values.shape, generator=noise, dtype=torch.float64)
        model, fit_s, acq_s = None, [], []
        for step in range(0 if method == "random" else n_iter):
            start = time.perf_counter()
            model = fit_model(
                Z,
                Y,
                cube_group,
                method,
                previous=model,
                noise_std=noise_std,
                hyper=hyper,
                refit=step % refit_every == 0,
            )
            fitted = time.perf_counter()
            acquisition = _acquisition(model, Z, Y, acq, q=q, step=step + 1, is_noisy=bool(noise_std))
            new = (
                _best_of_candidates(acquisition, Z, Y) if optimizer == "candidates" else _by_lbfgs(acquisition, cube, q)
            )
            acq_s.append(time.perf_counter() - fitted)
            fit_s.append(fitted - start)
            new_values = evaluate(new)
            noisy = new_values + (noise_std or 0.0) * torch.randn(
                new_values.shape, generator=noise, dtype=torch.float64
            )
            Z, Y, values = torch.cat([Z, new]), torch.cat([Y, noisy]), torch.cat([values, new_values])
    return make_trace(low + (high - low) * Z, Y, values, n_init=n_init, optimum=optimum, fit_s=fit_s, acq_s=acq_s)


def make_trace(
    X: Tensor, Y: Tensor, values: Tensor, *, n_init: int, optimum: float | None, fit_s: list[float], acq_s: list[float]
) -> BOTrace:
    """A `BOTrace` of evaluations made in this order, the first ``n_init`` of them the initial design."""
    regret = (float("nan") if optimum is None else optimum) - values.numpy()
    return BOTrace(
        X=X.numpy(),
        Y=Y.numpy(),
        values=values.numpy(),
        simple_regret=np.minimum.accumulate(regret),
        cumulative_regret=np.cumsum(regret[n_init:]),
        fit_s=np.array(fit_s),
        acq_s=np.array(acq_s),
    )


def _acquisition(
    model: SingleTaskGP, Z: Tensor, Y: Tensor, acq: str, *, q: int, step: int, is_noisy: bool
) -> AcquisitionFunction:
    if acq == "ucb":
        beta = 0.5 * Z.shape[-1] * np.log(2 * step) + 1e-12
        return UpperConfidenceBound(model, beta) if q == 1 else qUpperConfidenceBound(model, beta)
    if is_noisy:
        with torch.no_grad():
            best = model.posterior(Z).mean.max()
    else:
        best = Y.max()
    return LogExpectedImprovement(model, best) if q == 1 else qLogExpectedImprovement(model, best)


def _by_lbfgs(acquisition: AcquisitionFunction, cube: Tensor, q: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        candidates, _ = optimize_acqf(acquisition, cube, q=q, num_restarts=10, raw_samples=512)
    return candidates.detach()


@torch.no_grad()
def _best_of_candidates(acquisition: AcquisitionFunction, Z: Tensor, Y: Tensor) -> Tensor:
    """The best of 800 random designs and 200 around the five best so far, at four radii."""
    centre = Z[Y.topk(min(5, len(Y))).indices].repeat(200 // min(5, len(Y)), 1)
    radius = torch.tensor([0.1, 0.03, 0.01, 0.003], dtype=Z.dtype)[torch.arange(len(centre)) // min(5, len(Y)) % 4]
    local = (centre + radius.unsqueeze(-1) * torch.randn_like(centre)).clamp(0.0, 1.0)
    candidates = torch.cat([torch.rand(800, Z.shape[-1], dtype=Z.dtype), local])
    return candidates[acquisition(candidates.unsqueeze(1)).argmax()].unsqueeze(0)


def _check_bounds(bounds: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    if not isinstance(bounds, Tensor) or not bounds.is_floating_point():
        raise TypeError(
            "bounds must be a floating point tensor of shape (2, d); use torch.tensor(..., dtype=torch.float64)"
        )
    if bounds.shape != (2, group.dim):
        raise ValueError(
            f"bounds has shape {tuple(bounds.shape)}; the group acts on {group.dim} coordinates, pass (2, {group.dim})"
        )
    low, high = bounds.double()
    if not (torch.isfinite(bounds).all() and (low < high).all()):
        raise ValueError(f"bounds {bounds.tolist()} must be finite, with the low end below the high end everywhere")
    return low, high
