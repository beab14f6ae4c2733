"""Data sets drawn from a stated law: the truth about them is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cameraready.data.registry import dataset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cameraready.data.containers import Table


@dataset(
    "manifold-sphere",
    "embeddings",
    returns="float32 (n, ambient)",
    size="any; n=20,000, ambient=32 by default",
    licence="generated",
    source="this library",
    found="generated",
    package="numpy",
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


@dataset(
    "access-points",
    "table",
    returns="Table: X (400, 8) positions x_1, y_1, ..., x_4, y_4 in the unit square, y sum rate in bit/s/Hz",
    size="any; n=400 by default",
    licence="generated",
    source="this library",
    found="generated",
    package="numpy",
)
def access_points(*, n: int = 400, n_points: int = 4, n_users: int = 16, seed: int = 0) -> Table:
    """Random placements of identical wireless access points and the sum rate of the users that they serve.

    Invariant under relabelling the points. Path loss exponent 3; every user listens to the strongest point and hears
    the others as interference.

    Parameters
    ----------
    n : int, default 400
        Number of placements.
    n_points, n_users : int
        Access points placed, and users, who stay where the seed puts them.
    seed : int, default 0
    """
    import numpy as np
    import pandas as pd

    from cameraready.data.containers import Table

    if min(n, n_points, n_users) < 1:
        raise ValueError(f"n={n}, n_points={n_points}, n_users={n_users}; each must be at least 1")
    rng = np.random.default_rng(seed)
    users = rng.random((n_users, 2))
    places = rng.random((n, n_points, 2))
    square = ((users[None, :, None] - places[:, None]) ** 2).sum(-1)
    power = (square + 1e-3) ** -1.5  # (n, n_users, n_points); a user is never nearer than about 3 cm to the antenna
    signal = power.max(-1)
    rate = np.log2(1 + signal / (power.sum(-1) - signal + 1.0)).sum(-1)
    columns = [f"{axis}_{point}" for point in range(1, n_points + 1) for axis in "xy"]
    return Table(pd.DataFrame(places.reshape(n, -1), columns=columns), pd.Series(rate, name="sum_rate"))
