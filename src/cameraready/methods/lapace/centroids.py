"""The centroids that paths end at: the components' means, or typical training rows where a mean does not serve."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from cameraready.methods.lapace.background import Background
from cameraready.methods.lapace.columns import Array
from cameraready.methods.lapace.mixture_vae import LGMVAE

LEAST_WEIGHT = 0.02


@dataclass(frozen=True)
class Centroids:
    """Latent centres (C, K, L), their decoded rows as codes (C, K, n_columns), and which of them are active (C, K)."""

    latents: Tensor
    codes: Array
    weight: Array
    probability: Array
    active: NDArray[np.bool_]
    medoid: NDArray[np.bool_]

    def report(self, background: Background) -> pd.DataFrame:
        """A row a centroid: class, k, weight, probability of its class, LOF, active, source, then its columns."""
        C, K = self.active.shape
        space = background.space
        encoded = space.scale(self.codes.reshape(C * K, -1)).reshape(C, K, -1)
        present = [bool((background.labels == c).any()) for c in range(C)]
        lof = [background.outlier_factor(encoded[c], c) if present[c] else np.full(K, np.nan) for c in range(C)]
        about = pd.DataFrame(
            {
                "class": np.repeat(np.array(background.classes, dtype=object), K),
                "k": np.tile(np.arange(K), C),
                "weight": self.weight.ravel(),
                "probability": self.probability.ravel(),
                "outlier_factor": np.concatenate(lof),
                "active": self.active.ravel(),
                "source": np.where(self.medoid.ravel(), "medoid", "component"),
            }
        )
        return pd.concat([about, space.frame(self.codes.reshape(C * K, -1))], axis=1)


@torch.no_grad()
def find_centroids(model: LGMVAE, background: Background, *, threshold: float, device: torch.device) -> Centroids:
    """Decode the means; those that the model does not give their class, or with a weight below 0.02, are not active.

    A class without an active centroid gets its training latents nearest to the means whose decoded rows are valid.
    """

    def judge(z: Tensor, c: int) -> tuple[Array, Array, NDArray[np.bool_]]:
        codes = background.space.snap(model.decode(z).double().cpu().numpy())
        proba = background.box(codes)
        with np.errstate(invalid="ignore"):
            return codes, proba[:, c], (proba.argmax(axis=1) == c) & (proba[:, c] >= threshold)

    latents = model.means.detach().clone()
    C, K, _ = latents.shape
    codes = np.empty((C, K, len(background.space.columns)))
    probability = np.empty((C, K))
    weight = model.log_weights().exp().double().cpu().numpy()
    active = np.zeros((C, K), dtype=bool)
    medoid = np.zeros((C, K), dtype=bool)
    for c in range(C):
        codes[c], probability[c], valid = judge(latents[c], c)
        own = np.flatnonzero(background.labels == c)
        active[c] = valid & (weight[c] >= LEAST_WEIGHT) & (len(own) > 0)
        if active[c].any() or not len(own):
            continue
        x = torch.as_tensor(background.encoded[own], dtype=torch.float32, device=device)
        candidates = model.encode(x)[0]
        *_, serve = judge(candidates, c)
        name = background.classes[c]
        if not serve.any():
            warnings.warn(f"class {name!r}: no decoded training row is given this class; it has no paths", stacklevel=3)
            continue
        candidates = candidates[torch.as_tensor(serve, device=device)]
        latents[c] = candidates[torch.cdist(latents[c], candidates).argmin(dim=1)]
        codes[c], probability[c], active[c] = judge(latents[c], c)
        medoid[c] = True
        warnings.warn(
            f"class {name!r}: no centroid is given this class; paths end at training rows instead", stacklevel=3
        )
    return Centroids(latents, codes, weight, probability, active, medoid)
