"""A digits network and a small residual one with batch normalisation, trained once for all tests."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(x + self.second(self.relu(self.norm(self.first(x)))))


class SmallResNet(nn.Module):
    """Normalisation inside, stem, two residual blocks, pooling, classes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.3))
        self.register_buffer("std", torch.tensor(0.4))
        self.stem, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Residual(8), Residual(8))
        self.classes = nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem((x - self.mean) / self.std)))
        x = nn.functional.avg_pool2d(self.blocks(x), 2)
        return self.classes(torch.flatten(x, 1))


def trained(model, x, y, steps):
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()
    return model.eval()


@pytest.fixture(scope="session")
def digits():
    """((x, y), (x_test, y_test)), pixels in [0, 1]."""
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(pixels / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]
    return (x[:1200], y[:1200]), (x[1200:], y[1200:])


@pytest.fixture(scope="session")
def mlp(digits):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return trained(model, *digits[0], steps=400)


@pytest.fixture(scope="session")
def resnet(digits):
    torch.manual_seed(0)
    return trained(SmallResNet(), digits[0][0].reshape(-1, 1, 8, 8), digits[0][1], steps=60)
