"""What each concept looks at, so that a person who knows the subject can say whether it should matter."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from cameraready.methods.cbdebug.inputs import checked_activations, class_codes
from cameraready.methods.cbdebug.model import ConceptModel, as_concept_model

OCCLUSION_GRID = 7
TEMPLATE = Path(__file__).parent / "templates" / "concepts.html"


@dataclass(frozen=True, eq=False)
class ConceptExplanation:
    """One concept.

    Attributes
    ----------
    index, name : the concept.
    weights : class label -> head weight.
    share : of the head's absolute weight.
    rows : numbers of the images that show it most, strongest first.
    activations : of those images.
    labels : their classes, if known, else None.
    """

    index: int
    name: str
    weights: dict[Any, float]
    share: float
    rows: tuple[int, ...]
    activations: tuple[float, ...]
    labels: tuple[Any, ...] | None

    def __str__(self) -> str:
        speaks = max(self.weights, key=self.weights.__getitem__)
        return f"{self.index:3d}  {self.name:24s} {self.share:4.0%} of the head, most for {speaks}"


@dataclass(frozen=True, eq=False)
class ConceptExplanations(Sequence[ConceptExplanation]):
    """All concepts of a model, in their order; `to_html` is what people look at.

    Attributes
    ----------
    activations : (N, M)
    y : (N,) labels or None.
    """

    model: ConceptModel
    images: Tensor
    activations: NDArray[np.float32]
    y: NDArray[Any] | None
    concepts: tuple[ConceptExplanation, ...]
    _heat: dict[int, NDArray[np.float32]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.concepts)

    def __getitem__(self, index: Any) -> Any:
        return self.concepts[index]

    def __iter__(self) -> Iterator[ConceptExplanation]:
        return iter(self.concepts)

    def __str__(self) -> str:
        ordered = sorted(self.concepts, key=lambda c: -c.share)
        return "\n".join(["concepts by their share of the head's weight", *map(str, ordered)])

    @property
    def names(self) -> list[str]:
        return [concept.name for concept in self.concepts]

    def strongest(self, index: int, top: int) -> list[int]:
        """Numbers of the images that show a concept most."""
        return np.argsort(-self.activations[:, index], kind="stable")[:top].tolist()

    def heat(self, row: int) -> NDArray[np.float32]:
        """(M, h, w): where in an image each concept is seen.

        The model's own maps; without such, by how much each activation falls when a grey square hides the place.
        """
        if self.images.ndim != 4:
            raise ValueError("the data are features, not images: there is no place to point at")
        if row not in self._heat:
            x = self.images[row : row + 1]
            own = self.model.maps(x)
            self._heat[row] = _occlusion(self.model, x) if own is None else own[0]
        return self._heat[row]

    def peak(self, row: int, index: int) -> tuple[int, int]:
        """The pixel (row, column) of an image where a concept is seen most."""
        heat = self.heat(row)[index]
        place = np.unravel_index(heat.argmax(), heat.shape)
        size = self.images.shape[2:]
        return tuple(int((p + 0.5) * s / h) for p, s, h in zip(place, size, heat.shape, strict=True))  # type: ignore[return-value]

    def to_html(self, path: str | Path | None = None, *, title: str = "Which concepts should not matter?") -> str:
        """One self-contained page: a picture row a concept, a box to tick, and the answer to copy or to download.

        The page's ``undesired = [...]`` goes to `CBDebug.fix`, its CSV file to `CSVExpert`.
        """
        import jinja2

        template = jinja2.Environment(autoescape=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
        largest = max((abs(w) for c in self.concepts for w in c.weights.values()), default=0) or 1.0
        shown = [
            {
                "concept": c,
                "bars": [{"label": k, "weight": w, "width": 50 * abs(w) / largest} for k, w in c.weights.items()],
                "pictures": [self._picture(c, i) for i in range(len(c.rows))],
            }
            for c in sorted(self.concepts, key=lambda c: -c.share)
        ]
        page = template.render(title=title, shown=shown, n=len(self.activations), pictured=self.images.ndim == 4)
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page

    def _picture(self, concept: ConceptExplanation, i: int) -> dict[str, Any]:
        row = concept.rows[i]
        found = {"row": row, "activation": concept.activations[i], "image": None, "heat": None, "label": None}
        if concept.labels is not None:
            found["label"] = concept.labels[i]
        if self.images.ndim == 4:
            picture = self.images[row].cpu().numpy()
            found["image"] = _png(_displayed(picture))
            found["heat"] = _png(_overlay(self.heat(row)[concept.index], picture.shape[1:]))
        return found


def explain_concepts(
    cbm: ConceptModel | nn.Module, images: Any, *, top: int = 10, y: ArrayLike | None = None
) -> ConceptExplanations:
    """Names, head weights and strongest images of all concepts.

    Parameters
    ----------
    cbm : a fitted concept model, or a torch module with ``concepts(x)`` and ``head``.
    images : (N, C, H, W) pictures, or (N, d) features.
    top : how many images a concept shows.
    y : their classes, shown beside the images if given.
    """
    if top < 1:
        raise ValueError(f"top={top}; show at least one image a concept (10 is usual)")
    model = as_concept_model(cbm)
    x = model.tensor(images)
    labels = None if y is None else model.classes_[class_codes(y, len(x), classes=model.classes_)[1]]
    activations = checked_activations(model.concepts(x))
    weight = model.head_weight_
    total = np.abs(weight).sum() or 1.0
    concepts = []
    for j, name in enumerate(model.concept_names_):
        rows = np.argsort(-activations[:, j], kind="stable")[:top]
        concepts.append(
            ConceptExplanation(
                index=j,
                name=name,
                weights=dict(zip(model.classes_.tolist(), weight[:, j].tolist(), strict=True)),
                share=float(np.abs(weight[:, j]).sum() / total),
                rows=tuple(rows.tolist()),
                activations=tuple(activations[rows, j].tolist()),
                labels=None if labels is None else tuple(labels[rows].tolist()),
            )
        )
    return ConceptExplanations(model, x, activations, labels, tuple(concepts))


def _occlusion(model: ConceptModel, x: Tensor) -> NDArray[np.float32]:
    """(M, 7, 7): the fall of each activation when a square of a quarter of the side hides a place."""
    height, width = x.shape[2:]
    grey = x.mean((2, 3), keepdim=True)
    hidden = []
    for row in np.linspace(0, height, OCCLUSION_GRID, endpoint=False) + height / (2 * OCCLUSION_GRID):
        for column in np.linspace(0, width, OCCLUSION_GRID, endpoint=False) + width / (2 * OCCLUSION_GRID):
            copy = x.clone()
            top, bottom = max(0, int(row - height / 8)), int(np.ceil(row + height / 8))
            left, right = max(0, int(column - width / 8)), int(np.ceil(column + width / 8))
            copy[:, :, top:bottom, left:right] = grey
            hidden.append(copy)
    fall = model.concepts(x) - model.concepts(torch.cat(hidden))
    return fall.T.reshape(-1, OCCLUSION_GRID, OCCLUSION_GRID)


def _displayed(picture: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(H, W) or (H, W, 3) bytes; pictures that were normalised are stretched to what they span."""
    low, high = (0.0, 1.0) if picture.min() >= 0 and picture.max() <= 1 else (picture.min(), picture.max())
    scaled = ((picture - low) / max(high - low, 1e-8) * 255).astype(np.uint8)
    return scaled.transpose(1, 2, 0) if len(scaled) == 3 else scaled[0]


def _overlay(heat: NDArray[np.float32], size: tuple[int, ...]) -> NDArray[np.uint8]:
    """An orange veil (H, W, 4), thickest where the concept is seen most."""
    field_ = torch.from_numpy(heat)[None, None].clamp(min=0)
    field_ = nn.functional.interpolate(field_, size=tuple(size), mode="bilinear", align_corners=False)[0, 0].numpy()
    alpha = field_ / field_.max() if field_.max() > 0 else np.zeros_like(field_)
    veil = np.empty((*size, 4), dtype=np.uint8)
    veil[..., :3] = (235, 104, 32)
    veil[..., 3] = (190 * alpha).astype(np.uint8)
    return veil


def _png(pixels: NDArray[np.uint8]) -> str:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
