"""A generalisation bound for a two-layer ReLU network from its weighted path norm, evaluated on data.

The network is split at a level s of the weight g. Deep neurons, g >= s, have a small total weight A. Shallow ones act
only on Omega_s, the union of half-spaces with g~ < s that are their plane's lighter side, once the affine part of those
that are active on the heavier side is taken out: v ReLU(z) = v z + v ReLU(-z).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from cameraready.coverage import NotCovered
from cameraready.methods.stable_minima.relu_block import ReluBlock
from cameraready.methods.stable_minima.relu_report import ReluReport
from cameraready.methods.stable_minima.weight_function import half_spaces
from cameraready.methods.stable_minima.weighted_depth import cutting_directions, weighted_depth

Floats = NDArray[np.float64]
LEVELS = 40  # of s, fixed before the data are seen
SIZES = 2.0 ** np.arange(-10, 20.01, 0.25)  # grid that measured norms are rounded up to


@dataclass(frozen=True)
class Bound:
    """What `generalisation_bound` found; the loss is (clip(f) - y)^2 and the gap is its mean less its training mean.

    Attributes
    ----------
    value : the plug-in bound on the gap.
    deep, affine, shallow, confidence : its terms at s_star.
    s_star : the level of g that makes the bound smallest.
    n_for_half : training points at which the bound would be half as large; inf where no number is enough.
    trivial : 4 B^2, which no gap exceeds: a ``value`` above it says nothing.
    observed_gap : on the held-out points; `NotCovered` without targets.
    ratio : value / observed_gap.
    terms : one row a level s.
    """

    value: float
    deep: float
    affine: float
    shallow: float
    confidence: float
    s_star: float
    n_for_half: float
    trivial: float
    observed_gap: float | NotCovered
    ratio: float | NotCovered
    terms: pd.DataFrame

    @property
    def dominating(self) -> str:
        """The name of the largest term."""
        return max(("deep", "affine", "shallow", "confidence"), key=lambda name: getattr(self, name))

    @property
    def vacuous(self) -> bool:
        """Whether the bound says no more than that losses lie in [0, 4 B^2]."""
        return self.value >= self.trivial

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {getattr(self, name):.3g}" for name in ("deep", "affine", "shallow", "confidence"))
        verdict = "vacuous: above" if self.vacuous else "below"
        return "\n".join(
            [
                f"plug-in bound on the gap: {self.value:.4g} ({verdict} the trivial {self.trivial:.4g})",
                f"terms at s = {self.s_star:.3g}: {parts}; {self.dominating} dominates",
                f"observed gap: {self.observed_gap:.4g}; bound / gap: {self.ratio:.4g}",
                f"training points for half of it: {self.n_for_half:.3g}",
            ]
        )


def generalisation_bound(
    report: ReluReport,
    X_heldout: ArrayLike,
    B: float,
    *,
    delta: float = 0.05,
    y_heldout: ArrayLike | None = None,
    n_directions: int = 2048,
    max_points: int = 2048,
    random_state: int = 0,
) -> Bound | NotCovered:
    """Bound the gap between the mean and the training loss of the network in ``report``.

    With probability 1 - delta, for all 40 levels s, |y| <= B and outputs clipped to [-B, B],

        gap <= 8 B (4 A_s R + |theta_s| R + |c_s|) / sqrt(n) + 4 B^2 P(Omega_s) + 4 B^2 sqrt(log(2 N / delta) / (2 n)).

    A_s = sum of a_k over deep neurons, (theta_s, c_s) the affine part; all three are rounded up to a grid, and N counts
    its cells and the levels. g comes from the held-out points, P(Omega_s) from the training points plus a
    Dvoretzky-Kiefer-Wolfowitz term: both are then independent of what they are used on. Why it is called *plug-in*:
    Omega_s is a minimum over finitely many directions, which underestimates it, and R is the largest norm seen.

    Parameters
    ----------
    report : of `relu_report`, on the training data and the whole network; with y, the gap is observed too.
    X_heldout : points that were not trained on, (m, d).
    B : bound on |y|; the loss is that of outputs clipped to [-B, B].
    delta : probability that the bound may fail.
    y_heldout : their targets, for the observed gap.
    n_directions : random directions of the half-spaces, besides two for each training point and two for each neuron.
    max_points : training and held-out points beyond so many are subsampled, for g and P(Omega_s) only.

    Returns
    -------
    A `Bound`, or `NotCovered` with the reason: several outputs, a block inside a larger network, held-out points that
    are training points.

    Raises
    ------
    ValueError : B not positive or below a target, delta not in (0, 1), points of another shape or not finite.

    Examples
    --------
    >>> import torch
    >>> from cameraready.methods.stable_minima import relu_report
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> X = torch.rand(100, 2)
    >>> bound = generalisation_bound(relu_report(net, X, X[:, 0]), torch.rand(100, 2), B=1.0, n_directions=64)
    >>> bound.vacuous, bound.dominating
    (False, 'confidence')
    >>> print(generalisation_bound(relu_report(net, X), X, B=1.0))
    not covered: 100% of the held-out points are training points; pass points that were held out
    """
    if not isinstance(report, ReluReport):
        raise TypeError(f"report is a {type(report).__name__}; expected what relu_report returns")
    block = report.block
    held = np.asarray(X_heldout, dtype=np.float64)
    if held.ndim != 2 or len(held) < 2 or held.shape[1] != block.X.shape[1] or not np.isfinite(held).all():
        expected = f"finite points (m, {block.X.shape[1]}), m >= 2"
        raise ValueError(f"X_heldout has shape {held.shape}; expected {expected}")
    if not 0 < B < np.inf or not 0 < delta < 1:
        raise ValueError(f"B={B}, delta={delta}; B must be positive and finite, delta in (0, 1)")
    y_held = None if y_heldout is None else np.asarray(y_heldout, dtype=np.float64).reshape(-1)
    if y_held is not None and (len(y_held) != len(held) or not np.isfinite(y_held).all()):
        raise ValueError(f"y_heldout has shape {np.shape(y_heldout)}; expected {len(held)} finite values, one a point")
    for name, y in (("y", report.y), ("y_heldout", y_held)):
        if y is not None and np.abs(y).max() > B * (1 + 1e-6):
            raise ValueError(f"B={B:g} is below the largest |{name}|, {np.abs(y).max():.4g}; pass at least that")
    if len(block.V) != 1:
        return NotCovered(f"the network has {len(block.V)} outputs; the bound is of one")
    if not block.whole:
        return NotCovered(block.why_not)
    if (repeated := _overlap(held, block.X)) > 0.5:
        return NotCovered(f"{repeated:.0%} of the held-out points are training points; pass points that were held out")
    rng = np.random.default_rng(random_state)
    n = len(block.X)
    train = block.X if n <= max_points else block.X[rng.choice(n, max_points, replace=False)]
    held_g = held if len(held) <= max_points else held[rng.choice(len(held), max_points, replace=False)]
    radius = float(max(np.linalg.norm(block.X, axis=1).max(), np.linalg.norm(held, axis=1).max()))
    levels = np.geomspace(1e-7, 1, LEVELS) * radius * np.sqrt(1 + radius**2)
    A, theta, c = (np.array(part) for part in zip(*_split(block, held_g, levels), strict=True))
    depths = weighted_depth(train, held_g, cutting_directions(train, block.W, n_directions, rng))
    seen_mass = (depths[None, :] < levels[:, None]).mean(axis=1)
    sizes = [_round_up(part) for part in (A, theta, c)]
    cells = LEVELS * len(SIZES) ** 3

    def terms(points: float) -> pd.DataFrame:
        root, counted = np.sqrt(points), points * len(train) / n
        mass = np.minimum(seen_mass + np.sqrt(np.log(2 / delta) / (2 * counted)), 1.0)
        table = pd.DataFrame(
            {
                "s": levels,
                "deep": 8 * B * 4 * sizes[0] * radius / root,
                "affine": 8 * B * (sizes[1] * radius + sizes[2]) / root,
                "shallow": 4 * B**2 * mass,
                "confidence": 4 * B**2 * np.sqrt(np.log(2 * cells / delta) / (2 * points)),
            }
        )
        return table.assign(total=table.iloc[:, 1:].sum(axis=1))

    table = terms(n)
    best = table.loc[table["total"].idxmin()]
    gap = _observed_gap(report, held, y_held, B)
    value = float(best["total"])
    return Bound(
        value=value,
        **{name: float(best[name]) for name in ("deep", "affine", "shallow", "confidence")},
        s_star=float(best["s"]),
        n_for_half=_points_for(value / 2, n, lambda points: float(terms(points)["total"].min())),
        trivial=4 * B**2,
        observed_gap=gap,
        ratio=gap if isinstance(gap, NotCovered) else value / gap if gap > 0 else NotCovered("the gap is not positive"),
        terms=table,
    )


def _split(block: ReluBlock, held: Floats, levels: Floats) -> list[tuple[float, float, float]]:
    """A_s, |theta_s| and |c_s| for each level."""
    norms = np.linalg.norm(block.W, axis=1)
    alive = norms > 0
    W, b, v, norms = block.W[alive], block.b[alive], block.V[0, alive], norms[alive]
    constant = float(block.c[0] + np.maximum(-block.b[~alive], 0.0) @ block.V[0, ~alive])
    spaces = half_spaces(held, W / norms[:, None], b / norms)
    a = np.abs(v) * norms
    found = []
    for s in levels:
        deep = spaces.weight >= s
        # Of a shallow neuron the lighter side is cut out; where that is the inactive side, its affine part remains.
        folded = ~deep & (spaces.outside < spaces.inside)
        theta = v[folded] @ W[folded]
        c = constant - float(v[folded] @ b[folded])
        found.append((float(a[deep].sum()), float(np.linalg.norm(theta)), abs(c)))
    return found


def _round_up(values: Floats) -> Floats:
    index = np.searchsorted(SIZES, values, side="left")
    return np.where(index < len(SIZES), SIZES[np.minimum(index, len(SIZES) - 1)], np.inf)


def _points_for(wanted: float, n: int, total: Any) -> float:
    top = 1e30
    if total(top) > wanted:
        return float("inf")
    return float(np.exp(brentq(lambda log: total(np.exp(log)) - wanted, np.log(n), np.log(top), xtol=1e-6)))


def _observed_gap(report: ReluReport, held: Floats, y_held: Floats | None, B: float) -> float | NotCovered:
    if report.y is None or y_held is None:
        return NotCovered("the observed gap needs y in relu_report and y_heldout")

    def risk(X: Floats, y: Floats) -> float:
        return float(((np.clip(report.block.predict(X)[:, 0], -B, B) - y) ** 2).mean())

    return risk(held, y_held) - risk(report.block.X, report.y[:, 0])


def _overlap(held: Floats, train: Floats) -> float:
    """Share of the held-out rows that are training rows, in single precision, as models often see them."""
    known = {row.tobytes() for row in train.astype(np.float32)}
    return sum(row.tobytes() in known for row in held.astype(np.float32)) / len(held)
