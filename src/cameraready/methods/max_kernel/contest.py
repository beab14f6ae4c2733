"""The contestants of the experiments on equal terms: optimisation runs, predictions, and the cost of one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from botorch.models.transforms import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from cameraready.methods.max_kernel.fitting import Method, fit_model, make_model
from cameraready.methods.max_kernel.groups import Group
from cameraready.methods.max_kernel.loop import BOTrace, bo_loop
from cameraready.methods.max_kernel.peers import cma_es
from cameraready.methods.max_kernel.problems import Problem
from cameraready.methods.max_kernel.symmetries import listable_part
from cameraready.methods.max_kernel.transforms import fit_transform_to_group

_LISTING: tuple[Method, ...] = ("average", "raw average", "augment")


@dataclass(frozen=True)
class Score:
    """Mean log predictive density and root mean squared error of held-out values, in their standard deviations."""

    log_density: float
    rmse: float


def run_contest(
    problem: Problem,
    methods: Mapping[str, Any],
    *,
    n_init: int,
    n_iter: int,
    seed: int,
    group: Group | None = None,
    **loop: Any,
) -> dict[str, BOTrace]:
    """One trace a contestant, all from the same initial designs.

    Parameters
    ----------
    methods : name to a method of `bo_loop`, or to "cma-es"
    group : what the models are told, by default the problem's own group
    loop : further options of `bo_loop`

    A contestant that lists its group gets the largest part of it that it can list.
    """
    known = group or problem.group
    traces = {}
    for name, method in methods.items():
        if method == "cma-es":
            traces[name] = cma_es(problem, n_init=n_init, n_iter=n_iter, seed=seed)
            continue
        traces[name] = bo_loop(
            problem,
            problem.bounds,
            listable_part(known) if method in _LISTING else known,
            method=method,
            n_init=n_init,
            n_iter=n_iter,
            seed=seed,
            optimum=problem.optimum,
            check_box=known.is_finite,
            **loop,
        )
    return traces


def predict_held_out(X: Tensor, y: Tensor, group: Group, method: Method, *, train: Tensor, test: Tensor) -> Score:
    """Fit one contestant on the rows ``train`` of a table and score it on the rows ``test``."""
    transform, in_cube = fit_transform_to_group(Normalize(group.dim), group, X[train])
    Z, unit = transform.eval()(X), y.std()
    model = fit_model(Z[train], y[train], in_cube, method, previous=None, noise_std=None, hyper="own", refit=True)
    with torch.no_grad():
        posterior = model.posterior(Z[test], observation_noise=True)
    mean, spread = posterior.mean.squeeze(-1), posterior.variance.squeeze(-1).sqrt()
    density = torch.distributions.Normal(mean, spread).log_prob(y[test]) + unit.log()
    return Score(float(density.mean()), float((mean - y[test]).square().mean().sqrt() / unit))


def step_of(X: Tensor, candidates: Tensor, group: Group, method: Method) -> Callable[[], Tensor]:
    """A step to be timed: a gradient of the marginal likelihood, then the posterior of the candidates."""

    def step() -> Tensor:
        model = make_model(X, X.square().sum(-1), group, method)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        mll(model(*model.train_inputs), model.train_targets).backward()
        with torch.no_grad():
            return model.eval().posterior(candidates).variance

    return step
