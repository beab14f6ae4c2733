"""SCIP's separation loop as a Gymnasium environment."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from cameraready.methods.mip_cuts.families import FAMILIES
from cameraready.methods.mip_cuts.features import N_CUT, N_GLOBAL
from cameraready.methods.mip_cuts.solving import SolveRecord, solve, start_worker, stop_worker

if TYPE_CHECKING:
    from pyscipopt import Model

MAX_CUTS = 256
SHIFT = 0.05  # seconds added to both times of the terminal reward, below which a ratio is noise


@dataclass(frozen=True)
class Reward:
    """Weights of the reward of a round, and whether the whole solve's speed-up comes at the end.

    r = bound * gain / initial gap - time * seconds / reference root seconds - memory * growth / reference peak;
    at the end of a full solve + log(reference seconds / seconds), clipped to [-2, 2].
    """

    bound: float = 1.0
    time: float = 0.3
    memory: float = 0.3
    terminal: float = 1.0


class CutSelectionEnv(gymnasium.Env[dict[str, np.ndarray], dict[str, Any]]):
    """One episode is one solve; the first step opens families of separators, each further one is a round's decision.

    Parameters
    ----------
    instances : model files, or pyscipopt models (which are written to files).
    mode : "root" ends with the root node, "full" solves to the end.
    time_limit : seconds of a solve, by the clock.
    memory_mb : SCIP's limit, which the state then has as a feature.
    reward : weights.
    references : `SolveRecord` of SCIP's default for instances, by index; a missing one is solved when first needed.
    clock : "work", LP iterations and memory as seconds (`features.work_seconds`), by which episodes repeat exactly; or
        "scip", processor seconds.

    Notes
    -----
    Observation: ``cuts`` (256, 24), the most efficacious candidates; ``mask`` (256,), which rows are candidates;
    ``global`` (16,). Action: ``scores`` (256,), of which the best ``ceil(keep * n)`` enter; ``keep`` (1,); ``stop``,
    1 ends separation with this round; ``families`` (8,), which start, read in the first step alone (as the others are
    not). ``info["phase"]`` is "opening", "round" or "end". SCIP runs in a process of its own, which `close` ends.

    Examples
    --------
    >>> from cameraready.methods.mip_cuts import setcover
    >>> with CutSelectionEnv([setcover(60, 120, density=0.05, seed=0)]) as env:
    ...     observation, info = env.reset(seed=0)
    ...     action = env.action_space.sample()
    ...     observation, reward, terminated, truncated, info = env.step(action)
    >>> observation["cuts"].shape
    (256, 24)
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        instances: Sequence[str | Path | Model],
        *,
        mode: str = "full",
        time_limit: float = 60.0,
        memory_mb: float | None = None,
        reward: Reward | None = None,
        references: Mapping[int, SolveRecord] | None = None,
        clock: str = "work",
    ) -> None:
        if not instances:
            raise ValueError("instances is empty; pass at least one model file or pyscipopt model")
        if mode not in ("root", "full"):
            raise ValueError(f"mode={mode!r} is not 'root' or 'full'")
        if clock not in ("work", "scip"):
            raise ValueError(f"clock={clock!r} is not 'work' or 'scip'")
        if not time_limit > 0:
            raise ValueError(f"time_limit={time_limit} must be positive")
        self._folder = tempfile.TemporaryDirectory()
        self.paths = [self._path(i, instance) for i, instance in enumerate(instances)]
        self.mode, self.time_limit, self.memory_mb, self.clock = mode, float(time_limit), memory_mb, clock
        self.reward, self.references = reward or Reward(), dict(references or {})
        # float32 throughout; features are clipped to these bounds
        self.observation_space = gymnasium.spaces.Dict({
            "cuts": gymnasium.spaces.Box(-1.0, 1.0, (MAX_CUTS, N_CUT), np.float32),
            "mask": gymnasium.spaces.MultiBinary(MAX_CUTS),
            "global": gymnasium.spaces.Box(-2.0, 2.0, (N_GLOBAL,), np.float32),
        })  # fmt: skip
        self.action_space = gymnasium.spaces.Dict({
            "scores": gymnasium.spaces.Box(-100.0, 100.0, (MAX_CUTS,), np.float32),
            "keep": gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32),
            "stop": gymnasium.spaces.Discrete(2),
            "families": gymnasium.spaces.MultiBinary(len(FAMILIES)),
        })  # fmt: skip
        self._worker: tuple[Any, Any] | None = None
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Begin a solve of a random instance, or of ``options["instance"]``; SCIP's seed comes from ``seed``."""
        super().reset(seed=seed)
        self._abort()
        given = (options or {}).get("instance")
        self.instance = int(self.np_random.integers(len(self.paths))) if given is None else int(given)
        if not 0 <= self.instance < len(self.paths):
            raise ValueError(f"instance={given} is not one of the {len(self.paths)} instances")
        if any(astuple(self.reward)):
            self._reference = self._get_reference(self.instance)
        if self._worker is None:
            self._worker = start_worker()
        job = {
            "path": str(self.paths[self.instance]), "mode": self.mode, "time_limit": self.time_limit,
            "memory_mb": self.memory_mb, "clock": self.clock, "seed": int(self.np_random.integers(2**16)),
        }  # fmt: skip
        self._running = True
        self._first_dual: float | None = None
        kind, message = self._ask(("episode", job))
        if kind == "crashed":
            raise RuntimeError(f"the solving process ended before the first decision ({message}); reset again")
        if kind == "refused":
            raise ValueError(message)
        if kind != "decide":  # solved in presolve: nothing to decide
            return self._blank(), {"phase": "end", "instance": self.instance, "outcome": message}
        self._last = message
        return self._observe(message)

    def step(self, action: dict[str, Any]) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Send a decision, and run SCIP to its next round or its end."""
        if not self._running:  # an episode that presolving ended, or a step after the end
            return self._blank(), 0.0, True, False, {"phase": "end", "instance": self.instance}
        assert self._worker is not None
        answer = {
            "scores": np.asarray(action["scores"], dtype=np.float32),
            "keep": float(np.clip(np.asarray(action["keep"]).reshape(-1)[0], 0.0, 1.0)),
            "stop": bool(action["stop"]),
            "families": np.asarray(action["families"]).astype(bool),
        }
        kind, message = self._ask(answer)
        if kind == "crashed":
            return self._blank(), 0.0, False, True, {"phase": "end", "instance": self.instance, "error": message}
        if kind == "decide":
            reward = self._round_reward(message)
            observation, info = self._observe(message)
            return observation, reward, False, False, info
        reward = speed_up = 0.0
        if any(astuple(self.reward)):
            speed_up = self._speed_up(message)
            growth = max(0.0, message["scip_peak_mb"] - self._last["memory_mb"])
            reward = self.reward.terminal * speed_up - self.reward.memory * growth / self._reference.scip_peak_mb
        info = {"phase": "end", "instance": self.instance, "speed_up": speed_up}
        if self.clock == "scip":  # times differ from run to run
            info["outcome"] = message
        return self._blank(), reward, True, False, info

    def close(self) -> None:
        """End the solving process."""
        if self._worker is not None:
            process, connection = self._worker
            self._worker, self._running = None, False
            stop_worker(process, connection)
        self._folder.cleanup()

    def __del__(self) -> None:
        if getattr(self, "_worker", None) is not None:
            self.close()

    def _ask(self, message: Any) -> tuple[str, Any]:
        process, connection = self._worker
        try:
            connection.send(message)
            if not connection.poll(60 + 4 * self.time_limit):
                raise TimeoutError(f"SCIP has not answered for {60 + 4 * self.time_limit:.0f} s")
            kind, message = connection.recv()
        except (EOFError, OSError) as error:
            self._worker, self._running = None, False
            code = stop_worker(process, connection)
            return "crashed", f"{type(error).__name__}, exit code {code}"
        if kind != "decide":
            self._running = False
        return kind, message

    def _abort(self) -> None:
        """End the running solve, if there is one, and keep the process for the next."""
        while self._running:
            self._ask(None)

    def _observe(self, message: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        observation, n = self._blank(), len(message["cuts"])
        observation["cuts"][:n] = message["cuts"]
        observation["mask"][:n] = 1
        observation["global"][:] = message["overall"]
        return observation, {"phase": message["phase"], "instance": self.instance}

    def _round_reward(self, message: dict[str, Any]) -> float:
        if not any(astuple(self.reward)):
            return 0.0
        last, reference, bound = self._last, self._reference, 0.0
        if self._first_dual is None:
            self._first_dual = message["dual"]
        else:
            best = reference.objective if math.isfinite(reference.objective) else 2 * self._first_dual
            whole = max(abs(best - self._first_dual), 1e-9)
            bound = min(1.0, abs(message["dual"] - last["dual"]) / whole)
        seconds = (message["seconds"] - last["seconds"]) / max(self._reference_seconds("root"), SHIFT)
        memory = max(0.0, message["memory_mb"] - last["memory_mb"]) / reference.scip_peak_mb
        self._last = message
        return float(self.reward.bound * bound - self.reward.time * min(seconds, 2) - self.reward.memory * memory)

    def _speed_up(self, message: dict[str, Any]) -> float:
        """log(reference seconds / seconds) of a full solve, within [-2, 2]."""
        if self.mode == "root":
            return 0.0
        used = message["work" if self.clock == "work" else "seconds"]
        return float(np.clip(math.log((self._reference_seconds("all") + SHIFT) / (used + SHIFT)), -2, 2))

    def _reference_seconds(self, part: str) -> float:
        if self.clock == "work":
            return self._reference.root_work if part == "root" else self._reference.work
        return self._reference.root_seconds if part == "root" else self._reference.seconds

    def _get_reference(self, index: int) -> SolveRecord:
        if index not in self.references:
            self.references[index] = solve(
                self.paths[index], selector="default", time_limit=self.time_limit, clock=self.clock
            )
        return self.references[index]

    def _blank(self) -> dict[str, np.ndarray]:
        return {
            "cuts": np.zeros((MAX_CUTS, N_CUT), dtype=np.float32),
            "mask": np.zeros(MAX_CUTS, dtype=np.int8),
            "global": np.zeros(N_GLOBAL, dtype=np.float32),
        }

    def _path(self, index: int, instance: str | Path | Model) -> Path:
        if hasattr(instance, "writeProblem"):
            path = Path(self._folder.name) / f"{index}.cip"
            instance.writeProblem(str(path), verbose=False, genericnames=True)
            return path
        path = Path(instance)
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist; pass model files or pyscipopt models")
        return path.resolve()
