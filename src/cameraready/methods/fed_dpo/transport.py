"""Where sums over clients and exchanges with neighbours happen: in this process, or over torch.distributed."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Engine = Literal["inprocess", "torch", "flower"]


class InProcess:
    """All clients live here: sums are done already."""

    first = 0

    def gather(self, mine: list[Any]) -> list[Any]:
        return mine

    def sum(self, x: Tensor) -> Tensor:
        return x

    def mix(self, W: np.ndarray, x: Tensor) -> Tensor:
        return torch.as_tensor(W).to(x) @ x


class Processes:
    """Each process of an initialised torch.distributed group (gloo or nccl) has clients of its own.

    Sums are one all_reduce; mixing sends to, and receives from, the graph's neighbours only.
    """

    def __init__(self) -> None:
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            raise ValueError(
                "engine='torch' needs torch.distributed.init_process_group first (start with torchrun), "
                "and in each process the clients of that process only"
            )
        self._dist = distributed
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def gather(self, mine: list[Any]) -> list[Any]:
        """Every process's list, joined in the order of ranks."""
        lists: list[list[Any]] = [[] for _ in range(self.size)]
        self._dist.all_gather_object(lists, mine)
        self.counts = [len(part) for part in lists]
        self.first = sum(self.counts[: self.rank])
        return [item for part in lists for item in part]

    def sum(self, x: Tensor) -> Tensor:
        self._dist.all_reduce(x)  # in place: callers pass a fresh tensor, and a copy may cost as much as the sum
        return x

    def mix(self, W: np.ndarray, x: Tensor) -> Tensor:
        if max(self.counts) > 1:
            raise ValueError(f"gossip needs one client a process; the processes have {self.counts}")
        neighbours = [j for j in np.flatnonzero(W[self.rank]) if j != self.rank]
        arrived = {j: torch.empty_like(x) for j in neighbours}
        transfers = [self._dist.P2POp(self._dist.isend, x, int(j)) for j in neighbours]
        transfers += [self._dist.P2POp(self._dist.irecv, arrived[j], int(j)) for j in neighbours]
        for work in self._dist.batch_isend_irecv(transfers) if transfers else ():
            work.wait()
        mixed = W[self.rank, self.rank] * x
        for j in neighbours:
            mixed = mixed + W[self.rank, j] * arrived[j]
        return mixed


def transport(engine: str) -> InProcess | Processes:
    if engine not in ("inprocess", "torch", "flower"):
        raise ValueError(f"engine={engine!r}; choose 'inprocess', 'torch' or 'flower'")
    return Processes() if engine == "torch" else InProcess()
