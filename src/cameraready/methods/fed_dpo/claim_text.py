"""A small language model of the standard library's docstrings, and users who prefer some of its completions."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cameraready.methods.fed_dpo.preferences import PreferenceClient, TokenPairs

ALPHABET = " abcdefghijklmnopqrstuvwxyz.,'()-:_0123456789"


class CharacterGRU(nn.Module):
    """Next-character logits of shape (batch, length, characters)."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), 32)
        self.gru = nn.GRU(32, width, batch_first=True)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.gru(self.embed(input_ids))[0])  # padding is on the right, after all that counts

    @torch.no_grad()
    def complete(self, prompts: Tensor, *, length: int, generator: torch.Generator) -> Tensor:
        out, state = self.gru(self.embed(prompts))
        made: list[Tensor] = []
        for _ in range(length):
            weights = self.head(out[:, -1]).softmax(dim=-1)
            made.append(torch.multinomial(weights, 1, generator=generator))
            out, state = self.gru(self.embed(made[-1]), state)
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


def pretrained(corpus: Tensor, *, steps: int, seed: int) -> CharacterGRU:
    model = CharacterGRU()
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
    model: CharacterGRU, corpus: Tensor, *, alike: bool, pairs: int, held_out: int, seed: int, beta: float = 0.1
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
