"""A bound on how fast a whole network's logits can move with its input, read off its traced graph.

Each node of the graph gets a bound on its Lipschitz constant with respect to the input: layers multiply it by their
operator norm, sums add (so a residual block is 1 + the product of its branch), batch normalisation is folded into the
layer before it. What is not known to be bounded is refused with the reason, unless the user names its constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from cameraready.coverage import NotCovered
from cameraready.methods.compress_robust.compressibility import Norm
from cameraready.methods.compress_robust.graph_walk import Walk
from cameraready.methods.compress_robust.inputs import check_mode
from cameraready.methods.compress_robust.layers import LowRank, layers_of


@dataclass(frozen=True)
class LipschitzBound:
    """||f(x) - f(x')|| <= ``total`` ||x - x'||, both in l_p.

    Attributes
    ----------
    total : of the logits.
    before_last : of the last layer's input; equal to ``total`` where the logits are not a Linear's output.
    last : the Linear whose rows are the classes, or None.
    factors : each layer's name and norm bound, in order; batch normalisation is inside the layer that it follows.
    """

    p: Norm
    total: float
    before_last: float
    last: nn.Linear | LowRank | None
    factors: tuple[tuple[str, float], ...] = field(repr=False)


def lipschitz_bound(
    model: nn.Module, example: Tensor, p: Norm, *, constants: Mapping[str, float] | None = None
) -> LipschitzBound:
    """Bound the Lipschitz constant of a network in evaluation mode by its layers' operator norms.

    Parameters
    ----------
    model : Linear, convolution, batch normalisation, pooling, flattening, usual activations, sums (residual blocks),
        concatenation, scaling by constants; joined in any graph that `torch.fx` can trace.
    example : inputs (n, ...); only the shape matters, and one is enough.
    p : "inf" or "2".
    constants : submodule name to Lipschitz constant, where you know it and this function does not.

    Raises
    ------
    NotCovered : a module or function without a known constant, a model that cannot be traced.
    ValueError : a model in training mode; a constant that is negative, not finite, or of no submodule.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    >>> bound = lipschitz_bound(model, torch.zeros(1, 4), "2")
    >>> product = torch.linalg.matrix_norm(model[0].weight, 2) * torch.linalg.matrix_norm(model[2].weight, 2)
    >>> [name for name, _ in bound.factors], round(bound.total / product.item(), 4)
    (['0', '2'], 1.0)
    """
    if p not in ("inf", "2"):
        raise ValueError(f"p={p!r}; choose 'inf' or '2'")
    check_mode(model)
    known = dict(constants or {})
    for name, value in known.items():
        if name not in dict(model.named_modules()) or not 0 <= value < math.inf:
            raise ValueError(f"constants[{name!r}]={value}; name a submodule and a finite constant of at least 0")
    if any(layer.weight.is_complex() for layer in layers_of(model)):
        raise NotCovered("complex weights")
    if not list(model.children()):  # a bare layer, which tracing would look inside
        model = nn.Sequential(model) if type(model).__module__.startswith("torch.nn") else model
    # A batch of five, so that a node that mixes or moves the batch shows in its shape.
    walk = Walk(model, example[:1].expand(5, *example.shape[1:]), p, known)
    total, before_last, last = walk.output()
    return LipschitzBound(p, total, before_last, last, tuple(walk.factors.values()))
