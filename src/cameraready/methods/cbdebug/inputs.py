"""What users hand in, checked once: images or features, class labels, concept names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


def image_tensor(images: Any, *, device: str | torch.device | None = None) -> Tensor:
    """Images (N, C, H, W) or features (N, d) as float32; whole numbers 0 to 255 become 0 to 1.

    A tensor stays on its device unless ``device`` says otherwise.
    """
    if not isinstance(images, Tensor):
        array = np.require(images, requirements=["C", "W"])
        if array.dtype.kind not in "buif":
            raise TypeError(f"images holds {array.dtype}; pass numbers, such as images.astype('float32')")
        images = torch.from_numpy(array)
    x = images
    if device is not None and torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}, but torch sees no GPU here; pass device='cpu' or None")
    if x.ndim not in (2, 4):
        raise ValueError(
            f"images has shape {tuple(x.shape)}; pass (N, C, H, W) images or (N, d) features "
            "(for (N, H, W) grey pictures: images[:, None])"
        )
    if x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        raise ValueError(f"images has shape {tuple(x.shape)}, channels last; pass images.transpose(0, 3, 1, 2)")
    if len(x) == 0:
        raise ValueError("images is empty; pass at least one image")
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    if not torch.isfinite(x).all():
        raise ValueError(f"images holds {int((~torch.isfinite(x)).sum())} values that are not finite; clean them first")
    return x if device is None else x.to(device)


def class_codes(y: ArrayLike, n: int, *, classes: NDArray[Any] | None = None) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The sorted classes and each label's number among them."""
    labels = np.asarray(y.cpu() if isinstance(y, Tensor) else y)
    if labels.ndim != 1:
        raise ValueError(
            f"y has shape {labels.shape}; one class label an image is needed. "
            "Multi-label heads are not covered: debug one label at a time"
        )
    check_length("y", labels, n)
    found = np.unique(labels)
    if classes is None:
        if len(found) < 2:
            raise ValueError(f"y has the single class {found.tolist()[0]!r}; a classifier needs at least two")
        classes = found
    if unknown := sorted(set(found.tolist()) - set(classes.tolist())):
        raise ValueError(f"y holds {unknown}, which the model does not know; its classes are {classes.tolist()}")
    order = np.argsort(classes)  # a user's module may have its classes in any order
    return classes, order[np.searchsorted(classes, labels, sorter=order)]


def check_length(name: str, values: Any, n: int) -> None:
    if len(values) != n:
        raise ValueError(f"{name} has {len(values)} entries for {n} images; pass one an image")


def checked_weights(weights: ArrayLike | None, n: int) -> NDArray[np.float64]:
    """Sample weights with mean 1."""
    if weights is None:
        return np.ones(n)
    u = np.asarray(weights, dtype=float)
    check_length("sample_weight", u, n)
    if not np.isfinite(u).all() or (u < 0).any() or u.sum() == 0:
        raise ValueError("sample_weight must be finite and not negative, with a positive sum")
    return np.asarray(u / u.mean())


def checked_activations(activations: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.isfinite(activations).all():
        bad = np.flatnonzero(~np.isfinite(activations).all(axis=0)).tolist()
        raise ValueError(f"the activations of concepts {bad} are not finite; check the encoder on these images")
    return activations


def concept_indices(undesired: Sequence[int | str], names: Sequence[str]) -> list[int]:
    """Numbers of the concepts that are given by number or name, sorted, without repeats."""
    if isinstance(undesired, str):
        raise TypeError(f"undesired={undesired!r} is one string; pass a list of concept names or numbers")
    if not isinstance(undesired, Iterable):
        raise TypeError(f"undesired={undesired!r} is no list of concepts, and no Expert with a method flag")
    numbers = set()
    for concept in undesired:
        if isinstance(concept, str):
            if concept not in names:
                shown = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
                raise ValueError(f"concept {concept!r} is not known; the names are {shown}")
            numbers.add(list(names).index(concept))
        elif isinstance(concept, int | np.integer) and not isinstance(concept, bool):
            if not 0 <= concept < len(names):
                raise ValueError(f"concept {concept} is not in 0 to {len(names) - 1}")
            numbers.add(int(concept))
        else:
            raise TypeError(f"concept {concept!r} is a {type(concept).__name__}; pass names (str) or numbers (int)")
    if len(numbers) == len(names):
        raise ValueError(f"all {len(names)} concepts are flagged; a model needs at least one to decide by")
    return sorted(numbers)
