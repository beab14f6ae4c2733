"""The noisy regression problems that the claims are tested on, and how networks are trained on them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from cameraready.methods.stable_minima import geometries
from cameraready.methods.stable_minima.regressor import stability
from cameraready.methods.stable_minima.relu_report import ReluReport
from cameraready.methods.stable_minima.shatterability import principal_subspace
from cameraready.methods.stable_minima.two_layer import TwoLayer, gradient_descent

Floats = NDArray[np.float64]
Problem = tuple[Floats, Floats, Floats, Floats]  # training points, noisy targets, test points, clean targets
NOISE = 0.5  # standard deviation of the labels' noise
RADIAL = {"ball, alpha 3": 3.0, "ball, alpha 1": 1.0, "ball, alpha 0.3": 0.3, "sphere": 0.0}
GEOMETRIES = (*RADIAL, "two segments", "two discs")
TEST_POINTS = 2000


def target(X: Floats) -> Floats:
    """ReLU(x1) - x2 / 2, without the second term in one dimension."""
    return np.maximum(X[:, 0], 0) - (X[:, 1] / 2 if X.shape[1] > 1 else 0)


def problem(name: str, n: int, seed: int) -> Problem:
    """``n`` training points of one of the `GEOMETRIES` in R^5."""
    if name in RADIAL:
        return radial_problem(RADIAL[name], n, seed)
    return balls_problem(n, 1 if name == "two segments" else 2, 5, seed)


def radial_problem(alpha: float, n: int, seed: int) -> Problem:
    """Isotropic points in R^5."""
    rng = np.random.default_rng([seed, 0])
    X, X_test = geometries.radial(n, 5, alpha, rng=rng), geometries.radial(TEST_POINTS, 5, alpha, rng=rng)
    return X, target(X) + NOISE * rng.normal(size=n), X_test, target(X_test)


def balls_problem(n: int, m: int, d: int, seed: int) -> Problem:
    """Two m-dimensional balls in R^d, the target in their own coordinates."""
    rng = np.random.default_rng([seed, 1])
    Z = geometries.ball(n + TEST_POINTS, m, rng=rng)
    which, noise = rng.integers(2, size=len(Z)), rng.normal(size=n)
    frames = np.linalg.qr(rng.normal(size=(2, d, m)))[0]
    X = np.einsum("ndm,nm->nd", frames[which], Z)
    return X[:n], target(Z[:n]) + NOISE * noise, X[n:], target(Z[n:])


def train(
    X: Floats,
    y: Floats,
    seed: int,
    *,
    lr: float = 0.3,
    width: int,
    steps: int,
    seen: list[tuple[int, ReluReport]] | None = None,
) -> TwoLayer:
    """Full-batch gradient descent from torch's initial weights; ``seen`` receives (step, report) at 20 steps."""

    def observe(step: int, net: TwoLayer) -> None:
        seen.append((step, stability(net, X, y, lr=lr)))

    start = TwoLayer.random(X.shape[1], width=width, rng=np.random.default_rng([seed, 7]))
    watch = {} if seen is None else {"every": max(1, steps // 20), "observe": observe}
    return gradient_descent(start, X, y, lr=lr, steps=steps, **watch)


def components(rows: Floats) -> Floats:
    """Standardised columns (constant ones dropped), projected to the components that hold 95 % of the variance."""
    rows = rows[:, rows.std(axis=0) > 0]
    return principal_subspace((rows - rows.mean(axis=0)) / rows.std(axis=0))


def in_unit_ball(rows: ArrayLike, n: int, seed: int) -> Floats:
    """At most n rows drawn at random, as `components`, scaled so that the largest norm is 1."""
    rows = np.asarray(rows, dtype=float)
    Z = components(rows[np.random.default_rng([seed, 4]).permutation(len(rows))[:n]])
    return Z / np.linalg.norm(Z, axis=1).max()


def digits_classifier(
    seed: int, *, width: int = 64
) -> tuple[nn.Sequential, nn.Module, tuple[torch.Tensor, torch.Tensor], torch.optim.Optimizer]:
    """A three-layer perceptron after 20 steps on 512 digits, its loss, data and optimiser: what meters are timed on."""
    from sklearn.datasets import load_digits

    torch.manual_seed(seed)
    X, y = load_digits(return_X_y=True)
    rows = np.random.default_rng(seed).choice(len(X), 512, replace=False)
    batch = torch.tensor(X[rows] / 16, dtype=torch.float32), torch.tensor(y[rows])
    layers = nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    model, loss_fn = nn.Sequential(*layers), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(20):
        optimizer.zero_grad()
        loss_fn(model(batch[0]), batch[1]).backward()
        optimizer.step()
    return model, loss_fn, batch, optimizer
