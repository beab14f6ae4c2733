"""What the Lipschitz bound certifies: radii within which no attack can change a prediction, and a bound on the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cameraready.coverage import NotCovered
from cameraready.methods.compress_robust.compressibility import Norm
from cameraready.methods.compress_robust.inputs import check_examples
from cameraready.methods.compress_robust.layers import LowRank, layers_of
from cameraready.methods.compress_robust.lipschitz import LipschitzBound, lipschitz_bound

# Cross-entropy's gradient is softmax - one-hot, of l1 norm at most 2 and l2 norm at most sqrt(2): the duals of the two.
CROSS_ENTROPY_LIPSCHITZ = {"inf": 2.0, "2": math.sqrt(2.0)}
ROUNDING = 1e-5  # of the largest logit: float32 logits are not exact, so this much of a margin is not counted


def certified_radius(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    p: Norm,
    constants: Mapping[str, float] | None = None,
    bound: LipschitzBound | None = None,
) -> Tensor:
    """The radius around each example within which the predicted class provably stays ``y``.

    min over j of (f_y - f_j) / (||w_y - w_j||_* prod ||W_l||_p), over all layers but the last, with w the last layer's
    rows and the dual norm: l_2 for l_2, l_1 for l_inf. Without a last Linear the margin moves by at most sqrt(2)
    (l_2) or 2 (l_inf) times the whole network's bound.

    Parameters
    ----------
    model : in evaluation mode; see `lipschitz_bound` for what is covered.
    x : (n, ...), y : class indices (n,).
    p : "inf" or "2".
    constants : Lipschitz constants of submodules that you know, by name.
    bound : of the same model and p, to save the time of computing it again.

    Returns
    -------
    Tensor (n,) in double precision; 0 for an example that is already misclassified.

    Raises
    ------
    NotCovered : no bound is known for this model; no number is made up.
    ValueError : labels out of range, inputs or logits that are not finite.

    Examples
    --------
    >>> from torch import nn
    >>> model = nn.Linear(2, 2, bias=False).eval()
    >>> _ = model.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> certified_radius(model, torch.tensor([[2.0, 0.0]]), torch.tensor([0]), p="2").round(decimals=3).item()
    1.2
    """
    check_examples(model, x, y)
    bound = bound or lipschitz_bound(model, x, p, constants=constants)
    with torch.no_grad():
        logits = model(x).double()
    if logits.ndim != 2:
        raise NotCovered(f"the logits have shape {tuple(logits.shape)}; a classifier's are (n, classes)")
    gaps = logits.gather(1, y[:, None]) - logits
    gaps = gaps - ROUNDING * logits.abs().amax(dim=1, keepdim=True)
    per_unit = _margin_slopes(bound, len(logits[0]), p).to(gaps)[y]
    radii = torch.where(gaps > 0, gaps / per_unit, torch.zeros_like(gaps))
    radii.scatter_(1, y[:, None], math.inf)
    return radii.amin(dim=1)


def certified_accuracy(radii: Tensor, eps: float) -> float:
    """Share of examples whose certified radius is above ``eps``."""
    return float((radii > eps).double().mean())


def loss_gap_bound(bound: LipschitzBound, eps: float) -> float:
    """Cross-entropy within eps of an example exceeds that at the example by at most L * eps * prod ||W_l||_p."""
    if not 0 <= eps < math.inf:
        raise ValueError(f"eps={eps}; a radius is finite and not negative")
    return CROSS_ENTROPY_LIPSCHITZ[bound.p] * eps * bound.total


@dataclass(frozen=True)
class AlignmentEstimate:
    """The l_2 product, sharpened by how layers' singular vectors meet. An estimate, not a certificate.

    Attributes
    ----------
    product : prod ||W_l||_2.
    aligned : prod over neighbours of max_D ||S_{l+1} V_{l+1}^T D U_l S_l||, as found by the greedy search.
    cuts : each neighbour pair's factor relative to what the plain product has for it, at most 1.
    """

    product: float
    aligned: float
    cuts: tuple[float, ...]


def alignment_estimate(model: nn.Module, *, restarts: int = 10, steps: int = 50, seed: int = 0) -> AlignmentEstimate:
    """Estimate the l_2 bound of a chain of Linear layers and 1-Lipschitz activations with its layers' alignment.

    Cutting the chain at each activation, W_l = U_l S_l V_l^T gives ||f||_Lip <= prod over cuts of
    max over D in [0, 1] of ||S_{l+1}^(1/2) V_{l+1}^T D U_l S_l^(1/2)||, where the outer two factors of the first and
    the last layer are whole S, not its root. The maximum is over the corners D in {0, 1}; it is searched for by
    alternating between the top singular pair and the D that is best for it, so it may be missed.

    Raises
    ------
    NotCovered : layers other than Linear.
    """
    layers = layers_of(model)
    if len(layers) < 2 or any(
        layer.is_convolution or not isinstance(layer.module, (nn.Linear, LowRank)) for layer in layers
    ):
        raise NotCovered("the alignment estimate is of chains of two or more Linear layers")
    parts = [torch.linalg.svd(layer.weight.double(), full_matrices=False) for layer in layers]
    generator = torch.Generator().manual_seed(seed)
    aligned, cuts = 1.0, []
    for i in range(len(parts) - 1):
        (U, s, _), (_, t, Vh) = parts[i], parts[i + 1]
        left = (t if i == len(parts) - 2 else t.sqrt())[:, None] * Vh
        right = U * (s if i == 0 else s.sqrt())
        found = _best_gate(left, right, restarts, steps, generator)
        plain = float((t[0] if i == len(parts) - 2 else t[0].sqrt()) * (s[0] if i == 0 else s[0].sqrt()))
        aligned *= found
        cuts.append(found / plain if plain else 0.0)
    return AlignmentEstimate(math.prod(float(s[0]) for _, s, _ in parts), aligned, tuple(cuts))


def _best_gate(left: Tensor, right: Tensor, restarts: int, steps: int, generator: torch.Generator) -> float:
    """Greedy max over D in {0, 1}^h of ||left D right||: for a fixed pair (u, v) the best D keeps terms of one sign."""
    best = float(torch.linalg.matrix_norm(left @ right, 2))
    for _ in range(restarts):
        gate = (torch.rand(left.shape[1], generator=generator) < 0.5).to(left)
        value = -1.0
        for _ in range(steps):
            u, s, vh = torch.linalg.svd(left * gate @ right, full_matrices=False)
            if float(s[0]) <= value * (1 + 1e-9):
                break
            value = float(s[0])
            terms = (u[:, 0] @ left) * (right @ vh[0])
            gate = (
                (terms > 0).to(left) if terms.clamp(min=0).sum() >= -terms.clamp(max=0).sum() else (terms < 0).to(left)
            )
        best = max(best, value)
    return best


def _margin_slopes(bound: LipschitzBound, classes: int, p: Norm) -> Tensor:
    """How fast f_y - f_j can change per unit of input, (classes, classes)."""
    if bound.last is None:
        return torch.full((classes, classes), {"inf": 2.0, "2": math.sqrt(2.0)}[p] * bound.total)
    rows = bound.last.weight.detach().double().cpu()
    gaps = rows[:, None] - rows[None]
    dual: Callable[[Tensor], Tensor] = (lambda d: d.abs().sum(-1)) if p == "inf" else (lambda d: d.norm(dim=-1))
    return dual(gaps) * bound.before_last
