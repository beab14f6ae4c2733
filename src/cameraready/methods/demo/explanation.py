"""Why a node has its score: gradient times input, and how far it is from the known anomalies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cameraready.methods.demo.distance import References, propagate
from cameraready.methods.demo.graph import NodeGraph, Operator, mean_weights
from cameraready.methods.demo.network import Network, View
from cameraready.methods.demo.sampling import sample_neighbours


@dataclass(frozen=True, eq=False)
class Explanation:
    """What moves a node's logit.

    Attributes
    ----------
    node, score, anomalous : as in ``decision_scores_`` and ``labels_``
    features : column to contribution, sum over the node's surroundings of gradient times input, strongest first
    neighbours : node to contribution, those within two edges and the node itself, strongest first
    distance_to_known : mean distance to the 3 nearest labelled anomalies, on propagated features
    kind : "normal"; or "known" or "unseen": whether that distance is within 95 % of those among the labelled anomalies
    """

    node: int
    score: float
    anomalous: bool
    features: dict[int, float]
    neighbours: dict[int, float]
    distance_to_known: float
    kind: str

    def __str__(self) -> str:
        def listed(parts: dict[int, float]) -> str:
            return ", ".join(f"{number} ({value:+.2g})" for number, value in parts.items())

        return (
            f"node {self.node}: score {self.score:.2f}, {self.kind if self.kind == 'normal' else self.kind + ' kind'}"
            f"\n  columns that move it: {listed(self.features)}\n  nodes that move it: {listed(self.neighbours)}"
        )


def explain(
    network: Network,
    graph: NodeGraph,
    x: Tensor,
    standard: Tensor,
    *,
    node: int,
    top: int,
    score: float,
    anomalous: bool,
    anomalies: NDArray[np.int64],
) -> Explanation:
    """Gradient times input of the node's logit over everything within two edges; cost is that of its surroundings."""
    rng = np.random.default_rng(0)  # nothing is drawn: all neighbours are taken
    first, near = sample_neighbours(graph.adjacency, np.array([node]), fanout=None, rng=rng)
    second, far = sample_neighbours(graph.adjacency, first, fanout=None, rng=rng)
    inputs = x[torch.from_numpy(second).to(x.device)].clone().requires_grad_()
    neighbours = Operator(mean_weights(far), x.device) @ inputs
    view = View(inputs[: len(first)], neighbours, Operator(mean_weights(near), x.device))
    (gradient,) = torch.autograd.grad(network(view).logit[0], inputs)
    moved = (gradient * inputs).detach().cpu().numpy()

    features = propagate(graph, standard)
    known = References.choose(features, torch.from_numpy(anomalies).to(x.device), rng=rng)
    distance = known.distance(features, transductive=True).cpu().numpy()
    within = distance[node] <= np.quantile(distance[anomalies], 0.95)
    return Explanation(
        node,
        score,
        anomalous,
        _strongest(np.arange(moved.shape[1]), moved.sum(axis=0), top),
        _strongest(second, moved.sum(axis=1), top),
        float(distance[node]),
        ("known" if within else "unseen") if anomalous else "normal",
    )


def _strongest(numbers: NDArray[np.int64], values: NDArray[np.float32], top: int) -> dict[int, float]:
    order = np.argsort(-np.abs(values), kind="stable")[:top]
    return {int(numbers[i]): float(values[i]) for i in order}
