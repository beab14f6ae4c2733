"""The electricity customers as clients, for the claims."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from cameraready.methods.fed_dpo import landscape
from cameraready.methods.fed_dpo.objective import Objective
from cameraready.methods.fed_dpo.preferences import LogLinearPairs, LogLinearPolicy, PreferenceClient

FEATURES = ["pf", "cl", "loc", "wk", "tod", "seas"]


def choice_pairs(table: Any, *, features: list[str] = FEATURES) -> tuple[np.ndarray, np.ndarray]:
    """Chosen against each alternative not chosen: feature differences (pairs, features), whitened, and customers."""
    table = table.sort_values(["chid", "alt"])
    count = table.groupby("chid")["alt"].count()
    if count.nunique() != 1:
        raise ValueError("choice situations have different numbers of alternatives")
    x = table[features].to_numpy(float).reshape(len(count), -1, len(features))
    chosen = table["choice"].to_numpy(bool).reshape(len(count), -1)
    customer = table["id"].to_numpy().reshape(len(count), -1)[:, 0]
    D = (x[chosen][:, None] - x[~chosen].reshape(len(count), -1, len(features))).reshape(-1, len(features))
    values, vectors = np.linalg.eigh(D.T @ D / len(D))
    return D @ (vectors / np.sqrt(values)) @ vectors.T, np.repeat(customer, chosen.shape[1] - 1)


def electricity_clients(
    table: Any, rng: np.random.Generator, *, split: str, groups: int = 10, sorted_share: float = 1.0
) -> list[PreferenceClient]:
    """Groups of customers as clients, beta 1; a random tenth of the customers is left out, so that seeds differ.

    "IID" groups them at random, "by taste" along the first principal component of their tastes, each fitted to the
    customer's own pairs with a ridge of 0.1. A smaller ``sorted_share`` leaves the others in random places.
    """
    D, customer = choice_pairs(table)
    names = np.unique(customer)
    kept = rng.permutation(names)[: round(0.9 * len(names))]
    of = {name: D[customer == name] for name in kept}
    if split == "by taste":
        singles = [PreferenceClient(LogLinearPairs(of[name]), beta=1.0) for name in kept]
        tastes = landscape.local_optima(Objective(LogLinearPolicy(D.shape[1]), singles, ridge=0.1)).numpy()
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
    p, star = landscape.weights_of(objective), landscape.optimum(objective)
    best = p @ objective.losses(star).loss
    return np.array([float(p @ objective.losses(theta).loss - best) for theta in thetas])
