"""A client's preference pairs: feature differences of log-linear policies, or tokenised text."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence


class LogLinearPolicy(nn.Module):
    """pi(y|x) proportional to exp(theta . phi(x, y)); called with D, it returns theta . D.

    Parameters
    ----------
    n_features : dimension of phi.
    dtype : float64, since the theory's floors are small numbers.
    """

    def __init__(self, n_features: int, *, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        if not isinstance(n_features, int | np.integer) or n_features < 1:
            raise ValueError(f"n_features={n_features!r}; a whole number of at least 1 is needed")
        self.theta = nn.Parameter(torch.zeros(n_features, dtype=dtype))

    def forward(self, differences: Tensor) -> Tensor:
        return differences @ self.theta


class LogLinearPairs:
    """Pairs of a log-linear policy, of which only D = phi(x, chosen) - phi(x, rejected) matters.

    Parameters
    ----------
    D : array of shape (pairs, features).

    Raises
    ------
    ValueError : no pairs, values that are not finite, or D = 0 everywhere (nothing is preferred).
    """

    def __init__(self, D: Any) -> None:
        # a copy, of arrays and data frames alike: what its owner does to D later must not change the client
        self.D = torch.tensor(np.asarray(D.detach().cpu() if isinstance(D, Tensor) else D, dtype=float))
        if self.D.ndim != 2 or not len(self.D):
            raise ValueError(f"D has shape {tuple(self.D.shape)}; a client needs (pairs, features), at least one pair")
        if not bool(torch.isfinite(self.D).all()):
            bad = int((~torch.isfinite(self.D)).any(dim=1).sum())
            raise ValueError(f"D has {bad} rows with values that are not finite; drop them")
        if not bool(self.D.any()):
            raise ValueError("D is zero everywhere: chosen and rejected are the same in every pair")

    def __len__(self) -> int:
        return len(self.D)


@dataclass(frozen=True)
class TokenPairs:
    """Tokenised pairs, padded on the right: int64 arrays of shape (2, pairs, length), chosen first.

    ``mask`` is 0 on padding, ``completion`` is 1 on the tokens whose log-probability counts.
    """

    input_ids: Tensor
    mask: Tensor
    completion: Tensor

    def __post_init__(self) -> None:
        if self.input_ids.ndim != 3 or len(self.input_ids) != 2 or not self.input_ids.shape[1]:
            raise ValueError(f"input_ids has shape {tuple(self.input_ids.shape)}; (2, pairs, length) is needed")
        if not self.input_ids.shape == self.mask.shape == self.completion.shape:
            raise ValueError("input_ids, mask and completion must have one shape")
        if empty := int((self.completion[..., 1:].sum(dim=-1) == 0).any(dim=0).sum()):
            raise ValueError(f"{empty} pairs have an empty completion; drop them")
        chosen, rejected = self.input_ids * self.mask
        if torch.equal(chosen, rejected):
            raise ValueError("chosen and rejected are the same in every pair: nothing is preferred")

    def __len__(self) -> int:
        return self.input_ids.shape[1]

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]], tokenizer: Any, *, max_length: int = 1024) -> TokenPairs:
        """Tokenise rows {"prompt", "chosen", "rejected"} of text, as trl does: the end-of-sequence token is added, and
        what exceeds ``max_length`` is cut at the end. Pairs whose completion is cut away are dropped, with a warning.

        Raises
        ------
        TypeError : rows of another form. ValueError : no pair is left, a tokenizer without end or padding token.
        """
        for name in ("eos_token", "pad_token"):
            if getattr(tokenizer, f"{name}_id", None) is None:
                way = "set it (tokenizer.pad_token = tokenizer.eos_token is usual)" if name == "pad_token" else "set it"
                raise ValueError(f"the tokenizer has no {name}; {way} before the pairs are tokenised")
        sides: tuple[list[Tensor], list[Tensor]] = ([], [])
        starts: list[int] = []
        dropped = 0
        for row in rows:
            prompt, *ids = _tokenize(row, tokenizer)
            # a tokenizer may merge across the boundary: the completion starts where the sequences part from the prompt
            start = min(_common_prefix(prompt, side) for side in ids)
            if start >= max_length or any(len(side) <= max(start, 1) for side in ids):
                dropped += 1
                continue
            starts.append(start)
            for kept, side in zip(sides, ids, strict=True):
                kept.append(torch.tensor(side[:max_length]))
        if dropped:
            warnings.warn(f"{dropped} pairs have no completion within max_length={max_length}; dropped", stacklevel=2)
        if not starts:
            raise ValueError(f"no pair is left of {dropped}; raise max_length={max_length} or give the client pairs")
        pad = tokenizer.pad_token_id
        both = pad_sequence([*sides[0], *sides[1]], batch_first=True, padding_value=pad).unflatten(0, (2, -1))
        lengths = torch.tensor([[len(side) for side in kept] for kept in sides])[..., None]
        position = torch.arange(both.shape[-1])
        mask = position < lengths
        completion = mask & (position >= torch.tensor(starts)[:, None])
        return cls(both, mask.long(), completion.long())


class PreferenceClient:
    """One user, hospital or device: its pairs, its weight in the global objective and its beta.

    Parameters
    ----------
    dataset : `LogLinearPairs`, `TokenPairs`, or rows {"prompt", "chosen", "rejected"} of text (trl's convention), which
        need ``tokenizer``.
    weight : p_i of f = sum p_i f_i; None takes the number of pairs. All clients of a run give a weight, or none does.
    beta : of `dpo_loss`.
    tokenizer, max_length : for rows of text.

    Examples
    --------
    >>> len(PreferenceClient(LogLinearPairs([[1.0, 0.0], [0.5, -1.0]])).data)
    2
    """

    def __init__(
        self,
        dataset: Any,
        *,
        weight: float | None = None,
        beta: float = 0.1,
        tokenizer: Any = None,
        max_length: int = 1024,
    ) -> None:
        if not beta > 0:
            raise ValueError(f"beta={beta}; it must be positive, 0.1 is usual")
        if weight is not None and not 0 < weight <= 1:
            raise ValueError(f"weight={weight} is not in (0, 1]; the weights of all clients sum to 1")
        if not isinstance(dataset, LogLinearPairs | TokenPairs):
            if tokenizer is None:
                raise TypeError(f"a dataset of type {type(dataset).__name__} needs tokenizer=; or pass LogLinearPairs")
            dataset = TokenPairs.from_rows(dataset, tokenizer, max_length=max_length)
        self.data: LogLinearPairs | TokenPairs = dataset
        self.weight, self.beta = weight, beta


def client_weights(sizes: Sequence[int], given: Sequence[float | None]) -> list[float]:
    """p_i: as given, or proportional to the number of pairs."""
    if all(weight is None for weight in given):
        return [size / sum(sizes) for size in sizes]
    if missing := [i for i, weight in enumerate(given) if weight is None]:
        raise ValueError(f"clients {missing[:5]} have no weight and others do; give all of them one, or none")
    total = sum(w for w in given if w is not None)
    if abs(total - 1) > 1e-6:
        raise ValueError(f"the clients' weights sum to {total:g}; divide each by that, so that they sum to 1")
    return [float(w) for w in given if w is not None]


def _tokenize(row: Mapping[str, Any], tokenizer: Any) -> list[list[int]]:
    try:
        prompt, chosen, rejected = (row[name] for name in ("prompt", "chosen", "rejected"))
    except (KeyError, TypeError) as error:
        raise TypeError('rows are {"prompt", "chosen", "rejected"}, as in trl') from error
    if not all(isinstance(text, str) for text in (prompt, chosen, rejected)):
        raise TypeError("prompt, chosen and rejected are text; render conversations with the chat template before")
    eos = tokenizer.eos_token
    texts = [prompt, *(prompt + answer + ("" if answer.endswith(eos) else eos) for answer in (chosen, rejected))]
    return [tokenizer(text)["input_ids"] for text in texts]


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)
