"""Proximal policy optimisation of the cut policy, one clipped ratio a head (Schulman et al., 2017)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributions import kl_divergence
from torch.nn.functional import mse_loss

from cameraready.methods.mip_cuts.environment import CutSelectionEnv
from cameraready.methods.mip_cuts.families import FAMILIES
from cameraready.methods.mip_cuts.network import HEADS, Batch, PolicyNetwork, Step, log_probabilities
from cameraready.methods.mip_cuts.policy import Policy


class TrainingDiverged(RuntimeError):
    """A loss that is not finite; `policy` has the weights of before."""

    def __init__(self, policy: Policy) -> None:
        super().__init__("the loss is not finite; lower the learning rate. `policy` holds the last finite weights")
        self.policy = policy


@dataclass(frozen=True)
class Episode:
    """One solve: decisions, the rewards that followed, and the logarithm of the speed-up over SCIP's default."""

    steps: list[Step]
    rewards: list[float]
    speed_up: float = 0.0


@dataclass(frozen=True)
class PPOSettings:
    """PPO's settings, the usual ones."""

    clip: float = 0.2
    gamma: float = 0.99
    gae: float = 0.95
    learning_rate: float = 3e-4
    entropy: float = 0.01
    epochs: int = 4
    minibatch: int = 256
    kl: float = 0.05  # to the imitated policy
    max_gradient: float = 0.5


def rollout(
    env: CutSelectionEnv, policy: Policy, rng: np.random.Generator, *, instance: int | None = None,
    all_families: bool = False,
) -> Episode:  # fmt: skip
    """Solve one instance by sampled decisions. ``all_families`` leaves the opening to SCIP, as imitation does.

    Scores plus Gumbel noise, sorted, are a sample of Plackett and Luce's distribution.
    """
    options = None if instance is None else {"instance": instance}
    observation, info = env.reset(seed=int(rng.integers(2**31)), options=options)
    steps: list[Step] = []
    rewards: list[float] = []
    while info["phase"] != "end":
        n, overall = int(observation["mask"].sum()), observation["global"].copy()
        cuts, opening = observation["cuts"][:n].copy(), info["phase"] == "opening"
        scores = np.zeros(len(observation["mask"]), dtype=np.float32)
        keep, stop, order, families = 0.5, False, np.zeros(0, dtype=np.int64), np.ones(len(FAMILIES), dtype=bool)
        if opening:
            if not all_families:
                families = rng.random(len(FAMILIES)) < policy.opening(overall)
        else:
            out = policy.round(cuts, overall)
            scores[:n] = np.clip(out.scores + rng.gumbel(size=n), -100, 100)
            keep, stop = float(rng.beta(out.alpha, out.beta)), bool(rng.random() < out.stop)
            order = np.argsort(-scores[:n], kind="stable")[: math.ceil(keep * n)]
        action = {"scores": scores, "keep": np.array([keep], np.float32), "stop": int(stop), "families": families}
        observation, reward, _, _, info = env.step(action)
        steps.append(Step(cuts, overall, opening, order, keep, stop, families))
        rewards.append(reward)
    return Episode(steps, rewards, info.get("speed_up", 0.0))


def advantages(rewards: Sequence[float], values: np.ndarray, settings: PPOSettings) -> np.ndarray:
    """Generalised advantage estimates of one finished episode (the value after its end is 0)."""
    result, running, after = np.zeros(len(rewards)), 0.0, 0.0
    for t in reversed(range(len(rewards))):
        running = rewards[t] + settings.gamma * after - values[t] + settings.gamma * settings.gae * running
        after, result[t] = values[t], running
    return result


class PPO:
    """Updates a network from episodes.

    Decisions have up to four parts whose log-probabilities differ by orders of magnitude (an order of 80 cuts, a
    gate). A ratio of their sum would be clipped by the order alone, so each part has a clipped ratio of its own.
    """

    def __init__(self, network: PolicyNetwork, settings: PPOSettings | None = None, *, anchor: Policy | None = None):
        self.network, self.settings = network, settings or PPOSettings()
        self.optimizer = torch.optim.Adam(network.parameters(), lr=self.settings.learning_rate)
        self.anchor = PolicyNetwork(anchor).requires_grad_(False) if anchor is not None else None

    def update(
        self, episodes: Sequence[Episode], *, rng: np.random.Generator, heads: Sequence[str] = HEADS,
        reward: Callable[[Episode], Sequence[float]] = lambda episode: episode.rewards,
    ) -> float:  # fmt: skip
        """One update; returns the mean undiscounted return of the episodes under ``reward``."""
        settings = self.settings
        episodes = [episode for episode in episodes if episode.steps]
        steps = [step for episode in episodes for step in episode.steps]
        rewards = [list(reward(episode)) for episode in episodes]
        with torch.no_grad():
            old, _, values = log_probabilities(self.network, Batch.of(steps))
        ends = np.cumsum([len(part) for part in rewards])
        parts = np.split(values.numpy(), ends[:-1])
        gains = np.concatenate([advantages(r, v, settings) for r, v in zip(rewards, parts, strict=True)])
        returns = torch.tensor(gains + values.numpy(), dtype=torch.float32)
        gain = torch.tensor((gains - gains.mean()) / (gains.std() + 1e-8), dtype=torch.float32)
        before = self.network.policy()
        for _ in range(settings.epochs):
            for part in np.array_split(rng.permutation(len(steps)), max(1, len(steps) // settings.minibatch)):
                chosen = torch.from_numpy(part)
                batch = Batch.of([steps[i] for i in part])
                new, entropy, value = log_probabilities(self.network, batch)
                loss = 0.5 * mse_loss(value, returns[chosen]) - settings.entropy * entropy.mean()
                for head in heads:
                    ratio = (new[head] - old[head][chosen]).clamp(-20, 20).exp()
                    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
                    loss = loss - torch.minimum(ratio * gain[chosen], clipped * gain[chosen]).mean()
                if self.anchor is not None:
                    loss = loss + settings.kl * self._distance(batch).mean()
                if not torch.isfinite(loss):
                    raise TrainingDiverged(before)
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.network.parameters(), settings.max_gradient)
                self.optimizer.step()
        return float(np.mean([sum(part) for part in rewards]))

    def _distance(self, batch: Batch) -> Tensor:
        """KL divergence from the imitated policy: of the gates, and of the first cut that enters. Not of the opening,
        which the solver, who always opens everything, cannot teach."""
        scores, keep, stop, _, _ = self.network(batch)
        with torch.no_grad():
            other_scores, other_keep, other_stop, _, _ = self.anchor(batch)
        first, other_first = (
            torch.distributions.Categorical(logits=s.masked_fill(~batch.mask, -30.0)) for s in (scores, other_scores)
        )
        gates = kl_divergence(keep, other_keep) + kl_divergence(stop, other_stop)
        return (gates + kl_divergence(first, other_first)) * (~batch.opening)
