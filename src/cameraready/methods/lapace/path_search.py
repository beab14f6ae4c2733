"""Straight latent paths to the centroids, decoded and judged; where they enter the target class for good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cameraready.methods.lapace.background import Background
from cameraready.methods.lapace.columns import Array
from cameraready.methods.lapace.constraints import BoundConstraints
from cameraready.methods.lapace.mixture_vae import LGMVAE
from cameraready.methods.lapace.steering import steer

BISECTIONS = 6
CONFIDENT = 0.8
Index = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class PathSearch:
    """Everything that turns latent points of some inputs into judged rows of the table.

    ``rows`` below are positions of inputs in ``bound.inputs``.
    """

    model: LGMVAE
    background: Background
    bound: BoundConstraints
    target: int
    threshold: float
    keep_unchanged: float | None
    steering: bool
    device: torch.device

    def encode(self, rows: Index) -> Tensor:
        """Latent starts z0 = mu(x), (m, L)."""
        encoded = self.background.space.scale(self.bound.inputs[rows])
        with torch.no_grad():
            return self.model.encode(torch.as_tensor(encoded, dtype=torch.float32, device=self.device))[0]

    def decode(self, z: Tensor) -> Array:
        """Numbers as `LGMVAE.decode` gives them, categories as scores: snapping asks for the largest only."""
        with torch.no_grad():
            return self.model.decoder(z).double().cpu().numpy()

    def realise(self, z: Tensor, rows: Index) -> Array:
        """Latent points (m, L) to legal codes (m, n_columns) within the constraints of their inputs, where possible."""
        space = self.background.space
        encoded = self.decode(z)
        codes = space.snap(encoded, self.bound.allowed)
        if self.keep_unchanged is not None:
            inputs, place = np.unique(rows, return_inverse=True)
            origin = self.decode(self.encode(inputs))
            at_origin = space.snap(origin, self.bound.allowed)[place]
            still = codes == at_origin
            for i, block in enumerate(space.blocks):
                if space.numeric[i] and not space.columns[i].constant:
                    still[:, i] = np.abs(encoded[:, block.start] - origin[place, block.start]) < self.keep_unchanged
            codes = np.where(still, self.bound.inputs[rows], codes)
        return self.bound.project(codes, rows)

    def judge(self, codes: Array, rows: Index) -> tuple[Array, NDArray[np.bool_]]:
        """The target's probability (m,), and which rows are given that class within the constraints."""
        proba = self.background.box(codes)
        p = proba[:, self.target]
        with np.errstate(invalid="ignore"):
            valid = (p >= self.threshold) & (proba.argmax(axis=1) == self.target)
        return p, valid & self.bound.satisfied(codes, rows)

    def walk(self, rows: Index, centres: Tensor, alphas: Array) -> Walk:
        """All paths of the inputs ``rows`` (n,) to the centres (K, L), on the grid (T,)."""
        start = self.encode(rows)
        a = torch.as_tensor(alphas, dtype=start.dtype, device=self.device)[:, None]
        z = (1 - a) * start[:, None, None, :] + a * centres[None, :, None, :]
        shape = z.shape[:3]
        flat_rows = np.repeat(rows, shape[1] * shape[2])
        flat = z.reshape(-1, z.shape[-1])
        if self.steering and self.bound.active:
            flat = steer(self.model, flat, self.bound, flat_rows, target=self.target)
        codes = self.realise(flat, flat_rows)
        p, valid = self.judge(codes, flat_rows)
        return Walk(
            rows=rows,
            alphas=alphas,
            z=flat.reshape(z.shape),
            codes=codes.reshape(*shape, -1),
            p=p.reshape(shape),
            valid=valid.reshape(shape),
        )

    def select(self, walk: Walk, how: str | float) -> Chosen:
        """One point of every path: "first", "confident", "last", or a share of the valid tail."""
        first, last = last_run(walk.valid)
        found = first >= 0
        if how == "first":
            return self._entry(walk, walk.valid, first, found, lambda p, valid: valid)
        if how == "confident":
            sure = walk.valid & (walk.p >= CONFIDENT)
            entry, _ = last_run(sure)
            tail = walk.valid & (np.arange(walk.p.shape[2]) >= first[..., None])
            surest = np.where(tail, walk.p, -np.inf).argmax(axis=2)  # where no point is as sure as asked
            chosen = self._entry(walk, sure, entry, entry >= 0, lambda p, valid: valid & (p >= CONFIDENT))
            return walk.at(surest, found).where(entry < 0, chosen)
        share = 1.0 if how == "last" else float(how)
        if share == 0.0:
            return self.select(walk, "first")
        return walk.at(np.rint(first + share * (last - first)).astype(int), found)

    def _entry(
        self,
        walk: Walk,
        mask: NDArray[np.bool_],
        first: Index,
        found: NDArray[np.bool_],
        passes: Callable[[Array, NDArray[np.bool_]], NDArray[np.bool_]],
    ) -> Chosen:
        """The stable entry: the first point of the last run of the mask, moved back by bisection, all paths at once."""
        chosen = walk.at(np.maximum(first, 0), found)
        i, k = np.nonzero(found & (first > 0))
        if not len(i):
            return chosen
        t = first[i, k]
        before, after = walk.z[i, k, t - 1], walk.z[i, k, t]
        low, high = np.zeros(len(i)), np.ones(len(i))
        rows = walk.rows[i]
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            share = torch.as_tensor(middle, dtype=before.dtype, device=self.device)[:, None]
            codes = self.realise((1 - share) * before + share * after, rows)
            p, valid = self.judge(codes, rows)
            good = passes(p, valid)
            high, low = np.where(good, middle, high), np.where(good, low, middle)
            chosen.codes[i[good], k[good]] = codes[good]
            chosen.p[i[good], k[good]] = p[good]
        chosen.alpha[i, k] = walk.alphas[t - 1] + high * (walk.alphas[t] - walk.alphas[t - 1])
        return chosen


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A point of every path: where (n, K), its codes (n, K, n_columns), its probability (n, K); found or not."""

    found: NDArray[np.bool_]
    alpha: Array
    codes: Array
    p: Array

    def where(self, mask: NDArray[np.bool_], other: Chosen) -> Chosen:
        """These points where the mask (n, K) holds, the others elsewhere."""
        return Chosen(
            found=np.where(mask, self.found, other.found),
            alpha=np.where(mask, self.alpha, other.alpha),
            codes=np.where(mask[..., None], self.codes, other.codes),
            p=np.where(mask, self.p, other.p),
        )


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Paths of n inputs to K centres on a grid of T: latents (n, K, T, L), codes, probabilities, validity."""

    rows: Index
    alphas: Array
    z: Tensor
    codes: Array
    p: Array
    valid: NDArray[np.bool_]

    def at(self, t: Index, found: NDArray[np.bool_]) -> Chosen:
        """The grid points t (n, K)."""
        place = t[..., None]
        return Chosen(
            found=found,
            alpha=np.where(found, self.alphas[t], np.nan),
            codes=np.take_along_axis(self.codes, place[..., None], axis=2)[:, :, 0],
            p=np.take_along_axis(self.p, place, axis=2)[..., 0],
        )


def last_run(valid: NDArray[np.bool_]) -> tuple[Index, Index]:
    """First and last position of the last run of True along the last axis; -1 where there is none.

    A path may leave the target class and enter it again: only the run that it ends with can be trusted.

    >>> last_run(np.array([[False, True, False, True, True], [False] * 5]))
    (array([ 3, -1]), array([ 4, -1]))
    """
    T = valid.shape[-1]
    any_ = valid.any(axis=-1)
    last = np.where(any_, T - 1 - valid[..., ::-1].argmax(axis=-1), -1)
    gaps = ~valid & (np.arange(T) < last[..., None])
    before = np.where(gaps.any(axis=-1), T - 1 - gaps[..., ::-1].argmax(axis=-1), -1)
    return np.where(any_, before + 1, -1), last
