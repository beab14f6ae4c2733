"""Adversarial imitation of the solver's cut selection (GAIL; Ho and Ermon, 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from cameraready.methods.mip_cuts.environment import CutSelectionEnv, Reward
from cameraready.methods.mip_cuts.families import FAMILIES
from cameraready.methods.mip_cuts.features import N_CUT, N_GLOBAL
from cameraready.methods.mip_cuts.network import Batch, PolicyNetwork, Step, log_probabilities
from cameraready.methods.mip_cuts.policy import Policy
from cameraready.methods.mip_cuts.ppo import PPO, Episode, rollout
from cameraready.methods.mip_cuts.recorder import ExpertData

N_JUDGED = N_CUT + N_GLOBAL + 2
GRADIENT_PENALTY, LABEL_NOISE = 10.0, 0.05
LEAST_UPDATES = 3  # before them the discriminator has learned too little to judge by
ENOUGH = 0.6  # the discriminator's accuracy below which imitation is done
IMITATED = ("order", "keep", "stop")


@dataclass(frozen=True)
class Imitation:
    """An imitated policy, the cloned one it began with, and its curve: the discriminator's accuracy after each update,
    and the overlap with the expert before the first and after each."""

    policy: Policy
    cloned: Policy
    accuracy: tuple[float, ...]
    overlap: tuple[float, ...]


def judged(cuts: np.ndarray, overall: np.ndarray, taken: np.ndarray, stop: bool) -> np.ndarray:
    """What the discriminator sees of a decision: mean features of the taken minus the rejected cuts, the global
    features, the share that was taken and whether separation ends; shape (42,)."""
    inside = cuts[taken].mean(axis=0) if taken.any() else np.zeros(N_CUT)
    outside = cuts[~taken].mean(axis=0) if not taken.all() else np.zeros(N_CUT)
    share = taken.mean() if len(taken) else 0.0
    return np.concatenate([inside - outside, overall, [share, float(stop)]]).astype(np.float32)


def overlap_and_auc(policy: Policy, data: ExpertData) -> tuple[float, float]:
    """Overlap of the policy's k best cuts with the k that SCIP took, and the area under the curve of its scores.

    Means over the rounds in which SCIP took some but not all of the candidates.
    """
    overlaps, areas = [], []
    for cuts, taken, overall, _ in data.rounds():
        if 0 < taken.sum() < len(taken):
            overlap, area = agreement(policy.round(cuts, overall).scores, taken)
            overlaps.append(overlap)
            areas.append(area)
    return float(np.mean(overlaps)), float(np.mean(areas))


def agreement(scores: np.ndarray, taken: np.ndarray) -> tuple[float, float]:
    """Top-k overlap and area under the curve of one round's scores."""
    best = np.argsort(-scores, kind="stable")[: taken.sum()]
    ahead = scores[taken][:, None] - scores[~taken][None]
    return float(taken[best].mean()), float((ahead > 0).mean() + 0.5 * (ahead == 0).mean())


def clone(network: PolicyNetwork, data: ExpertData, *, rng: np.random.Generator, epochs: int = 1) -> None:
    """Behavioural cloning: maximise the likelihood of SCIP's sets. Their order is not known, so it is drawn anew."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    rounds = [part for part in data.rounds() if len(part[1])]
    for _ in range(epochs):
        for part in np.array_split(rng.permutation(len(rounds)), max(1, len(rounds) // 8)):
            steps = []
            for cuts, taken, overall, last in (rounds[i] for i in part):
                order = rng.permutation(np.flatnonzero(taken))
                steps.append(Step(cuts, overall, False, order, taken.mean(), last, np.ones(len(FAMILIES))))
            logs, _, _ = log_probabilities(network, Batch.of(steps))
            count = torch.tensor([max(1, len(step.order)) for step in steps])
            loss = -(logs["order"] / count + logs["keep"] + logs["stop"]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class Discriminator(nn.Module):
    """Tells the solver's decisions (1) from the policy's (0)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(N_JUDGED, 64), nn.Tanh(), nn.Linear(64, 1))
        self.optimizer = torch.optim.Adam(self.parameters(), lr=3e-4)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[..., 0]

    def reward(self, x: np.ndarray) -> np.ndarray:
        """-log(1 - D), which is softplus of the logit."""
        with torch.no_grad():
            return softplus(self(torch.from_numpy(x))).numpy()

    def update(self, expert: np.ndarray, policy: np.ndarray, *, rng: np.random.Generator, steps: int = 20) -> float:
        """Train on equal halves; returns the balanced accuracy after it."""
        size = min(128, len(expert), len(policy))
        for _ in range(steps):
            real = torch.from_numpy(expert[rng.integers(len(expert), size=size)])
            made = torch.from_numpy(policy[rng.integers(len(policy), size=size)])
            x = torch.cat([real, made])
            labels = torch.cat([torch.ones(size), torch.zeros(size)])
            labels = torch.where(torch.rand(2 * size) < LABEL_NOISE, 1 - labels, labels)
            share = torch.rand(size, 1)
            between = (share * real + (1 - share) * made).requires_grad_()
            (slope,) = torch.autograd.grad(self(between).sum(), between, create_graph=True)
            penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
            loss = binary_cross_entropy_with_logits(self(x), labels) + GRADIENT_PENALTY * penalty
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        with torch.no_grad():
            right = (self(torch.from_numpy(expert)) > 0).float().mean() + (
                self(torch.from_numpy(policy)) <= 0
            ).float().mean()
        return float(right / 2)


def train_gail(
    instances: Sequence[str | Path],
    data: ExpertData,
    *,
    episodes: int = 60,
    batch: int = 6,
    cloning_epochs: int = 10,
    seed: int = 0,
    time_limit: float = 10.0,
) -> Imitation:
    """Imitate SCIP's choices at the roots of the instances.

    Starts by behavioural cloning; then the discriminator's verdicts are PPO's rewards. Ends when the
    discriminator is right in less than 60 % of cases, when the overlap with the expert has not risen for five updates,
    or after ``episodes``. The policy of the best overlap is returned.

    Parameters
    ----------
    instances : model files to act on.
    data : what `record_expert` wrote.
    batch : episodes for an update.
    cloning_epochs : one is enough for thousands of recorded rounds; of a few hundred it makes 30 small steps.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    network = PolicyNetwork(Policy.initial(seed=seed))
    clone(network, data, rng=rng, epochs=cloning_epochs)
    expert = np.stack([judged(c, g, t, last) for c, t, g, last in data.rounds()])
    judge, ppo = Discriminator(), PPO(network)
    policies, accuracy, overlap = [network.policy()], [], [overlap_and_auc(network.policy(), data)[0]]

    def verdicts(episode: Episode) -> list[float]:
        return [0.0 if step.opening else float(judge.reward(_judged_step(step))) for step in episode.steps]

    with CutSelectionEnv(instances, mode="root", time_limit=time_limit, reward=Reward(0, 0, 0, 0)) as env:
        for _ in range(max(1, episodes // batch)):
            policy = network.policy()
            done = [rollout(env, policy, rng, all_families=True) for _ in range(batch)]
            made = [_judged_step(step) for episode in done for step in episode.steps if not step.opening]
            if not made:
                continue
            accuracy.append(judge.update(expert, np.stack(made), rng=rng))
            ppo.update(done, rng=rng, heads=IMITATED, reward=verdicts)
            policies.append(network.policy())
            overlap.append(overlap_and_auc(policies[-1], data)[0])
            since_best = len(overlap) - 1 - int(np.argmax(overlap))
            if (accuracy[-1] < ENOUGH and len(accuracy) >= LEAST_UPDATES) or since_best >= 5:
                break
    best = policies[int(np.argmax(overlap))]
    made_by = f"train_gail(episodes={episodes}, seed={seed})"
    return Imitation(Policy(best.weights, made_by), policies[0], tuple(accuracy), tuple(overlap))


def _judged_step(step: Step) -> np.ndarray:
    taken = np.zeros(len(step.cuts), dtype=bool)
    taken[step.order] = True
    return judged(step.cuts, step.overall, taken, step.stop)
