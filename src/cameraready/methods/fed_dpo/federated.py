"""Federated DPO: rounds of local steps and averaging."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from cameraready.methods.fed_dpo import history as records
from cameraready.methods.fed_dpo.history import History, Prediction
from cameraready.methods.fed_dpo.local_training import Algorithm, Recipe, Report, Worker, check_counts, local_steps
from cameraready.methods.fed_dpo.lora_average import Average, ProductAverage
from cameraready.methods.fed_dpo.objective import Objective, Trainable
from cameraready.methods.fed_dpo.preferences import PreferenceClient, client_weights
from cameraready.methods.fed_dpo.server import Server, ServerOptimizer
from cameraready.methods.fed_dpo.transport import Engine, transport


class FederatedDPO:
    """Direct preference optimisation with a server that never sees a pair.

    A round: the server sends theta; each client that takes part runs K local steps on its own DPO loss; the server
    averages with weights p_i. The reference policy is the model at round 0, on every client, for ever.

    Parameters
    ----------
    model : `LogLinearPolicy` or a causal language model. It holds the server's parameters after `fit`.
    clients : all of them; with ``engine="torch"``, those of this process.
    local_steps, lr, rounds : K, eta, R. Plain SGD, since averaging optimizer states has no meaning.
    participation, available, server_opt : see `Server`.
    algorithm : "fedavg"; "fedprox" with ``mu``, whose smaller drift costs speed; "scaffold", which removes drift for
        twice the bytes and one vector a client.
    batch_size : pairs a local step; None for all.
    trainable, and other settings of the objective (kind, label_smoothing, length_normalized, ridge, micro_batch) : see
        `Objective`.
    lora_average : "factors" averages A and B; "product" averages B A and factors it again.
    engine : "inprocess", "torch" (torch.distributed, one all_reduce a round) or "flower" (its simulation engine).
    evaluate_every : rounds between evaluations on all pairs, which cost a pass forward and back over them; 0 for never.

    Examples
    --------
    >>> from cameraready.methods.fed_dpo import LogLinearPairs, LogLinearPolicy
    >>> clients = [PreferenceClient(LogLinearPairs(D), beta=1.0) for D in ([[1.0], [-0.5]], [[2.0], [-1.0]])]
    >>> run = FederatedDPO(LogLinearPolicy(1), clients, local_steps=2, lr=0.5, rounds=20)
    >>> print(run.fit())  # doctest: +ELLIPSIS
    20 rounds, loss 0.6... MB exchanged, ...
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Sequence[PreferenceClient],
        *,
        local_steps: int,
        lr: float,
        rounds: int,
        participation: float = 1.0,
        algorithm: Algorithm = "fedavg",
        mu: float = 0.01,
        server_opt: ServerOptimizer | None = None,
        batch_size: int | None = None,
        trainable: Trainable = "all",
        lora_average: Literal["factors", "product"] = "factors",
        engine: Engine = "inprocess",
        available: Callable[[int, int], bool] | None = None,
        evaluate_every: int = 1,
        seed: int = 0,
        **objective: Any,
    ) -> None:
        clients = list(clients)
        recipe = Recipe(local_steps, lr, algorithm, mu, batch_size, seed)
        check_counts(1, rounds=rounds)
        check_counts(0, evaluate_every=evaluate_every, seed=seed)
        if lora_average not in ("factors", "product"):
            raise ValueError(f"lora_average={lora_average!r}; choose 'factors' or 'product'")
        if lora_average == "product" and algorithm == "scaffold":
            raise ValueError("lora_average='product' changes the factors that SCAFFOLD corrects; use 'factors'")
        self.engine, self.rounds, self.evaluate_every = engine, rounds, evaluate_every
        self.transport = transport(engine)
        self.objective = Objective(model, clients, trainable=trainable, **objective)
        self.model = self.objective.model
        everyone = self.transport.gather([(len(client.data), client.weight) for client in clients])
        self.weights = client_weights([n for n, _ in everyone], [weight for _, weight in everyone])
        ids = range(self.transport.first, self.transport.first + len(clients))
        self.worker = Worker(self.objective, recipe, ids=ids, weights=[self.weights[i] for i in ids])
        average = ProductAverage(self.objective) if lora_average == "product" else Average()
        self.server = Server(
            self.objective.theta_ref,
            recipe,
            n_clients=len(everyone),
            participation=participation,
            average=average,
            optimizer=server_opt,
            available=available,
        )
        self._packed = self.objective.theta_ref.new_empty(0)
        self.round = 0
        self.prediction: Prediction | None = None
        self._rows: list[dict[str, Any]] = []

    @property
    def theta(self) -> Tensor:
        """The server's parameters, flat."""
        return self.server.theta.clone()

    def predict(self) -> Prediction:
        """What theory expects of this run (see `Prediction`); kept, for ``fit().compare()``."""
        recipe = self.worker.recipe
        if self.engine == "torch":
            raise ValueError("a prediction needs all clients in one process; predict with engine='inprocess'")
        if recipe.algorithm != "fedavg" or self.server.optimizer is not None:
            raise ValueError(f"predictions are for fedavg without server_opt; this run has {recipe.algorithm!r}")
        self.prediction = records.predict(
            self.objective,
            lr=recipe.lr,
            local_steps=recipe.local_steps,
            rounds=self.rounds,
            batch_size=recipe.batch_size,
        )
        return self.prediction

    def fit(self) -> History:
        """Run the rounds that are left.

        Returns
        -------
        History whose table has a row a round: loss, zeta2, accuracy, margin, chosen, rejected (log-ratios) at the
        server's new parameters, drift = sum p_i ||theta_i^K - mean||^2, moved, bytes, seconds, and the clients excluded
        or away.
        """
        if self.engine == "flower":
            from cameraready.methods.fed_dpo.flower import simulate

            simulate(self)
        else:
            while self.round < self.rounds:
                start = time.perf_counter()
                chosen, away = self.server.choose(self.round)
                report = self.worker.train(
                    self.theta,
                    round=self.round,
                    chosen=chosen,
                    control=self.server.control,
                    encode=self.server.average.encode,
                )
                self.finish_round(self._sum(report), chosen=chosen, away=away, start=start)
        self.objective.write(self.theta)
        warn_if_separable(self.objective, self._rows)
        import pandas as pd

        return History(pd.DataFrame(self._rows), self.prediction)

    def personalize(self, *, steps: int, lr: float, ridge: float) -> Tensor:
        """An adapter a client: theta + delta_i, delta_i from ``steps`` on f_i + ridge / 2 ||delta_i||^2.

        Returns
        -------
        Tensor (clients of this process, d), which stays on the clients.
        """
        check_counts(1, steps=steps)
        if ridge < 0 or not lr > 0:
            raise ValueError(f"lr={lr} must be positive, ridge={ridge} at least 0")
        return local_steps(self.objective, self.theta, which=range(len(self.objective)), steps=steps, lr=lr, mu=ridge)

    def state_dict(self) -> dict[str, Any]:
        """All that a later run needs to go on: round, theta, control variates, server optimizer, records."""
        return {
            "round": self.round,
            "server": self.server.state_dict(),
            "controls": self.worker.controls.clone(),
            "reference": self.objective.theta_ref.clone(),
            "rows": [dict(row) for row in self._rows],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. The model given to the constructor must be the one of round 0, the reference."""
        if not torch.equal(state["reference"].to(self.objective.theta_ref), self.objective.theta_ref):
            raise ValueError("the model is not the reference policy of the saved run; construct with that of round 0")
        if state["controls"].shape != self.worker.controls.shape:
            shapes = tuple(state["controls"].shape), tuple(self.worker.controls.shape)
            raise ValueError(f"the saved run has control variates of shape {shapes[0]}, this one {shapes[1]}")
        self.server.load_state_dict(state["server"])
        self.worker.controls.copy_(state["controls"])
        self.round, self._rows = state["round"], [dict(row) for row in state["rows"]]

    def finish_round(self, report: Report, *, chosen: list[int], away: list[int], start: float) -> None:
        """The server's step, and the round's row."""
        row = {"round": self.round, "loss": np.nan, "zeta2": np.nan, **self.server.absorb(report)}
        self.round += 1
        vectors = 2 + 2 * (self.server.control is not None)  # down and up
        row["bytes"] = vectors * len(chosen) * report.total.numel() * report.total.element_size()
        row |= {"excluded": sorted(report.excluded), "away": away, "seconds": time.perf_counter() - start}
        if self.evaluate_every and (self.round % self.evaluate_every == 0 or self.round == self.rounds):
            row |= evaluation(self.objective, self.theta, self.worker.weights, self.transport.sum)
        self._rows.append(row)

    def _sum(self, report: Report) -> Report:
        """Over all processes: one all_reduce, in a buffer that is kept, since a new one costs as much as the sum."""
        if self.engine != "torch":
            return report
        lost = torch.zeros(len(self.weights))
        lost[report.excluded] = 1
        scalars = torch.tensor([report.weight, report.moved2], dtype=torch.float64)
        parts = [x.to(report.total) for x in (scalars, lost, report.total, report.control)]
        self._packed = torch.cat(parts, out=self._packed)
        scalars, lost, total, control = self.transport.sum(self._packed).split([len(x) for x in parts])
        excluded = torch.nonzero(lost)[:, 0].tolist()
        return Report(float(scalars[0]), float(scalars[1]), total, control, excluded)


def warn_if_separable(objective: Objective, rows: Sequence[dict[str, Any]]) -> None:
    """A log-linear policy that ranks every pair right proves that no finite optimum exists."""
    if objective.log_linear and not objective.ridge and rows and rows[-1].get("accuracy", 0) > 1 - 1e-9:
        warnings.warn("every pair is ranked right: theta grows without end; pass ridge=1e-3 or so", stacklevel=3)


def evaluation(
    objective: Objective, theta: Tensor, weights: Sequence[float], total: Callable[[Tensor], Tensor]
) -> dict[str, float]:
    """Means by weight at theta, over the clients whose loss is finite, and zeta^2 = sum p_i ||grad f_i - grad f||^2."""
    found = objective.losses(theta)
    usable = torch.isfinite(found.loss) & torch.isfinite(found.gradient).all(dim=1)
    p = torch.tensor(list(weights), dtype=torch.float64).to(theta)[usable]
    names = ("loss", "accuracy", "margin", "chosen", "rejected")
    means = torch.stack([p @ getattr(found, name)[usable] for name in names])
    gradients = found.gradient[usable]
    parts = [p.sum(), means, p @ (gradients**2).sum(dim=1), p @ gradients]
    share, *parts = total(torch.cat([part.reshape(-1) for part in parts])).split([1, len(names), 1, len(theta)])
    means, squares, gradient = (part / share for part in parts)
    zeta2 = max(0.0, float(squares) - float(gradient @ gradient))
    return dict(zip(names, means.tolist(), strict=True)) | {"zeta2": zeta2}
