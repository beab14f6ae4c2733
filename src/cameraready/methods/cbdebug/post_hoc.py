"""Post-hoc concept bottlenecks: concept directions in a frozen encoder's feature space, and a sparse head."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.svm import LinearSVC
from torch import Tensor, nn

from cameraready.methods.cbdebug.head_refit import HeadRefitModel
from cameraready.methods.cbdebug.inputs import checked_weights, class_codes, image_tensor
from cameraready.methods.cbdebug.model import evaluating


@dataclass(frozen=True)
class ConceptBank:
    """Concept activation vectors: unit normals of the planes that part a concept's images from others.

    Attributes
    ----------
    names : M names.
    directions : float32 array (M, d), rows of length 1.
    """

    names: tuple[str, ...]
    directions: NDArray[np.float32]

    def __post_init__(self) -> None:
        directions = np.atleast_2d(np.asarray(self.directions, dtype=np.float32))
        length = np.linalg.norm(directions, axis=1, keepdims=True)
        if len(directions) != len(self.names) or not np.isfinite(directions).all() or not (length > 0).all():
            raise ValueError(
                f"directions has shape {directions.shape} for {len(self.names)} names; pass one row a name, "
                "finite and not zero"
            )
        object.__setattr__(self, "directions", directions / length)
        object.__setattr__(self, "names", tuple(self.names))


def concept_bank(
    encoder: nn.Module | None,
    examples: Mapping[str, tuple[Any, Any]],
    *,
    C: float = 0.1,
    random_state: int | None = 0,
    device: str | None = None,
) -> ConceptBank:
    """Learn concept directions from example images by linear support vector machines.

    Parameters
    ----------
    encoder : torch module (N, C, H, W) -> (N, d); None where the examples are features.
    examples : name -> (images that show the concept, images that do not). About fifty of each are usual.
    C : inverse penalty of the SVM.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> with_stripes, without = rng.normal(size=(40, 3)) + [2, 0, 0], rng.normal(size=(40, 3))
    >>> bank = concept_bank(None, {"stripes": (with_stripes, without)})
    >>> int(abs(bank.directions[0]).argmax())
    0
    """
    if not examples:
        raise ValueError("examples is empty; pass {name: (images with the concept, images without it)}")
    directions = []
    for name, (positive, negative) in examples.items():
        parts = [_features(encoder, images, device) for images in (positive, negative)]
        target = np.repeat([1, 0], [len(part) for part in parts])
        svm = LinearSVC(C=C, class_weight="balanced", random_state=random_state, max_iter=5000)
        directions.append(svm.fit(np.concatenate(parts), target).coef_[0])
        if not np.any(directions[-1]):
            raise ValueError(f"the examples of concept {name!r} and those without it look alike to the encoder")
    return ConceptBank(tuple(examples), np.array(directions))


class PostHocCBM(HeadRefitModel):
    """Post-hoc concept bottleneck: z-scored projections of a frozen encoder's features, and an elastic-net head.

    Parameters
    ----------
    encoder : torch module (N, C, H, W) -> (N, d), such as a CLIP image tower; None where X is already features.
    concept_bank : from `concept_bank`, or made of any directions (text embeddings of CLIP).
    strength, l1_ratio : the head's penalty (paper: 2e-2, 0.99); classes are balanced.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3)); y = X[:, 0] + 0.3 * X[:, 1] > 0
    >>> model = PostHocCBM(None, ConceptBank(("shape", "background", "colour"), np.eye(3))).fit(X, y)
    >>> model.score(X, y) > 0.9, model.head_weight_.shape
    (True, (2, 3))
    """

    def __init__(
        self,
        encoder: nn.Module | None = None,
        concept_bank: ConceptBank | None = None,
        *,
        strength: float = 2e-2,
        l1_ratio: float = 0.99,
        batch_size: int = 256,
        device: str | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.encoder = encoder
        self.concept_bank = concept_bank
        self.strength = strength
        self.l1_ratio = l1_ratio
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state

    def fit(self, images: Any, y: ArrayLike, *, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the scaling and the head; the encoder stays as it is."""
        if not isinstance(self.concept_bank, ConceptBank):
            raise TypeError(
                "concept_bank is missing: pass concept_bank(encoder, examples) or ConceptBank(names, directions)"
            )
        x = self.tensor(images)
        self.classes_, codes = class_codes(y, len(x))
        self.removed_ = ()
        self._name_concepts(self.concept_bank.names, len(self.concept_bank.names))
        network = PostHocNetwork(self.encoder, torch.from_numpy(self.concept_bank.directions), len(self.classes_))
        self.network_ = network
        projections = self.run(network.projections, x)
        network.mean.copy_(projections.mean(0))
        deviation = projections.std(0, correction=0)
        # A direction that the features do not span (projected out, say) has only rounding noise: it stays 0.
        network.scale.copy_(torch.where(deviation > 1e-5 * deviation.max(), 1 / deviation, 0.0))
        self.fit_head_(self.concepts(x), codes, checked_weights(sample_weight, len(x)))
        return self

    def copied(self) -> Self:
        """A copy with its own head; the frozen encoder is shared."""
        memo = {} if self.encoder is None else {id(self.encoder): self.encoder}
        other = copy.copy(self)
        other.network_ = copy.deepcopy(self.network_, memo)
        return other


class PostHocNetwork(nn.Module):
    """encoder -> (f . direction - mean) * scale -> head."""

    def __init__(self, encoder: nn.Module | None, directions: Tensor, n_classes: int) -> None:
        super().__init__()
        self.encoder = nn.Identity() if encoder is None else encoder
        self.register_buffer("directions", directions)
        self.register_buffer("mean", torch.zeros(len(directions)))
        self.register_buffer("scale", torch.ones(len(directions)))
        self.head = nn.Linear(len(directions), n_classes)

    def features(self, x: Tensor) -> Tensor:
        return self.encoder(x).flatten(1)

    def projections(self, x: Tensor) -> Tensor:
        f = self.features(x)
        if f.shape[1] != self.directions.shape[1]:
            raise ValueError(f"the features have {f.shape[1]} dimensions, concept_bank {self.directions.shape[1]}")
        return f @ self.directions.T

    def from_features(self, f: Tensor) -> Tensor:
        return (f @ self.directions.T - self.mean) * self.scale

    def concepts(self, x: Tensor) -> Tensor:
        return (self.projections(x) - self.mean) * self.scale


def _features(encoder: nn.Module | None, images: Any, device: str | None) -> NDArray[np.float32]:
    x = image_tensor(images, device=device)
    if encoder is None:
        return x.flatten(1).cpu().numpy()
    encoder.to(x.device)
    with evaluating(encoder):
        return torch.cat([encoder(batch).flatten(1).float().cpu() for batch in x.split(256)]).numpy()
