"""What the exact formulas are compared with: sampling and training in torch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def sampled_loss(W: Floats, V: Floats, x: torch.Tensor) -> tuple[float, Floats]:
    """Loss and gradient over the examples ``x`` (n, d), by autograd, in the dtype of x."""
    student = torch.tensor(W, dtype=x.dtype, requires_grad=True)
    teacher = torch.tensor(V, dtype=x.dtype)
    gap = torch.relu(x @ student.T).sum(dim=1) - torch.relu(x @ teacher.T).sum(dim=1)
    loss = (gap**2).mean() / 2
    loss.backward()
    return float(loss.detach()), student.grad.double().numpy()


def torch_sgd(W0: Floats, V: Floats, *, lr: float, steps: int) -> Floats:
    """One-pass SGD with `torch.optim.SGD`, one fresh standard normal example a step; the final weights."""
    student = torch.tensor(W0, dtype=torch.float32, requires_grad=True)
    teacher = torch.tensor(V, dtype=torch.float32)
    optimiser = torch.optim.SGD([student], lr=lr)
    for _ in range(steps):
        x = torch.randn(W0.shape[1])
        gap = torch.relu(student @ x).sum() - torch.relu(teacher @ x).sum()
        optimiser.zero_grad()
        (gap**2 / 2).backward()
        optimiser.step()
    return student.detach().numpy()
