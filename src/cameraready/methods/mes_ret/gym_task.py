"""A gymnasium environment as a task: vectors of weights in, negated returns out."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from cameraready.methods.mes_ret.inputs import check_whole
from cameraready.methods.mes_ret.policy import PolicySpace, forward

LARGEST_OBSERVATION = 10.0  # after normalisation


@contextlib.contextmanager
def mujoco_warnings_logged() -> Iterator[None]:
    """MuJoCo's warnings go to this module's log; it would write them to MUJOCO_LOG.TXT in the working directory."""
    try:
        import mujoco
    except ImportError:
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(logging.getLogger(__name__).info)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def make(env_id: str, **settings: Any) -> Any:
    """`gymnasium.make`, with the install command where something is missing."""
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError("policy search needs gymnasium and mujoco: pip install 'cameraready[rl]'") from error
    try:
        with mujoco_warnings_logged():
            return gymnasium.make(env_id, **settings)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"{env_id} needs more: pip install 'cameraready[rl]'") from error


class GymTask:
    """Evaluates policies of one environment, all rollouts of all candidates in step.

    Parameters
    ----------
    env_id : a gymnasium environment with a flat observation and a Box or Discrete action.
    space : the policies; one label for every observation and every action (or choice).
    rollouts : episodes of each evaluation; all candidates of a call start from the same states.
    horizon : most steps of an episode; None is the environment's own.
    normalize : whether observations are centred and scaled by what the task has seen before this call.
    seed : of the start states.

    Raises
    ------
    ValueError : labels that do not fit the environment, actions that are neither Discrete nor a bounded Box.
    ImportError : gymnasium is missing.
    """

    def __init__(
        self,
        env_id: str,
        space: PolicySpace,
        *,
        rollouts: int = 3,
        horizon: int | None = None,
        normalize: bool = True,
        seed: int = 0,
    ) -> None:
        check_whole("rollouts", rollouts, least=1)
        if horizon is not None:
            check_whole("horizon", horizon, least=1)
        self.env_id, self.space, self.rollouts, self.normalize = env_id, space, rollouts, normalize
        self._settings = {} if horizon is None else {"max_episode_steps": horizon}
        self._envs = [make(env_id, **self._settings)]
        action, observation = self._envs[0].action_space, self._envs[0].observation_space
        self._discrete = hasattr(action, "n")
        if not self._discrete and not np.all(np.isfinite(getattr(action, "high", np.inf))):
            raise ValueError(f"{env_id} has actions {action}; only Discrete and bounded Box are covered")
        choices = int(action.n) if self._discrete else int(np.prod(action.shape))
        given = (len(space.obs_labels), len(space.act_labels))
        if observation.shape is None or given != (int(np.prod(observation.shape)), choices):
            has = f"observations of shape {observation.shape} and {choices} actions"
            raise ValueError(f"{env_id} has {has}; the space labels {given[0]} and {given[1]}")
        self._rng = np.random.default_rng(seed)
        self.steps = 0  # environment steps so far
        d = len(space.obs_labels)
        self._count, self._mean, self._square = 0.0, np.zeros(d), np.zeros(d)

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Minus the mean return of each row of ``X`` (k, n_params); learns from the observations."""
        if np.ndim(X) != 2:
            raise ValueError(f"X of shape {np.shape(X)}; pass one row of {self.space.n_params} weights a policy")
        returns, seen = self._play(X, self._rng.integers(2**31, size=self.rollouts))
        seen = seen[np.isfinite(seen).all(axis=1)]  # an unstable simulation must not spoil the others
        if self.normalize and len(seen):
            self._learn(seen)
        return -returns

    def score(self, vector: np.ndarray, *, episodes: int = 20, seed: int = 10**6) -> float:
        """Mean return of one policy over fresh episodes; nothing is learned."""
        seeds = np.random.default_rng(seed).integers(2**31, size=episodes)
        return float(self._play(np.asarray(vector)[None], seeds)[0][0])

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()

    @mujoco_warnings_logged()
    def _play(self, X: np.ndarray, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean returns (k,) and the observations, (steps, obs)."""
        k, m = len(X), len(seeds)
        while len(self._envs) < k * m:
            self._envs.append(make(self.env_id, **self._settings))
        weights = {name: np.repeat(block, m, axis=0) for name, block in self.space.blocks(X).items()}
        obs = np.stack([self._envs[i].reset(seed=int(seeds[i % m]))[0].ravel() for i in range(k * m)])
        returns, alive, seen = np.zeros(k * m), np.arange(k * m), []
        scale = np.sqrt(self._square / max(1.0, self._count) + 1e-8) if self._count > 1 else 1.0
        # Gymnasium's vector environments start finished episodes again and go on stepping them; here they drop out.
        while len(alive):
            seen.append(obs)
            inputs = obs
            if self.normalize:
                inputs = np.clip((obs - self._mean) / scale, -LARGEST_OBSERVATION, LARGEST_OBSERVATION)
            actions = self._actions(forward(weights, inputs))
            going = np.ones(len(alive), bool)
            following = np.empty_like(obs)
            for row, i in enumerate(alive):
                state, reward, terminated, truncated, _ = self._envs[i].step(actions[row])
                returns[i] += reward
                following[row] = np.ravel(state)
                going[row] = not (terminated or truncated)
            self.steps += len(alive)
            alive, obs = alive[going], following[going]
            if not going.all():
                weights = {name: block[going] for name, block in weights.items()}
        return returns.reshape(k, m).mean(axis=1), np.concatenate(seen)

    def _actions(self, outputs: np.ndarray) -> np.ndarray:
        if self._discrete:
            return outputs.argmax(axis=1) + int(self._envs[0].action_space.start)
        space = self._envs[0].action_space
        middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
        return (middle + half * np.tanh(outputs).reshape(len(outputs), *space.shape)).astype(space.dtype)

    def _learn(self, seen: np.ndarray) -> None:
        """Chan's update of the running mean and sum of squares."""
        count, mean = len(seen), seen.mean(axis=0)
        total, shift = self._count + count, mean - self._mean
        self._square = self._square + ((seen - mean) ** 2).sum(axis=0) + shift**2 * self._count * count / total
        self._mean = self._mean + shift * count / total
        self._count = total
