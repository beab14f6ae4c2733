"""Which coordinates of a forecast to believe."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Criterion = Literal["both", "consistency", "bounds", "none", "random"]
CRITERIA: tuple[str, ...] = get_args(Criterion)


def believable(
    forecast: Tensor,
    displacement: Tensor,
    *,
    criterion: Criterion = "both",
    horizon: int,
    must_exceed: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Where a forecast displacement p of the coming epochs agrees with the displacement d that training made in one.

    "consistency" asks for sign p = sign d, "bounds" for |d| <= |p| <= (horizon + 1) |d|, "both" for both; "none"
    believes all. "random" draws as many coordinates as "both" would accept, and is there to compare with.

    Parameters
    ----------
    forecast, displacement : tensors of one shape.
    horizon : epochs that the forecast looks ahead.
    must_exceed : leave out the lower bound where False (the forecast starts where d ends, so that any p is a gain).
    generator : for "random", on the CPU.

    Returns
    -------
    boolean tensor. NaN is never believed, except by "none" and "random".

    Examples
    --------
    >>> d = torch.tensor([1.0, 1.0, 1.0, -1.0])
    >>> believable(torch.tensor([2.0, -2.0, 9.0, -2.0]), d, horizon=5)
    tensor([ True, False, False,  True])
    """
    if criterion == "none":
        return torch.ones_like(forecast, dtype=torch.bool)
    if criterion == "consistency":
        return torch.sign(forecast) == torch.sign(displacement)
    size, scale = forecast.abs(), displacement.abs()
    chosen = size <= (horizon + 1) * scale
    if must_exceed:
        chosen &= size >= scale
    if criterion != "bounds":
        chosen &= torch.sign(forecast) == torch.sign(displacement)
    if criterion == "random":
        order = torch.randperm(chosen.numel(), generator=generator)[: int(chosen.sum())]
        chosen = torch.zeros_like(chosen).index_fill_(0, order.to(chosen.device), True)
    return chosen
