"""The cut selectors a user plugs into SCIP: the learned one, and the two without learning."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cameraready.methods.mip_cuts.control import Budget, Decision, SeparationControl, include
from cameraready.methods.mip_cuts.policy import Policy

if TYPE_CHECKING:
    from pyscipopt import Model

LINEAR_HANDLERS = {"linear", "setppc", "logicor", "knapsack", "varbound", "exactlinear", "xor", "and", "or"}


class RLCutSelector(SeparationControl):
    """A learned cut selector for PySCIPOpt: takes the cuts that a policy ranks first, and ends separation early.

    Before any separation it decides, from the problem's shape, which families of separators start at all; in each
    round which cuts enter, and whether another round follows. Use `attach` to put it into a model.

    Parameters
    ----------
    policy : a `Policy`, a path, or the name of a policy that comes with the package.
    budget : rounds, cuts, seconds and memory that separation may use.
    safety : open separation again, once, where 500 nodes after its end have not moved the bound.
    seed : of the ties' order; the policy itself is deterministic here.

    Examples
    --------
    >>> from cameraready.methods.mip_cuts import attach, setcover
    >>> model = setcover(30, 60, density=0.1, seed=0)
    >>> selector = attach(model)
    >>> model.optimize()
    >>> model.getStatus(), selector.report().errors
    ('optimal', 0)
    """

    adaptive = True

    def __init__(
        self,
        policy: str | Path | Policy = "setcover",
        *,
        budget: Budget | None = None,
        safety: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(budget=budget, safety=safety)
        self.policy = Policy.load(policy)
        self._ties = np.random.default_rng(seed)

    def opening(self, overall: np.ndarray) -> np.ndarray:
        return self.policy.opening(overall) >= 0.5

    def decide(self, cuts: np.ndarray, overall: np.ndarray) -> Decision:
        out = self.policy.round(cuts, overall)
        ties = 1e-9 * self._ties.random(len(out.scores))
        return Decision(out.scores + ties, out.keep, out.stop >= 0.5)


class GateSelector(SeparationControl):
    """No learning: the best ``share`` of the first ``rounds`` rounds' cuts by efficacy, then no more separation."""

    def __init__(self, *, rounds: int = 2, share: float = 0.3) -> None:
        super().__init__(safety=False)
        self.rounds, self.share = rounds, share

    def decide(self, cuts: np.ndarray, overall: np.ndarray) -> Decision:
        return Decision(cuts[:, 2], self.share, self._report.rounds + 1 >= self.rounds)


class RandomSelector(SeparationControl):
    """No learning: a random ``share`` of each of the first ``rounds`` rounds' cuts (infinitely many by default)."""

    def __init__(self, *, rounds: float = math.inf, share: float = 0.3, seed: int = 0) -> None:
        super().__init__(safety=False)
        self.rounds, self.share, self._rng = rounds, share, np.random.default_rng(seed)

    def decide(self, cuts: np.ndarray, overall: np.ndarray) -> Decision:
        return Decision(self._rng.random(len(cuts)), self.share, self._report.rounds + 1 >= self.rounds, diverse=False)


def attach(
    model: Model,
    *,
    policy: str | Path | Policy = "setcover",
    budget: Budget | None = None,
    safety: bool = True,
    seed: int = 0,
    allow: bool = False,
) -> RLCutSelector:
    """Put the learned cut selector into a model that is read but not yet solved.

    Parameters
    ----------
    model : pyscipopt.Model.
    policy, budget, safety, seed : see `RLCutSelector`.
    allow : accept nonlinear constraints, on which the policy was not trained, with a warning.

    Returns
    -------
    The selector; its `report()` says what it did.

    Raises
    ------
    ValueError : nonlinear constraints, another selector at top priority, a memory budget below the model's own
        footprint, a policy that cannot be read or has other features.
    """
    if not hasattr(model, "getConss"):
        raise TypeError(f"expected a pyscipopt.Model, got {type(model).__name__}; read the file into one first")
    kinds = {constraint.getConshdlrName() for constraint in model.getConss(transformed=False)}
    if strange := ", ".join(sorted(kinds - LINEAR_HANDLERS)):
        if not allow:
            raise ValueError(f"the model has {strange} constraints; the policy knows linear ones (allow=True)")
        warnings.warn(f"the policy was not trained on {strange} constraints", stacklevel=2)
    selector = RLCutSelector(policy, budget=budget, safety=safety, seed=seed)
    include(model, selector)
    return selector
