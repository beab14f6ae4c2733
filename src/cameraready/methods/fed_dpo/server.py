"""The server's part of a round: who trains, and what becomes of the sums that come back."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from cameraready.methods.fed_dpo.local_training import Recipe, Report
from cameraready.methods.fed_dpo.lora_average import Average

ServerOptimizer = Callable[[list[torch.nn.Parameter]], Optimizer]


class Server:
    """Holds theta, SCAFFOLD's control variate and the optimizer that applies the clients' mean update.

    Parameters
    ----------
    optimizer : makes a torch optimizer of the parameters it is given, which follows minus the mean update as its
        gradient: torch.optim.SGD(lr=1, momentum=0.9) is FedAvgM, Adam is FedAdam. None takes the mean as it is.
    participation : share of clients that train in a round, drawn uniformly without replacement.
    available : (round, client) -> bool; a client that is away when drawn is left out of the round.
    """

    def __init__(
        self,
        theta: Tensor,
        recipe: Recipe,
        *,
        n_clients: int,
        participation: float,
        average: Average,
        optimizer: ServerOptimizer | None = None,
        available: Callable[[int, int], bool] | None = None,
    ) -> None:
        if not isinstance(participation, Real) or not 0 < participation <= 1:
            raise ValueError(f"participation={participation!r} is not in (0, 1]")
        if not (optimizer is None or callable(optimizer)):
            raise TypeError(f"server_opt={optimizer!r}; give what makes one, as lambda p: torch.optim.Adam(p, lr=0.01)")
        self.recipe, self.n_clients, self.participation = recipe, n_clients, participation
        self.average, self.available = average, available
        self.parameter = torch.nn.Parameter(theta.clone())
        self.optimizer = None if optimizer is None else optimizer([self.parameter])
        self.control = torch.zeros_like(theta) if recipe.algorithm == "scaffold" else None

    @property
    def theta(self) -> Tensor:
        return self.parameter.detach()

    def choose(self, round: int) -> tuple[list[int], list[int]]:
        """The clients that train in a round, and those that were drawn but are away."""
        count = math.ceil(self.participation * self.n_clients - 1e-9)
        rng = np.random.default_rng((self.recipe.seed, round))
        drawn = sorted(rng.choice(self.n_clients, count, replace=False).tolist())
        away = [] if self.available is None else [i for i in drawn if not self.available(round, i)]
        return [i for i in drawn if i not in away], away

    def absorb(self, report: Report) -> dict[str, float]:
        """One step from the clients' sums; returns the drift, sum p_i ||theta_i - mean||^2, and the move's length.

        Weights are those of the clients that came back, scaled to sum to 1. When none did, nothing changes.
        """
        if report.weight <= 0:
            return {"drift": math.nan, "moved": 0.0}
        before = self.theta.clone()
        change = report.total / report.weight
        mean_move = change[: len(before)]
        drift = max(0.0, report.moved2 / report.weight - float(mean_move @ mean_move))
        after = self.average.decode(self.average.encode(before) + change)
        if self.optimizer is None:
            self.parameter.data.copy_(after)
        else:
            self.parameter.grad = before - after
            self.optimizer.step()
        if self.control is not None:
            self.control += report.control
        return {"drift": drift, "moved": float((self.theta - before).norm())}

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"theta": self.theta.clone()}
        if self.control is not None:
            state["control"] = self.control.clone()
        if self.optimizer is not None:
            state["optimizer"] = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parameter.data.copy_(state["theta"])
        if self.control is not None:
            self.control.copy_(state["control"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
