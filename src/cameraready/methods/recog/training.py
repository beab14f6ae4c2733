"""Episodic training on old assays; assays that are held out from it weigh the readout and stop it.

A dozen assays are few: the network soon knows them by heart, and what it then says about a new one is noise, which its
own loss cannot show. So the numbers that weigh the readout's parts (rho, c, s, kappa, sharpness) are fitted twice: with
the network, to train it, and on episodes of the held-out tasks, which is the copy that is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from cameraready.methods.recog.episodes import Episodes, assemble, draw_episode
from cameraready.methods.recog.label_statistics import LabelStatistics
from cameraready.methods.recog.network import Output, ReCoGNetwork
from cameraready.methods.recog.table import MoleculeTable

N_QUERIES = 48
TASKS_PER_STEP = 4
HELD_OUT_PER_STEP = 2
CHECK_EVERY = 50
CHECKS = 4  # episodes of each held-out task
CHECK_QUERIES = 256
OPEN_RATES = (0.5, 0.2)  # r, from the first step to the last


@dataclass(frozen=True)
class Schedule:
    """How `train` trains."""

    steps: int
    shots: int
    beta: float
    learning_rate: float
    weight_decay: float
    inner_rate: float | None  # of the one step on the support (MAML); None: the forward pass alone adapts


def train(
    network: ReCoGNetwork,
    table: MoleculeTable,
    statistics: LabelStatistics,
    *,
    targets: NDArray[np.intp],
    held_out: NDArray[np.intp],
    schedule: Schedule,
    rng: np.random.Generator,
    device: torch.device,
) -> pd.DataFrame:
    """Train in place, and return to the step at which the held-out tasks had the best mean AUC (step 0 included).

    Returns the history: step, loss, compression and, where checked, the held-out AUC. Without held-out tasks the
    readout keeps the weights it starts with: the evidence and the vote.
    """
    columns = ["step", "loss", "compression", "held_out_auc"]
    if schedule.steps == 0:
        network.eval()
        return pd.DataFrame(columns=columns)
    kept = network.weigh()
    others = [value for name, value in network.named_parameters() if name not in kept]
    weights = [value for name, value in network.named_parameters() if name in kept]
    # The weights of the readout are of order 1, and 300 steps of 1e-3 could hardly move them.
    fast = {"lr": 10 * schedule.learning_rate, "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(
        [{"params": others}, {"params": weights, **fast}],
        lr=schedule.learning_rate,
        weight_decay=schedule.weight_decay,
        fused=True,
    )
    weigher = torch.optim.AdamW([{"params": list(kept.values()), **fast}], fused=True)

    def episodes_of(chosen: NDArray[np.intp], n_queries: int, augment: np.random.Generator | None) -> Episodes:
        draws = [
            draw_episode(table.labels, target, shots=schedule.shots, n_queries=n_queries, rng=rng) for target in chosen
        ]
        return assemble(draws, table, statistics, network.encoder, device=device, augment=augment)

    check = episodes_of(np.repeat(held_out, CHECKS), CHECK_QUERIES, None) if len(held_out) else None
    history: list[dict[str, float]] = []
    best, best_state = -np.inf, copy.deepcopy(network.state_dict())
    for step in range(schedule.steps + 1):
        if check is not None and (step % CHECK_EVERY == 0 or step == schedule.steps):
            auc = _held_out_auc(network, kept, check, schedule.inner_rate)
            history.append({"step": step, "held_out_auc": auc})
            if auc > best:
                best, best_state = auc, copy.deepcopy({**network.state_dict(), **kept})
        if step == schedule.steps:
            break
        progress = step / max(schedule.steps - 1, 1)
        chosen = rng.choice(targets, size=TASKS_PER_STEP, replace=len(targets) < TASKS_PER_STEP)
        network.train()
        episodes = episodes_of(chosen, N_QUERIES, rng)
        loss, kl = episode_loss(network, episodes, schedule.inner_rate, _open_rate(progress))
        optimizer.zero_grad()
        (loss + schedule.beta * kl).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        history.append({"step": step, "loss": loss.item(), "compression": kl.item()})
        if len(held_out):
            network.eval()
            episodes = episodes_of(rng.choice(held_out, size=HELD_OUT_PER_STEP), N_QUERIES, None)
            fixed = {name: value.detach() for name, value in network.named_parameters()}
            loss = _cross_entropy(functional_call(network, {**fixed, **kept}, (episodes,)).logits, episodes)
            gradients = torch.autograd.grad(loss, list(kept.values()), materialize_grads=True)
            for value, gradient in zip(kept.values(), gradients, strict=True):
                value.grad = gradient
            weigher.step()
    if len(held_out) == 0:
        best_state = {**network.state_dict(), **kept}
    network.load_state_dict(best_state)
    network.eval()
    return pd.DataFrame(history, columns=columns).groupby("step").first().reset_index()


def _open_rate(progress: float) -> float:
    """r, the share of context edges that counts as normal, from the first step (0) to the last (1)."""
    return OPEN_RATES[0] * (1 - progress) + OPEN_RATES[1] * progress


def episode_loss(
    network: ReCoGNetwork, episodes: Episodes, inner_rate: float | None, open_rate: float
) -> tuple[Tensor, Tensor]:
    """Mean binary cross-entropy of the queries (see `_two_losses`), and the compression term."""
    if inner_rate is None:
        output = network(episodes, open_rate=open_rate)
        return _two_losses(output, episodes), output.kl
    parts = [episodes.one(b) for b in range(len(episodes.query))]
    outputs = []
    for part in parts:
        parameters = inner_step(network, part, inner_rate, differentiable=True)
        outputs.append(functional_call(network, parameters, (part,), {"open_rate": open_rate}))
    losses = [_two_losses(output, part) for output, part in zip(outputs, parts, strict=True)]
    return torch.stack(losses).mean(), torch.stack([output.kl for output in outputs]).mean()


def _two_losses(output: Output, episodes: Episodes) -> Tensor:
    """Of evidence and vote by themselves, and of what is learned beyond them.

    One loss of their sum would shut the gates: once the network knows the training assays by heart, it does without
    evidence, which is all there is in a new one.
    """
    learned = output.logits - output.base
    return _cross_entropy(output.base, episodes) + _cross_entropy(output.base.detach() + learned, episodes)


def inner_step(
    network: ReCoGNetwork,
    episode: Episodes,
    rate: float,
    *,
    kept: Mapping[str, Tensor] | None = None,
    differentiable: bool = False,
) -> dict[str, Tensor]:
    """Parameters after one gradient step on one episode's support, each half asked by the other.

    `kept` takes the place of some of the network's own parameters.
    """
    parameters = {**dict(network.named_parameters()), **(kept or {})}
    halves = episode.halves()
    if not halves:
        return parameters
    losses = [_cross_entropy(functional_call(network, parameters, (half,)).logits, half) for half in halves]
    gradients = torch.autograd.grad(
        torch.stack(losses).mean(), list(parameters.values()), create_graph=differentiable, materialize_grads=True
    )
    return {
        name: value - rate * gradient for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
    }


def _cross_entropy(logits: Tensor, episodes: Episodes) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits[episodes.query_is], episodes.query_y[episodes.query_is])


def _held_out_auc(network: ReCoGNetwork, kept: dict[str, Tensor], check: Episodes, inner_rate: float | None) -> float:
    """Mean over the episodes, with these weights of the readout."""
    network.eval()
    if inner_rate is None:
        with torch.no_grad():
            logits = functional_call(network, kept, (check,)).logits
    else:
        parts = [check.one(b) for b in range(len(check.query))]
        moved = [inner_step(network, part, inner_rate, kept=kept) for part in parts]
        with torch.no_grad():
            outputs = [functional_call(network, each, (part,)) for each, part in zip(moved, parts, strict=True)]
        logits = torch.cat([output.logits for output in outputs])
    return mean_auc(logits, check)


def mean_auc(logits: Tensor, episodes: Episodes) -> float:
    """Mean over the episodes of their queries' ROC-AUC."""
    arrays = (tensor.cpu().numpy() for tensor in (episodes.query_y, logits, episodes.query_is))
    return float(np.mean([roc_auc_score(y[asked], z[asked]) for y, z, asked in zip(*arrays, strict=True)]))
