"""The few input directions along which a network's logits move most, and how much an attack uses them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cameraready.methods.compress_robust.inputs import check_differentiable, check_examples, frozen

OVERSAMPLE = 5
BATCH = 512


@dataclass(frozen=True)
class SensitiveDirections:
    """Top eigenvectors of E[J^T J], J the Jacobian of the centred logits by the input.

    Attributes
    ----------
    directions : (r, D), orthonormal.
    gains : (r,), root mean square change of the logits per unit of movement along each.
    share : of the total E||J||_F^2 that the r directions carry; r / D if all directions were alike.
    """

    directions: Tensor
    gains: Tensor
    share: float

    @property
    def rank(self) -> int:
        return len(self.directions)

    @property
    def chance(self) -> float:
        """The share of energy that random directions would have in this subspace."""
        return self.rank / self.directions.shape[1]

    def energy(self, delta: Tensor) -> Tensor:
        """Share of each perturbation's squared l_2 length inside the subspace, (n,); 0 for a zero one."""
        flat = delta.flatten(1).to(self.directions)
        total = flat.square().sum(dim=1)
        inside = (flat @ self.directions.T).square().sum(dim=1)
        return torch.where(total > 0, inside / total.clamp(min=1e-30), torch.zeros_like(total))


@torch.enable_grad()
def sensitive_directions(
    model: nn.Module, x: Tensor, *, rank: int = 5, iterations: int = 8, seed: int = 0
) -> SensitiveDirections:
    """Find the top directions by randomised block power iteration with Jacobian-vector products.

    Logits are centred first: a shift of all of them at once changes no prediction.

    Parameters
    ----------
    model : in evaluation mode.
    x : inputs (n, ...) to average over.
    rank : directions returned, at most D and, for one example, at most classes - 1.
    iterations : of the block power method on E[J^T J]; the block has five columns more than ``rank``.

    Raises
    ------
    ValueError : rank out of range, a model without a gradient.

    Examples
    --------
    >>> from torch import nn
    >>> model = nn.Linear(3, 2, bias=False).eval()
    >>> _ = model.weight.data.copy_(torch.tensor([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]))
    >>> found = sensitive_directions(model, torch.rand(4, 3), rank=1)
    >>> found.directions.abs().round().tolist(), round(found.gains[0].item(), 3), round(found.share, 3)
    ([[1.0, 0.0, 0.0]], 2.828, 1.0)
    """
    labels = torch.zeros(len(x), dtype=torch.long, device=x.device)
    check_examples(model, x, labels)
    check_differentiable(model, x, labels)
    n_inputs = x[0].numel()
    if not 1 <= rank <= n_inputs:
        raise ValueError(f"rank={rank}; choose 1 to the {n_inputs} input dimensions")
    width = min(rank + OVERSAMPLE, n_inputs)
    generator = torch.Generator(device=x.device).manual_seed(seed)
    block = torch.randn(n_inputs, width, generator=generator, dtype=x.dtype, device=x.device)
    with frozen(model):
        parts = [_Jacobian(model, part) for part in x.split(BATCH)]
        for _ in range(iterations):
            block = torch.linalg.qr(block)[0]
            block = sum(part.gram(block) for part in parts) / len(x)
        basis = torch.linalg.qr(block)[0]
        small = basis.T @ (sum(part.gram(basis) for part in parts) / len(x))
        values, vectors = torch.linalg.eigh((small + small.T) / 2)
        total = sum(part.total() for part in parts) / len(x)
    top = values.flip(0)[:rank].clamp(min=0)
    return SensitiveDirections((basis @ vectors.flip(1)[:, :rank]).T, top.sqrt(), float(top.sum() / max(total, 1e-30)))


class _Jacobian:
    """Products with the Jacobians of one batch. J v is the derivative of u -> J^T u, so reverse mode serves both."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.x = x.detach().clone().requires_grad_(True)
        logits = model(self.x)
        self.logits = logits - logits.mean(dim=1, keepdim=True)
        self.cotangent = torch.zeros_like(self.logits, requires_grad=True)
        [self.pulled] = torch.autograd.grad(self.logits, self.x, self.cotangent, create_graph=True)

    def gram(self, block: Tensor) -> Tensor:
        """Sum over examples of J^T J block, (D, width)."""
        columns = []
        for v in block.T:
            tangent = v.reshape(self.x.shape[1:]).expand_as(self.x)
            [pushed] = torch.autograd.grad(self.pulled, self.cotangent, tangent, retain_graph=True)
            [back] = torch.autograd.grad(self.logits, self.x, pushed, retain_graph=True)
            columns.append(back.flatten(1).sum(dim=0))
        return torch.stack(columns, dim=1)

    def total(self, probes: int = 32) -> float:
        """Sum over examples of ||J||_F^2: exactly for up to 32 classes, else from 32 random sign vectors."""
        n, classes = self.logits.shape
        if classes <= probes:
            cotangents = torch.eye(classes, dtype=self.x.dtype, device=self.x.device)
        else:
            generator = torch.Generator(device=self.x.device).manual_seed(0)
            signs = torch.randint(0, 2, (probes, classes), generator=generator, device=self.x.device)
            cotangents = (2 * signs - 1).to(self.x.dtype) / probes**0.5
        rows = (torch.autograd.grad(self.logits, self.x, u.expand(n, -1), retain_graph=True)[0] for u in cotangents)
        return float(sum(row.double().square().sum() for row in rows))
