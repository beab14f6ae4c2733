"""A small language model of the standard library's docstrings, users who prefer some of its completions, and runs."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cameraready.methods.fed_dpo import DecentralizedDPO, FederatedDPO, Objective, PreferenceClient, TokenPairs
from cameraready.methods.fed_dpo.landscape import noise, weights_of
from cameraready.methods.fed_dpo.theory import drift_to_first_order

FIRST_SEED = 100  # the rule and the model were chosen on seeds below
ALPHABET = " abcdefghijklmnopqrstuvwxyz.,'()-:_0123456789"


class CharacterLSTM(nn.Module):
    """Next-character logits of shape (batch, length, characters). On a CPU, torch trains a GRU at half the speed."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), 32)
        self.lstm = nn.LSTM(32, width, batch_first=True)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.lstm(self.embed(input_ids))[0])  # padding is on the right, after all that counts

    @torch.no_grad()
    def complete(self, prompts: Tensor, *, length: int, generator: torch.Generator) -> Tensor:
        out, state = self.lstm(self.embed(prompts))
        made: list[Tensor] = []
        for _ in range(length):
            weights = self.head(out[:, -1]).softmax(dim=-1)
            made.append(torch.multinomial(weights, 1, generator=generator))
            out, state = self.lstm(self.embed(made[-1]), state)
        return torch.cat(made, dim=1)


def docstrings(n_characters: int) -> Tensor:
    """The first characters of the interpreter's own docstrings, in order of file names, as ids."""
    text: list[str] = []
    size = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (doc := ast.get_docstring(node)):
                text.append(" ".join(doc.lower().split()) + " ")
                size += len(text[-1])
        if size > n_characters:
            break
    index = {character: i for i, character in enumerate(ALPHABET)}
    return torch.tensor([index[c] for c in "".join(text)[:n_characters] if c in index])


def pretrained(corpus: Tensor, *, steps: int, seed: int) -> CharacterLSTM:
    model = CharacterLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        starts = torch.from_numpy(rng.integers(0, len(corpus) - 49, size=(32, 1)))
        rows = corpus[starts + torch.arange(49)]
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@dataclass(frozen=True)
class Users:
    """Each user's pairs to train on, and those held out."""

    train: list[PreferenceClient]
    test: list[PreferenceClient]


def users(
    model: CharacterLSTM, corpus: Tensor, *, alike: bool, pairs: int, held_out: int, seed: int, beta: float = 0.1
) -> Users:
    """Four users compare two completions of 24 characters; P(first preferred) = sigmoid(2 (score_1 - score_2)).

    Scores are standardised counts: of spaces, if users are alike; else each adds 1.5 times a taste of its own, for or
    against vowels, for or against the letters s and t.
    """
    rng = np.random.default_rng((seed, 1))
    generator = torch.Generator().manual_seed(seed)
    tastes: Sequence[tuple[str, float]] = [("aeiou", 1.5), ("aeiou", -1.5), ("st", 1.5), ("st", -1.5)]
    train, test = [], []
    for letters, strength in tastes:
        count = pairs + held_out
        starts = torch.from_numpy(rng.integers(0, len(corpus) - 16, size=(count, 1)))
        prompts = corpus[starts + torch.arange(16)]
        made = model.complete(prompts.repeat(2, 1), length=24, generator=generator)
        score = _standard_count(made, " ")
        if not alike:
            score = score + strength * _standard_count(made, letters)
        first, second = score.view(2, count)
        wins = torch.from_numpy(rng.random(count)) < torch.sigmoid(2 * (first - second))
        both = torch.cat([prompts.repeat(2, 1), made], dim=1).view(2, count, -1)
        ordered = torch.where(wins[None, :, None], both, both.flip(0))
        completion = torch.zeros_like(ordered)
        completion[..., 16:] = 1
        whole = torch.ones_like(ordered)
        for clients, rows in ((train, slice(0, pairs)), (test, slice(pairs, None))):
            parts = TokenPairs(ordered[:, rows], whole[:, rows], completion[:, rows])
            clients.append(PreferenceClient(parts, beta=beta))
    return Users(train, test)


def _standard_count(ids: Tensor, letters: str) -> Tensor:
    wanted = torch.tensor([ALPHABET.index(c) for c in letters])
    counts = torch.isin(ids, wanted).sum(dim=1).double()
    return (counts - counts.mean()) / counts.std()


def language_model_runs(trial: Any, *, pairs: int, pretraining: int) -> None:
    seed = FIRST_SEED + trial.seed
    corpus = docstrings(200_000)
    model = pretrained(corpus, steps=pretraining, seed=seed)
    first = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    settings = {"lr": 0.5, "batch_size": 16, "seed": seed, "evaluate_every": 0}

    def fresh() -> Any:
        torch.nn.utils.vector_to_parameters(first.clone(), model.parameters())  # parameters become views of it
        return model

    for kind in ("alike", "conflicting"):
        people = users(fresh(), corpus, alike=kind == "alike", pairs=pairs, held_out=100, seed=seed)
        held_out = Objective(fresh(), people.test)

        def score(name: str, thetas: torch.Tensor, *, rounds: int, curve: str, held_out: Any = held_out) -> None:
            found = held_out.losses(thetas, gradient=False)
            trial.record(
                method=name, held_out_loss=found.loss.mean(), accuracy=found.accuracy.mean(), rounds=rounds, curve=curve
            )

        plans = [(1, 40), (4, 10), (8, 5)] if kind == "alike" else [(4, 10)]
        for K, rounds in plans:
            run = FederatedDPO(fresh(), people.train, local_steps=K, rounds=rounds, **settings)
            drift = []
            for part in sorted({min(rounds, stop) for stop in (1, 10, 40)}):
                run.rounds = part
                drift = run.fit().table["drift"].tolist()
                score(f"{kind}, K={K}, {part} rounds", run.theta, rounds=part, curve=f"{kind}, K={K}")
            trial.record(method=f"{kind}, by K", K=K, drift=np.mean(drift))
            if kind == "alike" and K < 8:
                trial.record(method="first round, measured", K=K, drift=drift[0])
        if kind == "alike":
            objective = run.objective
            p, gradients = weights_of(objective), objective.losses(first).gradient
            zeta2 = float(p @ ((gradients - p @ gradients) ** 2).sum(dim=1))
            sigma2 = float(p @ noise(objective, first, batch_size=16, seed=seed, replicates=4))
            for K in (1, 4):
                drift_K = drift_to_first_order(lr=settings["lr"], K=K, sigma2=sigma2, zeta2=zeta2, M=1 / float(p @ p))
                trial.record(method="first round, predicted", K=K, drift=drift_K)
            each = DecentralizedDPO(
                fresh(), people.train, np.eye(4), steps=40, gossip_every=40, allow_disconnected=True, **settings
            )
            each.fit()
            score("alike, alone", each.thetas, rounds=0, curve="alike, alone")
            score("alike, one shot", each.thetas.mean(dim=0), rounds=1, curve="alike, one shot")
