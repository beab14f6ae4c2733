"""Energy gradients in closed form, the influence of a training node on the validation loss, and weights from both.

The energy of a binary logit s is E(s) = -log(1 + e^s), so dE/ds = -sigma(s). (A logsumexp over the single logit, as
in the official script, is -s, whose gradient is the same for every node.) Gradients are those of the last layer.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def energy(logit: Tensor) -> Tensor:
    """E(s) = -softplus(s)."""
    return -F.softplus(logit)


def energy_loss(logit: Tensor, influences: Tensor, *, scale: float = 0.1) -> Tensor:
    """mean_i beta_i E(s_i) with beta_i = -``scale`` I_i / max |I|, I held fixed.

    The minus lets a step on this term lower the validation loss: a positive I says that weighting the energy up raises
    it.
    """
    beta = -scale * influences / influences.abs().max().clamp(min=1e-12)
    return (beta * energy(logit)).mean()


def energy_gradients(logit: Tensor, penultimate: Tensor) -> Tensor:
    """Gradient of each node's energy in the last layer's weights and bias, -sigma(s_i) [a_i, 1]: shape (n, 33)."""
    return -torch.sigmoid(logit)[:, None] * _with_bias(penultimate)


def influence(
    logit: Tensor,
    penultimate: Tensor,
    *,
    val_logit: Tensor,
    val_penultimate: Tensor,
    val_target: Tensor,
    damping: float = 1e-3,
) -> Tensor:
    """I_i = -g' H^-1 e_i: how the validation loss moves when node i's energy is weighted up. Shape (n,).

    g is the validation loss's gradient, H the training loss's exact logistic Hessian in the last layer plus
    ``damping`` times its mean eigenvalue.
    """
    a, val_a = _with_bias(penultimate), _with_bias(val_penultimate)
    p = torch.sigmoid(logit)
    hessian = (a * (p * (1 - p))[:, None]).T @ a / len(a)
    size = len(hessian)
    # Saturated logits give a Hessian of zeros, which damping in proportion to it would not mend.
    ridge = damping * hessian.trace() / size + 1e-8
    hessian = hessian + ridge * torch.eye(size, dtype=a.dtype, device=a.device)
    gradient = ((torch.sigmoid(val_logit) - val_target)[:, None] * val_a).mean(dim=0)
    solved = torch.cholesky_solve(gradient[:, None], torch.linalg.cholesky(hessian))[:, 0]
    return -energy_gradients(logit, penultimate) @ solved


def sample_weights(logit: Tensor, penultimate: Tensor, influences: Tensor, target: Tensor) -> Tensor:
    """Weights from uncertainty, sigma(1 - sigma)|a_i|, and influence, half each by rank; mean 1 in each class.

    Shape (n,), about between 0.2 and 5; equal values get equal weights.
    """
    p = torch.sigmoid(logit)
    uncertainty = p * (1 - p) * _with_bias(penultimate).norm(dim=1)
    raw = torch.exp(_rank01(uncertainty) + _rank01(influences.abs()))  # exp(2 r), r the mean of the two ranks
    weights = torch.empty_like(raw)
    for side in (target > 0.5, target <= 0.5):
        if side.any():
            clipped = (raw[side] / raw[side].mean()).clamp(0.2, 5)
            weights[side] = clipped / clipped.mean()
    return weights


def _with_bias(a: Tensor) -> Tensor:
    return torch.cat([a, torch.ones_like(a[:, :1])], dim=1)


def _rank01(values: Tensor) -> Tensor:
    """Mean ranks scaled to [0, 1]; one value, or equal ones, have 0.5."""
    if len(values) == 1:
        return torch.full_like(values, 0.5)
    _, place, count = torch.unique(values, return_inverse=True, return_counts=True)
    first = count.cumsum(0) - count
    return ((first + (count - 1) / 2)[place] / (len(values) - 1)).to(values.dtype)
