"""Networks, data and optimizers that the claims train."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import sklearn.datasets  # noqa: F401  (for data.load: imported once for all trials, not a second long by each)
import torch
import torch._dynamo  # (likewise: the first optimizer that is made imports it)
from torch import Tensor, nn
from torch.optim import Optimizer

from cameraready import data
from cameraready.methods.pdt.training import Task

# Stated learning rates, and what they are multiplied by to tune the baseline.
GRID = (1, 2, 4, 8, 16, 32, 64)
RATES = {"SGD": 0.05, "momentum": 0.01, "Adam": 1e-3, "RMSprop": 5e-4, "LAMB": 2.5e-3}
# The multiple at which the optimizer alone gets its training loss lowest in 40 epochs at a constant rate, by the
# geometric mean over the selection seeds, which no claim evaluates: what `tuned_rate` finds by running the grid.
SELECTION_SEEDS = (1000, 1001)
TUNED = {
    "MLP, SGD": 16,
    "MLP, momentum": 16,
    "MLP, Adam": 32,
    "MLP, RMSprop": 16,
    "CNN, Adam": 32,
    "transformer, Adam": 8,
}


def make_optimizer(name: str, parameters: Any, *, times: float = 1.0) -> Optimizer:
    """An optimizer at ``times`` its stated learning rate, other settings as torch has them."""
    lr = RATES[name] * times
    if name == "SGD":
        return torch.optim.SGD(parameters, lr=lr)
    if name == "momentum":
        return torch.optim.SGD(parameters, lr=lr, momentum=0.9)
    if name == "Adam":
        return torch.optim.Adam(parameters, lr=lr, fused=True)
    if name == "RMSprop":
        return torch.optim.RMSprop(parameters, lr=lr)
    from cameraready.methods.pdt import peers

    return peers.lamb(parameters, lr)


def make_problem(model: str, *, seed: int) -> tuple[Task, Callable[[], nn.Module]]:
    """Data, split by the seed, and a function that makes the network."""
    if model == "MLP":
        return digits_task(seed, flat=True), functools.partial(mlp, 128)
    if model == "wide MLP":
        return digits_task(seed, flat=True), functools.partial(mlp, 1024)
    if model == "CNN":
        return digits_task(seed, flat=False), functools.partial(cnn, 8)
    if model == "wide CNN":
        return digits_task(seed, flat=False), functools.partial(cnn, 64)
    if model == "transformer":
        task, n_characters = text_task(seed, n_train=352, length=16, batch_size=16)
        return task, functools.partial(CharacterTransformer, n_characters, length=16, width=32, n_layers=1)
    if model == "1M transformer":
        task, n_characters = text_task(seed, n_train=2816, length=64, batch_size=32)
        return task, functools.partial(CharacterTransformer, n_characters, length=64, width=160, n_layers=3)
    raise ValueError(f"no model is called {model!r}")


def digits_task(seed: int, *, flat: bool) -> Task:
    """scikit-learn's digits: 1400 to train on, 397 to test on, in batches of 64."""
    images, labels = data.load("digits-labelled")
    order = np.random.default_rng(seed).permutation(len(labels))
    x = torch.tensor(images[order] / 16.0, dtype=torch.float32)
    x = x.flatten(1) if flat else x.unsqueeze(1)
    y = torch.tensor(labels[order])
    return Task(train=(x[:1400], y[:1400]), test=(x[1400:], y[1400:]))


def text_task(seed: int, *, n_train: int, length: int, batch_size: int) -> tuple[Task, int]:
    """Pieces of Python's language reference: the next character from those before, the 95 most frequent ones."""
    text = data.load("english-text")
    kept = [character for character, _ in Counter(text).most_common(95)]
    codes = {character: code for code, character in enumerate(kept)}
    stream = torch.tensor([codes[character] for character in text if character in codes])
    pieces = stream[: len(stream) // (length + 1) * (length + 1)].reshape(-1, length + 1)
    n_test = n_train // 4
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(pieces))[: n_train + n_test])
    x, y = pieces[order, :-1], pieces[order, 1:]
    task = Task(train=(x[:n_train], y[:n_train]), test=(x[n_train:], y[n_train:]), batch_size=batch_size)
    return task, len(kept)


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, 10)
    )


def cnn(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * channels, 10),
    )


class CharacterTransformer(nn.Module):
    """A small causal transformer over characters; logits of shape (n, characters, length)."""

    def __init__(self, n_characters: int, *, length: int, width: int, n_layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(n_characters, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, max(2, width // 32), 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, n_characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        hidden = self.blocks(self.tokens(codes) + self.places, mask=self.mask, is_causal=True)
        return self.head(hidden).transpose(1, 2)
