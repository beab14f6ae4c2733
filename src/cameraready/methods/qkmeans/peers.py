"""Other seedings, each as `seed(X, n_clusters, random_state) -> centers`, and what they are judged by."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.metrics import pairwise_distances_argmin_min

from .multitree import multitree

MC2_CHAIN = 200


def cost(X: NDArray, centers: NDArray) -> float:
    """Sum of squared distances to the nearest centre."""
    return float(np.sum(pairwise_distances_argmin_min(X, centers)[1].astype(np.float64) ** 2))


def cost_after_lloyd(X: NDArray, centers: NDArray, iterations: int) -> float:
    """Cost after some of scikit-learn's Lloyd iterations."""
    return KMeans(len(centers), init=centers, n_init=1, max_iter=iterations, tol=0).fit(X).inertia_


def plus_plus(X: NDArray, n_clusters: int, random_state: int) -> NDArray:
    """k-means++ as published, one candidate a round (scikit-learn)."""
    return kmeans_plusplus(X, n_clusters, n_local_trials=1, random_state=random_state)[0]


def greedy_plus_plus(X: NDArray, n_clusters: int, random_state: int) -> NDArray:
    """k-means++ with 2 + ln k candidates a round (scikit-learn's default)."""
    return kmeans_plusplus(X, n_clusters, random_state=random_state)[0]


def uniform(X: NDArray, n_clusters: int, random_state: int) -> NDArray:
    """Rows drawn uniformly without replacement."""
    return X[np.random.default_rng(random_state).choice(len(X), n_clusters, replace=False)]


def faiss_k_means(X: NDArray, n_clusters: int, random_state: int, *, iterations: int = 10) -> NDArray:
    """faiss: uniform seeds and Lloyd iterations, all rows used."""
    import faiss

    model = faiss.Kmeans(X.shape[1], n_clusters, niter=iterations, seed=random_state, max_points_per_centroid=len(X))
    model.train(np.ascontiguousarray(X, dtype=np.float32))
    return model.centroids


def afk_mc2(X: NDArray, n_clusters: int, random_state: int) -> NDArray:
    """AFK-MC2 (Bachem, Lucic, Hassani, Krause: NeurIPS 2016) with chains of 200 steps.

    Every centre is the end of a Metropolis-Hastings chain whose proposals follow q = D^2(x, c1) / (2 sum) + 1 / (2n)
    and whose target is the k-means++ law.
    """
    rng = np.random.default_rng(random_state)
    n = len(X)
    centers = np.empty((n_clusters, X.shape[1]), dtype=X.dtype)
    centers[0] = X[rng.integers(n)]
    first = _squared_distances(X, centers[:1])[:, 0]
    q = 0.5 * first / first.sum(dtype=np.float64) + 0.5 / n
    cumulative = np.cumsum(q)
    for i in range(1, n_clusters):
        drawn = np.searchsorted(cumulative, rng.random(MC2_CHAIN) * cumulative[-1], side="right").clip(max=n - 1)
        targets = _squared_distances(X[drawn], centers[:i]).min(axis=1) / q[drawn]
        uniforms = rng.random(MC2_CHAIN)
        state = 0
        for j in range(1, MC2_CHAIN):
            if targets[state] == 0 or uniforms[j] * targets[state] < targets[j]:
                state = j
        centers[i] = X[drawn[state]]
    return centers


def parallel_k_means(X: NDArray, n_clusters: int, random_state: int, *, rounds: int = 5) -> NDArray:
    """k-means|| (Bahmani et al.: VLDB 2012): 2k rows expected in each of 5 rounds, then weighted k-means++ on them."""
    rng = np.random.default_rng(random_state)
    candidates = X[rng.integers(len(X))][None]
    distances = _squared_distances(X, candidates)[:, 0]
    for _ in range(rounds):
        chosen = rng.random(len(X)) * distances.sum(dtype=np.float64) < 2 * n_clusters * distances
        new = X[chosen]
        candidates = np.concatenate([candidates, new])
        np.minimum(distances, pairwise_distances_argmin_min(X, new)[1] ** 2, out=distances)
    weights = np.bincount(pairwise_distances_argmin_min(X, candidates)[0], minlength=len(candidates))
    seed = int(rng.integers(2**31))
    return kmeans_plusplus(candidates, n_clusters, sample_weight=weights, n_local_trials=1, random_state=seed)[0]


def _squared_distances(X: NDArray, centers: NDArray) -> NDArray:
    squares = np.einsum("ij,ij->i", X, X)[:, None] + np.einsum("ij,ij->i", centers, centers)
    return np.maximum(squares - 2 * (X @ centers.T), 0)


Seed = Callable[[NDArray, int, int], NDArray]

SEEDINGS: dict[str, Seed] = {
    "k-means++ (scikit-learn)": plus_plus,
    "greedy k-means++ (scikit-learn)": greedy_plus_plus,
    "AFK-MC2": afk_mc2,
    "k-means||": parallel_k_means,
    "fast-k-means++ (multi-tree)": multitree,
    "faiss.Kmeans": faiss_k_means,
    "uniform": uniform,
}
