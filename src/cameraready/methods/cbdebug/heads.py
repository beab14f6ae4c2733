"""The sparse linear head of a concept bottleneck: an elastic net by scikit-learn, stored as a torch layer."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import nn

# scikit-learn before 1.8 asks for the penalty by name, later ones read it off l1_ratio.
_ELASTIC_NET = (
    {"penalty": "elasticnet"} if inspect.signature(LogisticRegression).parameters["penalty"].default == "l2" else {}
)


@dataclass(frozen=True)
class ElasticNet:
    """Penalty ``strength * (l1_ratio |w|_1 + (1 - l1_ratio) |w|^2 / 2)`` on the mean loss, classes balanced.

    Balanced is the total weight of each class, whatever the sample weights: scikit-learn's "balanced" goes by counts,
    and would balance a second time where sample weights already do.
    """

    strength: float = 2e-2
    l1_ratio: float = 0.99

    def __post_init__(self) -> None:
        if not self.strength > 0 or not 0 <= self.l1_ratio <= 1:
            raise ValueError(
                f"strength={self.strength}, l1_ratio={self.l1_ratio}; strength must be positive, l1_ratio from 0 to 1 "
                "(2e-2 and 0.99 are the paper's)"
            )

    def fit(
        self,
        concepts: NDArray[np.float32],
        codes: NDArray[np.int64],
        n_classes: int,
        *,
        weights: NDArray[np.float64],
        removed: Sequence[int] = (),
        seed: int | None = 0,
    ) -> nn.Linear:
        """A (n_classes, M) layer whose removed columns are exactly 0."""
        kept = np.setdiff1d(np.arange(concepts.shape[1]), removed)
        totals = np.bincount(codes, weights=weights, minlength=n_classes)
        if not totals.all():
            raise ValueError(f"all weights of class number {int(totals.argmin())} are 0; every class needs some")
        balanced = weights * len(weights) / (n_classes * totals[codes])
        model = LogisticRegression(
            solver="saga",
            l1_ratio=self.l1_ratio,
            C=1 / (self.strength * len(weights)),
            max_iter=500,
            tol=1e-4,
            random_state=seed,
            **_ELASTIC_NET,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # at 500 passes the loss has long settled
            model.fit(concepts[:, kept], codes, sample_weight=balanced)
        weight, bias = model.coef_, model.intercept_
        if n_classes == 2:  # one column of log-odds: half for one class, minus half for the other
            weight, bias = np.vstack([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
        head = nn.Linear(concepts.shape[1], n_classes)
        with torch.no_grad():
            head.weight.zero_()
            head.weight[:, torch.as_tensor(kept)] = torch.as_tensor(weight, dtype=torch.float32)
            head.bias.copy_(torch.as_tensor(bias, dtype=torch.float32))
        return head.requires_grad_(False)
