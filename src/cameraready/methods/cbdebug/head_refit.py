"""Models whose encoder is left alone: retraining fits their sparse head anew."""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from cameraready.methods.cbdebug.augmentation import Augmentation
from cameraready.methods.cbdebug.heads import ElasticNet
from cameraready.methods.cbdebug.inputs import checked_activations, class_codes
from cameraready.methods.cbdebug.model import ConceptModel
from cameraready.methods.cbdebug.training import seeded


class HeadRefitModel(ConceptModel):
    """``network_`` has ``features(x) -> (N, d)`` and ``from_features(f) -> (N, M)``, linear but for a squashing."""

    strength: float
    l1_ratio: float

    @property
    def directions_(self) -> torch.Tensor:
        """(M, d): each concept's direction in feature space."""
        return self.network_.directions.detach().cpu()

    @property
    def augmentations(self) -> tuple[str, ...]:
        return ("swap", *super().augmentations)

    def at_features(self, x: torch.Tensor) -> tuple[Self, torch.Tensor]:
        features = self.run(self.network_.features, x).to(x.device)
        if not torch.isfinite(features).all():
            raise ValueError("the encoder's features of these images are not finite; check the encoder")
        part = copy.copy(self)
        part.network_ = copy.copy(self.network_)
        part.network_._modules = {**self.network_._modules, "encoder": nn.Identity()}
        return part, features

    def retrained(self, images: Any, y: ArrayLike, *, weights: NDArray[np.float64], augmentation: Augmentation) -> Self:
        x, generator = self.tensor(images), seeded(self.random_state)
        codes = class_codes(y, len(x), classes=self.classes_)[1]
        features = self.run(self.network_.features, x)
        drawn = []
        for _ in range(augmentation.draws):
            if augmentation.kind in ("mix", "patch"):
                features = self.run(self.network_.features, augmentation.images(x, torch.arange(len(x)), generator))
            altered = augmentation.features(features, generator)
            drawn.append(self.run(self.network_.from_features, altered).numpy())
        copies = augmentation.draws
        other = self.copied()
        other.fit_head_(np.concatenate(drawn), np.tile(codes, copies), np.tile(weights, copies))
        return other

    def fit_head_(self, concepts: NDArray[np.float32], codes: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Fit the head of ``network_`` on concept activations, removed ones left out."""
        head = ElasticNet(self.strength, self.l1_ratio).fit(
            checked_activations(concepts),
            codes,
            len(self.classes_),
            weights=weights,
            removed=self.removed_,
            seed=self.random_state,
        )
        self.network_.head = head.to(next(self.network_.buffers(), head.weight).device)
