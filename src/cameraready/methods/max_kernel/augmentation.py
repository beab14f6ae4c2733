"""Two other uses of a known group: copying data along orbits, and measuring how invariant a function is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cameraready.methods.max_kernel.groups import Group

_MOST_IMAGES = 512
_N_RANDOM = 64


def augment(
    X: Tensor, Y: Tensor, group: Group, *, max_copies: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """All images of the data under the group, each with its value: data augmentation for a non-invariant model.

    Parameters
    ----------
    X, Y : tensors of shape ``(n, d)`` and ``(n, m)``
    group : Group
    max_copies : int, optional
        Images kept of each point, itself among them; the others are drawn at random. Required for an infinite group.
    seed : int
        Of that draw.

    Returns
    -------
    tensors of shape ``(n * copies, d)`` and ``(n * copies, m)``, the copies of a point next to each other

    Examples
    --------
    >>> import torch
    >>> from cameraready.methods.max_kernel import Permutations, augment
    >>> X, Y = augment(torch.tensor([[1.0, 2.0]]), torch.tensor([[5.0]]), Permutations(2))
    >>> X.tolist(), Y.tolist()
    ([[1.0, 2.0], [2.0, 1.0]], [[5.0], [5.0]])
    """
    group.check_points(X)
    if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y):
        raise ValueError(f"X and Y have shapes {tuple(X.shape)} and {tuple(Y.shape)}; pass (n, d) and (n, m)")
    if max_copies is not None and max_copies < 1:
        raise ValueError(f"max_copies={max_copies}; keep at least 1 copy, the point itself")
    if not group.is_finite:
        if max_copies is None:
            raise ValueError("the group is infinite; pass max_copies")
        images = (
            torch.cat([X.unsqueeze(-2), group.random_images(X, max_copies - 1, seed=seed)], dim=-2)
            if max_copies > 1
            else X.unsqueeze(-2)
        )
    else:
        images = group.orbit(X)
        if max_copies is not None and max_copies < images.shape[-2]:
            pick = torch.Generator().manual_seed(seed)
            rest = torch.randperm(images.shape[-2] - 1, generator=pick)[: max_copies - 1] + 1
            images = images[:, torch.cat([torch.zeros(1, dtype=torch.long), rest])]
    return images.flatten(0, 1), Y.repeat_interleave(images.shape[1], dim=0)


def invariance_defect(function: Callable[[Tensor], Tensor] | Any, group: Group, X: Tensor) -> float:
    """``max |f(g x) - f(x)|`` over the points and the group's elements (a random sample of a large group).

    Parameters
    ----------
    function : callable or BoTorch model
        ``f`` maps ``(n, d)`` to ``(n,)`` or ``(n, 1)``; of a model, the posterior mean is taken.
    group : Group
        In the units of ``X``.
    X : tensor of shape ``(n, d)``

    Examples
    --------
    >>> import torch
    >>> from cameraready.methods.max_kernel import Permutations, invariance_defect
    >>> invariance_defect(lambda X: X.max(-1).values, Permutations(3), torch.rand(4, 3))
    0.0
    """
    few = group.is_finite and group.order <= _MOST_IMAGES
    images = group.orbit(X) if few else group.random_images(X, _N_RANDOM)
    points = torch.cat([X.unsqueeze(-2), images], dim=-2)
    with torch.no_grad():
        flat = points.flatten(0, 1)
        values = function.posterior(flat).mean if hasattr(function, "posterior") else torch.as_tensor(function(flat))
    if values.numel() != len(flat):
        raise ValueError(f"the function returned shape {tuple(values.shape)} for {len(flat)} designs; one value each")
    values = values.reshape(points.shape[:-1])
    return float((values - values[:, :1]).abs().max())
