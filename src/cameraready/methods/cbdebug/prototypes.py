"""Prototype bottlenecks: unlabelled concepts that are parts of pictures (PIP-Net's design)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from cameraready.methods.cbdebug.augmentation import Augmentation
from cameraready.methods.cbdebug.inputs import class_codes
from cameraready.methods.cbdebug.model import ConceptModel, logits, training_tensors
from cameraready.methods.cbdebug.networks import feature_size, wide_field_maps
from cameraready.methods.cbdebug.training import Schedule, seeded, train
from cameraready.methods.cbdebug.views import two_views

ALIGN, USAGE, CLASSES = 5.0, 2.0, 2.0  # weights of the losses (PIP-Net)
SPREAD = 5.0  # of the prototypes' entropy: see _two_view_losses
UNUSED = 1e-3  # a prototype whose head weights are all below this is used by no class
EPSILON = 1e-8


class PrototypeNetwork(nn.Module):
    """Maps -> softmax over M prototypes at each location -> maximum over locations -> non-negative head."""

    def __init__(self, backbone: nn.Module, n_features: int, n_prototypes: int, n_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.prototypes = nn.Conv2d(n_features, n_prototypes, 1)
        self.head = nn.Linear(n_prototypes, n_classes, bias=False)
        nn.init.normal_(self.head.weight, mean=1.0, std=0.01)

    def maps(self, x: Tensor) -> Tensor:
        """(N, M, h, w), summing to 1 over prototypes."""
        return self.prototypes(self.backbone(x)).softmax(1)

    def concepts(self, x: Tensor) -> Tensor:
        return self.maps(x).amax((2, 3))

    def logits(self, concepts: Tensor) -> Tensor:
        """log(1 + (W c)^2): small evidence for a class is no evidence."""
        return torch.log1p(self.head(concepts) ** 2)


class PrototypeCBM(ConceptModel):
    """Prototypes as concepts, learned without concept labels from two views of each image.

    Parameters
    ----------
    backbone : torch module (N, C, H, W) -> (N, D, h, w), copied and trained; None: three convolutions.
    n_prototypes : M.
    align_epochs : epochs in which prototypes are learned before any class is looked at.
    epochs, lr, head_lr : training with classes, and retraining. With a pretrained backbone: lr=1e-5 (paper).
    flip : whether a mirrored picture shows the same.

    Losses: alignment -log <z1, z2> at each location, usage -log tanh(sum over the batch), cross-entropy; and, added
    here, the missing entropy of the prototypes' mean shares, without which a few dozen prototypes collapse to one.
    """

    def __init__(
        self,
        backbone: nn.Module | None = None,
        *,
        n_prototypes: int = 24,
        align_epochs: int = 10,
        epochs: int = 30,
        lr: float = 1e-3,
        head_lr: float = 0.05,
        flip: bool = False,
        batch_size: int = 64,
        device: str | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.backbone = backbone
        self.n_prototypes = n_prototypes
        self.align_epochs = align_epochs
        self.epochs = epochs
        self.lr = lr
        self.head_lr = head_lr
        self.flip = flip
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state

    def fit(self, images: Any, y: ArrayLike) -> Self:
        """Train on (N, C, H, W) images and their classes."""
        if self.n_prototypes < 2:
            raise ValueError(f"n_prototypes={self.n_prototypes}; at least 2 are needed (24 is the default)")
        x = self.tensor(images)
        if x.ndim != 4:
            raise ValueError(f"images has shape {tuple(x.shape)}; prototypes are parts of (N, C, H, W) pictures")
        self.classes_, codes = class_codes(y, len(x))
        self.removed_ = ()
        self._name_concepts(None, self.n_prototypes, "prototype")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeded(self.random_state).initial_seed())
            backbone = wide_field_maps(x.shape[1], 16) if self.backbone is None else copy.deepcopy(self.backbone)
            backbone = backbone.to(x.device)
            size = feature_size(backbone, x)
            self.network_ = PrototypeNetwork(backbone, size, self.n_prototypes, len(self.classes_)).to(x.device)
        network = self.network_

        def alignment(rows: Tensor, generator: torch.Generator) -> Tensor:
            return _two_view_losses(network, x[rows], generator, flip=self.flip)[0]

        train(
            network, len(x), alignment, schedule=self._schedule(self.align_epochs, head_only=0), seed=self.random_state
        )
        plain = Augmentation(None, torch.zeros(len(x)))
        self._train_classes(x, self.classes_[codes], np.ones(len(x)), plain)
        return self

    def retrained(
        self,
        images: Any,
        y: ArrayLike,
        *,
        weights: NDArray[np.float64],
        augmentation: Augmentation,
        extra_loss: Callable[[nn.Module], Tensor] | None = None,
    ) -> Self:
        """Prototypes that no class uses get fresh head weights, the removed ones stay at 0; then extractor and head
        are trained on. ``extra_loss(network)`` is added to every batch's loss.
        """
        other, x = self.copied(), self.tensor(images)
        head = other.network_.head.weight
        with torch.no_grad():
            unused = (head.max(dim=0).values < UNUSED).nonzero().flatten().tolist()
            fresh = [j for j in unused if j not in self.removed_]
            noise = torch.randn(len(self.classes_), len(fresh), generator=seeded(self.random_state))
            head[:, fresh] = 1 + 0.01 * noise.to(head)
        other._train_classes(x, y, weights, augmentation, extra_loss)
        return other

    def _train_classes(
        self,
        x: Tensor,
        y: ArrayLike,
        weights: NDArray[np.float64],
        augmentation: Augmentation,
        extra_loss: Callable[[nn.Module], Tensor] | None = None,
    ) -> None:
        codes, u = training_tensors(self.classes_, y, weights, x)
        network = self.network_.to(x.device)

        def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
            batch = augmentation.images(x[rows], rows, generator)
            shape, concepts = _two_view_losses(network, batch, generator, flip=self.flip)
            scores = logits(network, concepts)
            errors = nn.functional.cross_entropy(scores, codes[rows].repeat(2), reduction="none")
            total = shape + CLASSES * (u[rows].repeat(2) * errors).mean()
            return total if extra_loss is None else total + extra_loss(network)

        train(
            network,
            len(x),
            loss,
            schedule=self._schedule(self.epochs, head_only=int(self.epochs > 1)),
            removed=self.removed_,
            seed=self.random_state,
        )

    def _schedule(self, epochs: int, *, head_only: int) -> Schedule:
        return Schedule(
            epochs,
            lr=self.lr,
            head_lr=self.head_lr,
            batch_size=self.batch_size,
            head_only_epochs=head_only,
            non_negative_head=True,
        )


def _two_view_losses(
    network: PrototypeNetwork, x: Tensor, generator: torch.Generator, *, flip: bool
) -> tuple[Tensor, Tensor]:
    """Alignment plus usage, and the concepts of both views (2 n, M)."""
    maps = network.maps(torch.cat(two_views(x, generator, flip=flip)))
    first, second = maps.chunk(2)
    # Each view is drawn towards the other as it stands, not the other way round at the same time (PIP-Net).
    same = [(a * b.detach()).sum(1) for a, b in ((first, second), (second, first))]
    align = -sum(torch.log(s + EPSILON).mean() for s in same) / 2
    concepts = maps.amax((2, 3))
    m = maps.shape[1]
    usage = -torch.log(torch.tanh(concepts.sum(0) / 2) + EPSILON).mean()
    # With few prototypes an even share of each place satisfies the usage loss, and one prototype then takes all places
    # (with hundreds, as in the paper, it does not). So their mean shares are spread out, too.
    mean = maps.mean((0, 2, 3))
    spread = math.log(m) + (mean * torch.log(mean + EPSILON)).sum()
    return ALIGN * align + USAGE * usage + SPREAD * spread, concepts
