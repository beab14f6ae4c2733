"""Where the weights have been: the moves of the last epochs and their inner products, never a matrix of snapshots."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cameraready.methods.pdt.inner_products import products
from cameraready.methods.pdt.layout import Layout

Array = NDArray[np.float64]


class History:
    """The newest snapshot in full precision (the anchor) and the moves that led to it, oldest first.

    Snapshots are w_j = anchor - (sum of the moves after j). Storing moves keeps their relative precision, also in
    bfloat16, whose eight bits could not tell the weights of two neighbouring epochs apart.

    Parameters
    ----------
    layout : the parameters; their present values become the anchor.
    length : moves to keep.
    dtype : in which moves are stored; None for that of the arithmetic (at least float32).
    about_weights : also keep the anchor's products, which a fit to the weights themselves needs.
    """

    def __init__(self, layout: Layout, *, length: int, dtype: torch.dtype | None, about_weights: bool) -> None:
        self.length, self.dtype, self.about_weights = length, dtype, about_weights
        self.signature = layout.signature
        self.anchor = [block.read(slice(None)).clone() for block in layout.blocks]
        self.moves: list[list[Tensor]] = []
        self.products: Array = np.zeros((1, 1)) if about_weights else np.zeros((0, 0))

    @property
    def is_full(self) -> bool:
        return len(self.moves) == self.length

    @property
    def has_moved(self) -> bool:
        return bool(self.products.diagonal()[: len(self.moves)].any())

    @property
    def n_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for tensors in (self.anchor, *self.moves) for t in tensors)

    def append(self, layout: Layout) -> None:
        """Add the move from the anchor to the parameters' present values; `advance` then moves the anchor there."""
        if self.is_full:
            self.forget_oldest()
        self.moves.append([torch.empty_like(anchor, dtype=self.dtype or anchor.dtype) for anchor in self.anchor])
        for block, anchor, move in zip(layout.blocks, self.anchor, self.moves[-1], strict=True):
            for part in block.parts():
                move[part].copy_(block.read(part) - anchor[part])
        n = len(self.moves)
        grown = np.zeros((n + self.about_weights,) * 2)
        old = [*range(n - 1), *([n] if self.about_weights else [])]
        grown[np.ix_(old, old)] = self.products
        self.products = grown

    def advance(self, layout: Layout) -> None:
        """Make the parameters' present values the anchor."""
        for block, anchor in zip(layout.blocks, self.anchor, strict=True):
            for part in block.parts():
                anchor[part].copy_(block.read(part))

    def multiply(self, layout: Layout) -> None:
        """Bring the products up to date with the newest move (and the anchor): one row of the matrix."""
        n = len(self.moves)
        parts = []
        for i, anchor in enumerate(self.anchor):
            vectors = [move[i] for move in self.moves] + ([anchor] if self.about_weights else [])
            parts.append(products(vectors, newest=1 + self.about_weights))
        rows = layout.total(parts)
        for column, index in enumerate(range(n - 1, n + self.about_weights)):
            self.products[:, index] = self.products[index, :] = rows[:, column]

    def rewrite_newest(self, layout: Layout) -> None:
        """The newest snapshot was wrong: it is now the parameters' present values."""
        for block, anchor, move in zip(layout.blocks, self.anchor, self.moves[-1], strict=True):
            for part in block.parts():
                move[part].add_(block.read(part) - anchor[part])
        self.advance(layout)
        self.multiply(layout)

    def forget_oldest(self) -> None:
        self.moves.pop(0)
        self.products = self.products[1:, 1:]

    def snapshot_products(self) -> Array:
        """Inner products of what DMD is fitted to: the weights w_j, or the moves."""
        if not self.about_weights:
            return self.products
        weights = snapshots_from_moves(len(self.moves))
        return np.asarray(weights.T @ self.products @ weights)

    def over_moves(self, coefficients: Array) -> Array:
        """Turn coefficients over the first snapshots into those over the moves (and the anchor, last)."""
        if not self.about_weights:
            return np.append(coefficients, 0.0)
        return np.asarray(snapshots_from_moves(len(self.moves))[:, :-1] @ coefficients)

    def combine(self, block: int, part: slice, coefficients: Array) -> Tensor:
        """sum_k coefficients[k] move_k + coefficients[-1] anchor, in one part of one block."""
        *over_moves, over_anchor = coefficients.tolist() if self.about_weights else [*coefficients.tolist(), 0.0]
        result = self.anchor[block][part] * over_anchor
        for move, coefficient in zip(self.moves, over_moves, strict=True):
            result.add_(move[block][part], alpha=coefficient)
        return result

    def resembles(self, layout: Layout, *, samples: int = 64) -> bool:
        """Whether the parameters still are where the last epoch left them, judged by a few
        numbers of each block's largest one.

        Rounding is forgiven: schedule-free optimizers go to other weights for an evaluation, and back.
        """
        for block, anchor in zip(layout.blocks, self.anchor, strict=True):
            start, here = block.largest_view()
            step = max(1, len(here) // samples)
            here, there = here[::step], anchor[start : start + len(here) : step]
            if (
                not torch.equal(here, there)
                and ((here.to(there.dtype) - there).abs() > 1e-5 * there.abs()).float().mean() > 0.5
            ):
                return False
        return True

    def state_dict(self) -> dict[str, Any]:
        moves = [list(move) for move in self.moves]
        return {"anchor": list(self.anchor), "moves": moves, "products": torch.from_numpy(self.products.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state, on the devices of the present parameters."""
        self.moves = [fitted(move, self.anchor, self.dtype) for move in state["moves"]]
        self.anchor = fitted(state["anchor"], self.anchor, None)
        self.products = state["products"].double().numpy().copy()


@cache
def snapshots_from_moves(n: int) -> Array:
    """Column j holds the snapshot w_j over (n moves, anchor)."""
    return np.vstack([-np.tri(n, n + 1), np.ones((1, n + 1))])


def fitted(tensors: list[Tensor], like: list[Tensor], dtype: torch.dtype | None) -> list[Tensor]:
    """Copies of ``tensors``, cut, placed and typed like ``like``; blocks may be cut differently on other devices."""
    sizes = [target.numel() for target in like]
    if sum(tensor.numel() for tensor in tensors) != sum(sizes):
        held = sum(tensor.numel() for tensor in tensors)
        raise ValueError(f"the checkpoint's snapshots hold {held} numbers and this model has {sum(sizes)} to predict")
    if [tensor.numel() for tensor in tensors] != sizes:
        tensors = list(torch.cat([tensor.cpu() for tensor in tensors]).split(sizes))
    return [
        tensor.to(target.device, dtype or target.dtype, copy=True) for tensor, target in zip(tensors, like, strict=True)
    ]
