"""Few-shot episodes: a support set, queries, and what is known about both in the other tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cameraready.methods.recog.label_statistics import LabelStatistics
from cameraready.methods.recog.molecules import Molecules, bit_tanimoto, tanimoto
from cameraready.methods.recog.table import UNKNOWN, MoleculeTable

HELD_OUT = 2 / 9


@dataclass(frozen=True)
class Episodes:
    """B episodes with S support molecules, Q queries and A auxiliary tasks each.

    Attributes
    ----------
    inputs : what the encoder takes, for M molecules
    support, query : int (B, S) and (B, Q), numbers of molecules among the M
    support_y, query_y : float (B, S) and (B, Q)
    support_is, query_is : bool, False where an episode has fewer than S or Q
    support_context, query_context : int8 (B, S, A) and (B, Q, A): 1, 0, or -1 where unknown
    tanimoto, support_tanimoto : float (B, Q, S) and (B, S, S)
    prior : float (B, A, 2), mean rates theta[p, a]
    phi : float (A, A), row-normalised correlations of the auxiliary tasks
    """

    inputs: Any
    support: Tensor
    query: Tensor
    support_y: Tensor
    query_y: Tensor
    support_is: Tensor
    query_is: Tensor
    support_context: Tensor
    query_context: Tensor
    tanimoto: Tensor
    support_tanimoto: Tensor
    prior: Tensor
    phi: Tensor

    def one(self, number: int) -> Episodes:
        """One of the episodes, as a batch of one."""
        shared = ("inputs", "phi")
        return replace(
            self, **{f.name: getattr(self, f.name)[number : number + 1] for f in fields(self) if f.name not in shared}
        )

    def halves(self) -> list[Episodes]:
        """For one episode: each half of the support asks the other, [] where a class has one molecule only."""
        y = self.support_y[0]
        half = torch.where(y == 1, (y == 1).cumsum(0), (y == 0).cumsum(0)) % 2
        exists = self.support_is[0]
        if min(int((exists & (y == label)).sum()) for label in (0, 1)) < 2:
            return []
        parts = [torch.nonzero(exists & (half == side)).squeeze(-1) for side in (0, 1)]
        return [self._asking(parts[0], parts[1]), self._asking(parts[1], parts[0])]

    def _asking(self, query: Tensor, support: Tensor) -> Episodes:
        """Some molecules of the support as queries to others."""
        chosen = {f"support{end}": getattr(self, f"support{end}")[:, support] for end in ("", "_y", "_is", "_context")}
        asked = {f"query{end}": getattr(self, f"support{end}")[:, query] for end in ("", "_y", "_is", "_context")}
        similar = self.support_tanimoto[:, query][:, :, support]
        return replace(self, **chosen, **asked, tanimoto=similar)


@dataclass(frozen=True)
class Draw:
    """One episode as rows of the table: the support's and the queries', and the target's column."""

    target: int
    support: NDArray[np.intp]
    query: NDArray[np.intp]


def usable_targets(labels: NDArray[np.int8]) -> NDArray[np.intp]:
    """Columns with at least two molecules of each class, one for the support and one to be asked about."""
    return np.flatnonzero(np.minimum((labels == 1).sum(axis=0), (labels == 0).sum(axis=0)) >= 2)


def split_targets(labels: NDArray[np.int8], rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Tasks to train on, and the two in nine that are held out to stop the training (none of fewer than four)."""
    order = rng.permutation(usable_targets(labels))
    n_out = round(HELD_OUT * len(order)) if len(order) >= 4 else 0
    return np.sort(order[n_out:]), np.sort(order[:n_out])


def draw_episode(
    labels: NDArray[np.int8], target: int, *, shots: int, n_queries: int | None, rng: np.random.Generator
) -> Draw:
    """`shots` molecules of each class as support, fewer where a class has less than twice as many.

    The queries are `n_queries` of the others, half of each class as far as they go, or all others where it is None.
    """
    of_class = [rng.permutation(np.flatnonzero(labels[:, target] == label)) for label in (1, 0)]
    k = min(shots, *(len(rows) // 2 for rows in of_class))
    most = None if n_queries is None else k + n_queries // 2
    return Draw(
        target,
        np.concatenate([rows[:k] for rows in of_class]),
        np.concatenate([rows[k:most] for rows in of_class]),
    )


def assemble(
    draws: Sequence[Draw],
    table: MoleculeTable,
    statistics: LabelStatistics,
    encoder: Any,
    *,
    device: torch.device,
    augment: np.random.Generator | None = None,
) -> Episodes:
    """Tensors of several draws. The auxiliary tasks are all of the table's; each target is hidden in its own episode.

    `augment` also hides, with probability 0.5, a random half of the auxiliary tasks and, with probability 0.3, a
    random share of the known labels, so that the network learns to do with what sparse tables have.
    """
    molecules, labels = table.molecules, table.labels
    rows, place = np.unique(np.concatenate([np.r_[d.support, d.query] for d in draws]), return_inverse=True)
    n_support, n_query = max(len(d.support) for d in draws), max(len(d.query) for d in draws)
    support, query = np.zeros((len(draws), n_support), np.int64), np.zeros((len(draws), n_query), np.int64)
    support_is, query_is = np.zeros(support.shape, bool), np.zeros(query.shape, bool)
    similar = np.zeros((len(draws), n_query, n_support), np.float32)
    alike = np.zeros((len(draws), n_support, n_support), np.float32)
    start = 0
    for b, d in enumerate(draws):
        s, q = len(d.support), len(d.query)
        support[b, :s], query[b, :q] = place[start : start + s], place[start + s : start + s + q]
        support_is[b, :s] = query_is[b, :q] = True
        to_support = bit_tanimoto(molecules.bits[np.r_[d.query, d.support]], molecules.bits[d.support])
        similar[b, :q, :s], alike[b, :s, :s] = to_support[:q], to_support[q:]
        start += s + q
    targets = np.array([d.target for d in draws])
    here = labels[rows]
    contexts = []
    hidden = _hidden_tasks(len(draws), labels.shape[1], targets, augment)
    share = np.where(augment.random(len(draws)) < 0.3, augment.random(len(draws)), 0.0) if augment else None
    for index, exists in ((support, support_is), (query, query_is)):
        context = here[index].copy()
        context[~exists] = UNKNOWN
        context[np.broadcast_to(hidden[:, None, :], context.shape)] = UNKNOWN
        if augment is not None and share is not None:
            context[augment.random(context.shape) < share[:, None, None]] = UNKNOWN
        contexts.append(context)

    def tensor(array: NDArray[Any]) -> Tensor:
        floats = array.dtype.kind == "f"
        return torch.from_numpy(array.astype(np.float32) if floats else array).to(device)

    return Episodes(
        inputs=encoder.inputs(molecules, rows, device),
        support=tensor(support),
        query=tensor(query),
        support_y=tensor((here[support, targets[:, None]] == 1).astype(np.float32)),
        query_y=tensor((here[query, targets[:, None]] == 1).astype(np.float32)),
        support_is=tensor(support_is),
        query_is=tensor(query_is),
        support_context=tensor(contexts[0]),
        query_context=tensor(contexts[1]),
        tanimoto=tensor(similar),
        support_tanimoto=tensor(alike),
        prior=tensor(np.stack([statistics.prior(target) for target in targets])),
        phi=tensor(statistics.phi),
    )


def adaptation(
    support: Molecules,
    y: NDArray[np.int8],
    support_context: NDArray[np.int8],
    query: Molecules,
    query_context: NDArray[np.int8],
    statistics: LabelStatistics,
    encoder: Any,
    *,
    device: torch.device,
) -> Episodes:
    """A user's support and queries as one episode; the queries' labels are not known (NaN)."""
    n_support, n_query = len(support), len(query)
    both = Molecules(
        support.smiles + query.smiles,
        _stack(support.counts, query.counts),
        np.arange(n_support + n_query),
    )
    return Episodes(
        inputs=encoder.inputs(both, np.arange(n_support + n_query), device),
        support=torch.arange(n_support, device=device)[None],
        query=torch.arange(n_support, n_support + n_query, device=device)[None],
        support_y=torch.from_numpy(y.astype(np.float32)).to(device)[None],
        query_y=torch.full((1, n_query), torch.nan, device=device),
        support_is=torch.ones((1, n_support), dtype=torch.bool, device=device),
        query_is=torch.ones((1, n_query), dtype=torch.bool, device=device),
        support_context=torch.from_numpy(support_context).to(device)[None],
        query_context=torch.from_numpy(query_context).to(device)[None],
        tanimoto=torch.from_numpy(tanimoto(query, support)).to(device)[None],
        support_tanimoto=torch.from_numpy(tanimoto(support, support)).to(device)[None],
        prior=torch.from_numpy(statistics.prior().astype(np.float32)).to(device)[None],
        phi=torch.from_numpy(statistics.phi.astype(np.float32)).to(device),
    )


def _stack(top: Any, bottom: Any) -> Any:
    from scipy import sparse

    return sparse.vstack([top, bottom], format="csr")


def _hidden_tasks(
    n: int, n_tasks: int, targets: NDArray[np.intp], augment: np.random.Generator | None
) -> NDArray[np.bool_]:
    hidden = np.zeros((n, n_tasks), dtype=bool)
    if augment is not None:
        for b in np.flatnonzero(augment.random(n) < 0.5):
            hidden[b, augment.permutation(n_tasks)[: n_tasks // 2]] = True
    hidden[np.arange(n), targets] = True
    return hidden
