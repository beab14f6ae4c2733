"""Targeted augmentation: undesired evidence is spread over images of all classes, so that it stops predicting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Kind = Literal["patch", "mix", "swap"]
KINDS = ("patch", "mix", "swap")
PATCHES = 5  # pasted into an image (paper)
PATCH_SHARE = 1 / 7  # of the image's side (PIP-Net: 32 of 224 pixels), at least 4 pixels
MIXED_IN = 0.25  # share of the concept image (paper)
TOP = 10  # strongest images, or crops, of a concept in each class


@dataclass(frozen=True)
class Augmentation:
    """How training images (or features) are altered: image i with probability ``probability[i]``, anew in every epoch.

    Attributes
    ----------
    kind : "patch" pastes crops of undesired concepts at random places; "mix" is 0.75 x + 0.25 x_concept; "swap" takes
        the features' part in the span of the undesired concept directions from another image; None changes nothing.
    probability : (N,)
    evidence : crops (m, C, s, s) or images (m, C, H, W) of undesired concepts, as many of each class; None for "swap".
    evidence_weight : (m,) how often each is drawn.
    basis : (d, r) orthonormal span of the concept directions; "swap" only.
    """

    kind: Kind | None
    probability: Tensor
    evidence: Tensor | None = None
    evidence_weight: Tensor | None = None
    basis: Tensor | None = None

    @property
    def draws(self) -> int:
        """Altered copies of the data that a head is fitted on."""
        return 1 if self.kind is None else 4

    def images(self, x: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        """The batch ``x``, whose images have numbers ``rows``, with some of them altered."""
        if self.kind not in ("patch", "mix"):
            return x
        altered = self._chosen(rows, generator)
        if not altered.any():
            return x
        x = x.clone()
        if self.kind == "mix":
            evidence = self._drawn(int(altered.sum()), generator).to(x)
            x[altered] = (1 - MIXED_IN) * x[altered] + MIXED_IN * evidence
            return x
        side = self.evidence.shape[-1]
        for i in torch.nonzero(altered).flatten().tolist():
            for crop in self._drawn(PATCHES, generator).to(x):
                top = int(torch.randint(x.shape[2] - side + 1, (), generator=generator))
                left = int(torch.randint(x.shape[3] - side + 1, (), generator=generator))
                x[i, :, top : top + side, left : left + side] = crop
        return x

    def features(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """f - U U^T f + U U^T f_other for the chosen of all N feature vectors."""
        if self.kind != "swap":
            return f
        basis = self.basis.to(f)
        inside = f @ basis @ basis.T
        altered = self._chosen(torch.arange(len(f)), generator)[:, None].to(f.device)
        other = torch.randperm(len(f), generator=generator)
        return torch.where(altered, f - inside + inside[other], f)

    def _chosen(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        return torch.rand(len(rows), generator=generator) < self.probability[rows]

    def _drawn(self, count: int, generator: torch.Generator) -> Tensor:
        return self.evidence[torch.multinomial(self.evidence_weight, count, replacement=True, generator=generator)]


def augmentation(
    kind: Kind | None,
    model: Any,
    images: Any,
    codes: NDArray[np.int64],
    *,
    flagged: list[int],
    probability: NDArray[np.float64],
) -> Augmentation:
    """The plan for a model that still has its flagged concepts.

    Raises
    ------
    ValueError : a kind that this model, or these images, cannot have.
    """
    p = torch.as_tensor(probability)
    if kind is None:
        return Augmentation(None, p)
    x = model.tensor(images)
    possible = [k for k in model.augmentations if k == "swap" or x.ndim == 4]
    if kind not in possible:
        raise ValueError(
            f"augment={kind!r} does not go with {type(model).__name__} on data of shape {tuple(x.shape)}; "
            f"possible are {', '.join(map(repr, possible)) or 'none'} and None"
        )
    if kind == "swap":
        return Augmentation("swap", p, basis=span(model.directions_[flagged]))
    importance = np.abs(model.head_weight_).sum(axis=0)
    shown = strongest(model.concepts(x), codes, flagged)
    found = [x[i] if kind == "mix" else _crop(model, x[i : i + 1], j) for i, j in shown]
    return Augmentation(kind, p, torch.stack(found).cpu(), torch.tensor([importance[j] + 1e-6 for _, j in shown]))


def strongest(activations: NDArray[np.float32], codes: NDArray[np.int64], flagged: list[int]) -> list[tuple[int, int]]:
    """(image, concept) pairs: the images that show each flagged concept most, as many of every class.

    Evidence of the other class only would be the reverse shortcut.
    """
    pairs = []
    for j in flagged:
        for code in np.unique(codes):
            members = np.flatnonzero(codes == code)
            pairs += [(int(i), j) for i in members[np.argsort(-activations[members, j])[:TOP]]]
    return pairs


def span(directions: Tensor) -> Tensor:
    """(d, r) orthonormal basis of what rows (m, d) span, r < m where they are dependent."""
    basis, size, _ = torch.linalg.svd(directions.T.double(), full_matrices=False)
    return basis[:, size > 1e-6 * size.max()]


def _crop(model: Any, x: Tensor, j: int) -> Tensor:
    """The patch where concept j is strongest in one image."""
    where = model.maps(x)[0, j]
    row, column = np.unravel_index(where.argmax(), where.shape)
    height, width = x.shape[2:]
    side = min(max(4, round(min(height, width) * PATCH_SHARE)), height, width)
    top = int(np.clip((row + 0.5) * height / where.shape[0] - side / 2, 0, height - side))
    left = int(np.clip((column + 0.5) * width / where.shape[1] - side / 2, 0, width - side))
    return x[0, :, top : top + side, left : left + side]
