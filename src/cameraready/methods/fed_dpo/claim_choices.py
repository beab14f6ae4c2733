"""People who chose among alternatives as clients, and their runs over graphs, for the claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import networkx as nx
import numpy as np
import torch
from scipy import stats

from cameraready.methods.fed_dpo import (
    DecentralizedDPO,
    LogLinearPairs,
    LogLinearPolicy,
    Objective,
    PreferenceClient,
    dsgd_fixed_point,
    exponential_graph,
    metropolis,
    optimum,
    spectral_gap,
)
from cameraready.methods.fed_dpo.landscape import hessians, local_optima, smoothness, third_derivatives, weights_of

KEYS = ("id", "chid", "alt", "choice")  # person, situation, alternative (not needed), whether it was chosen


def choice_pairs(choices: Any) -> tuple[np.ndarray, np.ndarray]:
    """Chosen against each alternative not chosen: feature differences (pairs, features), whitened, and persons.

    ``choices`` has a row an alternative: id, chid, choice, and features, which are all other columns of numbers.
    """
    table = getattr(choices, "X", choices)  # a user's file comes with a target, if it names one
    if missing := {"id", "chid", "choice"} - set(table):
        raise ValueError(
            f"no column {', '.join(sorted(missing))}; a table of choices has id, chid, choice and features"
        )
    picked = table["choice"].astype(bool)
    if not (per := picked.groupby(table["chid"]).sum()).eq(1).all():
        raise ValueError(f"{int((per != 1).sum())} situations (chid) have not exactly one row chosen; drop them")
    features = [name for name in table.select_dtypes(["number", "bool"]) if name not in KEYS]
    chosen, others = table[picked].set_index("chid"), table[~picked]
    D = chosen.loc[others["chid"], features].to_numpy(float) - others[features].to_numpy(float)
    if not np.isfinite(D).all() or not features:
        raise ValueError("the features are missing, or not finite in some rows; give numbers, and drop those rows")
    values, vectors = np.linalg.eigh(D.T @ D / len(D))
    if values[0] < 1e-12 * values[-1]:
        raise ValueError("some feature is constant in every situation, or a sum of others; drop it")
    return D @ (vectors / np.sqrt(values)) @ vectors.T, others["id"].to_numpy()


def people_clients(
    choices: Any, rng: np.random.Generator, *, split: str, groups: int = 10, sorted_share: float = 1.0
) -> list[PreferenceClient]:
    """Groups of people as clients, beta 1; a random tenth of the people is left out, so that seeds differ.

    "IID" groups them at random, "by taste" along the first principal component of their tastes, each fitted to the
    person's own pairs with a ridge of 0.1. A smaller ``sorted_share`` leaves the others in random places.
    """
    D, person = choice_pairs(choices)
    names = np.unique(person)
    kept = rng.permutation(names)[: round(0.9 * len(names))]
    if len(kept) < groups:
        raise ValueError(f"{len(names)} persons (id) are too few; give {2 * groups} or more")
    of = {name: D[person == name] for name in kept}
    if split == "by taste":
        singles = [PreferenceClient(LogLinearPairs(of[name]), beta=1.0) for name in kept]
        tastes = local_optima(Objective(LogLinearPolicy(D.shape[1]), singles, ridge=0.1)).numpy()
        centred = tastes - tastes.mean(axis=0)
        taste = centred @ np.linalg.svd(centred, full_matrices=False)[2][0]
        some = np.sort(rng.permutation(len(kept))[: round(sorted_share * len(kept))])
        kept[some] = kept[some][np.argsort(taste[some])]
    parts = np.array_split(kept, groups)
    return [PreferenceClient(LogLinearPairs(np.concatenate([of[name] for name in part])), beta=1.0) for part in parts]


def policy(clients: list[PreferenceClient]) -> LogLinearPolicy:
    data = clients[0].data
    assert isinstance(data, LogLinearPairs)
    return LogLinearPolicy(data.D.shape[1])


def gaps(objective: Objective, thetas: Iterable[torch.Tensor]) -> np.ndarray:
    """f - f* at each of some points."""
    p, star = weights_of(objective), optimum(objective)
    best = p @ objective.losses(star).loss
    return np.array([float(p @ objective.losses(theta).loss - best) for theta in thetas])


def graphs(n: int) -> Mapping[str, Any]:
    return {
        "ring": nx.cycle_graph(n),
        "exponential": exponential_graph(n),
        "path": nx.path_graph(n),
        "star": nx.star_graph(n - 1),
        "complete": nx.complete_graph(n),
    }


def graph_runs(trial: Any, choices: Any, *, split: str, tracking: bool) -> None:
    """Decentralised descent to its end on every graph, beside its prediction (or the order of the graphs)."""
    clients = people_clients(choices, trial.rng, split=split)
    objective = Objective(policy(clients), clients)
    n = len(clients)
    star, scale = optimum(objective), n * weights_of(objective)[:, None]
    H, g, third = hessians(objective, star), objective.losses(star).gradient, third_derivatives(objective, star)
    common = {"lr": 0.2 / float(smoothness(objective).max()), "evaluate_every": 0}
    gap, floors = [], []
    for name, graph in graphs(n).items():
        W = metropolis(graph)
        run = DecentralizedDPO(policy(clients), clients, W, steps=400, **common)
        run.fit()
        gap.append(spectral_gap(W))
        # rounding errors of the loss, which may be negative, count as 1e-16
        floors.append(max(1e-16, gaps(objective, run.thetas).mean()))
        apart = float(((run.thetas - run.thetas.mean(dim=0)) ** 2).sum(dim=1).mean() ** 0.5)
        row = {"graph": name, "gap": round(gap[-1], 3)}
        floor = {"suboptimality": floors[-1]} if name != "complete" else {}  # zero there, on a logarithmic chart
        trial.record(method="measured", disagreement=apart, **floor, **row)
        if not tracking:
            continue
        end = dsgd_fixed_point(
            W, scale[..., None] * H, scale * g, lr=common["lr"], third=lambda v: scale.numpy() * third(v)
        )
        floor = {"suboptimality": end.node_floor} if floor else {}
        trial.record(method="predicted", disagreement=end.spread, remainder=end.remainder, **floor, **row)
        if name != "complete":
            run = DecentralizedDPO(policy(clients), clients, W, steps=800, algorithm="tracking", **common)
            run.fit()
            trial.record(method="tracking", suboptimality=max(1e-16, gaps(objective, run.thetas).mean()), **row)
            trial.record(method="pure gossip", contraction_error=abs(_contraction(W, trial.rng) - (1 - gap[-1])), **row)
    if not tracking:
        agreement = -stats.spearmanr(gap, floors).statistic
        trial.record(method="five graphs", order_agreement=round(float(agreement), 12))


def _contraction(W: np.ndarray, rng: np.random.Generator) -> float:
    """The factor by which disagreement shrinks at last, when nodes do nothing but mix."""
    x = rng.normal(size=(len(W), 5))
    norms = []
    for _ in range(1500):
        x = W @ (x - x.mean(axis=0))  # again each time: rounding errors in the mean would not shrink
        norms.append(np.linalg.norm(x))
        x /= norms[-1]
    return float(norms[-1])
