"""Two views of an image that show the same thing at the same place."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

SHIFT = 0.15  # of the half side
ZOOM = 0.1
LIGHT = 0.2
NOISE = 0.02


def two_views(x: Tensor, generator: torch.Generator, *, flip: bool) -> tuple[Tensor, Tensor]:
    """One shift, zoom and perhaps mirroring for both; brightness, contrast, colour and noise for each."""
    moved = _move(x, generator, flip=flip)
    return _light(moved, generator), _light(moved, generator)


def _move(x: Tensor, generator: torch.Generator, *, flip: bool) -> Tensor:
    n = len(x)
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = 1 + ZOOM * (2 * torch.rand(n, generator=generator) - 1)
    theta[:, :, 2] = SHIFT * (2 * torch.rand(n, 2, generator=generator) - 1)
    if flip:
        theta[:, 0] *= torch.where(torch.rand(n, 1, generator=generator) < 0.5, -1.0, 1.0)
    grid = functional.affine_grid(theta.to(x), list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def _light(x: Tensor, generator: torch.Generator) -> Tensor:
    n, channels = x.shape[:2]
    gain = 1 + LIGHT * (2 * torch.rand(n, 1, 1, 1, generator=generator) - 1)
    offset = LIGHT * (torch.rand(n, channels, 1, 1, generator=generator) - 0.5)
    noise = NOISE * torch.randn(x.shape, generator=generator)
    return x * gain.to(x) + offset.to(x) + noise.to(x)
