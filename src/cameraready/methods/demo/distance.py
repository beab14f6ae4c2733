"""The distance head: distance from the labelled normals, less half that from the labelled anomalies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from cameraready.methods.demo.graph import NodeGraph, Operator, symmetric_weights

NEIGHBOURS = 3
MAX_REFERENCES = 5000


def propagate(graph: NodeGraph, x: Tensor, *, hops: int = 2) -> Tensor:
    """L2-normalised A_sym^hops x, shape (n, d): communities stand out here, single outliers are smoothed away."""
    operator = Operator(symmetric_weights(graph.adjacency), x.device)
    for _ in range(hops):
        x = operator @ x
    return F.normalize(x, dim=1)


@dataclass(frozen=True, eq=False)
class References:
    """Labelled nodes to measure distances to.

    Attributes
    ----------
    nodes : their numbers in the graph they come from
    features : shape (r, d)
    """

    nodes: Tensor
    features: Tensor

    @classmethod
    def choose(cls, features: Tensor, nodes: Tensor, *, rng: np.random.Generator) -> References:
        """All of ``nodes``, or 5,000 random ones where there are more."""
        if len(nodes) > MAX_REFERENCES:
            chosen = np.sort(rng.choice(len(nodes), size=MAX_REFERENCES, replace=False))
            nodes = nodes[torch.from_numpy(chosen).to(nodes.device)]
        return cls(nodes, features[nodes])

    def distance(self, features: Tensor, *, transductive: bool) -> Tensor:
        """Mean distance to the 3 nearest, shape (m,); to fewer where there are no more.

        ``transductive``: rows of ``features`` are the nodes of the references' own graph, none of which is compared
        with itself (but for an only reference).
        """
        k = max(1, min(NEIGHBOURS, len(self.nodes) - transductive))
        out = []
        rows = max(1, 2**24 // len(self.nodes))
        for start in range(0, len(features), rows):
            # In double, as differences of near nodes are small beside their lengths.
            distances = torch.cdist(features[start : start + rows].double(), self.features.double())
            if transductive and len(self.nodes) > 1:
                own = (self.nodes >= start) & (self.nodes < start + len(distances))
                distances[self.nodes[own] - start, own.nonzero()[:, 0]] = torch.inf
            out.append(distances.topk(k, largest=False).values.mean(dim=1))
        return torch.cat(out)


@dataclass(frozen=True, eq=False)
class KNNRatio:
    """r = d_normal - 0.5 d_anomaly, from labelled nodes of either kind."""

    normals: References
    anomalies: References

    @classmethod
    def from_labels(cls, features: Tensor, normals: Tensor, anomalies: Tensor, *, rng: np.random.Generator) -> KNNRatio:
        return cls(*(References.choose(features, nodes, rng=rng) for nodes in (normals, anomalies)))

    def score(self, features: Tensor, *, transductive: bool) -> Tensor:
        normal, anomaly = (
            part.distance(features, transductive=transductive) for part in (self.normals, self.anomalies)
        )
        return normal - 0.5 * anomaly


@dataclass(frozen=True)
class Standardiser:
    """(value - centre) / scale, fixed on the training graph: its median, and its interquartile range in units of a std.

    Logits that separate the known kind well are so skewed that a few known anomalies make up most of their std; divided
    by that, differences between all other nodes would vanish beside the distances. Where half of the values are equal
    the scale is the std, with a floor, so that constants give zeros.
    """

    centre: float
    scale: float

    @classmethod
    def fit(cls, values: NDArray[np.float64]) -> Standardiser:
        low, centre, high = np.quantile(values, [0.25, 0.5, 0.75])
        scale, std = (high - low) / 1.349, values.std()
        return cls(float(centre), float(max(scale if scale > 1e-3 * std else std, 1e-6)))

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return (values - self.centre) / self.scale


@dataclass(frozen=True, eq=False)
class DistanceHead:
    """k = z(r_prop) + z(r_raw), on propagated and on plain standardised features; z is `Standardiser`.

    Features are centred before they are propagated: a column's offset would leave all nodes in one direction.
    """

    propagated: KNNRatio
    raw: KNNRatio
    scales: tuple[Standardiser, Standardiser]

    @classmethod
    def fit(
        cls, graph: NodeGraph, standard: Tensor, *, normals: Tensor, anomalies: Tensor, rng: np.random.Generator
    ) -> DistanceHead:
        views = (propagate(graph, standard), standard)
        heads = [KNNRatio.from_labels(view, normals, anomalies, rng=rng) for view in views]
        scales = [
            Standardiser.fit(_numpy(head.score(view, transductive=True)))
            for head, view in zip(heads, views, strict=True)
        ]
        return cls(*heads, scales=(scales[0], scales[1]))

    def score(self, graph: NodeGraph, standard: Tensor, *, transductive: bool) -> NDArray[np.float64]:
        """k of every node, shape (n,)."""
        views = (propagate(graph, standard), standard)
        return sum(
            scale(_numpy(head.score(view, transductive=transductive)))
            for head, view, scale in zip((self.propagated, self.raw), views, self.scales, strict=True)
        )


def _numpy(values: Tensor) -> NDArray[np.float64]:
    return values.cpu().numpy().astype(np.float64)
