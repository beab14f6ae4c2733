"""One of four processes, each with one client: federated averaging (fedavg, scaffold) or gossip over gloo."""

import sys
from pathlib import Path

import torch
from torch import distributed

sys.path.insert(0, str(Path(__file__).parent))
from fed_dpo_clients import log_linear_clients

from cameraready.methods.fed_dpo import DecentralizedDPO, FederatedDPO, LogLinearPolicy

RING = [[0.5, 0.25, 0.0, 0.25], [0.25, 0.5, 0.25, 0.0], [0.0, 0.25, 0.5, 0.25], [0.25, 0.0, 0.25, 0.5]]


def run(kind, clients, *, engine):
    common = {"lr": 0.5, "batch_size": 8, "engine": engine, "seed": 3}
    if kind in ("dsgd", "tracking"):
        return DecentralizedDPO(
            LogLinearPolicy(3),
            clients,
            RING,
            steps=12,
            algorithm=kind,
            available=lambda t, i: (t, i) != (4, 2),
            **common,
        )
    return FederatedDPO(
        LogLinearPolicy(3), clients, local_steps=3, rounds=6, algorithm=kind, participation=0.7, **common
    )


def weights(one):
    return one.thetas if isinstance(one, DecentralizedDPO) else one.theta


if __name__ == "__main__":
    folder = sys.argv[1]
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    for kind in ("fedavg", "scaffold", "dsgd", "tracking"):
        one = run(kind, [log_linear_clients(4)[rank]], engine="torch")
        table = one.fit().table
        torch.save({"weights": weights(one), "loss": table["loss"].tolist(), "drift": table["drift"].tolist(),
                    "zeta2": table["zeta2"].tolist()}, f"{folder}/{kind}{rank}.pt")  # fmt: skip
    distributed.destroy_process_group()
