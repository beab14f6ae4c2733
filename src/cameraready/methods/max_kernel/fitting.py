"""The contestants of `bo_loop` as models: one Gaussian process each, the same priors, fitted alike."""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim.fit import fit_gpytorch_mll_torch
from gpytorch.kernels import Kernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from cameraready.methods.max_kernel.augmentation import augment
from cameraready.methods.max_kernel.groups import Group
from cameraready.methods.max_kernel.max_kernel import MaxKernel
from cameraready.methods.max_kernel.model import MaxKernelGP, matern, scaled
from cameraready.methods.max_kernel.peer_kernels import CanonicalKernel, OrbitAverageKernel

Method = Literal["max", "max nystrom", "average", "raw average", "base", "canonical", "augment", "random"]
METHODS: tuple[Method, ...] = ("max", "max nystrom", "average", "raw average", "base", "canonical", "augment", "random")
MOST_AUGMENTED = 500
# Marginal likelihoods a datum are of order 1: finer tolerances only polish digits that the next datum changes.
_FIT_OPTIONS = {"maxiter": 75, "ftol": 1e-6, "gtol": 1e-4}


def make_model(Z: Tensor, Y: Tensor, group: Group, method: Method, *, noise_std: float | None = None) -> SingleTaskGP:
    """The unfitted model of one method on the unit cube: Matern-5/2 and the same priors for all.

    ``Z`` has shape ``(n, d)``, ``Y`` shape ``(n,)``, and the group acts in the cube's coordinates.
    """
    targets = Y.unsqueeze(-1)
    if method == "augment":
        Z, targets = augment(Z, targets, group, max_copies=max(1, MOST_AUGMENTED // len(Z)))
    variance = None if noise_std is None else torch.full_like(targets, noise_std**2)
    if method in ("max", "max nystrom"):
        return MaxKernelGP(Z, targets, variance, group=group, variance="corrected" if method == "max" else "nystrom")
    base = matern(group.dim)
    kernel: Kernel = base
    if method in ("average", "raw average"):
        kernel = OrbitAverageKernel(base, group, normalize=method == "average")
    elif method == "canonical":
        kernel = CanonicalKernel(base, group)
    return SingleTaskGP(Z, targets, variance, covar_module=scaled(kernel))


def fit_model(
    Z: Tensor,
    Y: Tensor,
    group: Group,
    method: Method,
    *,
    previous: SingleTaskGP | None,
    noise_std: float | None,
    hyper: str,
    refit: bool,
) -> SingleTaskGP:
    model = make_model(Z, Y, group, method, noise_std=noise_std)
    if previous is not None:  # start where the last fit ended
        copy_hyperparameters(previous, model)
    if refit and hyper == "base":
        plain = make_model(Z, Y, group, "base", noise_std=noise_std)
        fit_gpytorch_mll_torch(
            ExactMarginalLogLikelihood(plain.likelihood, plain),
            step_limit=50,
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.1),
        )
        copy_hyperparameters(plain, model)
    elif refit:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit_gpytorch_mll(
                ExactMarginalLogLikelihood(model.likelihood, model),
                max_attempts=1,
                warning_handler=lambda _: True,
                optimizer_kwargs={"options": _FIT_OPTIONS},
            )
    return model.eval()


def copy_hyperparameters(source: SingleTaskGP, target: SingleTaskGP) -> None:
    """Give ``target`` the mean, scales and inferred noise of ``source``, whatever kernels surround the base kernel."""
    target.mean_module.load_state_dict(source.mean_module.state_dict())
    target.covar_module.raw_outputscale.data.copy_(source.covar_module.raw_outputscale.data)
    base_kernel(target).raw_lengthscale.data.copy_(base_kernel(source).raw_lengthscale.data)
    if "noise_covar.raw_noise" in source.likelihood.state_dict():
        target.likelihood.load_state_dict(source.likelihood.state_dict())


def base_kernel(model: SingleTaskGP) -> Kernel:
    """The innermost kernel, with the lengthscale."""
    kernel = model.covar_module.base_kernel
    return kernel.base_kernel if isinstance(kernel, (MaxKernel, OrbitAverageKernel, CanonicalKernel)) else kernel
