"""Decentralised DPO: local steps and mixing with neighbours, without a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from cameraready.methods.fed_dpo import history as records
from cameraready.methods.fed_dpo.federated import evaluation, warn_if_separable
from cameraready.methods.fed_dpo.graphs import mixing_matrices, without
from cameraready.methods.fed_dpo.history import History, Prediction
from cameraready.methods.fed_dpo.local_training import Recipe, check_counts, draw_batches
from cameraready.methods.fed_dpo.objective import Objective, Trainable
from cameraready.methods.fed_dpo.preferences import PreferenceClient, client_weights
from cameraready.methods.fed_dpo.transport import transport


class DecentralizedDPO:
    """Direct preference optimisation among peers: each exchanges parameters with its neighbours in a graph.

    "dsgd": theta_i <- sum_j W_ij (theta_j - lr g_j), mixing every ``gossip_every`` steps. "tracking": the y_i, which
    follow the mean gradient, take the gradient's place, y_i <- sum_j W_ij (y_j + g_j_new - g_j_old); its end point is
    theta*, for twice the bytes. g_j is n p_j times client j's gradient, so that the sum of weights p_j is minimised.

    Parameters
    ----------
    model, clients, batch_size, trainable, evaluate_every, seed, available : as in `FederatedDPO`. A node that is away
        for a step neither trains nor mixes; one whose parameters are not finite goes back to where it was, and one
        whose gradient is not finite tracks without it.
    graph : networkx.Graph (Metropolis weights), a symmetric doubly stochastic W, or a list of them, used in turn.
    steps : of every node.
    engine : "inprocess", or "torch" with one client a process.
    allow_disconnected : accept a graph in pieces (W = I is training alone).

    Examples
    --------
    >>> from cameraready.methods.fed_dpo import LogLinearPairs, LogLinearPolicy
    >>> clients = [PreferenceClient(LogLinearPairs(D), beta=1.0) for D in ([[1.0], [-0.5]], [[2.0], [-1.0]])]
    >>> run = DecentralizedDPO(LogLinearPolicy(1), clients, [[0.5, 0.5], [0.5, 0.5]], lr=0.5, steps=20)
    >>> float(run.fit().table["drift"].iloc[-1])  # two nodes that average agree
    0.0
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Sequence[PreferenceClient],
        graph: Any,
        *,
        lr: float,
        steps: int,
        gossip_every: int = 1,
        algorithm: Literal["dsgd", "tracking"] = "dsgd",
        batch_size: int | None = None,
        trainable: Trainable = "all",
        engine: Literal["inprocess", "torch"] = "inprocess",
        available: Callable[[int, int], bool] | None = None,
        allow_disconnected: bool = False,
        evaluate_every: int = 1,
        seed: int = 0,
        **objective: Any,
    ) -> None:
        clients = list(clients)
        self.recipe = Recipe(gossip_every, lr, batch_size=batch_size, seed=seed)
        check_counts(1, steps=steps)
        check_counts(0, evaluate_every=evaluate_every, seed=seed)
        if algorithm not in ("dsgd", "tracking"):
            raise ValueError(f"algorithm={algorithm!r}; choose 'dsgd' or 'tracking'")
        if algorithm == "tracking" and gossip_every > 1:
            raise ValueError(f"tracking mixes after every step; gossip_every={gossip_every} must be 1")
        if engine == "flower":
            raise ValueError("engine='flower' has a server; use 'inprocess' or 'torch' for gossip")
        self.algorithm, self.steps, self.evaluate_every = algorithm, steps, evaluate_every
        self.engine, self.available = engine, available
        self.transport = transport(engine)
        self.objective = Objective(model, clients, trainable=trainable, **objective)
        everyone = self.transport.gather([(len(client.data), client.weight) for client in clients])
        self.weights = client_weights([n for n, _ in everyone], [weight for _, weight in everyone])
        self.mixing = mixing_matrices(graph, len(everyone), allow_disconnected=allow_disconnected)
        self._links = np.mean([np.count_nonzero(W) - np.count_nonzero(np.diag(W)) for W in self.mixing])
        self.ids = list(range(self.transport.first, self.transport.first + len(clients)))
        self.scale = torch.tensor([self.weights[i] * len(everyone) for i in self.ids], dtype=torch.float64)[:, None]
        self.scale = self.scale.to(self.objective.theta_ref)
        self.thetas = self.objective.theta_ref.repeat(len(clients), 1)
        self.directions: Tensor | None = None  # y_i of gradient tracking, and the gradients they hold
        self.step = 0
        self.prediction: Prediction | None = None
        self._rows: list[dict[str, Any]] = []

    @property
    def models(self) -> list[Tensor]:
        """Each node's parameters, flat; ``objective.write`` puts one into the model."""
        return list(self.thetas)

    def consensus_model(self) -> nn.Module:
        """The model, with the mean of the nodes' parameters."""
        self.objective.write(self._mean(self.thetas))
        return self.objective.model

    def predict(self) -> Prediction:
        """What theory expects (see `Prediction`); for one fixed graph, and "dsgd"."""
        if self.engine == "torch" or len(self.mixing) > 1 or self.algorithm == "tracking":
            raise ValueError("predictions are for dsgd over one fixed graph, with all clients in one process")
        self.prediction = records.predict(
            self.objective,
            lr=self.recipe.lr,
            local_steps=self.recipe.local_steps,
            rounds=self.steps // self.recipe.local_steps,
            batch_size=self.recipe.batch_size,
            mixing=self.mixing[0],
        )
        return self.prediction

    def fit(self) -> History:
        """Take the steps that are left.

        Returns
        -------
        History with a row a mixing; loss and the like are at the mean of the nodes, node_loss is the mean over nodes of
        f at each one's parameters (log-linear policies), drift = mean ||theta_i - mean||^2, moved the nodes' RMS move.
        """
        every = self.recipe.local_steps
        while self.step < self.steps:
            start = time.perf_counter()
            before = self.thetas
            away = [] if self.available is None else [
                i for i in range(len(self.weights)) if not self.available(self.step // every, i)
            ]  # fmt: skip
            lost = self._advance(away)
            self._record(before, start=start, away=away, lost=lost)
        self.consensus_model()
        warn_if_separable(self.objective, self._rows)
        import pandas as pd

        return History(pd.DataFrame(self._rows), self.prediction)

    def state_dict(self) -> dict[str, Any]:
        directions = None if self.directions is None else self.directions.clone()
        rows = [dict(row) for row in self._rows]
        return {"step": self.step, "thetas": self.thetas.clone(), "directions": directions, "rows": rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["thetas"].shape != self.thetas.shape:
            raise ValueError(f"saved thetas {tuple(state['thetas'].shape)}, this run has {tuple(self.thetas.shape)}")
        self.thetas = state["thetas"].clone().to(self.thetas)
        self.directions = None if state["directions"] is None else state["directions"].clone().to(self.thetas)
        self.step, self._rows = state["step"], [dict(row) for row in state["rows"]]

    def _advance(self, away: list[int]) -> list[int]:
        """Local steps and one mixing; returns the nodes whose parameters or gradients were not finite."""
        every, lr = self.recipe.local_steps, self.recipe.lr
        turn = self.step // every
        count = min(every, self.steps - self.step)
        here = torch.tensor([i not in away for i in self.ids])[:, None]
        kept, theta = self.thetas, self.thetas
        tracked = self.directions
        if self.algorithm == "tracking":
            if tracked is None:
                g, _ = self._finite_gradient(theta, 0, instead=torch.zeros_like(theta))
                tracked = torch.stack([g, g])
            theta = torch.where(here, theta - lr * tracked[0], theta)
        else:
            for k in range(count):
                theta = torch.where(here, theta - lr * self._gradient(theta, self.step + k), theta)
        good = torch.isfinite(theta).all(dim=1)
        lost = self._known_to_all(~good)  # every node must know whose parameters are of no use before it mixes
        theta = torch.where(good[:, None], theta, kept)
        W = without(self.mixing[turn % len(self.mixing)], sorted({*away, *lost}))
        self.thetas = self.transport.mix(W, theta)
        self.step += count
        if tracked is not None:
            new, failed = self._finite_gradient(self.thetas, self.step, instead=tracked[1])
            y = self.transport.mix(W, tracked[0] + new - tracked[1])
            self.directions = torch.stack([y, new])
            lost = sorted({*lost, *self._known_to_all(failed)})
        return lost

    def _finite_gradient(self, thetas: Tensor, step: int, *, instead: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients, with ``instead`` where one is not finite (NaN would spread by mixing), and where that was."""
        found = self._gradient(thetas, step)
        failed = ~torch.isfinite(found).all(dim=1)
        return torch.where(failed[:, None], instead, found), failed

    def _known_to_all(self, mine: Tensor) -> list[int]:
        """The numbers of nodes, in all processes, that a mask over those of this process names."""
        if self.engine == "inprocess":
            return torch.nonzero(mine)[:, 0].tolist()
        marks = torch.zeros(len(self.weights)).to(self.thetas)
        marks[self.ids] = mine.to(marks)
        return torch.nonzero(self.transport.sum(marks))[:, 0].tolist()

    def _gradient(self, thetas: Tensor, step: int) -> Tensor:
        rows = share = None
        if self.recipe.batch_size is not None:
            drawn = draw_batches(
                self.objective.sizes,
                self.ids,
                batch_size=self.recipe.batch_size,
                steps=1,
                seed=self.recipe.seed,
                round=step,
            )
            rows, share = drawn.rows[0], drawn.share
        return self.scale * self.objective.gradients(thetas, rows=rows, share=share)

    def _mean(self, x: Tensor) -> Tensor:
        return self.transport.sum(x.sum(dim=0)) / len(self.weights)

    def _record(self, before: Tensor, *, start: float, away: list[int], lost: list[int]) -> None:
        seconds = time.perf_counter() - start
        mean = self._mean(self.thetas)
        squares = torch.stack([((self.thetas - mean) ** 2).sum(), ((self.thetas - before) ** 2).sum()])
        squares = self.transport.sum(squares) / len(self.weights)
        row: dict[str, Any] = {"step": self.step, "loss": np.nan, "node_loss": np.nan, "zeta2": np.nan}
        row |= {"drift": float(squares[0]), "moved": float(squares[1]) ** 0.5}
        vectors = 2 if self.algorithm == "tracking" else 1
        row["bytes"] = int(self._links * vectors * mean.numel() * mean.element_size())
        row |= {"excluded": lost, "away": away, "seconds": seconds}
        turn = -(-self.step // self.recipe.local_steps)
        if self.evaluate_every and (turn % self.evaluate_every == 0 or self.step >= self.steps):
            weights = [self.weights[i] for i in self.ids]
            row |= evaluation(self.objective, mean, weights, self.transport.sum)
            if self.objective.log_linear and self.engine == "inprocess":
                there = [evaluation(self.objective, theta, weights, self.transport.sum) for theta in self.thetas]
                row["node_loss"] = float(np.mean([found["loss"] for found in there]))
        self._rows.append(row)
