"""What is compared with: extrapolation of a learning curve, and a network that gets the raw images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import curve_fit
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import nn

from cameraready.methods.preprocess_gain.plugin_accuracy import Array


def inverse_power_law(n: ArrayLike, accuracy: ArrayLike, at: float) -> float:
    """Accuracy at ``at`` labels from a - b n^(-c) fitted to measured accuracies; the last of them if no fit converges.

    Examples
    --------
    >>> n = np.array([10.0, 20.0, 40.0, 80.0])
    >>> round(inverse_power_law(n, 0.9 - n**-0.5, 320), 3)
    0.844
    """
    n, accuracy = np.asarray(n, dtype=float), np.asarray(accuracy, dtype=float)

    def curve(n: Array, a: float, b: float, c: float) -> Array:
        return a - b * n**-c

    start = (min(accuracy[-1] + 0.02, 1.0), 0.5, 0.5)
    try:
        fitted, _ = curve_fit(curve, n, accuracy, p0=start, bounds=([0, 0, 0.05], [1, 10, 3]), max_nfev=5000)
    except RuntimeError:
        return float(accuracy[-1])
    return float(curve(np.array(at), *fitted))


class SmallCNN(ClassifierMixin, BaseEstimator):
    """Two convolutions, global pooling, one linear layer; weight decay is its regularisation."""

    def __init__(self, side: int = 16, *, weight_decay: float = 1e-3, epochs: int = 40, seed: int = 0) -> None:
        self.side = side
        self.weight_decay = weight_decay
        self.epochs = epochs
        self.seed = seed

    def fit(self, X: Array, y: np.ndarray) -> SmallCNN:
        self.classes_, codes = np.unique(y, return_inverse=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.network_ = nn.Sequential(
                nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                nn.Linear(24, len(self.classes_)),
            )  # fmt: skip
            self.low_, self.scale_ = float(X.mean()), float(X.std()) or 1.0
            inputs, targets = self._images(X), torch.from_numpy(codes)
            optimiser = torch.optim.AdamW(self.network_.parameters(), lr=5e-3, weight_decay=self.weight_decay)
            for _ in range(self.epochs):
                for rows in torch.randperm(len(inputs)).split(32):
                    loss = nn.functional.cross_entropy(self.network_(inputs[rows]), targets[rows])
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
        return self

    @torch.no_grad()
    def predict(self, X: Array) -> np.ndarray:
        return self.classes_[self.network_(self._images(X)).argmax(dim=1).numpy()]

    def _images(self, X: Array) -> Any:
        return torch.from_numpy(((X - self.low_) / self.scale_).astype(np.float32)).reshape(-1, 1, self.side, self.side)
