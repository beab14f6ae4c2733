"""What the networks that are trained without labels share: standardised inputs, their noise, layers, and Adam."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from cameraready.methods.preprocess_gain.denoisers import estimate_sigma, noise_level
from cameraready.methods.preprocess_gain.plugin_accuracy import Array
from cameraready.methods.preprocess_gain.signals import SignalTransformer, check_sigma

_POSITIVE = ("n_components", "bottleneck", "hidden", "temperature", "epochs", "batch_size", "n_draws")
_LEARNING_RATE = 3e-3


class NetworkTransformer(SignalTransformer):
    """Subclasses have parameters ``noise``, ``hidden``, ``epochs``, ``batch_size``, ``random_state``."""

    def _start(self, signals: Array) -> tuple[Tensor, torch.Generator]:
        """Check the parameters, find scale and noise; the standardised rows and a seeded generator."""
        check_sigma(self.noise, "noise")
        for name in _POSITIVE:
            if (value := getattr(self, name, None)) is not None and not value > 0:
                raise ValueError(f"{name}={value!r}; it must be positive")
        flat = signals.reshape(len(signals), -1).astype(float)
        self.noise_ = _noise(signals, flat) if self.noise == "estimate" else float(self.noise)
        self.mean_, self.scale_ = flat.mean(axis=0), float(flat.std()) or 1.0  # one scale: white noise stays white
        self._seed = int(np.random.default_rng(self.random_state).integers(2**31))
        return self._scaled(flat), torch.Generator().manual_seed(self._seed)

    def _scaled(self, signals: Array) -> Tensor:
        flat = signals.reshape(len(signals), -1).astype(float)
        return torch.from_numpy(((flat - self.mean_) / self.scale_).astype(np.float32))

    def _coder(self, shape: tuple[int, ...], code: int, generator: torch.Generator) -> tuple[nn.Module, nn.Module]:
        """An encoder of flat rows and the decoder back: convolutions for images, else one hidden layer."""
        p = int(np.prod(shape))
        with torch.random.fork_rng(devices=[]):  # layers draw weights from the global generator when they are made
            if getattr(self, "linear", False):
                encoder, decoder = nn.Linear(p, code), nn.Linear(code, p)
            elif len(shape) == 1:
                encoder = nn.Sequential(nn.Linear(p, self.hidden), nn.ReLU(), nn.Linear(self.hidden, code))
                decoder = nn.Sequential(nn.Linear(code, self.hidden), nn.ReLU(), nn.Linear(self.hidden, p))
            else:
                encoder, decoder = _convolutions(shape, self.hidden, code)
        initialise(encoder, generator)
        initialise(decoder, generator)
        return encoder, decoder

    def _minimise(
        self, loss: Callable[[Tensor], Tensor], networks: tuple[nn.Module, ...], n: int, generator: torch.Generator
    ) -> float:
        """Adam with a cosine schedule on ``loss`` of batches of row numbers; the last epoch's mean loss."""
        optimiser = torch.optim.Adam(nn.ModuleList(networks).parameters(), lr=_LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.epochs)
        for _ in range(self.epochs):
            losses = []
            for rows in torch.randperm(n, generator=generator).split(self.batch_size):
                value = loss(rows)
                optimiser.zero_grad()
                value.backward()
                optimiser.step()
                losses.append(float(value.detach()))
            schedule.step()
        return float(np.mean(losses))


def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """He's uniform weights from our own generator: a fit neither reads nor moves torch's global one."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_uniform_(layer.weight, a=5**0.5, generator=generator)
            nn.init.zeros_(layer.bias)


class _ToImages(nn.Module):
    """Flat rows to (n, C, H, W)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, *self.shape).permute(0, 3, 1, 2)


class _ToRows(nn.Module):
    """(n, C, H, W) to flat rows."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).reshape(len(x), -1)


def _convolutions(shape: tuple[int, ...], hidden: int, code: int) -> tuple[nn.Module, nn.Module]:
    """Two convolutions that halve the image and a linear code; and the way back."""
    height, width, channels = shape if len(shape) == 3 else (*shape, 1)
    small = ((height + 1) // 2, (width + 1) // 2)
    inner = hidden // 4 + 1
    flat = inner * small[0] * small[1]
    encoder = nn.Sequential(
        _ToImages((height, width, channels)),
        nn.Conv2d(channels, inner, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(inner, inner, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(flat, code),
    )
    decoder = nn.Sequential(
        nn.Linear(code, flat),
        nn.ReLU(),
        nn.Unflatten(1, (inner, *small)),
        nn.Upsample(size=(height, width), mode="bilinear"),
        nn.Conv2d(inner, channels, 3, padding=1),
        _ToRows(),
    )
    return encoder, decoder


def _noise(signals: Array, flat: Array) -> float:
    """Images: from their finest wavelets. Signals: from the smaller half of the principal components."""
    if signals.ndim > 2:
        return estimate_sigma(signals)
    variances = np.linalg.svd(flat - flat.mean(axis=0), compute_uv=False) ** 2 / max(len(flat) - 1, 1)
    return noise_level(variances, len(flat), int(np.count_nonzero(np.ptp(flat, axis=0) > 0)))
