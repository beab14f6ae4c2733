"""Policies of unlike bodies as vectors whose coordinates mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from cameraready.methods.mes_ret.inputs import check_whole

Slot = tuple[object, ...]
CORE = ("b1", "W2", "b2")  # what no body's observations or actions appear in


class PolicySpace:
    """A two-layer tanh network from labelled observations to labelled actions, as one vector.

    action = W3 tanh(W2 tanh(W1 obs + b1) + b2) + b3, flattened as [b1 | W2 | b2 | W1 | W3 | b3]: the part that no body
    shapes comes first, so that even without labels its coordinates agree between bodies.

    Parameters
    ----------
    obs_labels, act_labels : one label a dimension, such as "hip.left/pos". Two spaces share the weights of a label
        that both have. None is a dimension that is shared with no other space.
    hidden : width of both layers.

    Raises
    ------
    ValueError : no labels, or a label that is repeated among the observations or among the actions.

    Examples
    --------
    >>> space = PolicySpace(["pole/pos", "pole/vel"], ["cart/force"], hidden=4)
    >>> space.n_params, space.slots[0], space.slots[-1]
    (37, ('b1', 0), ('b3', 'cart/force'))
    """

    def __init__(self, obs_labels: Sequence[str | None], act_labels: Sequence[str | None], *, hidden: int = 16) -> None:
        for what, labels in (("obs_labels", obs_labels), ("act_labels", act_labels)):
            named = [label for label in labels if label is not None]
            if isinstance(labels, str) or not labels or len(set(named)) < len(named):
                raise ValueError(f"{what}={labels!r}: pass a list of at least one label and none twice")
        check_whole("hidden", hidden, least=1)
        self.obs_labels, self.act_labels, self.hidden = tuple(obs_labels), tuple(act_labels), hidden

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Blocks in the order of the vector."""
        d, a, h = len(self.obs_labels), len(self.act_labels), self.hidden
        return {"b1": (h,), "W2": (h, h), "b2": (h,), "W1": (h, d), "W3": (a, h), "b3": (a,)}

    @property
    def n_params(self) -> int:
        """Length of the vector."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """What each coordinate is; a first entry "own" marks those that are shared with no other space."""

        def name(label: str | None, k: int) -> Slot:
            return ("own", k) if label is None else (label,)

        found: list[Slot] = []
        for block, shape in self.shapes.items():
            for at in np.ndindex(*shape):
                if block in CORE:
                    found.append((block, *at))
                    continue
                k, unit = (at[1], at[:1]) if block == "W1" else (at[0], at[1:])
                label = name((self.obs_labels if block == "W1" else self.act_labels)[k], k)
                found.append((*label, block, *unit) if label[0] == "own" else (block, *label, *unit))
        return tuple(found)

    def blocks(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """The blocks of vectors (..., n_params), each of shape (..., *its own)."""
        vectors = np.asarray(vectors, float)
        if vectors.shape[-1:] != (self.n_params,):
            raise ValueError(f"vectors of shape {vectors.shape}; the last axis holds n_params={self.n_params} numbers")
        ends = np.cumsum([np.prod(shape) for shape in self.shapes.values()])[:-1]
        parts = np.split(vectors, ends.astype(int), axis=-1)
        return {
            block: part.reshape(*vectors.shape[:-1], *shape)
            for part, (block, shape) in zip(parts, self.shapes.items(), strict=True)
        }

    def policy(self, vector: np.ndarray) -> torch.nn.Module:
        """The network of one vector, in double precision."""
        w, (d, a, h) = self.blocks(vector), (len(self.obs_labels), len(self.act_labels), self.hidden)
        layers = [torch.nn.Linear(*sizes, dtype=torch.float64) for sizes in ((d, h), (h, h), (h, a))]
        with torch.no_grad():
            for i, layer in enumerate(layers, start=1):
                layer.weight.copy_(torch.as_tensor(w[f"W{i}"]))
                layer.bias.copy_(torch.as_tensor(w[f"b{i}"]))
        return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])


def forward(blocks: dict[str, np.ndarray], obs: np.ndarray) -> np.ndarray:
    """Outputs (k, actions) of k policies at one observation each, (k, obs)."""
    h = np.tanh(np.einsum("khd,kd->kh", blocks["W1"], obs) + blocks["b1"])
    h = np.tanh(np.einsum("kgh,kh->kg", blocks["W2"], h) + blocks["b2"])
    return np.einsum("kah,kh->ka", blocks["W3"], h) + blocks["b3"]


@dataclass(frozen=True)
class GlobalLayout:
    """The slots of several spaces, united.

    Attributes
    ----------
    mask : (T, slots), whether a task owns a slot.
    to_global : one (n_t,) array a task, the slot of each coordinate: the ``layout`` of its `TaskSpec`.
    to_local : (T, slots), the coordinate that fills a slot, -1 where there is none.
    """

    mask: np.ndarray
    to_global: tuple[np.ndarray, ...]
    to_local: np.ndarray


def align(spaces: Sequence[PolicySpace]) -> GlobalLayout:
    """Give coordinates with equal meaning one slot.

    Examples
    --------
    >>> layout = align([PolicySpace(["x", "y"], ["f"], hidden=2), PolicySpace(["y"], ["g"], hidden=2)])
    >>> layout.mask.sum(axis=1), int((layout.mask.all(axis=0)).sum())
    (array([15, 13]), 10)
    """
    if not spaces:
        raise ValueError("spaces is empty; pass at least one PolicySpace")
    place: dict[Slot, int] = {}
    to_global = []
    for t, space in enumerate(spaces):
        keys = [("task", t, *slot) if slot[0] == "own" else slot for slot in space.slots]
        to_global.append(np.array([place.setdefault(key, len(place)) for key in keys]))
    to_local = np.full((len(spaces), len(place)), -1)
    for row, slots in zip(to_local, to_global, strict=True):
        row[slots] = np.arange(len(slots))
    return GlobalLayout(mask=to_local >= 0, to_global=tuple(to_global), to_local=to_local)
