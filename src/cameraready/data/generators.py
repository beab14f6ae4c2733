"""Data sets drawn from a stated law: the truth about them is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cameraready.data.registry import dataset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataset(
    "manifold-sphere", "embeddings",
    returns="float32 (n, ambient)",
    size="any; n=20,000, ambient=32 by default", licence="generated", source="this library",
    found="generated", package="numpy",
)
def manifold_sphere(
    *, n: int = 20_000, dim: int = 4, ambient: int = 32, noise: float = 0.0, seed: int = 0
) -> NDArray[np.float32]:
    """Uniform on the unit sphere of intrinsic dimension `dim`, rotated at random into R^ambient, plus noise.

    Parameters
    ----------
    n : int, default 20,000
        Number of points.
    dim : int, default 4
        Intrinsic dimension: the sphere S^dim, which spans dim + 1 directions.
    ambient : int, default 32
        Dimension of the space it is rotated into; at least dim + 1.
    noise : float, default 0
        Standard deviation of Gaussian noise added to every coordinate (the sphere has radius 1).
    seed : int, default 0
        Draws rotation, points and noise. The points do not depend on `noise`.
    """
    import numpy as np

    if n < 1:
        raise ValueError(f"n={n} must be at least 1 point")
    if dim < 1:
        raise ValueError(f"dim={dim} must be at least 1")
    if ambient < dim + 1:
        raise ValueError(f"ambient={ambient} is too small for a {dim}-sphere; pass at least dim + 1 = {dim + 1}")
    if not 0 <= noise < np.inf:
        raise ValueError(f"noise={noise} must be a finite standard deviation, 0 or larger")
    rng = np.random.default_rng(seed)
    # The first dim + 1 columns of a random orthogonal matrix: QR of a Gaussian one. Their signs are left as LAPACK
    # gives them, as the sphere is symmetric under reflection.
    frame, _ = np.linalg.qr(rng.standard_normal((ambient, dim + 1)))
    points = rng.standard_normal((n, dim + 1))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    placed = points @ frame.T
    if noise:
        placed += noise * rng.standard_normal(placed.shape)
    return np.asarray(placed, dtype=np.float32)
