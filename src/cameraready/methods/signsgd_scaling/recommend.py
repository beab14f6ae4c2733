"""From a table and a compute budget to an optimiser, a model size, a number of steps and a learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pandas as pd
from numpy.typing import ArrayLike

from cameraready.coverage import NotCovered
from cameraready.methods.signsgd_scaling.coverage import Coverage
from cameraready.methods.signsgd_scaling.decay import Decay, fit_decay, n_directions
from cameraready.methods.signsgd_scaling.law import ScalingLaw, check_budget

CHOICES = ("sgd", "signsgd")


@dataclass(frozen=True, eq=False)
class Recommendation:
    """Print it for the text.

    Attributes
    ----------
    decay : the estimated decays with their intervals.
    choices : DataFrame, one row a covered optimiser: optimizer, slope, d, N, lr, risk (in the units of the data),
        phase, basis.
    best : the optimiser with the least expected risk at this budget; None if nothing is covered.
    coverage : name of an optimiser to whether, and why, it is covered.
    text : the recommendation in words.
    """

    decay: Decay
    choices: pd.DataFrame
    best: str | None
    coverage: dict[str, Coverage]
    text: str

    def __str__(self) -> str:
        return self.text


def recommend(
    X: ArrayLike,
    y: ArrayLike,
    flops: float,
    optimizer: Literal["best", "sgd", "signsgd"] = "best",
    *,
    random_state: int = 0,
) -> Recommendation:
    """How to spend a budget on a linear model over random sketches of these features.

    Estimates the decays, takes the scaling law of each optimiser there, and allocates the budget. Where the features
    follow no power law, the target has none, or the model would be larger than the data, the answer is "not covered"
    with the reason.

    Parameters
    ----------
    X, y : features (n, D) and target (n,); see `fit_decay`.
    flops : the budget ``d N``: model size times training samples.
    optimizer : "best" compares "sgd" and "signsgd".

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> j = np.arange(1, 201)
    >>> X = rng.normal(size=(5000, 200)) * j**-0.7
    >>> found = recommend(X, X @ j**-0.3, flops=5e4, optimizer="sgd")
    >>> found.best
    'sgd'
    """
    if optimizer not in ("best", *CHOICES):
        raise ValueError(f"optimizer={optimizer!r}; choose 'best', 'sgd' or 'signsgd'")
    check_budget(flops)
    decay = fit_decay(X, y, random_state=random_state)
    directions = n_directions(X)
    names = CHOICES if optimizer == "best" else (optimizer,)
    coverage, rows = dict.fromkeys(names, decay.coverage), []
    if decay.coverage:
        for name in names:
            coverage[name], row = _choice(decay, name, flops, directions)
            rows += [row] if row else []
    choices = pd.DataFrame(rows, columns=["optimizer", "slope", "d", "N", "lr", "risk", "phase", "basis"])
    best = None if choices.empty else str(choices.loc[choices["risk"].idxmin(), "optimizer"])
    return Recommendation(decay, choices, best, coverage, _words(decay, choices, best, coverage, flops))


def _choice(decay: Decay, name: str, flops: float, directions: int) -> tuple[Coverage, dict[str, object] | None]:
    law = ScalingLaw(decay.alpha, decay.beta, name)
    try:
        allocation = law.allocate(flops)
    except NotCovered as error:
        return Coverage(False, error.reason), None
    if allocation.d > directions:
        return Coverage(
            False,
            f"the law asks for d={allocation.d}, but X varies in {directions} directions, and nothing is known of "
            "the spectrum beyond them; bring more features or a smaller budget",
        ), None
    # In the data's units, x is sqrt(scale) and the target's coefficients are target_scale times those of the model.
    rate = decay.target_scale if name == "signsgd" else 1 / decay.scale
    risk = allocation.risk * decay.scale * decay.target_scale**2 + decay.noise
    row = {
        "optimizer": name,
        "slope": law.slope,
        "d": allocation.d,
        "N": allocation.N,
        "lr": allocation.lr * rate,
        "risk": risk,
        "phase": law.phase,
        "basis": allocation.basis,
    }
    return Coverage(True, "; ".join(law.notes) or "inside the regime of the law"), row


def _words(decay: Decay, choices: pd.DataFrame, best: str | None, coverage: dict[str, Coverage], flops: float) -> str:
    lines = [f"Decays: {decay}"]
    for name, answer in coverage.items():
        if not answer:
            lines.append(f"{name}: {answer}")
    for row in choices.itertuples():
        lines.append(
            f"{row.optimizer}: at d N = {flops:g} take d = {row.d}, N = {row.N}, lr = {row.lr:.3g}; expected "
            f"squared error "
            f"{row.risk:.4g} and falling like compute^-{row.slope:.3f} ({row.phase}; {row.basis}). "
            f"{coverage[row.optimizer]}."
        )
    if decay.noise > 0 and best:
        lines.append(f"No model gets below the target's own noise, {decay.noise:.3g}.")
    if best:
        lines.append(f"Recommended: {best}.")
    return "\n".join(lines)
