"""What the meters are compared with: curvlinops' Hessian, and norms that predict the generalisation gap elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import nn

from cameraready.methods.stable_minima.two_layer import TwoLayer


def curvlinops_lambda_max(model: nn.Module, loss_fn: nn.Module, batches: Iterable[Any], *, tolerance: float) -> float:
    """Largest Hessian eigenvalue by curvlinops and scipy's eigsh, as its documentation has it, from a fixed start."""
    import warnings

    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import eigsh

    parameters = [p for p in model.parameters() if p.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operator = HessianLinearOperator(model, loss_fn, parameters, batches, check_deterministic=False).to_scipy()
        start = np.random.default_rng(0).normal(size=operator.shape[0]).astype(operator.dtype)
        return float(eigsh(operator, k=1, which="LA", tol=tolerance, v0=start, return_eigenvectors=False)[0])


def complexity_measures(net: TwoLayer, X: np.ndarray) -> dict[str, float]:
    """Norms of a two-layer network from the literature, each of which bounds its gap up to constants.

    path norm (Neyshabur et al. 2015); product of spectral norms; and the spectral bound with its (2, 1) norms, which
    Bartlett, Foster and Telgarsky (2017) divide by the margin: regression has none, so the margin is 1 here.
    """
    A = np.column_stack([net.W, net.b])
    radius = float(np.sqrt(1 + np.linalg.norm(X, axis=1).max() ** 2))
    first, second = float(np.linalg.norm(A, 2)), float(np.linalg.norm(net.v))
    # |A'|_{2,1} sums the norms of A's rows, of which the output layer has one.
    ratios = (np.linalg.norm(A, axis=1).sum() / first) ** (2 / 3) + 1.0
    return {
        "path norm": float(np.abs(net.v) @ np.linalg.norm(A, axis=1)),
        "spectral norms": first * second * radius,
        "margin bound": first * second * radius * float(ratios) ** 1.5,
    }
