"""scikit-learn's interfaces: an `init=` callable and an estimator."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar

from numpy.typing import ArrayLike, NDArray
from sklearn.cluster import KMeans
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _num_samples

from .diagnostics import SeedingStats
from .plusplus import check_weights, qkmeans_plusplus


class QKMeansInit:
    """Seeding for the `init` parameter of `sklearn.cluster.KMeans` and `MiniBatchKMeans`.

    Parameters
    ----------
    rho, engine, greedy, refresh, projection, outlier_quantile, n_threads
        As in `qkmeans_plusplus`.

    Attributes
    ----------
    stats_ : SeedingStats
        Of the last call.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.cluster import MiniBatchKMeans
    >>> from cameraready.methods.qkmeans import QKMeansInit
    >>> X = np.random.default_rng(0).normal(size=(2000, 8))
    >>> MiniBatchKMeans(50, init=QKMeansInit(), n_init=1, random_state=0).fit(X).cluster_centers_.shape
    (50, 8)
    """

    def __init__(
        self,
        *,
        rho: float = 0.25,
        engine: str = "auto",
        greedy: bool | str = "auto",
        refresh: str | Sequence[int] = "auto",
        projection: str | int | None = None,
        outlier_quantile: float | None = None,
        n_threads: int | None = None,
    ) -> None:
        self.options = {
            "rho": rho,
            "engine": engine,
            "greedy": greedy,
            "refresh": refresh,
            "projection": projection,
            "outlier_quantile": outlier_quantile,
            "n_threads": n_threads,
        }

    def __call__(
        self, X: ArrayLike, n_clusters: int, random_state: Any = None, sample_weight: ArrayLike | None = None
    ) -> NDArray:
        """The seeds, (n_clusters, n_features)."""
        centers, _, self.stats_ = qkmeans_plusplus(
            X, n_clusters, sample_weight=sample_weight, random_state=random_state, return_stats=True, **self.options
        )
        return centers

    def __repr__(self) -> str:
        return f"QKMeansInit({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"


class QKMeans(KMeans):
    """k-means with fast seeding: `sklearn.cluster.KMeans` in everything but the first centres.

    Parameters
    ----------
    n_clusters : int, default=8
    rho : float, default=0.25
    engine : {"auto", "exact", "ann"}, default="auto"
    greedy : bool or "auto", default="auto"
        How to seed; see `qkmeans_plusplus`.
    n_init : int, default=1
        Seedings; the clustering with the lowest inertia is kept.
    max_iter, tol, algorithm, verbose, random_state, copy_x
        As in `sklearn.cluster.KMeans`.

    Attributes
    ----------
    cluster_centers_ : array (n_clusters, n_features)
    labels_ : array (n_samples,)
    inertia_ : float
    n_iter_ : int
    seeding_stats_ : SeedingStats
        Work, seconds and quantisation exponent of the last seeding.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from cameraready.methods.qkmeans import QKMeans
    >>> model = QKMeans(n_clusters=100, random_state=0).fit(load_digits().data)
    >>> model.cluster_centers_.shape, model.seeding_stats_.engine
    ((100, 64), 'exact')
    """

    seeding_stats_: SeedingStats
    _parameter_constraints: ClassVar[dict] = {
        **KMeans._parameter_constraints,
        "rho": [Interval(Real, 0, 1, closed="right")],
        "engine": [StrOptions({"auto", "exact", "ann"})],
        "greedy": ["boolean", StrOptions({"auto"})],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        rho: float = 0.25,
        engine: str = "auto",
        greedy: bool | str = "auto",
        n_init: int = 1,
        max_iter: int = 300,
        tol: float = 1e-4,
        algorithm: str = "lloyd",
        verbose: int = 0,
        random_state: Any = None,
        copy_x: bool = True,
    ) -> None:
        super().__init__(
            n_clusters,
            n_init=n_init,
            max_iter=max_iter,
            tol=tol,
            algorithm=algorithm,
            verbose=verbose,
            random_state=random_state,
            copy_x=copy_x,
        )
        self.rho = rho
        self.engine = engine
        self.greedy = greedy

    def fit(self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None) -> QKMeans:
        """Cluster X (n_samples, n_features); `y` is ignored."""
        # Here, for KMeans centres X (in place where copy_x is False) before it calls `init`.
        sample_weight = check_weights(sample_weight, _num_samples(X))
        seed = QKMeansInit(rho=self.rho, engine=self.engine, greedy=self.greedy)
        # KMeans calls `init` without the weights; it is the one way in that scikit-learn documents.
        default = self.init
        self.init = lambda X, n_clusters, random_state: seed(X, n_clusters, random_state, sample_weight)
        try:
            super().fit(X, sample_weight=sample_weight)
        finally:
            self.init = default
        self.seeding_stats_ = seed.stats_
        return self
