"""The policy's network in torch, for training, with exact log-probabilities of what was done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Beta
from torch.nn.functional import softplus

from cameraready.methods.mip_cuts.features import N_CUT
from cameraready.methods.mip_cuts.policy import LAYERS, Policy

HEADS = ("opening", "order", "keep", "stop")


@dataclass(frozen=True)
class Step:
    """A decision and its circumstances, as the trainer keeps it.

    Parameters
    ----------
    cuts, overall : features, (n, 24) and (16,).
    opening : whether it is an episode's first decision, which has ``families`` alone.
    order : the candidates that entered, best first.
    keep, stop, families : as in the environment's action.
    """

    cuts: np.ndarray
    overall: np.ndarray
    opening: bool
    order: np.ndarray
    keep: float
    stop: bool
    families: np.ndarray


@dataclass(frozen=True)
class Batch:
    """Steps padded to their largest number of candidates."""

    cuts: Tensor
    mask: Tensor
    overall: Tensor
    opening: Tensor
    order: Tensor
    count: Tensor
    keep: Tensor
    stop: Tensor
    families: Tensor

    @classmethod
    def of(cls, steps: list[Step]) -> Batch:
        size = max(1, max(len(step.cuts) for step in steps))
        cuts = np.zeros((len(steps), size, N_CUT), dtype=np.float32)
        mask = np.zeros((len(steps), size), dtype=bool)
        order = np.zeros((len(steps), size), dtype=np.int64)
        for i, step in enumerate(steps):
            cuts[i, : len(step.cuts)] = step.cuts
            mask[i, : len(step.cuts)] = True
            left = np.setdiff1d(np.arange(size), step.order)  # any order: only the taken ones' is scored
            order[i] = np.concatenate([step.order, left])
        return cls(
            torch.from_numpy(cuts), torch.from_numpy(mask),
            torch.from_numpy(np.stack([step.overall for step in steps]).astype(np.float32)),
            torch.tensor([step.opening for step in steps]), torch.from_numpy(order),
            torch.tensor([len(step.order) for step in steps]),
            torch.tensor([step.keep for step in steps], dtype=torch.float32).clamp(1e-3, 1 - 1e-3),
            torch.tensor([float(step.stop) for step in steps]),
            torch.from_numpy(np.stack([step.families for step in steps]).astype(np.float32)),
        )  # fmt: skip


class PolicyNetwork(nn.Module):
    """`Policy` with gradients: the same layers, on padded batches."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(*shape) for name, shape in LAYERS.items()})
        with torch.no_grad():
            for name, layer in self.layers.items():
                layer.weight.copy_(torch.from_numpy(policy.weights[f"{name}.w"].T.copy()))
                layer.bias.copy_(torch.from_numpy(policy.weights[f"{name}.b"].copy()))

    def policy(self, made_by: str = "") -> Policy:
        """The weights for numpy."""
        weights = {}
        for name, layer in self.layers.items():
            weights[f"{name}.w"] = layer.weight.detach().numpy().T.copy()
            weights[f"{name}.b"] = layer.bias.detach().numpy().copy()
        return Policy(weights, made_by)

    def forward(self, batch: Batch) -> tuple[Tensor, Beta, Bernoulli, Bernoulli, Tensor]:
        """Scores (b, n), fraction kept, stop gate, opened families, value (b,)."""
        net, mask = self.layers, batch.mask[..., None]
        overall = batch.overall[:, None].expand(-1, batch.cuts.shape[1], -1)
        hidden = torch.tanh(net["encode_1"](torch.cat([batch.cuts, overall], dim=-1)))
        hidden = torch.tanh(net["encode_2"](hidden))
        some = batch.mask.any(dim=1, keepdim=True)
        mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        most = hidden.masked_fill(~mask, -2.0).amax(dim=1) * some
        pooled = torch.cat([mean, most], dim=-1)
        beside = torch.cat([hidden, pooled[:, None].expand(-1, hidden.shape[1], -1)], dim=-1)
        scores = net["score_2"](torch.tanh(net["score_1"](beside)))[..., 0]
        context = torch.cat([pooled, batch.overall], dim=-1)
        alpha, beta = (1 + softplus(net["keep"](context))).unbind(dim=-1)
        opening = net["open_2"](torch.tanh(net["open_1"](batch.overall)))
        value = net["value_2"](torch.tanh(net["value_1"](context)))[:, 0]
        stop = Bernoulli(logits=net["stop"](context)[:, 0])
        return scores, Beta(alpha, beta), stop, Bernoulli(logits=opening), value


def log_probabilities(network: PolicyNetwork, batch: Batch) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Log-probability of each head's part of the decisions, (b,) each; entropy of the gates (b,); value (b,).

    The order's is that of Plackett and Luce for the ordered candidates that entered: sum over them of
    score - logsumexp(scores of those not yet taken). Parts that a step does not have are 0.
    """
    scores, keep, stop, opening, value = network(batch)
    scores = scores.masked_fill(~batch.mask, -1e9).gather(1, batch.order)
    left = scores.flip(1).logcumsumexp(dim=1).flip(1)
    taken = torch.arange(scores.shape[1]) < batch.count[:, None]
    rounds, opens = (~batch.opening).float(), batch.opening.float()
    parts = {
        "opening": opening.log_prob(batch.families).sum(dim=1) * opens,
        "order": ((scores - left) * taken).sum(dim=1) * rounds,
        "keep": keep.log_prob(batch.keep) * rounds,
        "stop": stop.log_prob(batch.stop) * rounds,
    }
    entropy = opens * opening.entropy().sum(dim=1) + rounds * (stop.entropy() + keep.entropy())
    return parts, entropy, value
