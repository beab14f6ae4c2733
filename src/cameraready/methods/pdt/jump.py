"""Move the accepted coordinates to where they are forecast."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cameraready.methods.pdt.history import Array, History
from cameraready.methods.pdt.layout import Layout
from cameraready.methods.pdt.masks import Criterion, believable


def jump(
    layout: Layout,
    history: History,
    coefficients: Array,
    *,
    from_end: bool,
    horizon: int,
    mask: Criterion,
    generator: torch.Generator,
    saved: list[Tensor] | None,
) -> NDArray[np.int64]:
    """Write the forecast into the parameters where the mask accepts it, a slice at a time.

    Parameters
    ----------
    layout : the parameters, at the end of an epoch; ``history.anchor`` is its start.
    coefficients : of the forecast displacement, for `History.combine`.
    from_end : the displacement is counted from the epoch's end, else from its start. Then the oldest move is released,
        block by block, as no later fit needs it.
    saved : receives copies of the blocks as they were; None keeps none.

    Returns
    -------
    accepted coordinates of each parameter, in the layout's order.
    """
    counts = []
    for index, block in enumerate(layout.blocks):
        copy = torch.empty_like(history.anchor[index]) if saved is not None else None
        count = torch.zeros(len(block.views), dtype=torch.int64, device=block.device)
        for part in block.parts():
            end, start = block.read(part), history.anchor[index][part]
            if copy is not None:
                copy[part].copy_(end)
            forecast = history.combine(index, part, coefficients)
            accepted = believable(
                forecast,
                end - start,
                criterion=mask,
                horizon=horizon,
                must_exceed=not from_end,
                generator=generator,
            )
            count += block.count(accepted)
            block.write(part, torch.where(accepted, forecast.add_(end if from_end else start), end))
        counts.append(count.cpu())
        if saved is not None and copy is not None:
            saved.append(copy)
        if from_end and history.is_full:
            history.moves[0][index] = history.moves[0][index].new_empty(0)
    return torch.cat(counts).numpy()
