"""Stochastic proximal steps for PyTorch models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from .edge_penalty import EdgePenalty
from .schedules import SCHEDULES

Prox = Callable[[torch.Tensor, float], torch.Tensor]


class ProxSGD(Optimizer):
    """w <- prox_(h g)(w - h gradient): SGD whose last iterate has the penalty's structure (zeros, fused rows).

    Parameters
    ----------
    params : parameters or groups; a group may set its own "lr", "prox", "strength" and "incremental".
    lr : h, the base step size. "constant" keeps it, "linear" takes 2 lr (1 - k/total_steps), "anytime"
        lr / sqrt(k + 1). With f L-smooth use at most 1/(2 L), and lr = eta0/(L sqrt(total_steps)).
    prox : None, "l1" (strength sum |w|), "group_l2" (strength sum over rows of ||w_row||), an `EdgePenalty` whose
        tasks are the rows of each parameter (its own lam counts; rows of more axes are flattened), or a callable
        (tensor, h) -> tensor.
    strength : of "l1" and "group_l2", 1 by default.
    incremental : with an `EdgePenalty`: the prox of one uniform random edge a step, its weight times their number
        (two rows move), instead of the exact prox of the whole (which runs on the CPU in float64).
    schedule, total_steps : "linear" needs the number of steps.
    seed : of the edges drawn; `step(edge=...)` overrides them.

    Examples
    --------
    >>> heads = torch.nn.Parameter(torch.tensor([[0.0], [1.0], [5.0]]))
    >>> optimizer = ProxSGD([heads], lr=1.0, prox=EdgePenalty([(0, 1), (1, 2)], lam=1.0), schedule="constant")
    >>> (0 * heads).sum().backward(); optimizer.step()
    >>> heads.data.ravel()
    tensor([1., 1., 4.])
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        prox: str | EdgePenalty | Prox | None = None,
        *,
        strength: float = 1.0,
        incremental: bool = False,
        schedule: str = "linear",
        total_steps: int | None = None,
        seed: int = 0,
    ) -> None:
        if not 0 < lr < float("inf"):
            raise ValueError(f"lr={lr} must be positive and finite")
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule={schedule!r} is unknown; pass one of {', '.join(map(repr, SCHEDULES))}")
        if schedule == "linear" and (total_steps is None or total_steps < 1):
            raise ValueError(f"total_steps={total_steps}: the linear schedule needs the number of steps, at least 1")
        defaults = {"lr": lr, "prox": prox, "strength": strength, "incremental": incremental}
        super().__init__(params, defaults)
        self.schedule, self.total_steps = schedule, total_steps
        self.rng = np.random.default_rng(seed)
        self.steps_taken = 0
        for group in self.param_groups:
            _check_group(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, edge: int | None = None) -> Any:  # type: ignore[override]
        """One step; ``edge`` is the one to take in incremental groups. Returns what ``closure``, if given, returns.

        Raises
        ------
        RuntimeError : more steps than ``total_steps``.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        factor = self._factor()
        for group in self.param_groups:
            h = group["lr"] * factor
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-h)
                self._prox(parameter, group, h, edge)
        self.steps_taken += 1
        return loss

    def _factor(self) -> float:
        k = self.steps_taken
        if self.schedule == "anytime":
            return float((k + 1) ** -0.5)
        if self.schedule == "constant":
            return 1.0
        assert self.total_steps is not None
        if k >= self.total_steps:
            raise RuntimeError(f"step {k + 1} of total_steps={self.total_steps}: the linear schedule is over")
        return 2 * (1 - k / self.total_steps)

    def _prox(self, w: torch.Tensor, group: dict[str, Any], h: float, edge: int | None) -> None:
        prox, amount = group["prox"], h * group["strength"]
        if prox is None:
            return
        if prox == "l1":
            w.copy_(torch.sign(w) * (w.abs() - amount).clamp_min(0))
        elif prox == "group_l2":
            rows = w.reshape(len(w), -1)
            norms = rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
            w.copy_((rows * (1 - amount / norms).clamp_min(0)).reshape(w.shape))
        elif not isinstance(prox, EdgePenalty):
            w.copy_(prox(w, h))
        elif group["incremental"]:
            m = len(prox.strengths)
            if m:
                e = int(self.rng.integers(m)) if edge is None else edge
                _edge_prox(w, *prox.graph.edges[e], h * m * float(prox.strengths[e]), prox.p)
        else:
            rows = w.reshape(len(w), -1).detach().cpu().double().numpy()
            w.copy_(torch.from_numpy(prox.prox_full(rows, h, tol=1e-9)).reshape(w.shape).to(w))

    def state_dict(self) -> dict[str, Any]:
        """With the step count and the state of the edges' generator, so that a resumed run draws the same edges."""
        return {**super().state_dict(), "steps_taken": self.steps_taken, "generator": self.rng.bit_generator.state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        self.steps_taken = state.pop("steps_taken")
        self.rng.bit_generator.state = state.pop("generator")
        super().load_state_dict(state)


def _edge_prox(w: torch.Tensor, u: int, v: int, tau: float, p: int) -> None:
    mean, difference = 0.5 * (w[u] + w[v]), w[u] - w[v]
    if p == 2:
        norm = difference.norm()
        half = 0.5 * difference * (1 - 2 * tau / norm).clamp_min(0) if norm > 0 else 0 * difference
    else:
        half = 0.5 * torch.sign(difference) * (difference.abs() - 2 * tau).clamp_min(0)
    w[u], w[v] = mean + half, mean - half


def _check_group(group: dict[str, Any]) -> None:
    prox = group["prox"]
    if isinstance(prox, str) and prox not in ("l1", "group_l2"):
        raise ValueError(f"prox={prox!r} is unknown; pass 'l1', 'group_l2', an EdgePenalty, a callable or None")
    if not 0 <= group["strength"] < float("inf"):
        raise ValueError(f"strength={group['strength']} must be finite and at least 0")
    if isinstance(prox, EdgePenalty):
        for parameter in group["params"]:
            if parameter.ndim == 0 or len(parameter) != prox.graph.n_tasks:
                raise ValueError(
                    f"a parameter of shape {tuple(parameter.shape)} has no row for each of the graph's "
                    f"{prox.graph.n_tasks} tasks; put per-task heads in a group of their own"
                )
    elif not (prox is None or isinstance(prox, str) or callable(prox)):
        raise TypeError(f"prox={prox!r} is not a prox; pass 'l1', 'group_l2', an EdgePenalty, a callable or None")
