"""The runs behind the claims about graphs and about a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np
import torch
from scipy import stats

from cameraready import data
from cameraready.methods.fed_dpo import (
    DecentralizedDPO,
    FederatedDPO,
    Objective,
    dsgd_fixed_point,
    exponential_graph,
    metropolis,
    spectral_gap,
)
from cameraready.methods.fed_dpo.claim_inputs import electricity_clients, gaps, policy
from cameraready.methods.fed_dpo.claim_text import docstrings, pretrained, users
from cameraready.methods.fed_dpo.landscape import hessians, noise, optimum, smoothness, third_derivatives, weights_of
from cameraready.methods.fed_dpo.theory import drift_to_first_order


def graphs(n: int) -> Mapping[str, Any]:
    return {
        "ring": nx.cycle_graph(n),
        "exponential": exponential_graph(n),
        "path": nx.path_graph(n),
        "star": nx.star_graph(n - 1),
        "complete": nx.complete_graph(n),
    }


def graph_runs(trial: Any, *, split: str, tracking: bool) -> None:
    """Decentralised descent to its end on every graph, beside its prediction (or the order of the graphs)."""
    clients = electricity_clients(data.load("electricity"), trial.rng, split=split)
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
        row = {"graph": name, "gap": gap[-1]}
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


def language_model_runs(trial: Any, *, pairs: int, pretraining: int) -> None:
    corpus = docstrings(200_000)
    model = pretrained(corpus, steps=pretraining, seed=trial.seed)
    first = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    settings = {"lr": 0.5, "batch_size": 16, "seed": trial.seed, "evaluate_every": 0}

    def fresh() -> Any:
        torch.nn.utils.vector_to_parameters(first.clone(), model.parameters())  # parameters become views of it
        return model

    for kind in ("alike", "conflicting"):
        people = users(fresh(), corpus, alike=kind == "alike", pairs=pairs, held_out=100, seed=trial.seed)
        held_out = Objective(fresh(), people.test)

        def score(name: str, thetas: torch.Tensor, *, rounds: int, curve: str, held_out: Any = held_out) -> None:
            found = held_out.losses(thetas, gradient=False)
            trial.record(
                method=name, held_out_loss=found.loss.mean(), accuracy=found.accuracy.mean(), rounds=rounds, curve=curve
            )

        plans = [(1, 40), (4, 10), (8, 5)] if kind == "alike" else [(4, 10)]
        for K, rounds in plans:
            run = FederatedDPO(fresh(), people.train, local_steps=K, rounds=rounds, **settings)
            drift = []
            for part in sorted({min(rounds, stop) for stop in (1, 10, 40)}):
                run.rounds = part
                drift = run.fit().table["drift"].tolist()
                score(f"{kind}, K={K}, {part} rounds", run.theta, rounds=part, curve=f"{kind}, K={K}")
            trial.record(method=f"{kind}, by K", K=K, drift=np.mean(drift))
            if kind == "alike" and K < 8:
                trial.record(method="first round, measured", K=K, drift=drift[0])
        if kind == "alike":
            objective = Objective(fresh(), people.train)
            p, gradients = weights_of(objective), objective.losses(first).gradient
            zeta2 = float(p @ ((gradients - p @ gradients) ** 2).sum(dim=1))
            sigma2 = float(p @ noise(objective, first, batch_size=16, seed=trial.seed, replicates=4))
            for K in (1, 4):
                drift_K = drift_to_first_order(lr=settings["lr"], K=K, sigma2=sigma2, zeta2=zeta2, M=1 / float(p @ p))
                trial.record(method="first round, predicted", K=K, drift=drift_K)
            each = DecentralizedDPO(
                fresh(), people.train, np.eye(4), steps=40, gossip_every=40, allow_disconnected=True, **settings
            )
            each.fit()
            score("alike, alone", each.thetas, rounds=0, curve="alike, alone")
            score("alike, one shot", each.thetas.mean(dim=0), rounds=1, curve="alike, one shot")
