"""Small convolutional encoders, for pictures without a pretrained one."""

from __future__ import annotations

from torch import Tensor, nn

from cameraready.methods.cbdebug.model import evaluating


def conv_maps(channels: int, width: int) -> nn.Sequential:
    """Three 3 x 3 convolutions: (N, channels, H, W) -> (N, 2 width, H / 4, W / 4)."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1),
        nn.ReLU(),
    )


def wide_field_maps(channels: int, width: int) -> nn.Sequential:
    """Three 5 x 5 convolutions: (N, channels, H, W) -> (N, 2 width, H / 8, W / 8), each place seeing 29 pixels."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 5, stride=2, padding=2),
        nn.ReLU(),
    )


def small_encoder(channels: int = 3, *, width: int = 32) -> nn.Sequential:
    """(N, channels, H, W) -> (N, 8 width): three convolutions, averaged over quarters of the picture.

    Examples
    --------
    >>> import torch
    >>> small_encoder(1)(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 256])
    """
    return nn.Sequential(conv_maps(channels, width), nn.AdaptiveAvgPool2d(2), nn.Flatten())


def feature_size(encoder: nn.Module, x: Tensor) -> int:
    """Channels that the encoder gives for such images."""
    with evaluating(encoder):
        try:
            return int(encoder(x[:1]).shape[1])
        except RuntimeError as error:
            raise ValueError(f"the encoder does not take images of shape {tuple(x.shape)}: {error}") from error
