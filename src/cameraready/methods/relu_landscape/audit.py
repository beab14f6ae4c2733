"""Exact population loss of a trained torch student against a torch teacher, and the minimum it is heading for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cameraready.coverage import NotCovered
from cameraready.methods.relu_landscape.certificate import Certificate
from cameraready.methods.relu_landscape.families import ZERO_LOSS, Family
from cameraready.methods.relu_landscape.landscape import Landscape

Floats = NDArray[np.float64]
INPUT_Z = 4.0  # standard errors of disagreement from which the user's inputs are not N(0, I) to these networks


@dataclass(frozen=True)
class Audit:
    """What `AuditTorch` found.

    Attributes
    ----------
    loss : 1/2 E (student - teacher)^2 over x ~ N(0, I), exact.
    relative_loss : the same over the loss of the zero network.
    gradient_norm : of the population loss at the student.
    family, certificate : of the critical point that descent from the student ends in.
    distance : from the student to it (Frobenius norm of the folded weights).
    sample_loss, sample_error : the same loss on the user's inputs, with its standard error; NaN without inputs.
    """

    loss: float
    relative_loss: float
    gradient_norm: float
    family: Family
    certificate: Certificate
    distance: float
    sample_loss: float
    sample_error: float

    def __str__(self) -> str:
        lines = [
            f"population loss {self.loss:.4g} ({self.relative_loss:.2%} of the zero network's)",
            f"heading for: {self.family.name} ({self.family.layout}), {self.distance:.2g} away; {self.certificate}",
        ]
        if not np.isnan(self.sample_loss):
            lines.insert(1, f"on the given inputs {self.sample_loss:.4g} +- {self.sample_error:.2g}")
        return "\n".join(lines)


class AuditTorch:
    """Read two networks ``Sequential(Linear(d, K, bias=False), ReLU(), Linear(K, 1, bias=False) or a sum)``.

    Positive output weights are folded into the first layer, a ReLU(w.x) = ReLU(a w.x); neurons with output weight 0 or
    zero weights are left out.

    Parameters
    ----------
    student, teacher : the networks, on inputs of one dimension d.

    Raises
    ------
    ValueError : another architecture, a bias, a negative output weight.

    Examples
    --------
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> def net(width):
    ...     model = nn.Sequential(nn.Linear(6, width, bias=False), nn.ReLU(), nn.Linear(width, 1, bias=False))
    ...     _ = model[2].weight.data.abs_()
    ...     return model
    >>> audit = AuditTorch(net(3), net(2)).run()
    >>> audit.family.name, audit.certificate.status
    ('global', 'degenerate minimum')
    """

    def __init__(self, student: nn.Sequential, teacher: nn.Sequential) -> None:
        self.student, self.teacher = student, teacher
        self.W, self.V = folded_weights(student, "student"), folded_weights(teacher, "teacher")
        if self.W.shape[1] != self.V.shape[1]:
            raise ValueError(f"student takes d={self.W.shape[1]} inputs, teacher d={self.V.shape[1]}; they must agree")
        self.landscape = Landscape(self.V, K=len(self.W))

    def run(self, inputs: torch.Tensor | None = None) -> Audit:
        """Audit; ``inputs`` (n, d), if given, are checked to look like N(0, I) to these two networks.

        Raises
        ------
        ValueError : inputs of another shape, or with values that are not finite.
        NotCovered : on ``inputs`` the loss is more than 4 standard errors from the exact one: the inputs are not
            standard normal, and the population theory does not describe them.
        """
        land = self.landscape
        loss = max(0.0, float(land.loss(self.W)))
        sample, error = (float("nan"), float("nan")) if inputs is None else self._sample_loss(inputs)
        # A student that has become its teacher has no error in the sample either, only rounding.
        if abs(sample - loss) > INPUT_Z * error + ZERO_LOSS * land.teacher_loss:
            raise NotCovered(
                f"on these inputs the loss is {sample:.4g} +- {error:.2g}, under N(0, I) it would be {loss:.4g}; "
                "whiten the inputs, or read no population theory into them"
            )
        end = land.descend(self.W)
        point = land.tabulate([land.coordinates.inside(end)]).points[0]
        return Audit(
            loss=loss,
            relative_loss=loss / land.teacher_loss,
            gradient_norm=float(np.linalg.norm(land.grad(self.W))),
            family=point.family,
            certificate=point.certificate,
            distance=float(np.linalg.norm(end - self.W)),
            sample_loss=sample,
            sample_error=error,
        )

    def _sample_loss(self, inputs: torch.Tensor) -> tuple[float, float]:
        d, like = self.W.shape[1], self.student[0].weight
        inputs = torch.as_tensor(inputs).to(like)
        if inputs.ndim != 2 or len(inputs) < 2 or inputs.shape[1] != d or not bool(torch.isfinite(inputs).all()):
            raise ValueError(
                f"inputs of shape {tuple(inputs.shape)}; expected finite examples (n, d), n >= 2 and d={d}"
            )
        with torch.no_grad():
            gap = (self.student(inputs).reshape(len(inputs), -1) - self.teacher(inputs).reshape(len(inputs), -1))[:, 0]
        losses = (gap.double() ** 2 / 2).cpu().numpy()
        return float(losses.mean()), float(losses.std(ddof=1) / np.sqrt(len(losses)))


def folded_weights(model: nn.Sequential, name: str) -> Floats:
    """First-layer weights times output weights, (K, d); the network is ``sum_k ReLU(row_k . x)``."""
    if not isinstance(model, nn.Sequential) or len(model) not in (2, 3):
        size = f"{len(model)} modules" if isinstance(model, nn.Sequential) else f"type {type(model).__name__}"
        raise ValueError(f"{name} has {size}; expected Linear, ReLU and a Linear or summing output")
    first, activation = model[0], model[1]
    if not isinstance(first, nn.Linear) or not isinstance(activation, nn.ReLU):
        kinds = f"{type(first).__name__}, {type(activation).__name__}"
        raise ValueError(f"{name} starts with {kinds}; expected Linear and ReLU")
    if first.bias is not None and bool((first.bias != 0).any()):
        raise ValueError(f"{name} has a bias in its first layer; train with Linear(..., bias=False)")
    output = _output_weights(model[2] if len(model) == 3 else None, first, name)
    if (output < 0).any():
        raise ValueError(
            f"{name} has {int((output < 0).sum())} negative output weights; the theory is of sums of positive ReLUs"
        )
    W = output[:, None] * first.weight.detach().double().cpu().numpy()
    if not np.isfinite(W).all():
        raise ValueError(f"{name} has {np.count_nonzero(~np.isfinite(W))} weights that are not finite; did it diverge?")
    W = W[np.linalg.norm(W, axis=1) > 0]
    if not len(W):
        raise ValueError(f"{name} is zero everywhere; it has no neuron with a weight")
    return W


def _output_weights(last: nn.Module | None, first: nn.Linear, name: str) -> Floats:
    K = first.out_features
    if last is None:
        raise ValueError(f"{name} ends with its ReLU; add Linear({K}, 1, bias=False) or a module that sums")
    if isinstance(last, nn.Linear):
        if last.out_features != 1:
            raise ValueError(f"{name} has {last.out_features} outputs; the theory is of one")
        if last.bias is not None and bool((last.bias != 0).any()):
            raise ValueError(f"{name} has a bias in its output layer; use Linear({K}, 1, bias=False)")
        return last.weight.detach().double().cpu().numpy()[0]
    probe = torch.eye(K, dtype=first.weight.dtype, device=first.weight.device)
    mixed = torch.rand(8, K, generator=torch.Generator().manual_seed(0)).to(probe)
    with torch.no_grad():
        read, answer = last(probe).reshape(-1), last(mixed).reshape(-1)
    if read.numel() != K or not torch.allclose(mixed @ read, answer, rtol=1e-4, atol=1e-5):
        raise ValueError(f"{name} ends with {type(last).__name__}, which is not a weighted sum of the {K} neurons")
    return read.double().cpu().numpy()
