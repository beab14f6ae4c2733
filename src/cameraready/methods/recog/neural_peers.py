"""Few-shot networks that look at structure alone: prototypes, MAML, a relation graph of molecules, fine-tuning.

All have ReCoG's encoder, number of steps and held-out tasks.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from cameraready.methods.recog.classifier import FewShotClassifier, FewShotMethod
from cameraready.methods.recog.encoders import make_encoder
from cameraready.methods.recog.episodes import Episodes, adaptation, assemble, draw_episode, split_targets
from cameraready.methods.recog.label_statistics import LabelStatistics
from cameraready.methods.recog.molecules import Molecules
from cameraready.methods.recog.peers import FunctionClassifier
from cameraready.methods.recog.table import UNKNOWN, MoleculeTable
from cameraready.methods.recog.training import CHECK_EVERY, CHECK_QUERIES, CHECKS, N_QUERIES, TASKS_PER_STEP, mean_auc

CHUNK = 512
BATCH = 272  # molecules a step, as many as four episodes have


class ProtoNetwork(nn.Module):
    """Nearer to the mean of the actives than to that of the inactives."""

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.scale = nn.Parameter(torch.tensor(1.0 / width))

    def forward(self, episodes: Episodes) -> Tensor:
        h = self.encoder(episodes.inputs)
        support, query = h[episodes.support], h[episodes.query]
        distance = []
        for label in (0, 1):
            member = (episodes.support_is & (episodes.support_y == label)).to(h.dtype)[..., None]
            prototype = (support * member).sum(dim=1) / member.sum(dim=1).clamp(min=1)
            distance.append(((query - prototype[:, None]) ** 2).sum(dim=-1))
        return self.scale * (distance[0] - distance[1])


class MamlNetwork(nn.Module):
    """A linear head on the encoder; one gradient step on the support, through which training looks (MAML)."""

    RATE = 0.05

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(encoder, nn.Linear(width, 1))

    @property
    def encoder(self) -> nn.Module:
        return self.inner[0]

    def forward(self, episodes: Episodes) -> Tensor:
        parameters = dict(self.inner.named_parameters())
        logits = []
        for b in range(len(episodes.query)):
            with torch.enable_grad():
                output = self.inner(episodes.inputs).squeeze(-1)
                chosen = episodes.support[b][episodes.support_is[b]]
                loss = F.binary_cross_entropy_with_logits(output[chosen], episodes.support_y[b][episodes.support_is[b]])
                gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=self.training)
            moved = {
                name: value - self.RATE * gradient
                for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
            }
            logits.append(functional_call(self.inner, moved, (episodes.inputs,)).squeeze(-1)[episodes.query[b]])
        return torch.stack(logits)


class RelationNetwork(nn.Module):
    """Property-aware embeddings, passed along a learned graph of each query and the support, as PAR does."""

    ROUNDS = 2

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.aware = nn.Sequential(nn.Linear(3 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.relation = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        self.pass_on = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(self.ROUNDS))
        self.head = nn.Linear(width, 1)

    def forward(self, episodes: Episodes) -> Tensor:
        h = self.encoder(episodes.inputs)
        support, query = h[episodes.support], h[episodes.query]
        means = []
        for label in (0, 1):
            member = (episodes.support_is & (episodes.support_y == label)).to(h.dtype)[..., None]
            means.append((support * member).sum(dim=1) / member.sum(dim=1).clamp(min=1))
        classes = torch.cat(means, dim=-1)[:, None]
        support, query = (
            self.aware(torch.cat([part, classes.expand(-1, part.shape[1], -1)], dim=-1)) for part in (support, query)
        )
        for linear in self.pass_on:
            relation = self.relation((query[:, :, None] - support[:, None]).abs()).squeeze(-1)
            relation = relation.masked_fill(~episodes.support_is[:, None], torch.finfo(h.dtype).min).softmax(dim=-1)
            signed = support * (2 * episodes.support_y - 1)[..., None]
            query = query + F.relu(linear(torch.cat([query, relation @ signed], dim=-1)))
        return self.head(query).squeeze(-1)


NETWORKS = {"protonet": ProtoNetwork, "maml": MamlNetwork, "par": RelationNetwork}


class EpisodicPeer(BaseEstimator, FewShotMethod):
    """One of these networks, trained as ReCoG is."""

    def __init__(
        self,
        network: Literal["protonet", "maml", "par"],
        *,
        encoder: Literal["ecfp", "gin"] = "ecfp",
        steps: int = 300,
        shots: int = 10,
        width: int = 64,
        layers: int = 3,
        device: str = "cpu",
        random_state: int | None = None,
    ) -> None:
        self.network = network
        self.encoder = encoder
        self.steps = steps
        self.shots = shots
        self.width = width
        self.layers = layers
        self.device = device
        self.random_state = random_state

    def _fit(self, table: MoleculeTable) -> None:
        rng = np.random.default_rng(self.random_state)
        targets, held_out = split_targets(table.labels, rng)
        self._statistics = LabelStatistics.of(table.labels)
        with torch.random.fork_rng():
            torch.manual_seed(int(rng.integers(2**63 - 1)))
            encoder = make_encoder(self.encoder, width=self.width, layers=self.layers)
            self.module = NETWORKS[self.network](encoder, self.width).to(self.device)
            self._train(table, targets, held_out, rng)
        self.module.eval()

    def _train(
        self, table: MoleculeTable, targets: NDArray[np.intp], held_out: NDArray[np.intp], rng: np.random.Generator
    ) -> None:
        def episodes_of(chosen: NDArray[np.intp], n_queries: int) -> Episodes:
            draws = [draw_episode(table.labels, t, shots=self.shots, n_queries=n_queries, rng=rng) for t in chosen]
            device = torch.device(self.device)
            return assemble(draws, table, self._statistics, self.module.encoder, device=device)

        optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
        check = episodes_of(np.repeat(held_out, CHECKS), CHECK_QUERIES) if len(held_out) else None
        best, best_state = -np.inf, None
        for step in range(self.steps + 1):
            if check is not None and (step % CHECK_EVERY == 0 or step == self.steps):
                auc = self._auc(check)
                if auc > best:
                    best, best_state = auc, copy.deepcopy(self.module.state_dict())
            if step == self.steps:
                break
            self.module.train()
            chosen = rng.choice(targets, size=TASKS_PER_STEP, replace=len(targets) < TASKS_PER_STEP)
            episodes = episodes_of(chosen, N_QUERIES)
            logits, asked = self.module(episodes), episodes.query_is
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(logits[asked], episodes.query_y[asked]).backward()
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
            optimizer.step()
        if best_state is not None:
            self.module.load_state_dict(best_state)

    def _auc(self, check: Episodes) -> float:
        self.module.eval()
        with torch.no_grad():
            logits = self.module(check)
        return mean_auc(logits, check)

    def _adapt(self, support: Molecules, y: NDArray[np.int8], context: NDArray[np.int8]) -> FewShotClassifier:
        return FunctionClassifier(self.tasks_, partial(self._score, support, y, context))

    def _score(
        self,
        support: Molecules,
        y: NDArray[np.int8],
        context: NDArray[np.int8],
        molecules: Molecules,
        known: NDArray[np.int8],
    ) -> NDArray[Any]:
        device, chunks = torch.device(self.device), []
        for start in range(0, len(molecules), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(molecules)))
            part, encoder = molecules.take(rows), self.module.encoder
            episode = adaptation(support, y, context, part, known[rows], self._statistics, encoder, device=device)
            with torch.no_grad():
                chunks.append(torch.sigmoid(self.module(episode)[0]).cpu().numpy())
        return np.concatenate(chunks)


class FineTune(BaseEstimator, FewShotMethod):
    """The encoder trained on all old tasks at once, and a logistic regression on what it gives for the support."""

    def __init__(
        self,
        *,
        encoder: Literal["ecfp", "gin"] = "ecfp",
        steps: int = 300,
        width: int = 64,
        layers: int = 3,
        device: str = "cpu",
        random_state: int | None = None,
    ) -> None:
        self.encoder = encoder
        self.steps = steps
        self.width = width
        self.layers = layers
        self.device = device
        self.random_state = random_state

    def _fit(self, table: MoleculeTable) -> None:
        rng = np.random.default_rng(self.random_state)
        labelled = np.flatnonzero((table.labels != UNKNOWN).any(axis=1))
        with torch.random.fork_rng():
            torch.manual_seed(int(rng.integers(2**63 - 1)))
            self.module = make_encoder(self.encoder, width=self.width, layers=self.layers).to(self.device)
            head = nn.Linear(self.width, len(table.tasks)).to(self.device)
            parameters = [*self.module.parameters(), *head.parameters()]
            optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-4, fused=True)
            for _ in range(self.steps):
                rows = rng.choice(labelled, size=min(BATCH, len(labelled)), replace=False)
                y = torch.from_numpy(table.labels[rows]).to(self.device)
                logits = head(self.module(self.module.inputs(table.molecules, rows, torch.device(self.device))))
                optimizer.zero_grad()
                F.binary_cross_entropy_with_logits(logits[y >= 0], y[y >= 0].float()).backward()
                optimizer.step()
        self.module.eval()

    def _embed(self, molecules: Molecules) -> NDArray[Any]:
        chunks = []
        for start in range(0, len(molecules), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(molecules)))
            with torch.no_grad():
                chunks.append(self.module(self.module.inputs(molecules, rows, torch.device(self.device))).cpu().numpy())
        return np.concatenate(chunks)

    def _adapt(self, support: Molecules, y: NDArray[np.int8], context: NDArray[np.int8]) -> FewShotClassifier:
        head = LogisticRegression(max_iter=1000).fit(self._embed(support), y)
        return FunctionClassifier(self.tasks_, partial(self._score, head))

    def _score(self, head: LogisticRegression, molecules: Molecules, known: NDArray[np.int8]) -> NDArray[Any]:
        return np.asarray(head.predict_proba(self._embed(molecules))[:, 1])
