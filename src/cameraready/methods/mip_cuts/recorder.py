"""Recording the solver's own choice of cuts, the expert that the policy imitates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pyscipopt import SCIP_EVENTTYPE, SCIP_RESULT
from pyscipopt.scip import Cutsel, Eventhdlr

from cameraready.methods.mip_cuts.control import MAX_CANDIDATES, PRIORITY, free_at_exit
from cameraready.methods.mip_cuts.features import (
    N_CUT,
    N_GLOBAL,
    SolveProgress,
    cut_features,
    efficacies,
    work_seconds,
)

if TYPE_CHECKING:
    from pyscipopt import Model
    from pyscipopt.scip import Row


@dataclass(frozen=True)
class ExpertData:
    """Rounds of SCIP's own cut selection at roots; candidates of all rounds stand below each other.

    Parameters
    ----------
    cuts : features of the candidates, float32 of shape (sum of n, 24).
    taken : whether SCIP took it, booleans of shape (sum of n,).
    sizes : candidates of each round, shape (rounds,).
    overall : global features of each round, shape (rounds, 16).
    last : whether separation ended with the round, shape (rounds,).
    instance : the index of the instance that each round is from, shape (rounds,).
    """

    cuts: np.ndarray
    taken: np.ndarray
    sizes: np.ndarray
    overall: np.ndarray
    last: np.ndarray
    instance: np.ndarray

    def __len__(self) -> int:
        return len(self.sizes)

    def rounds(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, bool]]:
        """(cuts, taken, overall, last) of each round."""
        ends = np.cumsum(self.sizes)
        slices = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]
        return [
            (self.cuts[part], self.taken[part], self.overall[i], bool(self.last[i])) for i, part in enumerate(slices)
        ]

    def save(self, path: str | Path) -> None:
        np.savez_compressed(path, **{field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: str | Path) -> ExpertData:
        with np.load(path) as stored:
            return cls(**{name: stored[name] for name in stored.files})


class ExpertRecorder(Cutsel):
    """Looks at each root round's candidates, leaves the choice to SCIP, and sees by the LP's new rows which entered."""

    def __init__(self, time_limit: float | None = None) -> None:
        self.time_limit = time_limit
        self.rounds: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.taken = 0
        self.forced = 0
        self._progress: SolveProgress | None = None
        self._open: tuple[dict[int, int], np.ndarray, np.ndarray, np.ndarray] | None = None
        self._forced_keys: set[int] = set()

    def cutselinitsol(self) -> None:
        if self._progress is None:
            self._progress = SolveProgress(self.model, time_limit=self.time_limit)

    def cutselselect(self, cuts: list[Row], forcedcuts: list[Row], root: bool, maxnselectedcuts: int) -> dict[str, Any]:
        self._close()
        self._progress.start_round()
        efficacy = efficacies(self.model, cuts)
        order = np.argsort(-efficacy, kind="stable")[: MAX_CANDIDATES if root else 0]
        shown = [cuts[i] for i in order]
        x = cut_features(self.model, shown, efficacy[order], forced=forcedcuts)
        overall = self._progress.features(candidates=len(cuts), most=maxnselectedcuts, root=bool(root))
        # A row's hash is its address, and an address is the row's own until its round is over.
        places = {hash(cut): -1 for cut in cuts} | {hash(cut): i for i, cut in enumerate(shown)}
        self._open = (places, x, np.zeros(len(shown), dtype=bool), overall)
        self.forced += len(forcedcuts)
        return {"cuts": cuts, "nselectedcuts": 0, "result": SCIP_RESULT.DIDNOTFIND}

    def cutselexitsol(self) -> None:
        self._close()

    def row_enters(self, row: Row) -> None:
        if self._open is not None and (place := self._open[0].pop(hash(row), None)) is not None:
            self.taken += 1
            if place >= 0:
                self._open[2][place] = True

    def _close(self) -> None:
        if self._open is not None and len(self._open[1]):
            self.rounds.append(self._open[1:])
        self._open = None


class _RowWatch(Eventhdlr):
    def __init__(self, recorder: ExpertRecorder) -> None:
        self.recorder = recorder

    def eventinit(self) -> None:
        self.model.catchEvent(SCIP_EVENTTYPE.ROWADDEDLP, self)
        self.model.catchEvent(SCIP_EVENTTYPE.LPSOLVED, self)

    def eventexec(self, event: Any) -> None:
        if event.getType() == SCIP_EVENTTYPE.ROWADDEDLP:
            self.recorder.row_enters(event.getRow())
        else:  # the LP with the new rows is solved: rows that come later are another round's
            self.recorder._close()
            if self.recorder.time_limit is not None and work_seconds(self.model) >= self.recorder.time_limit:
                self.model.interruptSolve()


def attach_recorder(model: Model, *, time_limit: float | None = None) -> ExpertRecorder:
    """Record SCIP's choices in a model that is read but not yet solved, for ``time_limit`` `work_seconds`."""
    recorder = ExpertRecorder(time_limit)
    model.includeCutsel(recorder, "cameraready-recorder", "records the solver's choice", PRIORITY + 1)
    model.includeEventhdlr(_RowWatch(recorder), "cameraready-recorder", "sees rows enter the LP")
    free_at_exit(model)
    return recorder


def record_expert(
    instances: Sequence[str | Path], out: str | Path | None = None, *, time_limit: float = 60.0, seed: int = 0
) -> ExpertData:
    """Solve the roots of the instances by SCIP's defaults, and record each round of its cut selection.

    Parameters
    ----------
    instances : model files.
    out : .npz to write the data to.
    time_limit : seconds for one root, as `features.work_seconds` counts them: the data are the same each time.
    """
    from pyscipopt import Model

    if missing := [str(path) for path in instances if not Path(path).is_file()]:
        raise FileNotFoundError(f"{missing[0]} does not exist; pass model files")
    rounds, instance, last = [], [], []
    for index, path in enumerate(instances):
        model = Model()
        model.hideOutput()
        model.readProblem(str(path))
        model.setParam("limits/nodes", 1)
        model.setParam("randomization/randomseedshift", seed)
        recorder = attach_recorder(model, time_limit=time_limit)
        model.optimize()
        model.free()
        rounds += recorder.rounds
        instance += [index] * len(recorder.rounds)
        last += [False] * (len(recorder.rounds) - 1) + [True] * bool(recorder.rounds)
    if not rounds:
        raise ValueError(f"SCIP separated nothing in the {len(instances)} instances; record larger or other ones")
    cuts, taken, overall = zip(*rounds, strict=True)
    data = ExpertData(
        cuts=np.concatenate(cuts).reshape(-1, N_CUT),
        taken=np.concatenate(taken),
        sizes=np.array([len(x) for x in cuts]),
        overall=np.array(overall).reshape(-1, N_GLOBAL),
        last=np.array(last),
        instance=np.array(instance),
    )
    if out is not None:
        data.save(out)
    return data
