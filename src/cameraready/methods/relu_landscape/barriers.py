"""How high one must climb between minima: minimum-energy paths on the exact loss, and the tree of barriers.

Paths are found by the simplified string method (every image descends, then the images are spread evenly again), which
has the fixed points of the nudged elastic band without its spring constants; the highest image is then polished by
Newton to the saddle that it approaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import squareform
from threadpoolctl import threadpool_limits

from cameraready.methods.relu_landscape.landscape import Landscape
from cameraready.methods.relu_landscape.search import FLAT
from cameraready.methods.relu_landscape.table import MinimaTable

if TYPE_CHECKING:
    import altair as alt

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Barrier:
    """The best path found between two minima: its highest loss, and the saddle (K, d) there when Newton confirms it.

    Without a confirmed saddle ``loss`` is the highest loss on the path of straight pieces. Either way it bounds the
    lowest pass from above: a path of another shape, or to another renumbering of the end, may lead lower.
    """

    loss: float
    path: Floats  # (n_images, K, d), d + 1 where the landscape stands for every d
    saddle: Floats | None


def barrier(
    land: Landscape, start: Floats, end: Floats, *, n_images: int = 21, n_steps: int = 1500, step: float = 0.05
) -> Barrier:
    """Minimum-energy path from ``start`` to ``end`` (K, d each), students renumbered to be near each other.

    Parameters
    ----------
    n_images : points of the path, the ends among them; at least 3.
    n_steps, step : descents of every image, and their step; the curvature does not depend on the teachers' norm.

    Raises
    ------
    ValueError : ends of another shape than W, or of two shapes; settings out of range.
    """
    if n_images < 3 or n_steps < 1 or not 0 < step < np.inf:
        raise ValueError(f"n_images={n_images} must be at least 3, n_steps={n_steps} at least 1, step={step} positive")
    start, end = land.checked(start), land.checked(end)
    if start.shape != end.shape:
        raise ValueError(f"start {start.shape} and end {end.shape} are of two shapes; pad the smaller with zeros")
    scale = land.coordinates.scale
    if not land.d_is_fixed:  # there is a direction orthogonal to the teachers, and lower passes may lead through it
        start, end = (np.pad(W, ((0, 0), (0, 1))) for W in (start, end))
    gaps = ((start[:, None] - end[None]) ** 2).sum(axis=-1)
    end = end[linear_sum_assignment(gaps)[1]]
    share = np.linspace(0, 1, n_images)[:, None, None]
    path = (1 - share) * start + share * end
    # A straight path between symmetric points may run along a symmetry plane and keep to it: leave it a little.
    bend = np.random.default_rng(0).normal(size=path.shape[1:])
    path = path + 0.02 * scale * np.sin(np.pi * share) * bend
    with threadpool_limits(1):
        for _ in range(n_steps):
            path[1:-1] -= step * land.grad(path[1:-1])
            path = _spread(path)
        losses = np.asarray(land.loss(_finer(path)))
        top = _finer(path)[int(losses.argmax())]
        saddle = land.refine(top)
    loss = float(land.loss(saddle))
    ends = max(float(land.loss(start)), float(land.loss(end)))
    near = np.linalg.norm(saddle - top) < 0.25 * np.linalg.norm(start - end)
    # A lowest pass has one way down on each side: a second negative curvature means that the path can still sink.
    passes = (np.linalg.eigvalsh(land.hessian(saddle)) < -FLAT).sum() == 1
    between = ends - 1e-9 * scale**2 <= loss <= losses.max() + 1e-6 * scale**2
    confirmed = near and passes and between and np.linalg.norm(land.grad(saddle)) < 1e-8 * scale
    return Barrier(loss if confirmed else float(losses.max()), path, saddle if confirmed else None)


def barrier_matrix(land: Landscape, table: MinimaTable, **settings: float) -> Floats:
    """Barrier losses (n, n) between the minima of ``table``, their own losses on the diagonal."""
    minima = [point for point in table if point.is_minimum]
    heights = np.diag([point.loss for point in minima])
    for i, a in enumerate(minima):
        for j in range(i):
            heights[i, j] = heights[j, i] = barrier(land, a.W, minima[j].W, **settings).loss  # type: ignore[arg-type]
    return heights


def plot_disconnectivity(land: Landscape, table: MinimaTable, **settings: float) -> alt.LayerChart:
    """The tree of barriers: every minimum is a leaf at its loss, and leaves join at the lowest pass between them.

    Passes may lead through third minima: joining heights are those of single linkage on the barriers.
    """
    import altair as alt
    import pandas as pd

    minima = [point for point in table if point.is_minimum]
    if len(minima) < 2:
        raise ValueError(f"the table holds {len(minima)} minima; a tree needs two. Search from more starts")
    heights = barrier_matrix(land, table, **settings)
    floor = np.diag(heights)
    passes = heights - np.diag(floor)
    merges = linkage(squareform(passes, checks=False), "single")
    x: dict[int, float] = {i: float(i) for i in range(len(minima))}
    base = dict(enumerate(floor.tolist()))
    segments = []
    for node, (left, right, height, _) in enumerate(merges, start=len(minima)):
        pair = int(left), int(right)
        for child in pair:
            segments.append({"x": x[child], "x2": x[child], "y": base[child], "y2": height})
        segments.append({"x": x[pair[0]], "x2": x[pair[1]], "y": height, "y2": height})
        x[node], base[node] = (x[pair[0]] + x[pair[1]]) / 2, float(height)
    rules = alt.Chart(pd.DataFrame(segments)).mark_rule(strokeWidth=2)
    axis = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[-0.5, len(minima) - 0.5]))
    leaves = pd.DataFrame({"x": range(len(minima)), "y": floor, "label": [point.family.name for point in minima]})
    names = alt.Chart(leaves).mark_text(baseline="top", dy=4).encode(x=axis, y="y:Q", text="label:N")
    return rules.encode(x=axis, x2="x2:Q", y=alt.Y("y:Q", title="population loss"), y2="y2:Q") + names


def _spread(path: Floats) -> Floats:
    """The same piecewise straight curve with its images at equal distances."""
    flat = path.reshape(len(path), -1)
    steps = np.linalg.norm(np.diff(flat, axis=0), axis=1)
    along = np.concatenate([[0.0], np.cumsum(steps)])
    targets = np.linspace(0, along[-1], len(path))
    left = np.clip(np.searchsorted(along, targets, side="right") - 1, 0, len(path) - 2)
    share = ((targets - along[left]) / np.where(steps[left] > 0, steps[left], 1))[:, None]
    return ((1 - share) * flat[left] + share * flat[left + 1]).reshape(path.shape)


def _finer(path: Floats, factor: int = 10) -> Floats:
    """The images with ``factor`` straight steps between neighbours."""
    at = np.linspace(0, len(path) - 1, factor * (len(path) - 1) + 1)
    left = np.minimum(at.astype(int), len(path) - 2)
    share = (at - left)[:, None, None]
    return (1 - share) * path[left] + share * path[left + 1]
