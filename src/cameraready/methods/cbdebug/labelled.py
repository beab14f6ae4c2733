"""Concept bottlenecks that learn labelled concepts: joint, sequential and independent training."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from cameraready.methods.cbdebug.augmentation import Augmentation
from cameraready.methods.cbdebug.head_refit import HeadRefitModel
from cameraready.methods.cbdebug.inputs import class_codes
from cameraready.methods.cbdebug.model import ConceptModel, training_tensors
from cameraready.methods.cbdebug.networks import feature_size, small_encoder
from cameraready.methods.cbdebug.training import Schedule, seeded, train

CONCEPT_LOSS = 0.5  # weight of the concepts' cross-entropy beside the classes' (joint training)


class LabelledNetwork(nn.Module):
    """encoder -> linear concept layer -> sigmoid -> head."""

    def __init__(self, encoder: nn.Module, n_features: int, n_concepts: int, n_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.concept_layer = nn.Linear(n_features, n_concepts)
        self.head = nn.Linear(n_concepts, n_classes)

    @property
    def directions(self) -> Tensor:
        return self.concept_layer.weight

    def features(self, x: Tensor) -> Tensor:
        return self.encoder(x).flatten(1)

    def from_features(self, f: Tensor) -> Tensor:
        return self.concept_layer(f).sigmoid()

    def concepts(self, x: Tensor) -> Tensor:
        return self.from_features(self.features(x))


class LabelledCBM(ConceptModel):
    """What joint, sequential and independent bottlenecks share.

    Parameters
    ----------
    encoder : torch module (N, C, H, W) -> (N, d), copied and trained; None: `small_encoder` for images, nothing for
        features.
    concept_names : M names.
    epochs, lr, head_lr : training by Adam.
    strength, l1_ratio : the head's elastic net (sequential and independent).
    """

    def __init__(
        self,
        encoder: nn.Module | None = None,
        *,
        concept_names: Sequence[str] | None = None,
        epochs: int = 20,
        lr: float = 1e-3,
        head_lr: float = 1e-2,
        strength: float = 1e-3,
        l1_ratio: float = 0.99,
        batch_size: int = 64,
        device: str | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.encoder = encoder
        self.concept_names = concept_names
        self.epochs = epochs
        self.lr = lr
        self.head_lr = head_lr
        self.strength = strength
        self.l1_ratio = l1_ratio
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state

    def fit(self, images: Any, y: ArrayLike, concepts: ArrayLike) -> Self:
        """Train on images, classes and concept labels (N, M) in [0, 1]."""
        x = self.tensor(images)
        self.classes_, codes = class_codes(y, len(x))
        labels = np.asarray(concepts, dtype=np.float32)
        if labels.ndim != 2 or len(labels) != len(x) or not ((labels >= 0) & (labels <= 1)).all():
            raise ValueError(f"concepts has shape {labels.shape} for {len(x)} images; pass (N, M) values from 0 to 1")
        self.removed_ = ()
        self._name_concepts(self.concept_names, labels.shape[1])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeded(self.random_state).initial_seed())
            encoder = self.encoder
            if encoder is None:
                encoder = nn.Identity() if x.ndim == 2 else small_encoder(x.shape[1])
            encoder = copy.deepcopy(encoder).to(x.device)
            size = feature_size(nn.Sequential(encoder, nn.Flatten()), x)
            network = LabelledNetwork(encoder, size, labels.shape[1], len(self.classes_))
        self.network_ = network.to(x.device)
        self._fit(x, codes, labels)
        return self

    def _fit(self, x: Tensor, codes: NDArray[np.int64], labels: NDArray[np.float32]) -> None:
        raise NotImplementedError

    def _train_concepts(self, x: Tensor, labels: NDArray[np.float32]) -> None:
        network, target = self.network_, torch.as_tensor(labels, device=x.device)

        def loss(rows: Tensor, _: torch.Generator) -> Tensor:
            return nn.functional.binary_cross_entropy(network.concepts(x[rows]), target[rows])

        train(network, len(x), loss, schedule=self._schedule(), seed=self.random_state)

    def _schedule(self) -> Schedule:
        return Schedule(self.epochs, lr=self.lr, head_lr=self.head_lr, batch_size=self.batch_size)


class JointCBM(LabelledCBM):
    """Encoder, concepts and head trained at once: cross-entropy plus 0.5 times the concepts' binary cross-entropy.

    When it is retrained, the kept concepts are held to the activations that they had, so that their names stay true.
    """

    def _fit(self, x: Tensor, codes: NDArray[np.int64], labels: NDArray[np.float32]) -> None:
        self._train_all(x, codes, np.ones(len(x)), torch.as_tensor(labels), list(range(labels.shape[1])), None)

    def retrained(self, images: Any, y: ArrayLike, *, weights: NDArray[np.float64], augmentation: Augmentation) -> Self:
        other, x = self.copied(), self.tensor(images)
        kept = [j for j in range(len(self.concept_names_)) if j not in self.removed_]
        before = torch.as_tensor(self.concepts(x))
        other._train_all(x, y, weights, before, kept, augmentation)
        return other

    def _train_all(
        self,
        x: Tensor,
        y: ArrayLike,
        weights: NDArray[np.float64],
        concepts: Tensor,
        kept: list[int],
        augmentation: Augmentation | None,
    ) -> None:
        labels = self.classes_[y] if augmentation is None else y
        codes, u = training_tensors(self.classes_, labels, weights, x)
        network, target = self.network_.to(x.device), concepts.to(x.device)

        def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
            batch = x[rows] if augmentation is None else augmentation.images(x[rows], rows, generator)
            found = network.concepts(batch)
            classes = nn.functional.cross_entropy(network.head(found), codes[rows], reduction="none")
            named = nn.functional.binary_cross_entropy(found[:, kept], target[rows][:, kept])
            return (u[rows] * classes).mean() + CONCEPT_LOSS * named

        train(network, len(x), loss, schedule=self._schedule(), removed=self.removed_, seed=self.random_state)


class SequentialCBM(LabelledCBM, HeadRefitModel):
    """Concepts first; then a sparse head on the concepts as predicted. Retraining fits the head anew."""

    def _fit(self, x: Tensor, codes: NDArray[np.int64], labels: NDArray[np.float32]) -> None:
        self._train_concepts(x, labels)
        self.fit_head_(self.concepts(x), codes, np.ones(len(x)))


class IndependentCBM(LabelledCBM, HeadRefitModel):
    """Concepts and head apart, the head on the concepts' true labels.

    Retraining, which sees images and classes only, fits the head on the concepts as predicted.
    """

    def _fit(self, x: Tensor, codes: NDArray[np.int64], labels: NDArray[np.float32]) -> None:
        self._train_concepts(x, labels)
        self.fit_head_(labels, codes, np.ones(len(x)))
