"""Training of the L-GMVAE: the loss, the re-seeding of the components, early stopping."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from cameraready.methods.lapace.mixture_vae import LGMVAE


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of the training.

    Parameters
    ----------
    epochs : default 60,000 / n within [40, 200]. Twice as many still raise the ELBO somewhat; early stopping ends them.
    learning_rate, batch_size : of Adam.
    usage_weight : weight of the negative entropy of a mixture's mean responsibilities, against dead components.
    class_weight : weight of the cross-entropy of the mixtures as a classifier, which keeps the labels apart.
    reseed : set the components to k-means of the latents of their label after a quarter of the epochs. Without it a
        component may collapse.
    prior : "label" for one mixture a label; "standard" for N(0, I), a plain VAE, as an ablation. Its components are
        k-means of the trained latents of their label.
    patience : epochs without a better ELBO on the validation tenth before training stops.
    """

    epochs: int | None = None
    learning_rate: float = 2e-3
    batch_size: int = 128
    usage_weight: float = 2.0
    class_weight: float = 5.0
    reseed: bool = True
    prior: Literal["label", "standard"] = "label"
    patience: int = 15

    def epochs_for(self, n: int) -> int:
        return min(max(60_000 // n, 40), 200) if self.epochs is None else self.epochs


def train(model: LGMVAE, x: Tensor, y: Tensor, *, settings: Training, seed: int) -> list[float]:
    """Train in place; returns the validation ELBO of every epoch from a quarter of the epochs on.

    Parameters
    ----------
    x : encoded rows (n, D). y : labels (n,). Both on the model's device.
    """
    generator = torch.Generator().manual_seed(seed)
    epochs, n = settings.epochs_for(len(x)), len(x)
    order = torch.randperm(n, generator=generator)
    held = order[: n // 10] if n >= 20 else order  # too few rows to spare any
    rows = order[n // 10 :] if n >= 20 else order
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, fused=True)
    history: list[float] = []
    best, best_epoch, state = -np.inf, 0, copy.deepcopy(model.state_dict())
    for epoch in range(epochs):
        if epoch == epochs // 4 and settings.reseed and settings.prior == "label":
            seed_components(model, x[rows], y[rows], seed=seed)
        beta = min(1.0, epoch / max(epochs / 6, 1))
        shuffled = rows[torch.randperm(len(rows), generator=generator)]
        for batch in shuffled.split(settings.batch_size):
            optimizer.zero_grad()
            loss(model, x[batch], y[batch], beta=beta, settings=settings, generator=generator).backward()
            optimizer.step()
        if epoch < epochs // 4:
            continue
        with torch.no_grad():
            fixed = torch.Generator().manual_seed(seed)  # the same noise every epoch, so that epochs compare
            weights = Training(usage_weight=0.0, class_weight=0.0, prior=settings.prior)
            elbo = -loss(model, x[held], y[held], beta=1.0, settings=weights, generator=fixed).item()
        history.append(elbo)
        if elbo > best:
            best, best_epoch, state = elbo, epoch, copy.deepcopy(model.state_dict())
        elif epoch - best_epoch >= settings.patience:
            break
    model.load_state_dict(state)
    if settings.prior == "standard":
        seed_components(model, x, y, seed=seed)
    return history


def loss(model: LGMVAE, x: Tensor, y: Tensor, *, beta: float, settings: Training, generator: torch.Generator) -> Tensor:
    """recon + beta (log q(z|x) - log p(z|y)) + lam_u sum_k r_k log r_k + lam_c CE(log p(z|.), y), batch mean."""
    z, log_q = model.draw(x, generator)
    if settings.prior == "standard":
        log_p = -0.5 * (z.square() + np.log(2 * np.pi)).sum(dim=-1)
        return (model.reconstruction(z, x) + beta * (log_q - log_p)).mean()
    components = model.log_prob_components(z)
    log_classes = components.logsumexp(dim=-1)
    log_p = log_classes.gather(1, y[:, None]).squeeze(1)
    total = (model.reconstruction(z, x) + beta * (log_q - log_p)).mean()
    if settings.class_weight:
        total = total + settings.class_weight * torch.nn.functional.cross_entropy(log_classes, y)
    if settings.usage_weight:
        member = torch.nn.functional.one_hot(y, log_classes.shape[1]).to(z.dtype)  # (n, C)
        counts = member.sum(dim=0)
        responsibilities = components.softmax(dim=-1)  # of each label's own components, (n, C, K)
        mean = torch.einsum("nc,nck->ck", member, responsibilities)[counts > 0] / counts[counts > 0, None]
        total = total + settings.usage_weight * torch.special.xlogy(mean, mean).sum(dim=-1).mean()
    return total


@torch.no_grad()
def seed_components(model: LGMVAE, x: Tensor, y: Tensor, *, seed: int) -> None:
    """Set the means of every label's components to k-means (5 starts) of mu(x) over its rows."""
    mu = model.encode(x)[0].cpu().numpy()
    labels = y.cpu().numpy()
    K = model.means.shape[1]
    for label in np.unique(labels):
        own = mu[labels == label]
        if len(np.unique(own, axis=0)) < K:
            continue
        found = KMeans(K, n_init=5, random_state=seed).fit(own)
        model.means[label] = torch.as_tensor(found.cluster_centers_).to(model.means)
