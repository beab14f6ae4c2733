"""The learning rate whose edge of stability holds the weighted path norm below a wanted value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from cameraready.methods.stable_minima.curvature import read_batches
from cameraready.methods.stable_minima.relu_report import pathnorm_bound, relu_report


def suggest_lr(model: nn.Module, loader: Iterable[Any], *, target_pathnorm: float) -> float:
    """The learning rate 2 / lambda below whose edge of stability the weighted path norm is at most as wanted.

    Below the edge the stability inequality bounds the path norm by (lambda - 1 + sqrt(1 + R^2) sqrt(2 L)) / 2. For a
    path norm p that is solved for lambda = 2 p + 1 - sqrt(1 + R^2) sqrt(2 L) at the present training loss L; as L
    falls the bound does too.

    Parameters
    ----------
    model : a two-layer ReLU network.
    loader : the training data: yields (x, y), or is one pair (X, y).
    target_pathnorm : the bound wanted on the weighted path norm.

    Returns
    -------
    The learning rate of full-batch gradient descent on ``torch.nn.MSELoss``, a mean over examples and outputs.

    Raises
    ------
    ValueError : a target out of reach at the present loss; an architecture out of the theory.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> X = torch.zeros(4, 3)
    >>> round(suggest_lr(net, (X, net(X).detach()), target_pathnorm=4.5), 4)  # at zero loss lambda = 2 p + 1 = 10,
    0.1
    """
    if not target_pathnorm > 0:
        raise ValueError(f"target_pathnorm={target_pathnorm} must be positive")
    batches, _, _ = read_batches(loader, None)
    X, y = (torch.cat([torch.as_tensor(part) for part in parts]) for parts in zip(*batches, strict=True))
    report = relu_report(model, X, y)
    if not report.block.whole:
        raise ValueError(f"target_pathnorm: {report.bound_rhs}")
    least, outputs = pathnorm_bound(0.0, report.loss, report.radius, report.block), len(report.block.V)
    if target_pathnorm <= least:
        raise ValueError(
            f"target_pathnorm={target_pathnorm:g} is out of reach at the present loss {report.loss:.4g}: at any "
            f"sharpness the bound is above {least:.4g}; train further, or ask for more"
        )
    lambda_max = 2 * (target_pathnorm - least) / np.sqrt(outputs)  # the bound grows by sqrt(C) / 2 per unit of lambda
    return float(outputs / lambda_max)  # MSELoss is 2 / C times the loss of the theory
