"""What DEMO is compared with, each with ``fit(data, labels=, val_mask=)`` and ``decision_scores_``."""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.metrics import average_precision_score
from torch import Tensor, nn
from torch.nn import functional as F

from cameraready.methods.demo.distance import KNNRatio, propagate
from cameraready.methods.demo.graph import NodeGraph, Operator, mean_weights, read_graph, symmetric_weights
from cameraready.methods.demo.labels import Labels, read_labels
from cameraready.methods.demo.network import Network, Output, View
from cameraready.methods.demo.sampling import sample_neighbours
from cameraready.methods.demo.training import VALIDATE_EVERY, balanced_bce


class GraphClassifier(BaseEstimator):
    """A graph network with DEMO's layers, optimiser, epochs and model selection, and another loss.

    Parameters
    ----------
    loss : "bce", class-balanced; "deviation" (DevNet: anomalies five deviations above N(0, 1) draws, normals at their
        mean); "nsreg" (bce and a head that tells pairs of linked normals from unlinked ones and from other pairs);
        "ggad" (bce and pseudo-outliers made of normals' neighbourhoods, with GGAD's affinity and closeness losses).
    own_features : True is GraphSAGE, False a graph convolution.
    """

    def __init__(
        self,
        loss: str = "bce",
        own_features: bool = True,
        *,
        epochs: int = 200,
        lr: float = 5e-3,
        random_state: int = 0,
    ) -> None:
        self.loss = loss
        self.own_features = own_features
        self.epochs = epochs
        self.lr = lr
        self.random_state = random_state

    def fit(self, data: Any, y: Any = None, *, labels: Any = None, val_mask: Any = None) -> Self:
        graph = read_graph(data)
        rng = np.random.default_rng(self.random_state)
        read = read_labels(labels, graph.n, val_mask=val_mask, rng=rng)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**31)))
            self.decision_scores_ = self._train(graph, read, rng)
        return self

    def _train(self, graph: NodeGraph, labels: Labels, rng: np.random.Generator) -> NDArray[np.float64]:
        x = torch.from_numpy(graph.x)
        weights = (mean_weights if self.own_features else symmetric_weights)(graph.adjacency)
        operator = Operator(weights)
        whole = View(x, operator @ x, operator)
        # Losses of labelled nodes alone need only these and their neighbours; the result is that of the full batch.
        nodes, view = np.arange(graph.n), whole
        if self.loss in ("bce", "deviation"):
            nodes = np.sort(np.concatenate([labels.train, labels.val]))
            sources, part = sample_neighbours(weights, nodes, fanout=None, rng=rng)
            view = View(whole.x[sources], whole.neighbours[sources], Operator(part))
        train, val = (torch.from_numpy(np.searchsorted(nodes, part)) for part in (labels.train, labels.val))
        target = torch.from_numpy(labels.train_target)
        network = Network(x.shape[1], own_features=self.own_features)
        loss_of = {"bce": _Bce, "deviation": _Deviation, "nsreg": _NSReg, "ggad": _GGAD}[self.loss](graph, labels, rng)
        optimizer = torch.optim.Adam([*network.parameters(), *loss_of.parameters()], lr=self.lr, weight_decay=1e-4)
        best, best_state = -1.0, network.state_dict()
        for epoch in range(self.epochs):
            network.train()
            loss = loss_of(network, network(view), train, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if epoch % VALIDATE_EVERY == VALIDATE_EVERY - 1 or epoch == self.epochs - 1:
                network.eval()
                with torch.no_grad():
                    precision = average_precision_score(labels.val_target, network(view).logit[val].numpy())
                if precision >= best:
                    best, best_state = precision, copy.deepcopy(network.state_dict())
        network.load_state_dict(best_state)
        network.eval()
        with torch.no_grad():
            return network(whole).logit.numpy().astype(np.float64)


class _Bce(nn.Module):
    def __init__(self, graph: NodeGraph, labels: Labels, rng: np.random.Generator) -> None:
        super().__init__()

    def forward(self, network: Network, output: Output, train: Tensor, target: Tensor) -> Tensor:
        return balanced_bce(output.logit[train], target)


class _Deviation(_Bce):
    def forward(self, network: Network, output: Output, train: Tensor, target: Tensor) -> Tensor:
        draws = torch.randn(5000)
        deviation = (output.logit[train] - draws.mean()) / draws.std()
        each = torch.where(target > 0.5, (5 - deviation).clamp(min=0), deviation.abs())
        return torch.stack([each[side].mean() for side in (target > 0.5, target <= 0.5)]).mean()


class _NSReg(_Bce):
    """Normal structure regularisation: pairs of normals linked 1, not linked 0.8, a normal with another node 0."""

    UNLINKED = 0.8

    def __init__(self, graph: NodeGraph, labels: Labels, rng: np.random.Generator) -> None:
        super().__init__(graph, labels, rng)
        normal = np.zeros(graph.n, dtype=bool)
        normal[labels.train_of(0)] = True
        edges = graph.adjacency.tocoo()
        inside = normal[edges.row] & normal[edges.col]
        self._links = np.stack([edges.row[inside], edges.col[inside]])
        self._normals, self._others = labels.train_of(0), np.flatnonzero(~normal)
        self._rng = rng
        self.relation = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, network: Network, output: Output, train: Tensor, target: Tensor) -> Tensor:
        count = 128

        def some(nodes: NDArray[np.int64]) -> NDArray[np.int64]:
            return self._rng.choice(nodes, size=count)

        pairs, targets = [], []
        if self._links.shape[1]:
            pairs.append(self._links[:, self._rng.integers(self._links.shape[1], size=count)])
            targets.append(np.ones(count))
        # Two random normals of a sparse graph are hardly ever linked.
        pairs += [
            np.stack([some(self._normals), some(self._normals)]),
            np.stack([some(self._normals), some(self._others)]),
        ]
        targets += [np.full(count, self.UNLINKED), np.zeros(count)]
        one, two = torch.from_numpy(np.concatenate(pairs, axis=1))
        relation = self.relation(output.embedding[one] * output.embedding[two]).squeeze(-1)
        goal = torch.from_numpy(np.concatenate(targets)).to(relation.dtype)
        return super().forward(network, output, train, target) + F.binary_cross_entropy_with_logits(relation, goal)


class _GGAD(_Bce):
    """Pseudo-outliers relu(W mean of a normal's neighbours), less alike their surroundings than the normal by 0.7."""

    MARGIN, NOISE = 0.7, 0.02

    def __init__(self, graph: NodeGraph, labels: Labels, rng: np.random.Generator) -> None:
        super().__init__(graph, labels, rng)
        normals = labels.train_of(0)
        chosen = np.sort(rng.permutation(normals)[: max(8, math.ceil(0.15 * len(normals)))])
        self._chosen = torch.from_numpy(chosen)
        self._around = Operator(mean_weights(graph.adjacency)[chosen])
        self.make = nn.Linear(64, 64)

    def forward(self, network: Network, output: Output, train: Tensor, target: Tensor) -> Tensor:
        around = self._around @ output.embedding
        own = output.embedding[self._chosen]
        made = F.relu(self.make(around))
        affinity = [F.cosine_similarity(part, around, dim=1) for part in (own, made)]
        margin = (self.MARGIN - (affinity[0].mean() - affinity[1].mean())).clamp(min=0)
        closeness = (made - own - self.NOISE * torch.randn_like(own)).square().sum(dim=1).mean()
        outliers = network.classify(made).logit
        fooled = F.binary_cross_entropy_with_logits(outliers, torch.ones_like(outliers))
        return super().forward(network, output, train, target) + fooled + margin + 0.1 * closeness


class NearestLabelled(BaseEstimator):
    """kNN ratio: mean distance to the 3 nearest labelled normals, less half that to the 3 nearest anomalies."""

    def __init__(self, hops: int = 2) -> None:
        self.hops = hops

    def fit(self, data: Any, y: Any = None, *, labels: Any = None, val_mask: Any = None) -> Self:
        graph = read_graph(data)
        rng = np.random.default_rng(0)
        read = read_labels(labels, graph.n, val_mask=val_mask, rng=rng)
        x = torch.from_numpy(graph.x)
        if self.hops:
            x = propagate(graph, x, hops=self.hops)
        else:
            x = (x - x.mean(dim=0)) / x.std(dim=0, correction=0).clamp(min=1e-6)
        parts = [torch.from_numpy(read.train_of(side)) for side in (0, 1)]
        self.decision_scores_ = KNNRatio.from_labels(x, *parts, rng=rng).score(x, transductive=True).double().numpy()
        return self


class PageRank(BaseEstimator):
    """Minus the personalised PageRank from the labelled normals, (1 - alpha) A_sym walks, to convergence."""

    def __init__(self, alpha: float = 0.2) -> None:
        self.alpha = alpha

    def fit(self, data: Any, y: Any = None, *, labels: Any = None, val_mask: Any = None) -> Self:
        graph = read_graph(data)
        read = read_labels(labels, graph.n, val_mask=val_mask, rng=np.random.default_rng(0))
        start = np.zeros(graph.n)
        start[read.train_of(0)] = 1 / len(read.train_of(0))
        walk = symmetric_weights(graph.adjacency).astype(np.float64)
        rank = start
        for _ in range(100):  # (1 - alpha)^100 < 1e-9
            rank = self.alpha * start + (1 - self.alpha) * (walk @ rank)
        self.decision_scores_ = -rank
        return self


class Unsupervised(BaseEstimator):
    """PyOD's graph detectors and scikit-learn's isolation forest, at their defaults."""

    def __init__(self, name: str = "DOMINANT", random_state: int = 0) -> None:
        self.name = name
        self.random_state = random_state

    def fit(self, data: Any, y: Any = None) -> Self:
        graph = read_graph(data)
        if self.name == "IsolationForest":
            from sklearn.ensemble import IsolationForest

            forest = IsolationForest(random_state=self.random_state).fit(graph.x)
            self.decision_scores_ = -forest.score_samples(graph.x)
            return self
        from importlib import import_module

        from torch_geometric.data import Data

        detector = getattr(import_module(f"pyod.models.pyg_{self.name.lower()}"), self.name)()
        edges = graph.adjacency.tocoo()
        index = torch.from_numpy(np.stack([edges.row, edges.col]).astype(np.int64))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            detector.fit(Data(x=torch.from_numpy(graph.x), edge_index=index))
        self.decision_scores_ = np.asarray(detector.decision_scores_)
        return self


def contestants(*, epochs: int) -> dict[str, BaseEstimator]:
    """Every peer by its name in the evidence."""
    return {
        "GraphSAGE": GraphClassifier("bce", epochs=epochs),
        "GCN": GraphClassifier("bce", False, epochs=epochs),
        "DevNet": GraphClassifier("deviation", epochs=epochs),
        "NSReg": GraphClassifier("nsreg", epochs=epochs),
        "GGAD": GraphClassifier("ggad", epochs=epochs),
        "kNN ratio, propagated": NearestLabelled(2),
        "kNN ratio, raw": NearestLabelled(0),
        "personalised PageRank": PageRank(),
        "IsolationForest": Unsupervised("IsolationForest"),
        **{name: Unsupervised(name) for name in ("DOMINANT", "CoLA", "CONAD")},
    }


def per_sample_influence(network: Network, view: View, train: Tensor, val: Tensor, val_target: Tensor) -> Tensor:
    """The official script's influence: one backward pass of a node's energy through all parameters a training node,
    against the validation loss's gradient, with the squared gradients' mean as a diagonal Hessian. Shape (n_train,)."""
    parameters = list(network.parameters())
    output = network(view)
    loss = F.binary_cross_entropy_with_logits(output.logit[val], val_target)
    gradient = torch.autograd.grad(loss, parameters, retain_graph=True)
    each = [
        torch.autograd.grad(-F.softplus(output.logit[node]), parameters, retain_graph=True) for node in train.tolist()
    ]
    diagonal = [torch.stack([one[i].square() for one in each]).mean(dim=0) + 1e-8 for i in range(len(parameters))]
    return torch.stack(
        [-sum((g * e / d).sum() for g, e, d in zip(gradient, one, diagonal, strict=True)) for one in each]
    )
