"""`MaxKernelGP`: BoTorch's SingleTaskGP that knows the symmetries of the objective."""

from __future__ import annotations

import copy
import math
from typing import Any

import gpytorch
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from gpytorch.models.exact_prediction_strategies import prediction_strategy
from gpytorch.priors import GammaPrior, LogNormalPrior
from torch import Tensor

from cameraready.methods.max_kernel.groups import Group
from cameraready.methods.max_kernel.max_kernel import MaxKernel, Variance
from cameraready.methods.max_kernel.transforms import fit_transform_to_group


class MaxKernelGP(SingleTaskGP):
    """`SingleTaskGP` with a `MaxKernel`, whose landmarks follow the training inputs.

    Parameters
    ----------
    train_X, train_Y, train_Yvar : tensors ``(..., n, d)``, ``(..., n, m)`` and, where the noise is known, ``(..., n,
    m)``
    group : Group
        Symmetries of the objective, in the units of ``train_X``. A centre left at its default is the middle of the
        kernel's cube: 0.5 without an input transform, the middle of the bounds with `Normalize`.
    base_kernel : gpytorch Kernel, optional
        Default: Matern-5/2 with one lengthscale and BoTorch's prior that grows with sqrt(d).
    variance, eig_tol : see `MaxKernel`.
    likelihood, mean_module, outcome_transform, input_transform : see `SingleTaskGP`.
        A `Normalize` without bounds gets equal ranges for coordinates that the group mixes.

    Raises
    ------
    ValueError : NaN or infinity in the data; a group of another dimension; a transform that breaks the symmetry.
    TypeError : integer inputs.

    Examples
    --------
    >>> import torch
    >>> from botorch.fit import fit_gpytorch_mll
    >>> from gpytorch.mlls import ExactMarginalLogLikelihood
    >>> from cameraready.methods.max_kernel import MaxKernelGP, Permutations
    >>> X = torch.rand(12, 3, dtype=torch.float64)
    >>> gp = MaxKernelGP(X, X.sin().prod(-1, keepdim=True), group=Permutations(3))
    >>> _ = fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    >>> mean = gp.posterior(torch.stack([X[0], X[0].flip(0)])).mean
    >>> bool(torch.allclose(mean[0], mean[1]))
    True
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        *,
        group: Group,
        base_kernel: Kernel | None = None,
        variance: Variance = "corrected",
        eig_tol: float = 1e-8,
        likelihood: Likelihood | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
    ) -> None:
        if not isinstance(group, Group):
            raise TypeError(f"group={group!r} is not a Group; pass an instance such as BlockPermutations(4, 2)")
        group.check_points(train_X)
        if not torch.isfinite(train_Y).all():
            raise ValueError("train_Y holds NaN or infinity; remove these rows before fitting")
        input_transform, kernel_group = fit_transform_to_group(input_transform, group, train_X)
        batch = train_X.shape[:-2] + (train_Y.shape[-1:] if train_Y.shape[-1] > 1 else torch.Size())
        kernel = MaxKernel(base_kernel or matern(group.dim, batch), kernel_group, variance=variance, eig_tol=eig_tol)
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            likelihood=likelihood,
            mean_module=mean_module,
            covar_module=scaled(kernel),
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        self.group = group
        with torch.no_grad():
            kernel.set_landmarks(self.transform_inputs(self.train_inputs[0]))

    @property
    def max_kernel(self) -> MaxKernel:
        """The `MaxKernel` under the output scale."""
        return self.covar_module.base_kernel

    def train(self, mode: bool = True) -> MaxKernelGP:
        super().train(mode)
        self._refresh_landmarks()
        return self

    def set_train_data(self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True) -> None:
        super().set_train_data(inputs, targets, strict)
        self._refresh_landmarks()

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> MaxKernelGP:
        """This model with more data, landmarks included.

        The new landmarks change the kernel on the old data as well, so the caches are built afresh instead of updated.
        Called by `condition_on_observations` and `fantasize`.
        """
        noise = {"noise": kwargs.pop("noise")} if "noise" in kwargs else {}
        old_X, old_y = self.train_inputs[0], self.train_targets
        X_batch = torch.broadcast_shapes(old_X.shape[:-2], inputs.shape[:-2])
        batch = torch.broadcast_shapes(X_batch, old_y.shape[:-1], targets.shape[:-1])
        X = torch.cat([old_X.expand(*X_batch, *old_X.shape[-2:]), inputs.expand(*X_batch, *inputs.shape[-2:])], dim=-2)
        y = torch.cat([old_y.expand(*batch, old_y.shape[-1]), targets.expand(*batch, targets.shape[-1])], dim=-1)
        twin = self._copy_without_data()
        twin.likelihood = self.likelihood.get_fantasy_likelihood(**noise)
        twin.train_inputs = (X.expand(*batch, *X.shape[-2:]),)
        twin.train_targets = y
        twin.max_kernel.set_landmarks(X)  # shared by all fantasies at the same points
        # Without detaching: the gradient of a look-ahead acquisition runs through the fantasised inputs.
        with gpytorch.settings.detach_test_caches(False), gpytorch.settings.fast_pred_var():
            prior = twin._get_train_prior_distribution(list(twin.train_inputs))
            twin.prediction_strategy = prediction_strategy(list(twin.train_inputs), prior, y, twin.likelihood)
            _ = twin.prediction_strategy.mean_cache, twin.prediction_strategy.covar_cache
        return twin

    def _copy_without_data(self) -> MaxKernelGP:
        names = ("prediction_strategy", "train_inputs", "train_targets", "likelihood")
        held = {name: getattr(self, name) for name in names}
        try:
            for name in names:
                setattr(self, name, None)
            return copy.deepcopy(self)
        finally:
            for name, value in held.items():
                setattr(self, name, value)

    def _refresh_landmarks(self) -> None:
        # ExactGP's and Module's constructors call this before there is a kernel
        if "covar_module" in self._modules and not self.training and self.train_inputs is not None:
            self.max_kernel.set_landmarks(self.train_inputs[0])


def matern(dim: int, batch_shape: torch.Size = torch.Size()) -> Kernel:  # noqa: B008
    """Matern-5/2 with one lengthscale and BoTorch's log-normal prior, whose mode grows with sqrt(d)."""
    prior = LogNormalPrior(math.sqrt(2.0) + 0.5 * math.log(dim), math.sqrt(3.0))
    floor = GreaterThan(2.5e-2, transform=None, initial_value=prior.mode)
    return MaternKernel(nu=2.5, batch_shape=batch_shape, lengthscale_prior=prior, lengthscale_constraint=floor)


def scaled(kernel: Kernel) -> ScaleKernel:
    """The kernel under an output scale with BoTorch's Gamma(2, 0.15) prior."""
    return ScaleKernel(kernel, batch_shape=kernel.batch_shape, outputscale_prior=GammaPrior(2.0, 0.15))
