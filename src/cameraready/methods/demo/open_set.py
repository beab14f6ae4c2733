"""The open-set protocol: train on one kind of anomaly, test on that one and on those never seen, apart."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.metrics import average_precision_score, roc_auc_score


@dataclass(frozen=True, eq=False)
class OpenSetSplit:
    """Labels for a detector, and the truth about the test nodes.

    Attributes
    ----------
    labels : (n,) 1 known anomaly, 0 normal, -1 hidden; with the validation nodes
    val_mask : (n,) bool
    test : node numbers
    anomaly, unseen : (n,) bool: any anomaly; an anomaly of a kind that no label shows
    """

    labels: NDArray[np.int64]
    val_mask: NDArray[np.bool_]
    test: NDArray[np.int64]
    anomaly: NDArray[np.bool_]
    unseen: NDArray[np.bool_]

    def evaluate(self, scores: ArrayLike) -> dict[str, float]:
        """AUROC and AUPRC on all, on seen and on unseen anomalies, each against the test normals; recall at k, k being
        the number of anomalies in the test."""
        scores = np.asarray(scores, dtype=float)
        if scores.shape != self.labels.shape or not np.isfinite(scores).all():
            raise ValueError(f"scores has shape {scores.shape} or values that are not finite; pass {len(self.labels)}")
        scores, anomaly, unseen = scores[self.test], self.anomaly[self.test], self.unseen[self.test]
        parts = {"all": np.ones_like(anomaly), "seen": ~unseen, "unseen": ~anomaly | unseen}
        found = {}
        for name, part in parts.items():
            if anomaly[part].any() and not anomaly[part].all():
                found[f"auroc_{name}"] = float(roc_auc_score(anomaly[part], scores[part]))
                found[f"aupr_{name}"] = float(average_precision_score(anomaly[part], scores[part]))
        k = int(anomaly.sum())
        found["recall_at_k"] = float(anomaly[np.argsort(-scores, kind="stable")[:k]].mean())
        return found


def open_set_split(
    y: ArrayLike,
    anomaly_classes: Sequence[int],
    known: int,
    *,
    n_normal: float = 0.05,
    n_anomaly: int = 50,
    val: tuple[float, int] = (0.01, 30),
    seed: int = 0,
) -> OpenSetSplit:
    """Draw training and validation labels; all other nodes are the test.

    Parameters
    ----------
    y : (n,) classes
    anomaly_classes : the classes that count as anomalies; all others are normal
    known : the one of them that is labelled
    n_normal : share of the normal nodes that train
    n_anomaly : known anomalies that train
    val : share of the normal nodes, and number of known anomalies, that validate
    """
    y, kinds = np.asarray(y), list(anomaly_classes)
    if known not in kinds:
        raise ValueError(f"known={known!r} is not among anomaly_classes={kinds}")
    rng = np.random.default_rng(seed)
    anomaly = np.isin(y, kinds)
    normals, anomalies = (rng.permutation(np.flatnonzero(side)) for side in (~anomaly, y == known))
    counts = [round(share * len(normals)) for share in (n_normal, val[0])]
    if min(*counts, n_anomaly, val[1]) < 1 or sum(counts) >= len(normals) or n_anomaly + val[1] >= len(anomalies):
        raise ValueError(
            f"{counts[0]} + {counts[1]} of {len(normals)} normal nodes and {n_anomaly} + {val[1]} of {len(anomalies)} "
            "known anomalies to train and validate: each must be at least 1, and some must be left to test"
        )
    labels, val_mask = np.full(len(y), -1), np.zeros(len(y), dtype=bool)
    for nodes, label, train, held in ((normals, 0, *counts[:1], counts[1]), (anomalies, 1, n_anomaly, val[1])):
        labels[nodes[: train + held]] = label
        val_mask[nodes[train : train + held]] = True
    return OpenSetSplit(labels, val_mask, np.flatnonzero(labels == -1), anomaly, anomaly & (y != known))


def fit_scores(detector: Any, data: Any, split: OpenSetSplit, *, seed: int) -> NDArray[np.float64]:
    """Scores of a fresh copy of ``detector`` with this seed; what takes no labels is fitted without."""
    detector = clone(detector)
    if "random_state" in detector.get_params():
        detector.set_params(random_state=seed)
    takes = inspect.signature(detector.fit).parameters
    given = {"labels": split.labels, "val_mask": split.val_mask}
    detector.fit(data, **{name: value for name, value in given.items() if name in takes})
    return np.asarray(detector.decision_scores_)


def open_set_benchmark(
    detectors: Mapping[str, Any],
    data: Any,
    y: ArrayLike,
    anomaly_classes: Sequence[int],
    *,
    seeds: Iterable[int] = range(3),
    **split: Any,
) -> pd.DataFrame:
    """Every detector with every class as the known one: one row a detector, known class and seed.

    Parameters
    ----------
    detectors : name to detector; each is cloned, and gets ``labels`` and ``val_mask`` if its ``fit`` takes them
    data, y, anomaly_classes : the graph, its nodes' classes, and which of them are anomalies
    split : further settings of `open_set_split`

    Returns
    -------
    DataFrame with detector, known, seed, auroc_* and aupr_* for all, seen and unseen anomalies, recall_at_k
    """
    rows = []
    for seed in seeds:
        for known in anomaly_classes:
            drawn = open_set_split(y, anomaly_classes, known, seed=seed, **split)
            for name, detector in detectors.items():
                scores = fit_scores(detector, data, drawn, seed=seed)
                rows.append({"detector": name, "known": known, "seed": seed, **drawn.evaluate(scores)})
    return pd.DataFrame(rows)
