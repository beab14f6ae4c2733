"""The classifier: two GraphSAGE layers with mean aggregation, a projector, and a head with one logit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cameraready.methods.demo.graph import Operator


@dataclass(frozen=True, eq=False)
class View:
    """What the network reads to give the first m of k nodes a logit.

    Attributes
    ----------
    x, neighbours : shape (k, d)
        Features, and their mean over the neighbours. That mean comes before any parameter, so it is taken over all
        neighbours, once a fit, in the sampled mode as well.
    operator : (m, k) means over the neighbours, for the second layer
    """

    x: Tensor
    neighbours: Tensor
    operator: Operator


@dataclass(frozen=True, eq=False)
class Output:
    """embedding (m, hidden), penultimate activation (m, 32), logit (m,): the larger, the more anomalous."""

    embedding: Tensor
    penultimate: Tensor
    logit: Tensor


class Network(nn.Module):
    """Encoder ``d -> hidden -> hidden``, projector ``hidden -> hidden -> hidden``, head ``hidden -> 32 -> 1``.

    Parameters
    ----------
    own_features : False drops the node's own term, which with A_sym as operator gives a graph convolution.
    """

    def __init__(self, d: int, *, hidden: int = 64, dropout: float = 0.5, own_features: bool = True) -> None:
        super().__init__()
        self.dropout = dropout
        self.neighbours = nn.ModuleList([nn.Linear(d, hidden), nn.Linear(hidden, hidden)])
        own = [nn.Linear(d, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)]
        self.own = nn.ModuleList(own if own_features else [])
        self.projector = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.head = nn.Sequential(nn.Linear(hidden, 32), nn.ReLU())
        self.last = nn.Linear(32, 1)

    def forward(self, view: View) -> Output:
        return self.classify(self.projector(self.encode(view)))

    def encode(self, view: View) -> Tensor:
        """The SAGE layers, shape (m, hidden)."""
        first = self.neighbours[0](view.neighbours)
        first = F.relu(first + self.own[0](view.x)) if self.own else F.relu(first)
        first = self._drop(first)
        second = self.neighbours[1](view.operator @ first)
        if self.own:
            second = second + self.own[1](first[: view.operator.shape[0]])
        return self._drop(F.relu(second))

    def _drop(self, x: Tensor) -> Tensor:
        if not self.training or self.dropout == 0:
            return x
        # torch's own dropout draws five times slower than uniform numbers on the CPU, where it is a third of the epoch.
        return x * (torch.rand_like(x) >= self.dropout) / (1 - self.dropout)

    def classify(self, embedding: Tensor) -> Output:
        """The head, on embeddings that need not be those of nodes."""
        penultimate = self.head(embedding)
        return Output(embedding, penultimate, self.last(penultimate).squeeze(-1))
