"""The policy as the solving process uses it: four small heads on a network of sets, in numpy alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cameraready.methods.mip_cuts.families import FAMILIES
from cameraready.methods.mip_cuts.features import FEATURE_VERSION, N_CUT, N_GLOBAL

HIDDEN = 32
CONTEXT = 2 * HIDDEN + N_GLOBAL
# name -> (inputs, outputs) of each linear layer; weights are stored (inputs, outputs), as x @ w + b needs them
LAYERS = {
    "encode_1": (N_CUT + N_GLOBAL, HIDDEN),
    "encode_2": (HIDDEN, HIDDEN),
    "score_1": (3 * HIDDEN, HIDDEN),
    "score_2": (HIDDEN, 1),
    "keep": (CONTEXT, 2),
    "stop": (CONTEXT, 1),
    "value_1": (CONTEXT, HIDDEN),
    "value_2": (HIDDEN, 1),
    "open_1": (N_GLOBAL, HIDDEN),
    "open_2": (HIDDEN, len(FAMILIES)),
}
SHIPPED = Path(__file__).parent / "policies"


@dataclass(frozen=True)
class Outputs:
    """What the policy says of one round.

    Parameters
    ----------
    scores : of each candidate, shape (n,); higher enters first.
    alpha, beta : of the Beta distribution of the fraction of candidates that is kept.
    stop : probability that separation ends with this round.
    """

    scores: np.ndarray
    alpha: float
    beta: float
    stop: float

    @property
    def keep(self) -> float:
        """The mean of the fraction."""
        return self.alpha / (self.alpha + self.beta)


@dataclass(frozen=True)
class Policy:
    """Weights of the policy, float32, by layer: ``weights["keep.w"]`` of shape (inputs, outputs), ``["keep.b"]``.

    ``made_by`` says how it was trained. `load` takes a path or the name of a policy that comes with the package.

    Examples
    --------
    >>> import numpy as np
    >>> policy = Policy.initial(seed=0)
    >>> policy.round(np.zeros((5, 24)), np.zeros(16)).scores.shape
    (5,)
    >>> policy.opening(np.zeros(16)).shape  # probability that each family of separators starts enabled
    (8,)
    """

    weights: dict[str, np.ndarray]
    made_by: str = ""

    @classmethod
    def initial(cls, *, seed: int = 0) -> Policy:
        """Random weights; every family more likely open than not, separation more likely to go on than not."""
        rng = np.random.default_rng(seed)
        weights = {}
        for name, (inputs, outputs) in LAYERS.items():
            last = name in ("score_2", "keep", "stop", "value_2", "open_2")
            weights[f"{name}.w"] = rng.normal(0, (0.1 if last else 1.0) / np.sqrt(inputs), (inputs, outputs))
            weights[f"{name}.b"] = np.zeros(outputs)
        weights["open_2.b"] += 1.0
        weights["stop.b"] -= 1.0
        return cls({name: value.astype(np.float32) for name, value in weights.items()}, "initial weights")

    def opening(self, overall: np.ndarray) -> np.ndarray:
        """Probability that each family starts enabled, shape (8,), from the global features (16,)."""
        return _sigmoid(self._linear("open_2", np.tanh(self._linear("open_1", overall.astype(np.float32)))))

    def round(self, cuts: np.ndarray, overall: np.ndarray) -> Outputs:
        """Scores and gates for candidates (n, 24) and global features (16,); n may be 0."""
        overall = overall.astype(np.float32)
        w, b = self.weights["encode_1.w"], self.weights["encode_1.b"]
        hidden = np.tanh(cuts.astype(np.float32) @ w[:N_CUT] + (overall @ w[N_CUT:] + b))
        hidden = np.tanh(self._linear("encode_2", hidden))
        pooled = np.zeros(2 * HIDDEN, dtype=np.float32)
        if len(cuts):
            pooled = np.concatenate([hidden.mean(axis=0), hidden.max(axis=0)])
        w, b = self.weights["score_1.w"], self.weights["score_1.b"]
        scores = self._linear("score_2", np.tanh(hidden @ w[:HIDDEN] + (pooled @ w[HIDDEN:] + b)))[:, 0]
        context = np.concatenate([pooled, overall])
        alpha, beta = 1.0 + np.logaddexp(0.0, self._linear("keep", context))
        return Outputs(scores, float(alpha), float(beta), float(_sigmoid(self._linear("stop", context))[0]))

    def save(self, path: str | Path) -> Path:
        """Write the policy as a compressed .npz (about 40 kB)."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, version=FEATURE_VERSION, made_by=self.made_by, **self.weights)
        return path if path.suffix == ".npz" else path.with_name(path.name + ".npz")

    @classmethod
    def load(cls, source: str | Path | Policy) -> Policy:
        """Read a policy: a path, or the name of one that comes with the package ("setcover")."""
        if isinstance(source, Policy):
            return source
        path = SHIPPED / f"{source}.npz" if (SHIPPED / f"{source}.npz").is_file() else Path(source)
        if not path.is_file():
            names = ", ".join(sorted(p.stem for p in SHIPPED.glob("*.npz"))) or "none"
            raise ValueError(f"policy={str(source)!r} is neither a file nor a policy of the package ({names})")
        try:
            with np.load(path, allow_pickle=False) as stored:
                values: dict[str, Any] = {name: stored[name] for name in stored.files}
            version, made_by = int(values.pop("version")), str(values.pop("made_by"))
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"{path} is not a policy file ({error}); write one by Policy.save") from None
        if version != FEATURE_VERSION:
            raise ValueError(f"{path} was trained on features of version {version}, this package has {FEATURE_VERSION}")
        expected = {f"{n}.w": shape for n, shape in LAYERS.items()} | {f"{n}.b": (s[1],) for n, s in LAYERS.items()}
        if {name: value.shape for name, value in values.items()} != expected:
            raise ValueError(f"{path} holds other layers than this version's network; train it anew")
        if not all(np.isfinite(value).all() for value in values.values()):
            raise ValueError(f"{path} holds weights that are not finite; train it anew")
        return cls(values, made_by)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.weights[f"{name}.w"] + self.weights[f"{name}.b"]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))
