"""The training loop: full batch where it fits, else batches of sampled neighbours."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score
from torch import Tensor
from torch.nn import functional as F

from cameraready.methods.demo import mixup
from cameraready.methods.demo.energy import energy_loss, influence, sample_weights
from cameraready.methods.demo.graph import Operator, mean_weights
from cameraready.methods.demo.memory import ANOMALY, NORMAL, MemoryBank
from cameraready.methods.demo.network import Network, Output, View
from cameraready.methods.demo.sampling import sample_neighbours

FANOUT, BATCH, WEIGHT_DECAY = 25, 512, 1e-4
# In epochs; validation also every so many.
ENERGY_WARM_UP, BANK_WARM_UP, VALIDATE_EVERY = 10, 20, 5
BANK_WEIGHT, ENERGY_WEIGHT = 0.5, 0.1
FULL_BATCH_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Settings:
    """What `DEMO` passes on; see there."""

    hidden: int
    epochs: int
    lr: float
    dropout: float
    mixup: str
    energy_weights: bool
    memory_bank: bool
    contamination: float


@dataclass(frozen=True, eq=False)
class Problem:
    """Features and edges on the device, and who is labelled.

    Attributes
    ----------
    adjacency : csr_array, shape (n, n)
    x, neighbours : shape (n, d): features, and their mean over all neighbours
    train, val, unlabelled : node numbers
    train_target, val_target : float, 1 is an anomaly
    symmetric : A_sym, for ``mixup="ppr"``
    """

    adjacency: sp.csr_array
    x: Tensor
    neighbours: Tensor
    train: Tensor
    train_target: Tensor
    val: Tensor
    val_target: Tensor
    unlabelled: Tensor
    symmetric: sp.csr_array | None = None

    @property
    def device(self) -> torch.device:
        return self.x.device

    def view(self, nodes: NDArray[np.int64], *, fanout: int | None, rng: np.random.Generator) -> View:
        """The view of some nodes, through ``fanout`` (None: all) of each one's neighbours."""
        sources, weights = sample_neighbours(self.adjacency, nodes, fanout=fanout, rng=rng)
        rows = torch.from_numpy(sources).to(self.device)
        return View(self.x[rows], self.neighbours[rows], Operator(mean_weights(weights), self.device))

    def view_of_all(self) -> View:
        return View(self.x, self.neighbours, Operator(mean_weights(self.adjacency), self.device))


@dataclass(frozen=True, eq=False)
class Step:
    """One batch: its view, and where in it the labelled and the unlabelled nodes are (numbers in train, val, bank)."""

    view: View
    train: Tensor
    train_rows: Tensor
    val: Tensor
    val_rows: Tensor
    bank: Tensor
    bank_rows: Tensor


@dataclass(frozen=True)
class Epoch:
    """Losses of an epoch's last step (unweighted), validation precision, and the number of pseudo-labels."""

    epoch: int
    classification: float
    mixup: float
    bank: float
    val_average_precision: float
    pseudo_normals: int
    pseudo_anomalies: int


@dataclass(eq=False)
class Trained:
    network: Network
    history: list[Epoch] = field(default_factory=list)
    bank: MemoryBank | None = None


def fits_in_full(adjacency: sp.csr_array, hidden: int) -> bool:
    """Whether edges times features stay below 2 GB."""
    return (adjacency.nnz + adjacency.shape[0]) * hidden * 4 <= FULL_BATCH_BYTES


def train(problem: Problem, settings: Settings, *, full_batch: bool, rng: np.random.Generator) -> Trained:
    """L = L_bce(weighted) + 0.5 L_bank + lam_mix L_mix + 0.1 L_energy; keeps the epoch of best validation precision."""
    network = Network(problem.x.shape[1], hidden=settings.hidden, dropout=settings.dropout).to(problem.device)
    parts = list(network.parameters())
    pagerank = None
    if settings.mixup == "ppr":
        assert problem.symmetric is not None
        pagerank = mixup.PageRankMixup(problem.symmetric, problem.x, hidden=settings.hidden, rng=rng).to(problem.device)
        parts += list(pagerank.parameters())
    optimizer = torch.optim.Adam(parts, lr=settings.lr, weight_decay=WEIGHT_DECAY)
    steps = _FullBatch(problem) if full_batch else _SampledBatches(problem, rng)
    bank = None
    if settings.memory_bank and len(problem.unlabelled):
        bank = MemoryBank(len(problem.unlabelled), contamination=settings.contamination, device=problem.device)
    val_view = problem.view(problem.val.cpu().numpy(), fanout=None, rng=rng)
    trained, best, normal_q95 = Trained(network, bank=bank), -1.0, torch.tensor(torch.nan, device=problem.device)
    best_state = copy.deepcopy(network.state_dict())

    for epoch in range(settings.epochs):
        network.train()
        for step in steps.epoch():
            output = network(step.view)
            at_train, target = _rows(output, step.train_rows), problem.train_target[step.train]
            normal_q95 = _running_quantile(normal_q95, at_train.logit.detach()[target <= 0.5])

            weights, pull = torch.ones_like(target), output.logit.new_zeros(())
            if settings.energy_weights and epoch >= ENERGY_WARM_UP:
                scores = _influence(at_train, _rows(output, step.val_rows), problem.val_target[step.val])
                weights = sample_weights(at_train.logit.detach(), at_train.penultimate.detach(), scores, target)
                pull = energy_loss(at_train.logit, scores)
            classification = balanced_bce(at_train.logit, target, weights)

            mix_loss = output.logit.new_zeros(())
            if settings.mixup == "simulate":
                mix_loss = mixup.simulate_loss(network, at_train, target, normal_q95)
            elif settings.mixup == "vanilla":
                mix_loss = mixup.vanilla_loss(network, at_train, target)
            elif pagerank is not None:
                anomalies = target > 0.5
                mix_loss = pagerank(network, output, problem.train[step.train[anomalies]], step.train_rows[anomalies])

            bank_loss = output.logit.new_zeros(())
            if bank is not None and len(step.bank):
                bank.update(step.bank, torch.sigmoid(output.logit[step.bank_rows]).detach())
                if epoch >= BANK_WARM_UP:
                    bank_loss = _bank_loss(network, step, bank.side[step.bank])

            loss = classification + BANK_WEIGHT * bank_loss + ENERGY_WEIGHT * pull
            loss = loss + mixup.WEIGHTS[settings.mixup] * mix_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        if epoch % VALIDATE_EVERY == VALIDATE_EVERY - 1 or epoch == settings.epochs - 1:
            precision = validation_precision(network, val_view, problem.val_target)
            sides = torch.tensor([]) if bank is None else bank.side
            trained.history.append(
                Epoch(
                    epoch + 1,
                    float(classification.detach()),
                    float(mix_loss.detach()),
                    float(bank_loss.detach()),
                    precision,
                    int((sides == NORMAL).sum()),
                    int((sides == ANOMALY).sum()),
                )
            )
            if precision >= best:  # of equals the longer trained
                best, best_state = precision, copy.deepcopy(network.state_dict())
    network.load_state_dict(best_state)
    network.eval()
    return trained


def balanced_bce(logit: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    """Weighted cross-entropy in which both classes count half, however many nodes they have."""
    each = F.binary_cross_entropy_with_logits(logit, target, reduction="none")
    each = each if weights is None else weights * each
    sides = [side for side in (target > 0.5, target <= 0.5) if side.any()]
    return torch.stack([each[side].mean() for side in sides]).mean()


def validation_precision(network: Network, view: View, target: Tensor) -> float:
    """Average precision of the known anomalies among the validation nodes."""
    network.eval()
    with torch.no_grad():
        logit = network(view).logit
    return float(average_precision_score(target.cpu().numpy(), logit.cpu().numpy()))


def _rows(output: Output, rows: Tensor) -> Output:
    return Output(output.embedding[rows], output.penultimate[rows], output.logit[rows])


def _running_quantile(running: Tensor, logit: Tensor) -> Tensor:
    now = logit.kthvalue(max(1, round(0.95 * len(logit)))).values
    return torch.where(running.isnan(), now, 0.9 * running + 0.1 * now)


def _influence(train: Output, val: Output, val_target: Tensor) -> Tensor:
    # In double: weights go by the rank of influences, which the rounding of H^-1 in single precision would shuffle.
    influences = influence(
        train.logit.detach().double(),
        train.penultimate.detach().double(),
        val_logit=val.logit.detach().double(),
        val_penultimate=val.penultimate.detach().double(),
        val_target=val_target.double(),
    )
    return influences.to(train.logit.dtype)


def _bank_loss(network: Network, step: Step, side: Tensor) -> Tensor:
    """Class-balanced cross-entropy of the pseudo-labels on a strongly augmented view, a quarter for each class.

    The view masks a fifth of the columns, scales columns by up to 10 % and adds noise of 0.02 to a node's own features.
    Masks and scales are the same for all nodes, so that means over neighbours need not be taken anew.
    """
    labelled = (side == NORMAL) | (side == ANOMALY)
    if not labelled.any():
        return step.view.x.new_zeros(())
    d = step.view.x.shape[1]
    scale = (torch.rand(d, device=side.device) >= 0.2) * (0.9 + 0.2 * torch.rand(d, device=side.device))
    x = step.view.x * scale + 0.02 * torch.randn_like(step.view.x)
    logit = network(View(x, step.view.neighbours * scale, step.view.operator)).logit[step.bank_rows[labelled]]
    target = (side[labelled] == ANOMALY).to(logit.dtype)
    each = F.binary_cross_entropy_with_logits(logit, target, reduction="none")
    return sum((0.25 * each[part].mean() for part in (target > 0.5, target <= 0.5) if part.any()), logit.new_zeros(()))


class _FullBatch:
    """One step an epoch: all nodes."""

    def __init__(self, problem: Problem) -> None:
        def everyone(nodes: Tensor) -> Tensor:
            return torch.arange(len(nodes), device=problem.device)

        self._step = Step(
            problem.view_of_all(),
            everyone(problem.train),
            problem.train,
            everyone(problem.val),
            problem.val,
            everyone(problem.unlabelled),
            problem.unlabelled,
        )

    def epoch(self) -> Iterator[Step]:
        yield self._step


class _SampledBatches:
    """Steps of 512 labelled nodes (up to 128 anomalies), as many unlabelled ones and validation nodes."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._problem, self._rng = problem, rng
        target = problem.train_target.cpu().numpy()
        self._anomalies, self._normals = np.flatnonzero(target > 0.5), np.flatnonzero(target <= 0.5)

    def epoch(self) -> Iterator[Step]:
        order = self._rng.permutation(self._normals)
        size = BATCH - min(len(self._anomalies), BATCH // 4)
        for start in range(0, len(order), size):
            anomalies = self._rng.permutation(self._anomalies)[: BATCH // 4]
            yield self._batch(np.sort(np.concatenate([order[start : start + size], anomalies])))

    def _batch(self, train: NDArray[np.int64]) -> Step:
        problem = self._problem
        parts = {
            "train": (problem.train, train),
            "val": (problem.val, self._some(len(problem.val))),
            "unlabelled": (problem.unlabelled, self._some(len(problem.unlabelled))),
        }
        numbers = {name: chosen for name, (_, chosen) in parts.items()}
        nodes = {name: everyone.cpu().numpy()[numbers[name]] for name, (everyone, _) in parts.items()}
        seeds, rows = np.unique(np.concatenate(list(nodes.values())), return_inverse=True)
        view = problem.view(seeds, fanout=FANOUT, rng=self._rng)
        cuts = np.cumsum([len(part) for part in nodes.values()])[:-1]
        row_parts = np.split(rows, cuts)
        tensors = [
            torch.from_numpy(part).to(problem.device)
            for pair in zip(numbers.values(), row_parts, strict=True)
            for part in pair
        ]
        return Step(view, *tensors)

    def _some(self, count: int) -> NDArray[np.int64]:
        return np.sort(self._rng.choice(count, size=min(count, BATCH), replace=False))
