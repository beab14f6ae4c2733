"""A memory bank of the predictions of unlabelled nodes, and the pseudo-labels it stands for."""

from __future__ import annotations

import torch
from torch import Tensor

NONE, NORMAL, ANOMALY = -1, 0, 1


class MemoryBank:
    """bank_v = 0.9 bank_v + 0.1 p_v for n unlabelled nodes.

    A node below the bank's median is a pseudo-normal, one above max(0.5, 97th percentile) a pseudo-anomaly, at most
    ``contamination`` of all; a node takes a new side after ``patience`` records in a row that agree.

    Parameters
    ----------
    n : number of unlabelled nodes
    contamination : largest share of pseudo-anomalies
    """

    def __init__(
        self,
        n: int,
        *,
        contamination: float,
        momentum: float = 0.9,
        patience: int = 5,
        device: torch.device | str = "cpu",
    ) -> None:
        self.probability = torch.full((n,), torch.nan, device=device)
        self.side = torch.full((n,), NONE, device=device)
        self.momentum, self.patience, self.contamination = momentum, patience, contamination
        self._candidate = torch.full((n,), NONE, device=device)
        self._streak = torch.zeros(n, dtype=torch.long, device=device)

    def update(self, nodes: Tensor, probability: Tensor) -> None:
        """Record the predicted probabilities of ``nodes`` (positions in the bank)."""
        old = self.probability[nodes]
        mixed = self.momentum * old + (1 - self.momentum) * probability
        self.probability[nodes] = torch.where(old.isnan(), probability, mixed)
        candidate = self._candidates()[nodes]
        self._streak[nodes] = torch.where(candidate == self._candidate[nodes], self._streak[nodes] + 1, 1)
        self._candidate[nodes] = candidate
        steady = nodes[self._streak[nodes] >= self.patience]
        self.side[steady] = self._candidate[steady]

    def _candidates(self) -> Tensor:
        known = ~self.probability.isnan()
        values = self.probability[known]
        median, high = (values.kthvalue(max(1, round(q * len(values)))).values for q in (0.5, 0.97))
        sides = torch.full_like(self.side, NONE)
        sides[known & (self.probability < median)] = NORMAL
        sides[known & (self.probability > high.clamp(min=0.5))] = ANOMALY
        quota = int(self.contamination * len(values))
        if (sides == ANOMALY).sum() > quota:
            ranked = torch.where(sides == ANOMALY, self.probability, -torch.inf)
            sides[sides == ANOMALY] = NONE
            sides[ranked.topk(quota).indices] = ANOMALY
        return sides
