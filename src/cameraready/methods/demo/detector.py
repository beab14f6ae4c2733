"""`DEMO`: the detector, with PyOD's interface."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pyod.models.base import BaseDetector
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from cameraready.methods.demo.distance import DistanceHead, Standardiser
from cameraready.methods.demo.explanation import Explanation, explain
from cameraready.methods.demo.graph import NodeGraph, Operator, mean_weights, read_graph, symmetric_weights
from cameraready.methods.demo.labels import Labels, read_labels
from cameraready.methods.demo.mixup import WEIGHTS
from cameraready.methods.demo.network import View
from cameraready.methods.demo.training import Problem, Settings, fits_in_full, train

WIDE = 100.0  # a column's standard deviation that a network does not train on


class DEMO(BaseDetector):
    """Open-set anomaly detector for the nodes of a graph, from a few labels of one kind of anomaly.

    Parameters
    ----------
    hidden : width of the network.
    epochs : passes over the labelled nodes; the best by validation average precision is kept.
    mixup : "simulate" (mixtures in the embedding space, labelled by where they come from), "ppr" (the paper's official
        form: a second view, fused by personalised PageRank), "vanilla" (anomaly with normal, for comparison) or "none".
    energy_weights : weigh labelled nodes by uncertainty and influence on the validation loss.
    memory_bank : pseudo-labels for unlabelled nodes from the history of their predictions.
    distance_head : add distances to the labelled nodes to the score.
    contamination : in (0, 0.5], share of the unlabelled nodes that ``predict`` calls anomalies; also the largest share
        of pseudo-anomalies.
    lr, dropout : of Adam (weight decay 1e-4) and of the SAGE layers.
    batch : "auto" (full batch while edges times width stay below 2 GB, or until a GPU has no memory left), "full" or
        "sampled" (512 nodes a step, 25 neighbours each). Scores are always computed with all neighbours.
    undirected : let every edge work both ways.
    device : a torch device; None takes that of ``data.x``.
    random_state : seed. On the CPU equal seeds give equal scores.

    Attributes
    ----------
    decision_scores_ : (n,) scores of the training graph's nodes; the larger, the more anomalous
    threshold_ : the (1 - contamination) quantile of the unlabelled nodes' scores
    labels_ : (n,) 1 where the score is above the threshold
    history_ : DataFrame of losses and validation precision
    pseudo_labels_ : (n,) the memory bank's last opinion: 0, 1 or -1 for none

    Notes
    -----
    The score is max(z(s), 0) + z(k), or z(s) without the distance head: s the classifier's logit, k the distance head's
    (`cameraready.methods.demo.distance`), z standardised by the training graph's median and interquartile range.

    References
    ----------
    "Dynamic Multi-sample Mixup with Gradient Exploration for Open-set Graph Anomaly Detection", ICLR 2026.

    Examples
    --------
    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(200, 5)).astype("float32")
    >>> x[:20, 0] += 5  # the known kind
    >>> x[20:40, 1] += 5  # nobody labelled these
    >>> data = SimpleNamespace(x=x, edge_index=rng.integers(0, 200, size=(2, 600)))  # or a torch_geometric Data
    >>> labels = np.full(200, -1)
    >>> labels[:10], labels[40:100] = 1, 0
    >>> detector = DEMO(epochs=30, random_state=0).fit(data, labels=labels)
    >>> bool(detector.decision_scores_[20:40].mean() > detector.decision_scores_[100:].mean())
    True
    """

    def __init__(
        self,
        hidden: int = 64,
        epochs: int = 200,
        mixup: Literal["simulate", "ppr", "vanilla", "none"] = "simulate",
        energy_weights: bool = True,
        memory_bank: bool = True,
        distance_head: bool = True,
        contamination: float = 0.05,
        *,
        lr: float = 5e-3,
        dropout: float = 0.5,
        batch: Literal["auto", "full", "sampled"] = "auto",
        undirected: bool = True,
        device: str | None = None,
        random_state: int | None = None,
    ) -> None:
        super().__init__(contamination=contamination)
        self.hidden = hidden
        self.epochs = epochs
        self.mixup = mixup
        self.energy_weights = energy_weights
        self.memory_bank = memory_bank
        self.distance_head = distance_head
        self.lr = lr
        self.dropout = dropout
        self.batch = batch
        self.undirected = undirected
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, labels: Any = None, val_mask: Any = None) -> Self:
        """Train on a graph, of which some nodes are labelled.

        Parameters
        ----------
        X : `torch_geometric.data.Data` (x, edge_index, optional edge_weight), or a graph of `cameraready.data`
        labels : (n,) integers: 1 anomaly of the known kind, 0 normal, -1 unlabelled. Default ``y``, then
            ``X.y_partial``.
        val_mask : (n,) bool, which labelled nodes to validate on; default a stratified fifth.

        Raises
        ------
        ValueError, TypeError : a setting, graph or label that cannot be used; the message says which.
        """
        self._check_settings()
        graph = read_graph(X, undirected=self.undirected)
        labels = y if labels is None else labels
        labels = getattr(X, "y_partial", None) if labels is None else labels
        rng = np.random.default_rng(self.random_state)
        read = read_labels(labels, graph.n, val_mask=val_mask, rng=rng)
        self._device = torch.device(self.device or getattr(getattr(X, "x", None), "device", "cpu"))
        self.graph_, self.n_features_in_ = graph, graph.x.shape[1]
        self._set_n_classes(None)
        self._centre, self._spread = graph.x.mean(axis=0), np.maximum(graph.x.std(axis=0), 1e-6)
        if self._spread.max() > WIDE:
            warnings.warn(
                f"column {self._spread.argmax()} of x has a standard deviation of {self._spread.max():.3g}, and the "
                "network takes features as they are: standardise columns that have units of their own",
                stacklevel=2,
            )
        cuda = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            torch.manual_seed(int(rng.integers(2**31)))
            self._train(graph, read, rng)
        scores = self._fit_scores(graph, read, rng)
        unlabelled = scores[read.unlabelled] if len(read.unlabelled) else scores
        self.decision_scores_, self.threshold_ = scores, float(np.quantile(unlabelled, 1 - self.contamination))
        self.labels_ = (scores > self.threshold_).astype(int)
        self._mu, self._sigma = float(scores.mean()), float(scores.std())  # PyOD's "unify"
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores of all nodes, shape (n,), of the training graph or of a new one with the same features.

        In the training graph a labelled node is not compared with itself; in a new graph nobody is known.
        """
        check_is_fitted(self, "decision_scores_")
        graph = self._read(X)
        if graph.same_as(self.graph_):
            return self.decision_scores_.copy()
        return self._scores(graph, transductive=False)

    def predict_proba(self, X: Any, method: str = "linear", return_confidence: bool = False) -> Any:
        """Shape (n, 2): scores as probabilities of normal and anomaly, as in PyOD ("linear" or "unify")."""
        check_is_fitted(self, "decision_scores_")
        graph = self._read(X)
        scores = self.decision_function(graph)
        if method == "linear":
            low, high = self.decision_scores_.min(), self.decision_scores_.max()
            anomaly = np.clip((scores - low) / max(high - low, 1e-12), 0, 1)
        elif method == "unify":
            from scipy.special import erf

            anomaly = np.clip(erf((scores - self._mu) / (max(self._sigma, 1e-12) * np.sqrt(2))), 0, 1)
        else:
            raise ValueError(f"method={method!r} is not known; pass 'linear' or 'unify'")
        both = np.column_stack([1 - anomaly, anomaly])
        return (both, self.predict_confidence(graph)) if return_confidence else both

    def explain(self, node: int, *, top: int = 5) -> Explanation:
        """Why a node of the training graph has its logit; see `Explanation`."""
        check_is_fitted(self, "decision_scores_")
        n = self.graph_.n
        if isinstance(node, bool) or not isinstance(node, int | np.integer) or not 0 <= node < n:
            raise ValueError(f"node={node!r} is not one of the training graph's nodes 0 to {n - 1}")
        return explain(
            self.network_,
            self.graph_,
            self._features(self.graph_),
            self._standard(self.graph_),
            node=int(node),
            top=top,
            score=float(self.decision_scores_[node]),
            anomalous=bool(self.labels_[node]),
            anomalies=self._anomalies,
        )

    def _check_settings(self) -> None:
        for name in ("hidden", "epochs"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name}={value!r}; pass an integer of at least 1")
        options = {"mixup": tuple(WEIGHTS), "batch": ("auto", "full", "sampled")}
        for name, allowed in options.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not known; pass one of {', '.join(allowed)}")
        # PyOD also takes thresholding objects here; ours bounds the pseudo-anomalies as well, and must be a number.
        if not (isinstance(self.contamination, int | float) and 0 < self.contamination <= 0.5):
            raise ValueError(f"contamination={self.contamination!r} is not a number in (0, 0.5]")
        if not 0 < self.lr < math.inf or not 0 <= self.dropout < 1:
            raise ValueError(f"lr={self.lr}, dropout={self.dropout}; pass lr > 0, dropout in [0, 1)")

    def _read(self, X: Any) -> NodeGraph:
        graph = read_graph(X, undirected=self.undirected)
        if graph.x.shape[1] != self.n_features_in_:
            raise ValueError(
                f"the graph has {graph.x.shape[1]} features, but the detector was fitted on {self.n_features_in_}; "
                "pass the same columns in the same order"
            )
        return graph

    def _features(self, graph: NodeGraph) -> Tensor:
        return torch.from_numpy(graph.x).to(self._device)

    def _standard(self, graph: NodeGraph) -> Tensor:
        """Features with the training graph's mean 0 and std 1."""
        return torch.from_numpy((graph.x - self._centre) / self._spread).to(self._device)

    def _train(self, graph: NodeGraph, labels: Labels, rng: np.random.Generator) -> None:
        x = self._features(graph)

        def tensor(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values).to(self._device)

        problem = Problem(
            adjacency=graph.adjacency,
            x=x,
            neighbours=Operator(mean_weights(graph.adjacency), self._device) @ x,
            train=tensor(labels.train),
            train_target=tensor(labels.train_target),
            val=tensor(labels.val),
            val_target=tensor(labels.val_target),
            unlabelled=tensor(labels.unlabelled),
            symmetric=symmetric_weights(graph.adjacency) if self.mixup == "ppr" else None,
        )
        settings = Settings(
            hidden=self.hidden,
            epochs=self.epochs,
            lr=self.lr,
            dropout=self.dropout,
            mixup=self.mixup,
            energy_weights=self.energy_weights,
            memory_bank=self.memory_bank,
            contamination=self.contamination,
        )
        full = self.batch == "full" or (self.batch == "auto" and fits_in_full(graph.adjacency, self.hidden))
        try:
            trained = train(problem, settings, full_batch=full, rng=rng)
        except torch.OutOfMemoryError:
            if not full or self.batch == "full":
                raise
            warnings.warn(f"{self._device} has no memory for the full batch: sampling neighbours instead", stacklevel=3)
            torch.cuda.empty_cache()
            trained = train(problem, settings, full_batch=False, rng=rng)
        self.network_ = trained.network
        self.history_ = pd.DataFrame([asdict(epoch) for epoch in trained.history])
        self.pseudo_labels_ = np.full(graph.n, -1)
        if trained.bank is not None:
            self.pseudo_labels_[labels.unlabelled] = trained.bank.side.cpu().numpy()

    def _fit_scores(self, graph: NodeGraph, labels: Labels, rng: np.random.Generator) -> NDArray[np.float64]:
        """Fit the distance head and both scales; returns the training graph's scores."""
        logit, k = self._logits(graph), None
        self._scale_logit = Standardiser.fit(logit)
        normals, self._anomalies = labels.train_of(0), labels.train_of(1)
        self._distances = None
        if self.distance_head:
            standard = self._standard(graph)
            parts = [torch.from_numpy(nodes).to(self._device) for nodes in (normals, self._anomalies)]
            self._distances = DistanceHead.fit(graph, standard, normals=parts[0], anomalies=parts[1], rng=rng)
            k = self._distances.score(graph, standard, transductive=True)
            self._scale_distance = Standardiser.fit(k)
        return self._combined(logit, k)

    def _logits(self, graph: NodeGraph) -> NDArray[np.float64]:
        x = self._features(graph)
        mean = Operator(mean_weights(graph.adjacency), self._device)
        with torch.no_grad():
            return self.network_(View(x, mean @ x, mean)).logit.cpu().numpy().astype(np.float64)

    def _scores(self, graph: NodeGraph, *, transductive: bool) -> NDArray[np.float64]:
        k = None
        if self._distances is not None:
            k = self._distances.score(graph, self._standard(graph), transductive=transductive)
        return self._combined(self._logits(graph), k)

    def _combined(self, logit: NDArray[np.float64], k: NDArray[np.float64] | None) -> NDArray[np.float64]:
        scores = self._scale_logit(logit)
        # A logit below the median is a guess where no label was, and takes nothing from a distance.
        return scores if k is None else np.maximum(scores, 0) + self._scale_distance(k)
