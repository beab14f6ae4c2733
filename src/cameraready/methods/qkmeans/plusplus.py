"""`qkmeans_plusplus`: the function, in the shape of `sklearn.cluster.kmeans_plusplus`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.random_projection import SparseRandomProjection
from sklearn.utils import check_array, check_random_state

from .diagnostics import SeedingStats
from .lsh import work_per_query
from .points import Points, SparsePoints, Threads, default_n_threads
from .seeding import PRIOR_EPS, Seeding, Settings

GREEDY_UP_TO = 2000  # clusters: beyond, the reference sample costs more than the seeding
ANN_FROM = 1e12  # expected multiplications of the exact engine, about a minute of one core


def qkmeans_plusplus(
    X: ArrayLike,
    n_clusters: int,
    *,
    sample_weight: ArrayLike | None = None,
    rho: float = 0.25,
    engine: str = "auto",
    greedy: bool | str = "auto",
    refresh: str | Sequence[int] = "auto",
    projection: str | int | None = None,
    outlier_quantile: float | None = None,
    random_state: Any = None,
    n_threads: int | None = None,
    return_stats: bool = False,
) -> tuple[NDArray, NDArray] | tuple[NDArray, NDArray, SeedingStats]:
    """Choose k-means++ seeds in a time that hardly depends on the number of samples.

    After one pass over X, centres are drawn by rejection: a row x proposed with probability q(x) / sum(q), where q(x)
    is the squared distance to the first centres, and accepted with probability D^2(x, S) / q(x), follows the k-means++
    law D^2(x, S) / phi(S) exactly. On data of intrinsic dimension d the k centres take about k^(1 + 2/d) proposals.

    Parameters
    ----------
    X : array or CSR matrix of shape (n_samples, n_features)
        Float32 is computed in float32, float16 as well, everything else in float64. Memory maps are read in blocks.
        A `torch.Tensor` stays on its device.
    n_clusters : int
        Number of seeds k, at most n_samples.
    sample_weight : array of shape (n_samples,), default=None
        Non-negative weights; None for equal ones.
    rho : float, default=0.25
        For `engine="ann"`: a nearest-centre query takes about k^rho distances and the seeds are an
        O(rho^-2 log k)-approximation. In (0, 1]; 1 is exact.
    engine : {"auto", "exact", "ann"}, default="auto"
        "exact" computes all distances of a proposal; "ann" asks a locality-sensitive hash index. "auto" is exact up to
        about 10^12 expected multiplications (k = 30,000 at 200 features), for the law of the seeds is then k-means++'s.
    greedy : bool or "auto", default="auto"
        Draw 2 + ln k candidates for every centre and keep the one with the lowest potential, estimated on a sample of
        max(8192, 16k) rows: lower cost, several times slower. "auto": for k <= 2000.
    refresh : {"auto", "off"} or sequence of int, default="auto"
        Numbers of centres at which q is brought up to date. "auto": whenever the distances saved exceed its cost.
    projection : {"jl"}, int or None, default=None
        Sample in a random projection of this many dimensions ("jl": 8 ln(k) / 0.3^2). Useful beyond 1000 features.
    outlier_quantile : float, default=None
        Cap distances at this quantile of q: far outliers are then chosen less often (on sparse data of many features
        k-means++ is known to pick them).
    random_state : int, RandomState, Generator or None, default=None
        The same state gives the same seeds on any number of threads.
    n_threads : int, default=None
        None: as many as BLAS would use.
    return_stats : bool, default=False
        Return a `SeedingStats` as well.

    Returns
    -------
    centers : array of shape (n_clusters, n_features)
        Rows of X.
    indices : array of shape (n_clusters,)
        Where they stand in X.
    stats : SeedingStats
        Only if `return_stats`.

    Raises
    ------
    ValueError
        NaN or infinity in X, n_clusters not in [1, n_samples], weights negative or all zero, rho not in (0, 1], unknown
        engine, refresh sizes, projection or quantile out of range.

    References
    ----------
    Shah, Agrawal, Jaiswal, "Fast k-means Seeding Under The Manifold Hypothesis", ICML 2026.

    Examples
    --------
    >>> import numpy as np
    >>> from cameraready.methods.qkmeans import qkmeans_plusplus
    >>> X = np.random.default_rng(0).normal(size=(1000, 8))
    >>> centers, indices = qkmeans_plusplus(X, 50, random_state=0)
    >>> centers.shape, bool((centers == X[indices]).all())
    ((50, 8), True)
    """
    X = _check_data(X)
    n_clusters = _check_n_clusters(n_clusters, X.shape[0])
    weights = check_weights(sample_weight, X.shape[0])
    settings = _check_settings(
        X.shape, n_clusters, rho=rho, engine=engine, greedy=greedy, refresh=refresh, outlier_quantile=outlier_quantile
    )
    n_threads = default_n_threads() if n_threads is None else _check_positive("n_threads", n_threads)
    rng = _generator(random_state)
    Z = X if projection is None else _project(X, n_clusters, projection, rng)
    with Threads(n_threads) as threads:
        seeding = Seeding(_points(Z, threads), n_clusters, settings=settings, weights=weights, rng=rng)
        indices, stats = seeding.run()
    centers = X[indices].toarray() if sparse.issparse(X) else X[indices]
    return (centers, indices, stats) if return_stats else (centers, indices)


def _points(X: Any, threads: Threads) -> Points:
    if sparse.issparse(X):
        return SparsePoints(X, threads)
    if _is_tensor(X):
        from .torch_points import TorchPoints

        return TorchPoints(X, threads)
    return Points(X, threads)


def _is_tensor(X: Any) -> bool:
    """Whether X is a torch tensor, without importing torch: who passes one has."""
    return "torch" in sys.modules and isinstance(X, sys.modules["torch"].Tensor)


def _generator(random_state: Any) -> np.random.Generator:
    if isinstance(random_state, np.random.Generator):
        return random_state
    return np.random.default_rng(check_random_state(random_state).randint(np.iinfo(np.int32).max, size=4))


def _check_data(X: ArrayLike) -> NDArray | sparse.csr_matrix:
    if _is_tensor(X):
        X = X.detach()
        if X.is_complex() or X.is_sparse or X.ndim != 2 or 0 in X.shape or not bool(X.isfinite().all()):
            given = f"a {X.dtype} tensor of shape {tuple(X.shape)}, {X.layout}"
            raise ValueError(f"X is {given}; pass a dense, real and finite one of (n_samples, n_features)")
        return X if X.is_floating_point() and X.element_size() >= 4 else X.float()
    if getattr(X, "dtype", None) == np.float16:
        X = X.astype(np.float32)
    return check_array(X, accept_sparse="csr", dtype=[np.float64, np.float32], accept_large_sparse=True)


def _check_positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}={value!r} is not an integer; pass an integer of at least 1")
    if value < 1:
        raise ValueError(f"{name}={value} is less than 1; pass at least 1")
    return int(value)


def _check_n_clusters(n_clusters: Any, n_samples: int) -> int:
    n_clusters = _check_positive("n_clusters", n_clusters)
    if n_clusters > n_samples:
        raise ValueError(
            f"n_clusters={n_clusters} is larger than the {n_samples} samples in X; pass at most {n_samples}"
        )
    return n_clusters


def check_weights(sample_weight: ArrayLike | None, n_samples: int) -> NDArray | None:
    if sample_weight is None:
        return None
    weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if weights.shape != (n_samples,):
        raise ValueError(
            f"sample_weight has shape {weights.shape}; pass one weight for each of the {n_samples} samples"
        )
    if weights.min() < 0:
        at = int(np.argmin(weights))
        raise ValueError(f"sample_weight[{at}]={weights[at]} is negative; pass weights of at least 0")
    if not weights.any():
        raise ValueError("sample_weight is zero for all samples; pass a positive weight for at least one")
    return weights


def _check_settings(
    shape: tuple[int, int],
    n_clusters: int,
    *,
    rho: float,
    engine: str,
    greedy: bool | str,
    refresh: str | Sequence[int],
    outlier_quantile: float | None,
) -> Settings:
    if isinstance(rho, bool) or not isinstance(rho, Real) or not 0 < rho <= 1:
        raise ValueError(f"rho={rho!r} is not in (0, 1]; pass e.g. 0.25 (fast) or 1 (exact)")
    if engine not in ("auto", "exact", "ann"):
        raise ValueError(f"engine={engine!r} is unknown; pass 'auto', 'exact' or 'ann'")
    if not isinstance(greedy, bool | np.bool_) and greedy != "auto":
        raise ValueError(f"greedy={greedy!r} is unknown; pass True, False or 'auto'")
    if isinstance(refresh, str):
        if refresh not in ("auto", "off"):
            raise ValueError(
                f"refresh={refresh!r} is unknown; pass 'auto', 'off' or numbers of centres such as (8, 64)"
            )
    elif isinstance(refresh, Iterable):
        refresh = tuple(_check_positive("refresh size", size) for size in refresh)
    else:
        raise TypeError(
            f"refresh={refresh!r} is not 'auto', 'off' or a sequence; pass numbers of centres such as (8, 64)"
        )
    if outlier_quantile is not None and not (isinstance(outlier_quantile, Real) and 0 < outlier_quantile <= 1):
        raise ValueError(f"outlier_quantile={outlier_quantile!r} is not in (0, 1]; pass e.g. 0.99, or None")
    if engine == "auto":
        engine = "ann" if exact_work(n_clusters, shape[1]) > ANN_FROM else "exact"
    if rho == 1 or work_per_query(n_clusters, rho) >= n_clusters:
        engine = "exact"  # looking at every centre is then no more work than the hash tables
    greedy = n_clusters <= GREEDY_UP_TO if greedy == "auto" else bool(greedy)
    return Settings(rho=float(rho), engine=engine, greedy=greedy, refresh=refresh, outlier_quantile=outlier_quantile)


def exact_work(n_clusters: int, n_features: int) -> float:
    """Expected multiplications of the exact engine: half of k^2 distances for each of the k^eps proposals a centre.

    From the sizes alone and not from a measured speed: the same call must give the same seeds on any machine.
    """
    return n_clusters ** (2 + PRIOR_EPS) / (2 + PRIOR_EPS) * n_features


def _project(X: NDArray, n_clusters: int, projection: str | int, rng: np.random.Generator) -> NDArray:
    """Sparse +-1 Johnson-Lindenstrauss projection, to D' = ceil(8 ln(k) / 0.3^2) dimensions, D at most."""
    if projection == "jl":
        dim = min(X.shape[1], math.ceil(8 * math.log(max(n_clusters, 2)) / 0.3**2))
    elif isinstance(projection, str):
        raise ValueError(f"projection={projection!r} is unknown; pass 'jl', a number of dimensions, or None")
    else:
        dim = _check_positive("projection", projection)
        if dim > X.shape[1]:
            raise ValueError(f"projection={dim} is larger than the {X.shape[1]} features; pass at most {X.shape[1]}")
    if _is_tensor(X):
        raise ValueError(f"projection={projection!r} isn't available for tensors; project them, or pass a NumPy array")
    if dim == X.shape[1]:
        return X
    seed = int(rng.integers(np.iinfo(np.int32).max))
    projected = SparseRandomProjection(dim, dense_output=True, random_state=seed).fit_transform(X)
    return np.ascontiguousarray(projected, dtype=X.dtype)
