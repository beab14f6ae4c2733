"""Who is labelled, and which labels train and which validate."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

HELD_OUT = 0.2


@dataclass(frozen=True, eq=False)
class Labels:
    """Node numbers by role, with targets (float32, 1 is an anomaly)."""

    train: NDArray[np.int64]
    train_target: NDArray[np.float32]
    val: NDArray[np.int64]
    val_target: NDArray[np.float32]
    unlabelled: NDArray[np.int64]

    def train_of(self, side: int) -> NDArray[np.int64]:
        """Training nodes of one side: 0 normal, 1 anomaly."""
        return self.train[self.train_target == side]


def read_labels(labels: Any, n: int, *, val_mask: Any, rng: np.random.Generator) -> Labels:
    """Check labels in {-1, 0, 1} and divide them; without ``val_mask`` a fifth of either side validates.

    Raises
    ------
    ValueError : wrong length or values, or a side without labelled nodes.
    """
    if labels is None:
        raise ValueError(
            "no labels: pass labels= (or set data.y_partial): 1 for anomalies, 0 for normal, -1 for unlabelled nodes"
        )
    labels = (labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)).ravel()
    if labels.shape != (n,):
        raise ValueError(f"labels has {labels.size} values for {n} nodes; pass one a node, -1 where unlabelled")
    if stray := sorted(set(np.unique(labels).tolist()) - {-1, 0, 1}):
        raise ValueError(f"labels holds {stray[:5]}; only 1 (anomaly), 0 (normal) and -1 (unlabelled) are known")
    normals, anomalies = np.flatnonzero(labels == 0), np.flatnonzero(labels == 1)
    if not len(anomalies):
        raise ValueError(
            "no node is labelled 1: DEMO learns from at least one known anomaly; without any use an unsupervised "
            "detector such as pyod.models.pyg_dominant.DOMINANT, pyg_cola.CoLA, or iforest.IForest on the features"
        )
    if not len(normals):
        raise ValueError(f"no node is labelled 0, {len(anomalies)} are labelled 1; label some normal nodes as well")
    if len(anomalies) == 1:
        warnings.warn(
            "only one node is labelled 1: it is mixed with itself plus noise, and it validates as well", stacklevel=3
        )
    if val_mask is None:
        val = np.concatenate([_held_out(side, rng) for side in (normals, anomalies)])
        # What cannot be spared validates and trains.
        kept = np.concatenate([np.setdiff1d(side, val) if len(side) > 1 else side for side in (normals, anomalies)])
    else:
        mask = (val_mask.detach().cpu().numpy() if isinstance(val_mask, Tensor) else np.asarray(val_mask)).ravel()
        if mask.shape != (n,) or mask.dtype != bool:
            raise ValueError(f"val_mask has shape {mask.shape} and type {mask.dtype}; pass {n} booleans")
        val, kept = np.flatnonzero(mask & (labels >= 0)), np.flatnonzero(~mask & (labels >= 0))
    for name, nodes in (("val_mask", val), ("the training part", kept)):
        if len(np.unique(labels[nodes])) < 2:
            raise ValueError(f"{name} holds no labelled {_missing(labels[nodes])}; it needs both kinds")
    kept, val = np.sort(kept), np.sort(val)
    return Labels(
        kept,
        labels[kept].astype(np.float32),
        val,
        labels[val].astype(np.float32),
        np.flatnonzero(labels == -1),
    )


def _held_out(side: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.permutation(side)[: max(1, round(HELD_OUT * len(side)))]


def _missing(labels: NDArray[Any]) -> str:
    return "normal node" if 0 not in labels else "anomaly"
