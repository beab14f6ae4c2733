"""The problems that the claims are about: three real tables, and generated ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from .edge_penalty import EdgePenalty
from .graph import TaskGraph, read_graph
from .problem import Problem

LAM = 0.002


class SeaTemperature(NamedTuple):
    """Lags (n, 6), the month's anomaly (n,), month 0 to 11 and year of every row."""

    lags: NDArray[np.float64]
    anomaly: NDArray[np.float64]
    month: NDArray[np.int64]
    year: NDArray[np.int64]


def sea_temperature(*, means_until: int = 2011) -> SeaTemperature:
    """El Nino: monthly Pacific surface temperatures 1950 to 2010, less each month's mean over the years before."""
    from statsmodels.datasets import elnino

    table = elnino.load_pandas().data.set_index("YEAR")
    series = (table - table[table.index < means_until].mean()).to_numpy().ravel()
    lags = np.column_stack([series[6 - k : len(series) - k] for k in range(1, 7)])
    index = np.arange(6, len(series))
    return SeaTemperature(lags, series[6:], index % 12, table.index[0].astype(int) + index // 12)


def table_problem(name: str, *, lam: float = LAM, p: int = 2) -> Problem:
    """One of the three tables as a problem; columns and targets of the last two are standardised.

    "elnino": 12 months on a ring, six lags, 726 rows. "grunfeld": investment of 11 firms by value and capital,
    complete graph, 220 rows. "diabetes": 8 cells of sex and age quartile on a chain, eight measurements, 442 rows.
    """
    if name == "elnino":
        sea = sea_temperature()
        ring = [(k, (k + 1) % 12) for k in range(12)]
        return _problem(sea.lags, sea.anomaly, sea.month, EdgePenalty(ring, lam, p))
    if name == "grunfeld":
        from statsmodels.datasets import grunfeld

        table = grunfeld.load_pandas().data
        firm = np.unique(table["firm"].to_numpy(dtype=str), return_inverse=True)[1]
        X = _standard(np.log(table[["value", "capital"]].to_numpy(dtype=float)))
        y = _standard(np.log(table["invest"].to_numpy(dtype=float)))
        return _problem(X, y, firm, EdgePenalty(read_graph("complete", tasks=range(11)), lam, p))
    from cameraready import data

    table = data.load("diabetes")
    age, sex = table.X["age"].to_numpy(), table.X["sex"].to_numpy()
    quartile = np.searchsorted(np.quantile(age, [0.25, 0.5, 0.75]), age, side="right")
    cell = 4 * (sex > 0) + quartile
    X = _standard(table.X.drop(columns=["age", "sex"]).to_numpy())
    chain = EdgePenalty([(k, k + 1) for k in range(7)], lam, p)
    return _problem(X, _standard(table.y.to_numpy(dtype=float)), cell, chain)


def heavy_tailed(rng: np.random.Generator, *, n: int = 2000, K: int = 4, d: int = 5, lam: float = 0.02) -> Problem:
    """y = x . w + noise, directions of x uniform, norms lognormal(0, 1) and at most 5: one w on a ring of tasks."""
    direction = rng.normal(size=(n, d))
    norm = np.minimum(rng.lognormal(size=(n, 1)), 5.0)
    X = norm * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    y = X @ rng.normal(size=d) + rng.normal(size=n)
    ring = EdgePenalty([(k, (k + 1) % K) for k in range(K)], lam)
    return Problem(sparse.csr_array(X), y, rng.integers(K, size=n), ring)


def coin() -> Problem:
    """f_i(u, v) = +-u with equal chances, tied by 0.15 |u - v|: the noise never shrinks and F* = 0 at u = v.

    One step moves u by +-h, then shrinks u - v by 0.3 h towards 0. (From a weight of 0.5 on, the shrinkage would absorb
    the noise at once.)
    """
    return Problem(
        sparse.csr_array(np.ones((2, 1))),
        np.array([1.0, -1.0]),
        np.zeros(2, int),
        EdgePenalty([(0, 1)], 0.15),
        "linear",
    )


def clustered(
    rng: np.random.Generator, *, n: int, K: int, d: int, edges: int, groups: int, lam: float, loss: str = "squared"
) -> Problem:
    """Tasks in groups that share their coefficients, on a random graph with nine of ten edges inside groups."""
    label = np.arange(K) % groups
    pairs: set[tuple[int, int]] = set()
    while len(pairs) < edges:
        u, v = sorted(rng.integers(K, size=2).tolist())
        if u != v and (label[u] == label[v] or rng.random() < 0.1):
            pairs.add((u, v))
    graph = TaskGraph(tuple(range(K)), np.array(sorted(pairs)), np.ones(edges))
    coef = rng.normal(size=(groups, d))[label]
    X, task = rng.normal(size=(n, d)), rng.integers(K, size=n)
    score = np.einsum("nd,nd->n", X, coef[task])
    y = score + rng.normal(size=n) if loss == "squared" else np.where(rng.random(n) < expit(score), 1.0, -1.0)
    return Problem(sparse.csr_array(X), y, task, EdgePenalty(graph, lam), loss)


def _problem(X: NDArray, y: NDArray, task: NDArray, penalty: EdgePenalty) -> Problem:
    return Problem(sparse.csr_array(np.column_stack([X, np.ones(len(X))])), y, task, penalty, ridge_width=X.shape[1])


def _standard(values: NDArray) -> NDArray:
    return (values - values.mean(axis=0)) / values.std(axis=0)
