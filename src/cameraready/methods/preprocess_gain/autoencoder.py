"""A denoising autoencoder that needs no clean data, as a scikit-learn transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cameraready.methods.preprocess_gain.networks import NetworkTransformer
from cameraready.methods.preprocess_gain.plugin_accuracy import Array

_RECORRUPTION = 0.5  # t: less makes the input cleaner and the target noisier; what Pang et al. use


class DenoisingAE(NetworkTransformer):
    """Autoencoder that learns to denoise, with clean targets, with second noisy copies, or from noisy inputs alone.

    From noisy inputs alone it makes its own pairs: for x = clean + e, and eta of the same law as the Gaussian noise e,
    x + t eta and x - eta / t have independent noise, since cov(e + t eta, e - eta / t) = 0. Learning the second from
    the first is Noise2Noise (Lehtinen et al. 2018; pairs from one copy: Pang et al., CVPR 2021), whose best answer
    is E[clean | x + t eta]. The output is the mean over draws of eta; t = 1/2.

    Parameters
    ----------
    noise : standard deviation of the noise in x, in units of X, or "estimate".
    hidden : width of the hidden layers (channels, for images).
    bottleneck : dimension of the code; None for max(2, p // 4).
    linear : a linear autoencoder, without hidden layers; for images too.
    encode : return the code of x instead of a denoised x.
    epochs, batch_size : of Adam on the mean squared error.
    n_draws : pairs of opposite eta that the output averages over.
    image_shape : (H, W) or (H, W, C) of flat rows: convolutions are used then.
    random_state : seed, for the same result in each fit.

    Attributes
    ----------
    noise_ : the noise's standard deviation that was used.
    loss_ : mean squared error in the last epoch, on standardised inputs.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> clean = rng.normal(size=(600, 2)) @ rng.normal(size=(2, 20))
    >>> noisy = clean + 0.7 * rng.normal(size=clean.shape)
    >>> denoised = DenoisingAE(noise=0.7, bottleneck=4, linear=True, epochs=30, random_state=0).fit_transform(noisy)
    >>> bool(np.var(denoised - clean) < 0.5 * 0.7**2)
    True
    """

    def __init__(
        self,
        *,
        noise: float | str = "estimate",
        hidden: int = 64,
        bottleneck: int | None = None,
        linear: bool = False,
        encode: bool = False,
        epochs: int = 40,
        batch_size: int = 64,
        n_draws: int = 4,
        image_shape: tuple[int, ...] | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.noise = noise
        self.hidden = hidden
        self.bottleneck = bottleneck
        self.linear = linear
        self.encode = encode
        self.epochs = epochs
        self.batch_size = batch_size
        self.n_draws = n_draws
        self.image_shape = image_shape
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, target: Any = None) -> DenoisingAE:
        """Fit on inputs; ``target``, of the shape of X, are their clean versions or second noisy ones (Noise2Noise)."""
        signals, came = self._read(X, reset=True)
        x, generator = self._start(signals)
        goal, amount = x, self.noise_ / self.scale_
        if target is not None:
            target, amount = np.asarray(target, dtype=float), 0.0
            if target.shape != came or not np.isfinite(target).all():
                raise ValueError(f"target has shape {target.shape}; it must be finite and of the shape of X, {came}")
            goal = self._scaled(target)
        self._amount = _RECORRUPTION * amount
        code = max(2, x.shape[1] // 4) if self.bottleneck is None else self.bottleneck
        self.encoder_, self.decoder_ = self._coder(signals.shape[1:], code, generator)

        def loss(rows: Tensor) -> Tensor:
            eta = amount * torch.randn(x[rows].shape, generator=generator)
            guess = self.decoder_(self.encoder_(x[rows] + _RECORRUPTION * eta))
            return functional.mse_loss(guess, goal[rows] - eta / _RECORRUPTION)

        self.loss_ = self._minimise(loss, (self.encoder_, self.decoder_), len(x), generator)
        return self

    @torch.no_grad()
    def _transform(self, signals: Array) -> Array:
        x = self._scaled(signals)
        if self.encode:
            return self.encoder_(x).numpy().astype(signals.dtype)
        # One set of draws for all rows: the output of a row does not depend on its neighbours.
        draws = torch.randn((self.n_draws, x.shape[1]), generator=torch.Generator().manual_seed(self._seed + 1))
        draws = self._amount * torch.cat([draws, -draws]) if self._amount else torch.zeros((1, x.shape[1]))
        clean = torch.stack([self.decoder_(self.encoder_(x + draw)) for draw in draws]).mean(dim=0)
        return (clean.numpy() * self.scale_ + self.mean_).reshape(signals.shape).astype(signals.dtype)
