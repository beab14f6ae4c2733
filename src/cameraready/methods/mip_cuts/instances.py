"""Families of integer programmes as SCIP models, and MIPLIB's small ones."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pyscipopt import Model, quicksum


def setcover(rows: int, cols: int, *, density: float = 0.05, seed: int = 0) -> Model:
    """Weighted set covering: ``rows`` elements, ``cols`` sets with costs from 1 to 100 (Balas and Ho, 1980).

    Every set covers one element at least, every element is in two sets at least.

    Examples
    --------
    >>> model = setcover(20, 40, density=0.1, seed=0)
    >>> model.getNVars(), model.getNConss()
    (40, 20)
    """
    _check(rows=rows, cols=cols)
    if not 0 < density <= 1 or cols < 2:
        raise ValueError(f"density={density} must be in (0, 1], and cols={cols} at least 2")
    rng = np.random.default_rng(seed)
    covers = rng.random((rows, cols)) < density
    covers[rng.integers(rows, size=cols), np.arange(cols)] |= ~covers.any(axis=0)
    for i in np.flatnonzero(covers.sum(axis=1) < 2):
        covers[i, rng.choice(cols, size=2, replace=False)] = True
    model = _model(f"setcover-{rows}x{cols}-{seed}")
    x = [model.addVar(vtype="B", obj=float(cost)) for cost in rng.integers(1, 101, size=cols)]
    for row in covers:
        model.addCons(quicksum(x[j] for j in np.flatnonzero(row)) >= 1)
    return model


def indset(nodes: int, *, degree: int = 4, seed: int = 0) -> Model:
    """Maximum independent set on a Barabási-Albert graph, by edge constraints (Bergman et al., 2016)."""
    _check(nodes=nodes, degree=degree)
    if nodes <= degree:
        raise ValueError(f"nodes={nodes} must be above degree={degree}")
    rng = np.random.default_rng(seed)
    edges: list[tuple[int, int]] = []
    ends = list(range(degree))  # a node as often as it has edges: the preferential attachment
    for node in range(degree, nodes):
        for other in {int(i) for i in rng.choice(ends, size=degree)}:
            edges.append((other, node))
            ends += [other, node]
    model = _model(f"indset-{nodes}-{seed}")
    x = [model.addVar(vtype="B", obj=1.0) for _ in range(nodes)]
    for i, j in edges:
        model.addCons(x[i] + x[j] <= 1)
    model.setMaximize()
    return model


def cauctions(items: int, bids: int, *, seed: int = 0) -> Model:
    """Winner determination of a combinatorial auction: bids on related items (Leyton-Brown et al., 2000)."""
    _check(items=items, bids=bids)
    rng = np.random.default_rng(seed)
    worth, place = rng.uniform(1, 100, size=items), rng.random((items, 2))
    near = np.exp(-4 * np.linalg.norm(place[:, None] - place[None], axis=2))
    bundles = []
    for _ in range(bids):
        bundle = {int(rng.integers(items))}
        while len(bundle) < items and rng.random() < 0.7:
            chance = near[list(bundle)].sum(axis=0)
            chance[list(bundle)] = 0
            bundle.add(int(rng.choice(items, p=chance / chance.sum())))
        bundles.append((sorted(bundle), float(worth[list(bundle)].sum() ** 1.1 * rng.uniform(0.75, 1.25))))
    model = _model(f"cauctions-{items}x{bids}-{seed}")
    x = [model.addVar(vtype="B", obj=price) for _, price in bundles]
    for item in range(items):
        if len(wanted := [x[j] for j, (bundle, _) in enumerate(bundles) if item in bundle]) > 1:
            model.addCons(quicksum(wanted) <= 1)
    model.setMaximize()
    return model


def facility(customers: int, facilities: int, *, ratio: float = 5.0, seed: int = 0) -> Model:
    """Capacitated facility location with fixed costs (Cornuéjols et al., 1991); capacity is ``ratio`` times demand."""
    _check(customers=customers, facilities=facilities)
    rng = np.random.default_rng(seed)
    distance = np.linalg.norm(rng.random((customers, 1, 2)) - rng.random((1, facilities, 2)), axis=2)
    demand = rng.integers(5, 36, size=customers).astype(float)
    capacity = rng.integers(10, 161, size=facilities).astype(float)
    fixed = rng.integers(100, 111, size=facilities) * np.sqrt(capacity) + rng.integers(0, 91, size=facilities)
    capacity = np.round(capacity * ratio * demand.sum() / capacity.sum())
    model = _model(f"facility-{customers}x{facilities}-{seed}")
    opened = [model.addVar(vtype="B", obj=float(cost)) for cost in fixed]
    served = [[model.addVar(vtype="C", ub=1.0, obj=float(10 * demand[i] * d)) for d in distance[i]]
              for i in range(customers)]  # fmt: skip
    for shares in served:
        model.addCons(quicksum(shares) >= 1)
    for j, is_open in enumerate(opened):
        model.addCons(quicksum(demand[i] * served[i][j] for i in range(customers)) <= capacity[j] * is_open)
    model.addCons(quicksum(c * is_open for c, is_open in zip(capacity, opened, strict=True)) >= demand.sum())
    return model


def lotsizing(products: int, periods: int, *, seed: int = 0) -> Model:
    """Capacitated lot sizing (Trigeiro et al., 1989): a family whose tree is large unless cuts tighten the root."""
    _check(products=products, periods=periods)
    rng = np.random.default_rng(seed)
    demand = rng.integers(20, 121, size=(products, periods)).astype(float) * (rng.random((products, periods)) > 0.1)
    capacity = float(np.ceil(1.3 * demand.sum() / periods))
    setup, holding = rng.integers(200, 1001, size=products), rng.uniform(1, 5, size=products)
    model = _model(f"lotsizing-{products}x{periods}-{seed}")
    used: list[list[object]] = [[] for _ in range(periods)]
    for i in range(products):
        stock: object = 0
        for t in range(periods):
            made, start = model.addVar(ub=capacity), model.addVar(vtype="B", obj=float(setup[i]))
            # demand that is met late costs fifty times holding, so that every instance is feasible
            late, kept = model.addVar(obj=float(50 * holding[i])), model.addVar(obj=float(holding[i]))
            model.addCons(stock + made + late - kept == float(demand[i, t]))
            model.addCons(made <= min(capacity, float(demand[i, t:].sum())) * start)
            used[t].append(made)
            stock = kept
    for made_then in used:
        model.addCons(quicksum(made_then) <= capacity)
    return model


def read_miplib(name: str) -> Model:
    """A small MIPLIB model of `cameraready.data` ("bell5", "gesa2", ...), fetched on first use."""
    from cameraready import data

    model = Model()
    model.hideOutput()
    model.readProblem(str(data.load(f"mip:{name}")))
    return model


def fetch_miplib(names: Sequence[str], folder: str | Path) -> list[Path]:
    """Copy small MIPLIB models into a folder, each checked by its digest; returns their paths."""
    from cameraready import data

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copy(data.load(f"mip:{name}"), folder / f"{name}.mps")) for name in names]


def _model(name: str) -> Model:
    model = Model(name)
    model.hideOutput()
    return model


def _check(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
