"""The whole training: record the solver, imitate it, then improve by PPO from small to mixed instances."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from cameraready.methods.mip_cuts.environment import CutSelectionEnv, Reward
from cameraready.methods.mip_cuts.imitation import Imitation, train_gail
from cameraready.methods.mip_cuts.instances import cauctions, facility, indset, lotsizing, read_miplib, setcover
from cameraready.methods.mip_cuts.network import PolicyNetwork
from cameraready.methods.mip_cuts.policy import Policy
from cameraready.methods.mip_cuts.ppo import PPO, PPOSettings, rollout
from cameraready.methods.mip_cuts.recorder import record_expert

if TYPE_CHECKING:
    from pyscipopt import Model

SEEDS_FROM = 10_000  # training instances; claims and examples use small seeds, so none is seen before
PROMOTED_OVER = 20


@dataclass(frozen=True)
class Stage:
    """Instances of one step of the curriculum.

    Parameters
    ----------
    name : for the log.
    makers : functions of a seed that give a model; taken in turn.
    instances : how many are made.
    episodes : after which the next stage begins in any case.
    promoted : whether it may begin earlier, when the mean terminal reward of 20 episodes is above 0.
    """

    name: str
    makers: tuple[Callable[[int], Model], ...]
    instances: int = 8
    episodes: int = 200
    promoted: bool = True

    def write(self, folder: Path, *, first_seed: int = SEEDS_FROM) -> list[Path]:
        """Write the instances as files."""
        paths = []
        for i in range(self.instances):
            paths.append(folder / f"{self.name.replace(' ', '-')}-{i}.cip")
            model = self.makers[i % len(self.makers)](first_seed + i)
            model.writeProblem(str(paths[-1]), verbose=False, genericnames=True)
        return paths


@dataclass(frozen=True)
class TrainingScale:
    """How much is trained: expert instances, episodes of imitation, the curriculum, PPO's settings."""

    stages: tuple[Stage, ...]
    expert_instances: int
    imitation_episodes: int
    time_limit: float
    settings: PPOSettings
    batch: int = 10
    cloning_epochs: int = 1


@dataclass(frozen=True)
class TrainingRun:
    """A trained policy with, for each update, the stage and the mean return; and the imitation before it."""

    policy: Policy
    curve: tuple[tuple[str, float], ...]
    imitation: Imitation | None = None


def cover(rows: int, cols: int) -> Callable[[int], Model]:
    """A maker of set covers."""
    return lambda seed: setcover(rows, cols, density=0.05, seed=seed)


def _mix(*, larger: bool) -> tuple[Callable[[int], Model], ...]:
    """Families in which separation costs more than it gives, and one in which the tree explodes without."""
    size = 2 if larger else 1
    return (
        cover(250 * size, 500 * size),
        lambda seed: lotsizing(4 * size, 12, seed=seed),
        cover(200 * size, 400 * size),
        lambda seed: facility(40 * size, 20, seed=seed),
        lambda seed: lotsizing(6 * size, 10, seed=seed),
        lambda seed: indset(150 * size, seed=seed),
        cover(150 * size, 300 * size),
        lambda seed: cauctions(80 * size, 350 * size, seed=seed),
    )


def _miplib(seed: int) -> Model:
    return read_miplib(("bell5", "dcmulti", "egout", "gt2", "lseu", "rgn")[seed % 6])


SCALES: dict[str, TrainingScale] = {
    # A minute, to see it run.
    "small": TrainingScale(
        (Stage("200x400", (cover(200, 400),), instances=2, episodes=20),), expert_instances=2, imitation_episodes=6,
        time_limit=5.0, settings=PPOSettings(learning_rate=2e-3, minibatch=64),
    ),
    # The policy that comes with the package. So few updates need a larger rate.
    "shipped": TrainingScale(
        (
            Stage("100x200", (cover(100, 200),), instances=8, episodes=20),
            Stage("200x400", (cover(200, 400),), instances=8, episodes=40),
            Stage("mix", _mix(larger=False), instances=16, episodes=500, promoted=False),
        ),
        expert_instances=8, imitation_episodes=24, time_limit=3.0,
        settings=PPOSettings(learning_rate=3e-3, minibatch=64),
    ),
    # The paper's order, with MIPLIB models in the mix; days.
    "paper": TrainingScale(
        (
            Stage("100x200", (cover(100, 200),), instances=50),
            Stage("200x400", (cover(200, 400),), instances=50),
            Stage("300x600", (cover(300, 600),), instances=50),
            Stage("500x1000", (cover(500, 1000),), instances=50),
            Stage("mix", (*_mix(larger=True), _miplib), instances=90, episodes=20_000, promoted=False),
        ),
        expert_instances=100, imitation_episodes=2_000, time_limit=120.0, settings=PPOSettings(),
    ),
}  # fmt: skip


def train_rl(
    policy: Policy,
    stages: Sequence[Stage],
    *,
    settings: PPOSettings | None = None,
    batch: int = 10,
    seed: int = 0,
    time_limit: float = 60.0,
    memory_mb: float | None = None,
    log: Callable[[str], None] = lambda line: None,
    save: Callable[[Policy, Stage, int], object] = lambda policy, stage, episodes: None,
) -> TrainingRun:
    """Improve a policy by PPO, stage by stage.

    Parameters
    ----------
    policy : to begin with, usually an imitated one.
    stages : the curriculum; one stage is no curriculum.
    settings : of PPO.
    batch : episodes for an update.
    log, save : get a line; and the policy so far, its stage and the stage's episodes, after each update.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    network = PolicyNetwork(policy)
    ppo = PPO(network, settings, anchor=policy)
    curve: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for stage in stages:
            paths = stage.write(Path(folder))
            with CutSelectionEnv(paths, time_limit=time_limit, memory_mb=memory_mb, reward=Reward()) as env:
                ends: list[float] = []
                order: list[int] = []
                while len(ends) < stage.episodes:
                    current, episodes = network.policy(), []
                    for _ in range(batch):
                        order = order or [int(i) for i in rng.permutation(len(paths))]
                        episodes.append(rollout(env, current, rng, instance=order.pop()))
                        ends.append(episodes[-1].speed_up)
                    if any(episode.steps for episode in episodes):
                        curve.append((stage.name, ppo.update(episodes, rng=rng)))
                        save(network.policy(policy.made_by), stage, len(ends))
                        log(f"{stage.name}: {len(ends)} episodes, return {curve[-1][1]:.3f}, "
                            f"log speed-up {np.mean(ends[-batch:]):.3f}")  # fmt: skip
                    if stage.promoted and len(ends) >= PROMOTED_OVER and np.mean(ends[-PROMOTED_OVER:]) > 0:
                        break
    made_by = f"{policy.made_by}; train_rl(seed={seed}, {', '.join(stage.name for stage in stages)})"
    return TrainingRun(network.policy(made_by), tuple(curve))


def train(
    scale: str = "shipped",
    *,
    seed: int = 0,
    imitate: bool = True,
    curriculum: bool = True,
    episodes: int | None = None,
    log: Callable[[str], None] = lambda line: None,
    save: Callable[[Policy], object] = lambda policy: None,
) -> TrainingRun:
    """Record, imitate, improve: all that ``cameraready run mip_cuts train`` does.

    Parameters
    ----------
    scale : "small", "shipped" (the policy of the package) or "paper".
    episodes : of the last stage; None is the scale's own number.
    log, save : get a line, and the policy so far, after each update.
    imitate, curriculum : leave one of the paper's parts out; without the curriculum all episodes are the last stage's.
    """
    if scale not in SCALES:
        raise ValueError(f"scale={scale!r} is not one of {', '.join(SCALES)}")
    if episodes is not None and episodes < 1:
        raise ValueError(f"episodes={episodes} must be at least 1")
    plan, imitation = SCALES[scale], None
    # Networks this small are slower on several threads, and far slower where cores are shared.
    torch.set_num_threads(1)
    policy = Policy.initial(seed=seed)
    if imitate:
        with tempfile.TemporaryDirectory() as folder:
            largest = replace(plan.stages[-1], instances=plan.expert_instances)
            paths = largest.write(Path(folder), first_seed=2 * SEEDS_FROM)
            data = record_expert(paths, time_limit=plan.time_limit, seed=seed)
            log(f"recorded {len(data)} rounds, {len(data.taken)} candidates, {data.taken.mean():.1%} of them taken")
            imitation = train_gail(
                paths,
                data,
                episodes=plan.imitation_episodes,
                cloning_epochs=plan.cloning_epochs,
                seed=seed,
                time_limit=plan.time_limit,
            )
        policy = imitation.policy
        log(f"imitated: overlap {imitation.overlap[0]:.3f} (cloned) to {max(imitation.overlap):.3f}, "
            f"discriminator {imitation.accuracy[-1]:.3f}" if imitation.accuracy else "imitated by cloning")  # fmt: skip
    last = replace(plan.stages[-1], episodes=episodes or plan.stages[-1].episodes)
    stages = (*plan.stages[:-1], last)
    if not curriculum:
        stages = (replace(last, episodes=sum(stage.episodes for stage in stages), promoted=False),)
    without = "".join(f" --no-{name}" for name, on in (("imitate", imitate), ("curriculum", curriculum)) if not on)

    def named(policy: Policy, count: int) -> Policy:
        return replace(
            policy, made_by=f"cameraready run mip_cuts train --scale {scale} --episodes {count} --seed {seed}{without}"
        )

    def save_last(policy: Policy, stage: Stage, count: int) -> None:
        if stage is stages[-1]:
            save(named(policy, count))

    run = train_rl(
        policy, stages, settings=plan.settings, batch=plan.batch, seed=seed, time_limit=plan.time_limit, log=log,
        save=save_last,
    )  # fmt: skip
    return replace(run, policy=named(run.policy, stages[-1].episodes), imitation=imitation)
