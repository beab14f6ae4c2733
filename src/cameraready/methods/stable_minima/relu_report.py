"""The weighted path norm of a ReLU layer on its data, neuron by neuron, and the stability inequality that bounds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from cameraready.coverage import NotCovered
from cameraready.methods.stable_minima.relu_block import ReluBlock, as_tensor, read_block
from cameraready.methods.stable_minima.sharpness import sharpness
from cameraready.methods.stable_minima.weight_function import half_spaces

Floats = NDArray[np.float64]
MEMORISER = 5  # a neuron active on fewer points than this serves single points
BATCH = 4096


@dataclass(frozen=True)
class ReluReport:
    """What `relu_report` found. Bounds that the theory does not give are a `NotCovered` with the reason.

    Attributes
    ----------
    pathnorm_g : sum of a_k g_k, the data-weighted path norm.
    pathnorm : sum of a_k = |v_k| |w_k|, unweighted.
    bound_rhs : the most that pathnorm_g can be at this lambda_max and loss.
    bound_edge : the most it can be anywhere below the edge of stability of the given learning rate, at this loss.
    lambda_max : largest Hessian eigenvalue of 1/(2n) sum |f(x_i) - y_i|^2 (for one output, half that of MSELoss).
    edge : the lambda_max of this loss at the edge of stability.
    loss : 1/(2n) sum |f(x_i) - y_i|^2.
    radius : R, the largest |x_i|.
    neurons : one row a neuron: threshold, norm, a, g, a_g, active_points, active_share, alive, memoriser.
    block : the weights and the inputs they were measured on.
    y : targets (n, outputs), or None.
    """

    pathnorm_g: float
    pathnorm: float
    bound_rhs: float | NotCovered
    bound_edge: float | NotCovered
    lambda_max: float | NotCovered
    edge: float | NotCovered
    loss: float | NotCovered
    radius: float
    neurons: pd.DataFrame
    block: ReluBlock
    y: Floats | None

    @property
    def bound_lhs(self) -> float:
        """The left side of the inequality: ``pathnorm_g``."""
        return self.pathnorm_g

    @property
    def stable(self) -> bool | NotCovered:
        """Whether lambda_max is at most the edge, within 5 %: training oscillates around it."""
        for value in (self.lambda_max, self.edge):
            if isinstance(value, NotCovered):
                return value
        return self.lambda_max <= 1.05 * self.edge

    def __str__(self) -> str:
        alive, memorisers = int(self.neurons["alive"].sum()), int(self.neurons["memoriser"].sum())
        width, n = len(self.neurons), len(self.block.X)
        return "\n".join(
            [
                f"lambda_max of half the mean squared error: {self.lambda_max:.4g}; edge: {self.edge:.4g}",
                f"weighted path norm {self.pathnorm_g:.4g} (unweighted {self.pathnorm:.4g}) on {n} points",
                f"stability bound on it, at the measured sharpness: {self.bound_rhs:.4g}",
                f"stability bound on it, anywhere below the edge: {self.bound_edge:.4g}",
                f"{width} neurons: {width - alive} dead, {memorisers} active on fewer than {MEMORISER} points",
            ]
        )


def relu_report(
    model: nn.Module | tuple[nn.Linear, nn.Linear],
    X: Any,
    y: Any = None,
    *,
    lr: float | None = None,
    block: str | None = None,
) -> ReluReport:
    """Weighted path norm, neurons, and the stability inequality of a Linear-ReLU-Linear block.

    For the loss L = 1/(2n) sum |f(x_i) - y_i|^2 and C outputs, at any weights,

        sum_k a_k g_k <= sqrt(C) / 2 (lambda_max - 1 + sqrt(1 + R^2) sqrt(2 L)),

    with a_k = |v_k| |w_k| and lambda_max of the full Hessian. Proof: with M the outputs' Jacobian (C, parameters) in
    the mean over the points, the Gauss-Newton part has an eigenvalue of at least tr(M M') / C, which is at least
    1 + 2 / sqrt(C) sum a_k g_k as x^2 + y^2 >= 2 x y; the residuals' part has none below -sqrt(1 + R^2) sqrt(2 L).
    Without an output bias the 1 after lambda_max is absent; without hidden biases that under both roots.

    Parameters
    ----------
    model : a torch model that holds a `Sequential` with Linear, ReLU, Linear somewhere (its inputs are captured), or a
        pair of `nn.Linear` with X as the inputs of the first.
    X : the model's inputs, training data for a meaningful answer.
    y : targets (n,) or (n, outputs); the inequality needs them.
    lr : learning rate of full-batch gradient descent on ``torch.nn.MSELoss``, a mean over examples and outputs. It is
        converted to the loss above.
    block : name of the first layer, where the model holds several blocks.

    Raises
    ------
    ValueError, TypeError : fewer than 2 rows, values that are not finite, no block or several, another activation.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> X = torch.randn(50, 3)
    >>> report = relu_report(net, X, X[:, 0])
    >>> report.pathnorm_g <= report.bound_rhs
    True
    >>> print(relu_report(net, X).bound_rhs)
    not covered: the inequality needs the targets y
    """
    if lr is not None and not lr > 0:
        raise ValueError(f"lr={lr} must be positive")
    read = read_block(model, X, block=block)
    targets = None if y is None else _targets(y, read)
    if read.whole and targets is not None:
        lambda_max = _lambda_max(model, X, targets)
    else:
        lambda_max = NotCovered(read.why_not or "the inequality needs the targets y")
    # MSELoss is 2 / C times the loss of the theory, and has its edge at 2 / lr.
    edge = NotCovered("no learning rate was given; pass lr=") if lr is None else len(read.V) / lr
    return measured(read, targets, lambda_max=lambda_max, edge=edge)


def measured(
    block: ReluBlock, y: Floats | None, *, lambda_max: float | NotCovered, edge: float | NotCovered
) -> ReluReport:
    """The report of a block whose curvature is known, for the loss with the factor 1/(2n); y is (n, outputs)."""
    loss = NotCovered("the loss needs the targets y")
    if y is not None:
        loss = float(((block.predict(block.X) - y) ** 2).sum() / (2 * len(y)))
    neurons, radius = describe_neurons(block), float(np.linalg.norm(block.X, axis=1).max())

    def bound(sharpness: float | NotCovered) -> float | NotCovered:
        for value in (lambda_max, sharpness):
            if isinstance(value, NotCovered):
                return value
        return pathnorm_bound(sharpness, loss, radius, block)

    return ReluReport(
        pathnorm_g=float(neurons["a_g"].sum()),
        pathnorm=float(neurons["a"].sum()),
        bound_rhs=bound(lambda_max),
        bound_edge=bound(edge),
        lambda_max=lambda_max,
        edge=edge,
        loss=loss,
        radius=radius,
        neurons=neurons,
        block=block,
        y=y,
    )


def pathnorm_bound(lambda_max: float, loss: float, radius: float, block: ReluBlock) -> float:
    """The right side of the stability inequality, for the loss with the factor 1/(2n)."""
    curve = np.sqrt(float(block.has_b) + radius**2) * np.sqrt(2 * loss)
    return float(np.sqrt(len(block.V)) * (lambda_max - float(block.has_c) + curve) / 2)


def describe_neurons(block: ReluBlock) -> pd.DataFrame:
    """One row a neuron of the block, on the block's inputs."""
    norms = np.linalg.norm(block.W, axis=1)
    safe = np.where(norms > 0, norms, 1.0)
    spaces = half_spaces(block.X, block.W / safe[:, None], block.b / safe, has_bias=block.has_b)
    a = np.linalg.norm(block.V, axis=0) * norms
    g = spaces.weight  # 0 where the weights are: one side is empty
    points = np.rint(spaces.active * len(block.X)).astype(int)
    return pd.DataFrame(
        {
            "threshold": np.where(norms > 0, block.b / safe, np.nan),
            "norm": norms,
            "a": a,
            "g": g,
            "a_g": a * g,
            "active_points": points,
            "active_share": spaces.active,
            "alive": points > 0,
            "memoriser": (points > 0) & (points < MEMORISER),
        }
    ).rename_axis("neuron")


def _targets(y: Any, block: ReluBlock) -> Floats:
    targets = as_tensor(y).detach().double().cpu().numpy()
    targets = targets.reshape(len(targets), -1) if targets.ndim else targets.reshape(1, 1)
    if targets.shape != (len(block.X), len(block.V)):
        expected = (len(block.X), len(block.V))
        raise ValueError(f"y has shape {tuple(as_tensor(y).shape)}; expected {expected}, one row an example")
    if not np.isfinite(targets).all():
        raise ValueError(f"y holds {np.count_nonzero(~np.isfinite(targets))} values that are not finite")
    return targets


def _lambda_max(model: nn.Module, X: Any, targets: Floats) -> float:
    """Of the loss with the factor 1/(2n): MSELoss is that times 2 / outputs."""
    reference = next(p for p in model.parameters() if p.requires_grad)
    X, y = as_tensor(X), torch.as_tensor(targets, dtype=torch.promote_types(reference.dtype, torch.float32))

    def half_loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((out.reshape(y.shape) - y) ** 2).sum(dim=1).mean() / 2

    batches = [(X[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(X), BATCH)]
    return sharpness(model, half_loss, batches, batches=None, tolerance=1e-6).lambda_max
