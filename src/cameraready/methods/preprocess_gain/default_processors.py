"""The processors that are tried: those of the user, by name, or a default set with two controls."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.random_projection import GaussianRandomProjection

from cameraready.methods.preprocess_gain.denoisers import Blur, PCAWiener, SkimageDenoiser
from cameraready.methods.preprocess_gain.inputs import Inputs


def default_processors(image_shape: tuple[int, ...] | None, p: int) -> list[tuple[str, Any]]:
    """Two denoisers, an encoder, and two controls; for images non-local means and total variation too."""
    shape = {"image_shape": image_shape}
    k = max(2, min(16, p // 4))
    found = [
        ("PCA-Wiener", PCAWiener(**shape)),
        (f"PCA ({k})", PCA(min(k, p), random_state=0)),
        ("wavelet", SkimageDenoiser("wavelet", **shape)),
        ("random projection (control)", GaussianRandomProjection(min(k, p), random_state=0)),
        ("blur (control)", Blur(**shape)),
    ]
    if image_shape is not None:
        found[3:3] = [(name, SkimageDenoiser(name, **shape)) for name in ("nl_means", "tv")]
    return found


def named_processors(processors: Any, inputs: Inputs) -> list[tuple[str, Any]]:
    """Names and transformers; those that know images are told the shape of the user's."""
    if isinstance(processors, str):
        if processors != "auto":
            raise ValueError(f"processors={processors!r}; pass 'auto' or a list of transformers")
        return default_processors(inputs.image_shape, inputs.values.shape[1])
    if hasattr(processors, "fit"):
        raise TypeError(f"processors is one {type(processors).__name__}; pass a list of transformers: [processor]")
    named = [item if isinstance(item, tuple) else (type(item).__name__, item) for item in processors]
    shape = inputs.image_shape
    for i, (name, processor) in enumerate(named):
        if shape is not None and hasattr(processor, "image_shape"):
            given = processor.image_shape
            if given is not None and tuple(given) != shape:
                raise ValueError(f"processor {name!r} has image_shape={given}, X holds images of shape {shape}")
            named[i] = (name, clone(processor).set_params(image_shape=shape))
    return named
