"""A small contrastive encoder, trained without labels, as a scikit-learn transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from cameraready.methods.preprocess_gain.networks import NetworkTransformer, initialise
from cameraready.methods.preprocess_gain.plugin_accuracy import Array


class ContrastiveEncoder(NetworkTransformer):
    """A small network whose codes of two views of one input agree, and of two inputs do not (SimCLR's NT-Xent).

    Views are the input with fresh noise; images are also shifted by up to an eighth of their size, and signals lose
    a random tenth of their values.

    Parameters
    ----------
    n_components : dimension of the code.
    noise : standard deviation of the views' noise, in units of X, or "estimate" for that of the noise in X.
    hidden : width of the hidden layer (channels, for images).
    temperature : of NT-Xent.
    epochs, batch_size : of Adam.
    image_shape : (H, W) or (H, W, C) of flat rows: convolutions are used then.
    random_state : seed, for the same result in each fit.

    Attributes
    ----------
    noise_ : the standard deviation of the views' noise that was used.
    loss_ : NT-Xent in the last epoch.
    """

    def __init__(
        self,
        n_components: int = 32,
        *,
        noise: float | str = "estimate",
        hidden: int = 64,
        temperature: float = 0.5,
        epochs: int = 40,
        batch_size: int = 128,
        image_shape: tuple[int, ...] | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.n_components = n_components
        self.noise = noise
        self.hidden = hidden
        self.temperature = temperature
        self.epochs = epochs
        self.batch_size = batch_size
        self.image_shape = image_shape
        self.random_state = random_state

    def _fit(self, signals: Array) -> None:
        x, generator = self._start(signals)
        shape, noise = signals.shape[1:], self.noise_ / self.scale_
        self.encoder_, _ = self._coder(shape, self.n_components, generator)
        with torch.random.fork_rng(devices=[]):
            head = nn.Sequential(nn.ReLU(), nn.Linear(self.n_components, self.n_components))
        initialise(head, generator)

        def loss(rows: Tensor) -> Tensor:
            views = torch.cat([_view(x[rows], shape, noise, generator) for _ in range(2)])
            return nt_xent(head(self.encoder_(views)), self.temperature)

        self.loss_ = self._minimise(loss, (self.encoder_, head), len(x), generator)

    @torch.no_grad()
    def _transform(self, signals: Array) -> Array:
        return self.encoder_(self._scaled(signals)).numpy().astype(signals.dtype)


def nt_xent(codes: Tensor, temperature: float) -> Tensor:
    """Mean cross-entropy of finding each view's partner among all other views; rows i and i + n / 2 are partners.

    ``codes`` has shape (n, k), n even.
    """
    n = len(codes)
    unit = functional.normalize(codes, dim=1)
    similarity = (unit @ unit.T / temperature).masked_fill(torch.eye(n, dtype=torch.bool), float("-inf"))
    return functional.cross_entropy(similarity, torch.arange(n).roll(n // 2))


def _view(x: Tensor, shape: tuple[int, ...], noise: float, generator: torch.Generator) -> Tensor:
    z = x + noise * torch.randn(x.shape, generator=generator)
    if len(shape) == 1:
        return z * (torch.rand(x.shape, generator=generator) > 0.1)
    images = z.reshape(-1, *shape)
    most = max(min(shape[:2]) // 8, 1)
    shifts = torch.randint(-most, most + 1, (2,), generator=generator).tolist()
    return torch.roll(images, shifts, dims=(1, 2)).reshape(len(x), -1)
