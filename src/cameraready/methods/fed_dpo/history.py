"""What a run recorded, what theory expected of it, and both side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cameraready.coverage import NotCovered
from cameraready.methods.fed_dpo import theory
from cameraready.methods.fed_dpo.landscape import (
    Heterogeneity,
    hessians,
    heterogeneity,
    optimum,
    third_derivatives,
    weights_of,
)
from cameraready.methods.fed_dpo.objective import Objective

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

Number = float | NotCovered


@dataclass(frozen=True)
class Prediction:
    """What theory says about a run before it starts; values it cannot give are `NotCovered`, with the reason.

    ``rate`` : factor by which the distance to the end point shrinks a round (or mixing). ``rounds`` : until 1 % of the
    initial distance is left. ``floor`` : f - f* at the end point of the server, or averaged over nodes. ``offset`` :
    its distance from theta*. ``spread`` : sqrt(sum p_i ||theta_i - mean||^2) there, of the clients after their local
    steps or the nodes after mixing. ``remainder`` : see `FixedPoint`; from 0.5 on, the end point is an order of
    magnitude only. ``bound`` : on the mean of f - f* over the run. ``first_drift`` : squared spread in the first round,
    to first order in the step.
    """

    scheme: str
    rate: Number
    rounds: Number
    floor: Number
    offset: Number
    spread: Number
    bound: Number
    first_drift: Number
    zeta2: float
    sigma2: float
    L: float
    optimal_loss: float
    remainder: Number
    assumption: str

    def __str__(self) -> str:
        lines = [f"{self.scheme}: zeta^2 {self.zeta2:.3g}, sigma^2 {self.sigma2:.3g}, L {self.L:.3g}"]
        unknown: dict[str, list[str]] = {}
        for name in ("rate", "rounds", "floor", "offset", "spread", "remainder", "bound", "first_drift"):
            value, words = getattr(self, name), name.replace("_", " ")
            if isinstance(value, NotCovered):
                unknown.setdefault(value.reason, []).append(words)
            else:
                lines.append(f"  {words:<12}{value:.4g}")
        lines += [f"  not covered: {', '.join(names)}, since {reason}" for reason, names in unknown.items()]
        return "\n".join([*lines, f"  assumes {self.assumption}"])


@dataclass(frozen=True)
class History:
    """One row a round (or mixing) in ``table``; what each column is, the class that made it says."""

    table: pd.DataFrame
    prediction: Prediction | None = None

    def compare(self, prediction: Prediction | None = None) -> pd.DataFrame:
        """`compare` with the prediction made before the run, or the one given."""
        prediction = prediction or self.prediction
        if prediction is None:
            raise ValueError("nothing was predicted for this run; call predict() before fit(), or pass a Prediction")
        return compare(self, prediction)

    def __str__(self) -> str:
        if self.table.empty:
            return "no rounds yet"
        first, last = self.table.iloc[0], self.table.iloc[-1]
        seen = self.table["loss"].dropna()
        text = f"{len(self.table)} rounds, loss {seen.iloc[0]:.4g} -> {seen.iloc[-1]:.4g}" if len(seen) else "no losses"
        away = sum(len(ids) for ids in self.table["excluded"])
        text += f", {self.table['bytes'].sum() / 1e6:.3g} MB exchanged, {self.table['seconds'].sum():.2f} s"
        text += f", drift {first['drift']:.3g} -> {last['drift']:.3g}"
        return text + (f", {away} updates left out" if away else "")


def predict(
    objective: Objective,
    *,
    lr: float,
    local_steps: int = 1,
    rounds: int,
    batch_size: int | None = None,
    mixing: np.ndarray | None = None,
) -> Prediction:
    """What federated averaging, or decentralised descent with a mixing matrix, will do on these clients.

    Fixed points need log-linear policies, exact gradients and everybody's participation; noise adds to them.
    """
    n = len(objective)
    p = weights_of(objective)
    start = objective.read()
    scheme = f"FedAvg, {local_steps} local steps" if mixing is None else f"gossip over {n} nodes"
    if not objective.log_linear:
        seen = heterogeneity(objective, batch_size=batch_size)
        reason = NotCovered("the policy is neural: no optimum to expand about")
        drift = _first_drift(seen, lr=lr, K=local_steps, M=1 / float(p @ p), mixing=mixing)
        return Prediction(
            scheme, reason, reason, reason, reason, reason, reason, drift, seen.zeta2, seen.sigma2, seen.L,
            math.nan, reason, f"smooth clients; quantities measured at {seen.at}",
        )  # fmt: skip
    star = optimum(objective)
    here = heterogeneity(objective, theta=star, batch_size=batch_size)
    there = heterogeneity(objective, theta=start, batch_size=batch_size)
    H, g = hessians(objective, star), objective.losses(star).gradient
    third = third_derivatives(objective, star)
    if mixing is None:
        end = theory.fedavg_fixed_point(H.cpu(), g.cpu(), lr=lr, K=local_steps, p=p.cpu(), third=third)
    else:
        scale = (n * p)[:, None]
        end = theory.dsgd_fixed_point(
            mixing, (scale[..., None] * H).cpu(), (scale * g).cpu(), lr=lr, K=local_steps,
            third=lambda v: scale.cpu().numpy() * third(v),
        )  # fmt: skip
    D = float((start - star).norm())
    zeta2 = max(here.zeta2_max, there.zeta2_max)
    sigma2 = max(here.sigma2, there.sigma2)
    common = {"D": D, "lr": lr, "sigma2": sigma2, "L": here.L}
    bound: Number
    if lr * here.L > 0.25 * (1 + 1e-9):
        bound = NotCovered(f"lr={lr:.3g} is above 1 / (4 L) = {1 / (4 * here.L):.3g}")
    elif mixing is None:
        bound = theory.fedavg_bound(K=local_steps, R=rounds, M=1 / float(p @ p), zeta2=zeta2, **common)
    elif local_steps > 1:
        bound = NotCovered("the bound is for mixing after every step")
    else:
        rho = theory.consensus_contraction(mixing)
        bound = theory.dsgd_bound(T=rounds, n=n, rho=rho, zeta2=max(here.zeta2, there.zeta2), **common)
    ends: dict[str, Number] = {
        "rounds": max(1, math.ceil(math.log(0.01) / math.log(end.rate))) if 1e-12 < end.rate < 1 else 1,
        "floor": end.floor if mixing is None else end.node_floor,
        "offset": float((end.offset**2).sum() ** 0.5),
        "spread": end.spread,
        "remainder": end.remainder,
    }
    if end.rate >= 1:
        ends = dict.fromkeys(ends, NotCovered(f"the iteration does not contract at lr={lr:.3g}; take a smaller one"))
    return Prediction(
        scheme=scheme,
        rate=end.rate,
        **ends,
        bound=bound,
        first_drift=_first_drift(there, lr=lr, K=local_steps, M=1 / float(p @ p), mixing=mixing),
        zeta2=here.zeta2,
        sigma2=sigma2,
        L=here.L,
        optimal_loss=float(p @ objective.losses(star).loss),
        assumption="convex clients that all take part; end point from exact gradients, to second order about theta*; "
        "the bound's zeta^2 is the larger of start and optimum",
    )


def _first_drift(start: Heterogeneity, *, lr: float, K: int, M: float, mixing: np.ndarray | None) -> Number:
    if mixing is not None:
        return NotCovered("of local steps before averaging, which gossip has not")
    if lr * K * start.L > 0.5:
        return NotCovered(f"lr K L = {lr * K * start.L:.3g} is above 0.5, too much for the first order in the step")
    return theory.drift_to_first_order(lr=lr, K=K, sigma2=start.sigma2, zeta2=start.zeta2, M=M)


def compare(history: History, prediction: Prediction) -> pd.DataFrame:
    """Predicted and measured rate, floor, spread, first_drift and bound, and their ratios; NaN where not covered."""
    import numpy as np
    import pandas as pd

    table = history.table
    gap = table["loss"].to_numpy(dtype=float) - prediction.optimal_loss
    nodes = table["node_loss"] if "node_loss" in table else table["loss"]  # what `floor` is about
    measured = {
        "rate": shrink_factor(table["moved"].to_numpy(dtype=float)),
        "floor": float(nodes.iloc[-1]) - prediction.optimal_loss,
        "spread": math.sqrt(table["drift"].iloc[-1]),
        "first_drift": table["drift"].iloc[0],
        "bound": np.nanmean(gap) if np.isfinite(gap).any() else np.nan,
    }
    rows = []
    for name, value in measured.items():
        expected = getattr(prediction, name)
        expected = np.nan if isinstance(expected, NotCovered) else expected
        ratio = value / expected if expected else np.nan
        rows.append({"quantity": name, "predicted": expected, "measured": value, "ratio": ratio})
    return pd.DataFrame(rows).set_index("quantity")


def shrink_factor(moved: np.ndarray) -> float:
    """Geometric mean factor, a round, of the moves' lengths, while they fall from 1e-2 to 1e-8 of the first.

    Near its end point an iteration shrinks its moves as it does the distance. NaN where fewer than two are in range.
    """
    import numpy as np

    used = np.flatnonzero((moved < 1e-2 * moved[0]) & (moved > 1e-8 * moved[0]))
    if len(used) < 2:
        return float("nan")
    first, last = used[0], used[-1]
    return float((moved[last] / moved[first]) ** (1 / (last - first)))
