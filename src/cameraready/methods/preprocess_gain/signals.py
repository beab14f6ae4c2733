"""Signals and images as scikit-learn transformers see them: flat rows, or (n, H, W[, C]); checked in one place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from cameraready.methods.preprocess_gain.plugin_accuracy import Array


class SignalTransformer(TransformerMixin, BaseEstimator):
    """A transformer of rows that are signals of shape (p,), or images of shape ``image_shape``.

    Subclasses have a parameter ``image_shape`` and define ``_fit(signals)`` and ``_transform(signals)`` on arrays of
    shape (n, p), (n, H, W) or (n, H, W, C). What ``_transform`` returns in that shape comes back in the shape of X.
    """

    def fit(self, X: Any, y: Any = None) -> SignalTransformer:
        """Fit on inputs alone; ``y`` is ignored."""
        signals, _ = self._read(X, reset=True)
        self._fit(signals)
        return self

    def transform(self, X: Any) -> Array:
        """The processed inputs."""
        check_is_fitted(self)
        signals, shape = self._read(X, reset=False)
        processed = self._transform(signals)
        return processed.reshape(shape) if processed.shape == signals.shape else processed

    def _read(self, X: Any, *, reset: bool) -> tuple[Array, tuple[int, ...]]:
        """X checked, as an array (n, p), (n, H, W) or (n, H, W, C), and the shape it came in."""
        shape = self.image_shape if reset else self.signal_shape_
        shape = tuple(shape) if shape is not None else None
        came = np.shape(X) if hasattr(X, "ndim") and X.ndim > 2 else None
        if came is not None:
            if shape not in (None, came[1:]):
                raise ValueError(f"X holds images of shape {came[1:]}, image_shape={shape}; pass images of one shape")
            shape, X = came[1:], np.asarray(X).reshape(len(X), -1)
        X = validate_data(self, X, reset=reset, dtype=(np.float64, np.float32), ensure_min_samples=1 + reset)
        came = came or X.shape
        if reset:
            self.signal_shape_ = shape
        if shape is None:
            return X, came
        if len(shape) not in (2, 3) or math.prod(shape) != X.shape[1]:
            raise ValueError(
                f"image_shape={shape} does not fit rows of {X.shape[1]} values; pass (height, width) or "
                f"(height, width, channels) whose product is {X.shape[1]}"
            )
        return X.reshape(len(X), *shape), came

    def _fit(self, signals: Array) -> None:
        raise NotImplementedError

    def _transform(self, signals: Array) -> Array:
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def check_sigma(sigma: float | str, name: str = "sigma") -> None:
    """Refuse anything but "estimate" or a number that is at least 0."""
    if sigma == "estimate":
        return
    if isinstance(sigma, str) or not np.isfinite(sigma) or sigma < 0:
        raise ValueError(f"{name}={sigma!r}; pass 'estimate' or the noise's standard deviation in units of X")
