"""What explainers and metrics know: the model, the space, and the training rows with the model's labels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.neighbors import LocalOutlierFactor

from cameraready.methods.lapace.black_box import BlackBox
from cameraready.methods.lapace.columns import Array
from cameraready.methods.lapace.space import TabularSpace

LOF_NEIGHBOURS = 20
LOF_ROWS = 5000  # a larger class is sampled, so that fitting stays linear in the number of rows


class Background:
    """The model on its training rows.

    Attributes
    ----------
    space : the fitted space. ``codes``, ``encoded`` : the training rows. ``box`` : the model.
    labels : the model's class of every row, as a position in ``classes``.
    """

    def __init__(
        self, model: Any, space: TabularSpace, frame: pd.DataFrame, *, classes: Sequence[Any] | None = None
    ) -> None:
        self.space = space.fit(frame)
        self.box = BlackBox(model, self.space, classes=classes)
        codes = self.space.codes(frame)
        proba, error = self.box.answers(codes)
        answered = ~np.isnan(proba).any(axis=1)
        if error is not None:
            if not answered.any():
                raise ValueError(f"the model raised on every training row: {error!r}") from error
            warnings.warn(f"the model raised on {(~answered).sum()} training rows, left out: {error!r}", stacklevel=3)
        self.codes, self.proba = codes[answered], proba[answered]
        self.encoded = self.space.scale(self.codes)
        self.labels: NDArray[np.intp] = self.proba.argmax(axis=1)
        self._lofs: dict[int, LocalOutlierFactor] = {}
        if len(np.unique(self.labels)) < 2:
            only = self.classes[self.labels[0]]
            raise ValueError(
                f"the model gives class {only!r} to all {len(self.labels)} training rows; nothing to contrast"
            )

    @property
    def classes(self) -> list[Any]:
        return self.box.classes  # type: ignore[return-value]

    def targets(self, target: Any, labels: NDArray[np.intp]) -> NDArray[np.intp]:
        """The wanted class of every row, as a position: ``target`` is a class, or "opposite" for two classes."""
        if isinstance(target, str) and target == "opposite" and "opposite" not in self.classes:
            if len(self.classes) != 2:
                raise ValueError(f"target='opposite' needs two classes, the model has {self.classes}; name one of them")
            return 1 - labels
        if target not in self.classes:
            raise ValueError(f"target={target!r} is not among the classes {self.classes}, nor 'opposite'")
        position = self.classes.index(target)
        if not (self.labels == position).any():
            raise ValueError(f"target={target!r}: the model gives this class to no training row")
        return np.full(len(labels), position)

    def outlier_factor(self, encoded: Array, target: int) -> Array:
        """LOF (about 1 for inliers) of rows against the training rows of the target class."""
        if len(encoded) == 0:
            return np.empty(0)
        return -self._lof(target).score_samples(encoded)

    def outlier_limit(self, target: int) -> float:
        """The LOF up to which scikit-learn calls a row an inlier: 1.5."""
        return float(-self._lof(target).offset_)

    def _lof(self, target: int) -> LocalOutlierFactor:
        if target not in self._lofs:
            rows = self.encoded[self.labels == target]
            if len(rows) > LOF_ROWS:
                rows = rows[np.random.default_rng(0).choice(len(rows), LOF_ROWS, replace=False)]
            neighbours = max(min(LOF_NEIGHBOURS, len(rows) - 1), 1)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Duplicate values")  # discrete rows repeat; nothing to do
                rows = np.repeat(rows, 2, axis=0) if len(rows) == 1 else rows
                self._lofs[target] = LocalOutlierFactor(n_neighbors=neighbours, novelty=True).fit(rows)
        return self._lofs[target]
