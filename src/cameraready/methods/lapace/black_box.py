"""The model that is explained: checked calls, and rows on which it fails set apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cameraready.methods.lapace.columns import Array
from cameraready.methods.lapace.space import FittedSpace


class BlackBox:
    """A classifier that can only be called.

    Parameters
    ----------
    model : a function from a DataFrame to probabilities (n, C), or an object with ``predict_proba``.
    space : the fitted space, whose columns and types the model sees.
    classes : labels of the columns; default the model's ``classes_``, else 0 to C-1.
    """

    def __init__(self, model: Any, space: FittedSpace, *, classes: Sequence[Any] | None = None) -> None:
        self.call: Callable[[pd.DataFrame], Any] = getattr(model, "predict_proba", model)
        if not callable(self.call):
            raise TypeError(f"the model is {type(model).__name__}; pass a function or an object with predict_proba")
        self.space = space
        owner = model if hasattr(model, "predict_proba") else getattr(model, "__self__", None)
        known = getattr(owner, "classes_", None) if classes is None else classes
        self.classes: list[Any] | None = None if known is None else list(np.asarray(known).tolist())

    def __call__(self, codes: Array) -> Array:
        """Probabilities (n, C) of rows given as codes; NaN for rows on which the model raises."""
        answer, _ = self.answers(codes)
        return answer

    def answers(self, codes: Array) -> tuple[Array, Exception | None]:
        """The probabilities, and the last error that the model raised, if any."""
        if len(codes) == 0:
            return np.empty((0, len(self.classes or ()))), None
        frame = self.space.frame(codes)
        try:
            raw = self.call(frame)
        except Exception as error:
            return self._halves(codes, error)
        return self._checked(raw, len(codes)), None

    def _halves(self, codes: Array, error: Exception) -> tuple[Array, Exception]:
        """Find the rows that make it raise by halving: all others keep their answers."""
        if len(codes) == 1:
            return np.full((1, len(self.classes or (0, 1))), np.nan), error
        middle = len(codes) // 2
        parts = [self.answers(part)[0] for part in (codes[:middle], codes[middle:])]
        width = len(self.classes or (0, 1))  # known only after the first answer
        return np.concatenate([np.full((len(p), width), np.nan) if p.shape[1] != width else p for p in parts]), error

    def _checked(self, raw: Any, n: int) -> Array:
        try:
            proba = np.asarray(raw, dtype=float)
        except (TypeError, ValueError) as error:
            raise ValueError(f"predict_proba returned {type(raw).__name__}, not numbers of shape (n, C)") from error
        if proba.ndim != 2 or len(proba) != n or proba.shape[1] < 2:
            raise ValueError(
                f"predict_proba returned shape {proba.shape} for {n} rows; it must be ({n}, C) with C >= 2"
            )
        if self.classes is None:
            self.classes = list(range(proba.shape[1]))
        if proba.shape[1] != len(self.classes):
            raise ValueError(f"predict_proba returned {proba.shape[1]} columns for the {len(self.classes)} classes")
        if not np.isfinite(proba).all():
            bad = int(np.flatnonzero(~np.isfinite(proba).all(axis=1))[0])
            raise ValueError(f"predict_proba returned {proba[bad].tolist()} for row {bad}; it must be finite")
        if (off := np.abs(proba.sum(axis=1) - 1) > 1e-3).any() or (proba < -1e-3).any():
            bad = int(np.argmax(off | (proba < -1e-3).any(axis=1)))
            raise ValueError(f"predict_proba returned {proba[bad].tolist()} for row {bad}; rows must sum to 1")
        return proba
