"""How easily ReLU thresholds shatter a data set: 0 like a filled ball, 1 like a sphere."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from cameraready.coverage import NotCovered
from cameraready.methods.stable_minima import geometries
from cameraready.methods.stable_minima.depth import candidate_directions, depth_curve, half_space_depth, shallow_area

Floats = NDArray[np.float64]
VARIANCE = 0.95
RESOLUTION = 0.05  # between ball and sphere, below which there is nothing to read the score on
FEWEST = 20  # points
REFERENCES = ("ball", "discs", "sphere")


@dataclass(frozen=True)
class Shatter:
    """What `shatterability` found.

    Attributes
    ----------
    score : 0 as a ball, 1 as a sphere, of the same number of points and dimension. The ball is isotropic with radii
        uniform in [0, 1], the law alpha = 1. Points uniform by volume crowd at the surface in high dimension and score
        higher. Below 0: harder to shatter than the ball. `NotCovered` where even the ball is fully shatterable.
    se : standard error of the score: the spread over draws of a ball of the same n and dimension.
    percentile : the score in [0, 100].
    raw : area under the depth curve, in [0, 1].
    references : raw scores of "ball", "sphere" and "discs" (four flat discs) at the same n and dim.
    depth_curve : tau and S, the share of points that a half-space with at most a share tau of the points cuts off,
        with the references' S_ball and S_sphere.
    alpha : radial exponent after whitening, P(1 - |x| / max < z) ~ z^alpha for small z; 0 is a sphere.
    intrinsic_dim : by TwoNN, of neighbour distances.
    local_dim : by local principal components, the median over 64 points.
    dim : principal components that hold 95 % of the variance; the score is measured in these.
    n : points measured.
    """

    score: float | NotCovered
    se: float | NotCovered
    percentile: float | NotCovered
    raw: float
    references: dict[str, float]
    depth_curve: pd.DataFrame
    alpha: float | NotCovered
    intrinsic_dim: float | NotCovered
    local_dim: float | NotCovered
    dim: int
    n: int

    def __str__(self) -> str:
        error = f" +- {self.se:.2f}" if not isinstance(self.se, NotCovered) else ""
        return "\n".join(
            [
                f"shatterability {self.score:.2f}{error}   (0: ball, 1: sphere; n = {self.n}, {self.dim} dimensions)",
                f"raw {self.raw:.3f}" + "".join(f"; {name} {raw:.3f}" for name, raw in self.references.items()),
                f"radial exponent: {self.alpha:.2f}",
                f"intrinsic dimension: {self.intrinsic_dim:.1f} by TwoNN; {self.local_dim:.0f} by local components",
            ]
        )

    def plot(self) -> Any:
        """The depth curve between those of a ball and a sphere, as an Altair chart."""
        import altair as alt

        names = {"S": "your data", "S_ball": "ball", "S_sphere": "sphere"}
        table = self.depth_curve.rename(columns=names).melt("tau", var_name="points", value_name="share")
        return (
            alt.Chart(table, title="What a half-space can cut off")
            .mark_line(interpolate="step-after")
            .encode(
                x=alt.X("tau", title="share of the points inside the half-space, at most").scale(type="log"),
                y=alt.Y("share", title="share of points that such a half-space reaches"),
                color=alt.Color("points", title=None).sort(list(names.values())),
            )
        )


def shatterability(
    X: ArrayLike, n_directions: int = 4096, *, random_state: int | None = None, max_points: int = 1024, steps: int = 20
) -> Shatter:
    """Measure how easily single ReLU thresholds isolate the points of a data set.

    Apply it to what the layer sees: standardising columns changes which components hold 95 % of the variance.

    Parameters
    ----------
    X : data, (n, D).
    n_directions : random directions tried for every half-space, besides two for each point.
    random_state : seed of the directions, the references and the subsample; None is 0, so that scores repeat.
    max_points : larger sets are subsampled to so many points. The score compares at equal n; S(tau) starts at 1/n.
    steps : of descent from the best direction of each point.

    Raises
    ------
    ValueError : fewer than 2 rows, values that are not finite, all rows equal.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(256, 3))
    >>> sphere = X / np.linalg.norm(X, axis=1, keepdims=True)
    >>> round(shatterability(sphere, 512).score, 1)
    1.0
    """
    X = np.asarray(X, dtype=np.float64)
    if X.ndim != 2 or len(X) < 2 or X.shape[1] < 1:
        raise ValueError(f"X has shape {X.shape}; expected (n, D) with at least 2 rows and a column")
    if not np.isfinite(X).all():
        raise ValueError(f"X holds {np.count_nonzero(~np.isfinite(X))} values that are not finite; drop or impute them")
    if n_directions < 1 or max_points < 2 or steps < 0:
        raise ValueError(f"n_directions={n_directions}, max_points={max_points}, steps={steps}: at least 1, 2 and 0")
    seed = 0 if random_state is None else random_state
    rng = np.random.default_rng(seed)
    if len(X) > max_points:
        X = X[rng.choice(len(X), max_points, replace=False)]
    Z = principal_subspace(X / max(float(np.abs(X).max()), 1e-300))  # so that no unit overflows
    n, dim = Z.shape
    depths = _depths(Z, n_directions, steps, rng)
    comparable = dim > 1 and n >= FEWEST
    drawn = {name: _reference(name, n, dim, n_directions, steps) for name in REFERENCES} if comparable else {}
    raw = shallow_area(depths, n)
    drawn_raw = {name: [shallow_area(draw, n) for draw in draws] for name, draws in drawn.items()}
    references = {name: float(np.mean(raws)) for name, raws in drawn_raw.items()}
    score = error = percentile = _calibrated(raw, references, n, dim)
    if not isinstance(score, NotCovered):
        error = float(np.std(drawn_raw["ball"], ddof=1)) / (references["sphere"] - references["ball"])
        percentile = float(np.clip(100 * score, 0, 100))
    tau, share = depth_curve(depths, n)
    curve = {"tau": tau, "S": share}
    curve |= {f"S_{name}": depth_curve(drawn[name].reshape(-1), n)[1] for name in ("ball", "sphere") if comparable}
    intrinsic, local = intrinsic_dimensions(Z)
    return Shatter(
        score=score,
        se=error,
        percentile=percentile,
        raw=raw,
        references=references,
        depth_curve=pd.DataFrame(curve),
        alpha=radial_exponent(Z),
        intrinsic_dim=intrinsic,
        local_dim=local,
        dim=dim,
        n=n,
    )


def principal_subspace(X: Floats) -> Floats:
    """Scores on the leading principal components that hold 95 % of the variance, (n, dim)."""
    centred = X - X.mean(axis=0)
    scales = np.linalg.svd(centred, compute_uv=False)
    if not scales[0] > 1e-12 * max(float(np.abs(X).max()), 1e-300):
        raise ValueError("all rows of X are equal; there is no geometry to measure")
    held = np.cumsum(scales**2) / (scales**2).sum()
    dim = int(np.searchsorted(held, VARIANCE * (1 - 1e-12)) + 1)
    return leading_components(X, dim)


def leading_components(X: Floats, dim: int) -> Floats:
    """Scores on the first principal components, at most ``dim`` and as many as X has."""
    left, scales, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    return (left * scales)[:, : min(dim, int((scales > 1e-9 * scales[0]).sum()))]


def radial_exponent(Z: Floats) -> float | NotCovered:
    """alpha of P(1 - |x| / max |x| < z) = z^alpha near z = 0, after whitening: the likelihood (Hill) estimate.

    The farthest point sets the scale and is left out. Values above 1/4 are not used, unless fewer than a tenth of the
    points are that far out: then the outer tenth is. Whitening with an estimated covariance blurs radii by about
    sqrt(dim / n); values below that count as "at most", so that a sphere has an exponent near 0.
    """
    n, dim = Z.shape
    white = np.linalg.qr(Z)[0]  # columns orthonormal: the whitened scores up to a factor
    radii = np.sort(np.linalg.norm(white, axis=1))
    z = 1 - radii[:-1] / radii[-1]
    bound, blur = max(0.25, float(np.quantile(z, 0.1))), np.sqrt(dim / n)
    if blur >= 0.75 * bound or n < FEWEST:
        return NotCovered(f"whitening {dim} dimensions by {n} points blurs the radii too much; add points")
    used = z[z < bound]
    logs = np.log(bound / np.maximum(used, blur))
    return float(np.count_nonzero(used > blur) / logs.sum())


def intrinsic_dimensions(Z: Floats) -> tuple[float | NotCovered, float | NotCovered]:
    """TwoNN and the median local PCA dimension, by scikit-dimension; duplicates are dropped."""
    from sklearn.neighbors import NearestNeighbors

    try:
        from skdim.id import TwoNN, lPCA
    except ImportError:
        missing = NotCovered("scikit-dimension is not installed; pip install 'cameraready[theory]'")
        return missing, missing
    points = np.unique(Z, axis=0)
    if len(points) < FEWEST:
        missing = NotCovered(f"{len(points)} distinct points; a dimension needs at least {FEWEST}")
        return missing, missing
    if points.shape[1] == 1:
        return 1.0, 1.0
    neighbours = min(max(2 * Z.shape[1], 20), len(points) - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # skdim warns of its own deprecations
        two = float(TwoNN().fit(points).dimension_)
        # Local dimensions at evenly spread points: the median of 64 is as good as that of all, and much cheaper.
        centres = points[np.linspace(0, len(points) - 1, min(len(points), 64)).astype(int)]
        around = NearestNeighbors(n_neighbors=neighbours).fit(points).kneighbors(centres, return_distance=False)
        local = [lPCA().fit(points[rows]).dimension_ for rows in around]
    return two, float(np.median(local))


def _calibrated(raw: float, references: dict[str, float], n: int, dim: int) -> float | NotCovered:
    if dim == 1:
        return NotCovered("in one dimension a sphere is two points; there is nothing to calibrate on")
    if not references:
        return NotCovered(f"{n} points are too few to read a depth curve from; at least {FEWEST}")
    span = references["sphere"] - references["ball"]
    if span < RESOLUTION:
        return NotCovered(f"{n} points in {dim} dimensions: even a ball is shattered as a sphere is; add points")
    return (raw - references["ball"]) / span


def _depths(Z: Floats, n_directions: int, steps: int, rng: np.random.Generator) -> Floats:
    return half_space_depth(Z, candidate_directions(Z, n_random=n_directions, rng=rng), steps=steps)


@lru_cache(maxsize=64)
def _reference(name: str, n: int, dim: int, n_directions: int, steps: int) -> Floats:
    """Depths of draws of a reference cloud, (draws, n); the same for everybody.

    It is drawn in dim / 0.95 dimensions and reduced to dim components, as isotropic data are.
    """
    rng = np.random.default_rng([n, dim, REFERENCES.index(name)])
    full, found = round(dim / VARIANCE), []
    for _ in range(int(np.clip(2048 // n, 3, 8)) if name == "ball" else 1):
        if name == "discs":
            cloud = geometries.balls(n, full, m=2, count=4, rng=rng)
        else:
            cloud = geometries.radial(n, full, 1.0 if name == "ball" else 0.0, rng=rng)
        found.append(_depths(leading_components(cloud, dim), n_directions, steps, rng))
    return np.array(found)
