"""The DPO loss of a pair, and a sequence's log-probability under a causal language model."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Kind = Literal["sigmoid", "ipo"]


def dpo_loss(
    policy_chosen_logps: Tensor,
    policy_rejected_logps: Tensor,
    ref_chosen_logps: Tensor,
    ref_rejected_logps: Tensor,
    *,
    beta: float | Tensor = 0.1,
    label_smoothing: float = 0.0,
    kind: Kind = "sigmoid",
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """Direct preference optimisation's loss, from log pi(y|x) of chosen and rejected answers.

    With h = [log pi - log pi_ref](chosen) - [log pi - log pi_ref](rejected):
    "sigmoid" is -(1 - eps) log sigmoid(beta h) - eps log sigmoid(-beta h), "ipo" is (h - 1 / (2 beta))^2.

    Parameters
    ----------
    policy_chosen_logps, policy_rejected_logps, ref_chosen_logps, ref_rejected_logps : shape (pairs,); summed over the
        completion's tokens, or averaged (what "ipo" is meant for, and trl does).
    beta : strength of the anchor to the reference policy, in 1 / nats.
    label_smoothing : eps in [0, 0.5), the assumed share of flipped labels; only for "sigmoid".
    reduction : "mean" or "sum" over pairs, or "none" for shape (pairs,).

    Raises
    ------
    ValueError : beta that is not positive, label_smoothing out of range, an unknown kind or reduction, other shapes.

    Examples
    --------
    >>> zero = torch.zeros(3)
    >>> dpo_loss(zero, zero, zero, zero)  # a policy that equals its reference: log 2
    tensor(0.6931)
    """
    check_loss(beta, label_smoothing=label_smoothing, kind=kind)
    logps = (policy_chosen_logps, policy_rejected_logps, ref_chosen_logps, ref_rejected_logps)
    shapes = {tuple(x.shape) for x in logps}
    if len(shapes) > 1:  # broadcasting would compare each pair with all others
        raise ValueError(f"log-probabilities of different shapes {sorted(shapes)}; give one number a pair in each")
    margin = (policy_chosen_logps - ref_chosen_logps) - (policy_rejected_logps - ref_rejected_logps)
    losses = pair_losses(margin, beta=beta, label_smoothing=label_smoothing, kind=kind)
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction={reduction!r}; choose 'mean', 'sum' or 'none'")
    return losses if reduction == "none" else getattr(losses, reduction)()


def pair_losses(margin: Tensor, *, beta: float | Tensor, label_smoothing: float, kind: Kind) -> Tensor:
    """`dpo_loss` of margins h, unchecked and without reduction."""
    if kind == "ipo":
        return (margin - 1 / (2 * beta)) ** 2
    losses = -(1 - label_smoothing) * F.logsigmoid(beta * margin)
    return losses - label_smoothing * F.logsigmoid(-beta * margin) if label_smoothing else losses


def check_loss(beta: float | Tensor, *, label_smoothing: float, kind: str) -> None:
    if not bool(torch.as_tensor(beta > 0).all()):
        raise ValueError(f"beta={beta}; it must be positive, 0.1 is usual")
    if kind not in ("sigmoid", "ipo"):
        raise ValueError(f"kind={kind!r}; choose 'sigmoid' or 'ipo'")
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing={label_smoothing} is not in [0, 0.5): from one half on, labels say nothing")
    if kind == "ipo" and label_smoothing:
        raise ValueError(f"label_smoothing={label_smoothing} has no meaning for kind='ipo'; leave it at 0")


def sequence_logps(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    completion_mask: Tensor,
    *,
    length_normalized: bool = False,
) -> Tensor:
    """Log-probability of each completion: the sum over its tokens, or their mean.

    Parameters
    ----------
    model : callable with ``input_ids`` and ``attention_mask`` that returns logits (batch, length, vocabulary), or an
        object with ``.logits`` (any causal language model of transformers).
    input_ids, attention_mask, completion_mask : shape (batch, length); the latter is 1 on the completion's tokens.

    Returns
    -------
    Tensor of shape (batch,).
    """
    output = model(input_ids=input_ids, attention_mask=attention_mask)
    logits = (output.logits if hasattr(output, "logits") else output)[:, :-1]
    targets, mask = input_ids[:, 1:], completion_mask[:, 1:].to(logits.dtype)
    # cross_entropy works in one pass, without a second array of the logits' size
    logps = -F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    total = (logps * mask).sum(dim=1)
    return total / mask.sum(dim=1).clamp(min=1) if length_normalized else total
