"""The parameters as a few flat blocks, so that one operation serves many small tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cameraready.methods.pdt.inner_products import SLICE, slices

Sharding = tuple[Any, tuple[int, ...]] | None  # a device mesh and its dimensions along which a tensor is cut


@dataclass(frozen=True)
class Block:
    """Either one parameter, or several that fit into one slice together. Reading does not copy where it need not."""

    views: tuple[Tensor, ...]
    dtype: torch.dtype
    sharding: Sharding

    @cached_property
    def sizes(self) -> list[int]:
        return [view.numel() for view in self.views]

    @cached_property
    def numel(self) -> int:
        return sum(self.sizes)

    @property
    def device(self) -> torch.device:
        return self.views[0].device

    def largest_view(self) -> tuple[int, Tensor]:
        """The view of the largest parameter, and where in the block it begins."""
        which = max(range(len(self.views)), key=lambda i: self.views[i].numel())
        return sum(self.sizes[:which]), self.views[which]

    def parts(self) -> list[slice]:
        return list(slices(self.numel, self.device))

    def read(self, part: slice) -> Tensor:
        """The present values; do not write to them."""
        if len(self.views) == 1:
            return self.views[0][part].to(self.dtype)
        return torch.cat(self.views).to(self.dtype)

    def write(self, part: slice, values: Tensor) -> None:
        if len(self.views) == 1:
            self.views[0][part].copy_(values)
            return
        for view, piece in zip(self.views, values.split(self.sizes), strict=True):
            view.copy_(piece)

    def count(self, chosen: Tensor) -> Tensor:
        """How many are chosen in each view, for a mask over one part."""
        if len(self.views) == 1:
            return chosen.sum().reshape(1)
        if chosen.device.type == "cpu":  # several times faster than what follows
            starts = np.cumsum([0, *self.sizes[:-1]])
            return torch.from_numpy(np.add.reduceat(chosen.numpy(), starts, dtype=np.int64))
        ends = torch.tensor(self.sizes, device=chosen.device).cumsum(0) - 1
        running = chosen.cumsum(0)[ends]
        return torch.diff(running, prepend=running.new_zeros(1))


@dataclass(frozen=True, eq=False)
class Signature:
    """The very parameters of a layout, as they were: equal if none was replaced, moved, added or left out."""

    parameters: tuple[Tensor, ...]
    kinds: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Signature) or self.kinds != other.kinds:
            return False
        return all(mine is other_one for mine, other_one in zip(self.parameters, other.parameters, strict=True))


@dataclass(frozen=True)
class Layout:
    """All blocks, and whose they are."""

    blocks: tuple[Block, ...]
    signature: Signature
    n_parameters: int

    @property
    def device(self) -> torch.device:
        return self.blocks[0].device

    def total(self, parts: Sequence[Tensor]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The sum over blocks of one small tensor each. Where parameters are sharded, also over the shards.

        This is the only communication that a fit needs: one all-reduce of a few dozen numbers.
        """
        sums: dict[Any, Tensor] = {}
        for block, part in zip(self.blocks, parts, strict=True):
            part = part.to("cpu", torch.float64) if block.sharding is None else part.double()
            sums[block.sharding] = sums[block.sharding] + part if block.sharding in sums else part.clone()
        whole = torch.zeros_like(parts[0], dtype=torch.float64, device="cpu")
        for sharding, part in sums.items():
            if sharding is not None:
                mesh, dimensions = sharding
                for dimension in dimensions:
                    dist.all_reduce(part, group=mesh.get_group(dimension))
            whole += part.cpu()
        return whole.numpy()


def lay_out(parameters: Sequence[Tensor]) -> Layout:
    """Put neighbours of one kind into common blocks; a parameter of a slice or more stands alone."""
    groups: list[list[Tensor]] = []
    kinds: list[tuple[Any, ...]] = []
    for parameter in parameters:
        view = flat_view(parameter)
        kind = (view.device, view.dtype, _sharding(parameter))
        room = bool(groups) and kinds[-1] == kind and sum(v.numel() for v in groups[-1]) + view.numel() <= SLICE
        if room:
            groups[-1].append(view)
        else:
            groups.append([view])
            kinds.append(kind)
    blocks = [
        Block(tuple(views), torch.promote_types(dtype, torch.float32), sharding)
        for views, (_, dtype, sharding) in zip(groups, kinds, strict=True)
    ]
    signature = Signature(tuple(parameters), tuple((tuple(p.shape), p.dtype, p.device) for p in parameters))
    return Layout(tuple(blocks), signature, sum(p.numel() for p in parameters))


def flat_view(parameter: Tensor) -> Tensor:
    """The numbers that this process holds, as one dimension that shares their memory, in memory order."""
    tensor = _local(parameter.detach())
    return tensor.view(-1) if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))


def address(parameter: Tensor) -> int:
    """Where the numbers that this process holds begin in memory."""
    return int(_local(parameter.detach()).data_ptr()) if _is_sharded(parameter) else parameter.data_ptr()


def is_dense(parameter: Tensor) -> bool:
    """Whether the tensor fills one stretch of memory, in whatever order of its dimensions."""
    tensor = _local(parameter.detach())
    if tensor.layout != torch.strided:
        return False
    axes = sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
    if tensor.is_contiguous() or not axes:
        return True
    return axes[0][0] == 1 and all(outer[0] == inner[0] * inner[1] for inner, outer in pairwise(axes))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if _is_sharded(tensor) else tensor


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def _sharding(tensor: Tensor) -> Sharding:
    if not _is_sharded(tensor):
        return None
    dimensions = tuple(i for i, placement in enumerate(tensor.placements) if placement.is_shard())
    return (tensor.device_mesh, dimensions) if dimensions else None
