"""What an explanation holds: the options of one input, and the paths that they were chosen from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cameraready.methods.lapace.background import Background
from cameraready.methods.lapace.columns import Array

SHOWN = 6  # changes that printing shows, the largest first


@dataclass(frozen=True, kw_only=True)
class CounterfactualPath:
    """The decoded way from an input to one centroid of the target class.

    Attributes
    ----------
    component : number k of the centroid. alphas : the grid a (T,), 0 the input, 1 the centroid.
    codes : decoded rows (T, n_columns), see `FittedSpace`. probability : of the target class (T,).
    valid : given the target class at the threshold, and within the constraints (T,).
    alpha : where the option lies, NaN if the path has none.
    """

    background: Background = field(repr=False)
    target: int
    start: Array = field(repr=False)
    component: int
    alphas: Array = field(repr=False)
    codes: Array = field(repr=False)
    probability: Array = field(repr=False)
    valid: NDArray[np.bool_] = field(repr=False)
    alpha: float

    @cached_property
    def distance(self) -> Array:
        """Distance of every grid point to the input: mean over columns of a difference in [0, 1]."""
        space = self.background.space
        return space.distance(space.scale(self.codes), space.scale(self.start[None]))

    @cached_property
    def outlier_factor(self) -> Array:
        """LOF of every grid point against the training rows of the target class; about 1 among them."""
        return self.background.outlier_factor(self.background.space.scale(self.codes), self.target)

    def to_frame(self) -> pd.DataFrame:
        """The grid as rows: ``path_...`` columns (a, probability, distance, LOF, valid, changed), then the user's."""
        space = self.background.space
        changed = space.changed(self.codes, self.start)
        names = np.array(space.names)
        path = pd.DataFrame(
            {
                "path_a": self.alphas,
                "path_probability": self.probability,
                "path_distance": self.distance,
                "path_outlier_factor": self.outlier_factor,
                "path_valid": self.valid,
                "path_changed": [", ".join(names[row]) for row in changed],
            }
        )
        return pd.concat([path, space.frame(self.codes)], axis=1)

    def to_dict(self) -> dict[str, Any]:
        return {"component": self.component, "alpha": self.alpha, "points": self.to_frame().to_dict("records")}

    def plot(self) -> Any:
        """An altair chart: probability, distance and LOF along the path."""
        import altair as alt

        measures = {"probability": self.probability, "distance": self.distance, "LOF": self.outlier_factor}
        points = pd.concat([pd.DataFrame({"a": self.alphas, "measure": m, "value": v}) for m, v in measures.items()])
        lines = alt.Chart(points).mark_line(point=True).encode(x="a:Q", y=alt.Y("value:Q", scale=alt.Scale(zero=False)))
        return lines.properties(width=220, height=160).facet("measure:N").resolve_scale(y="independent")


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The options of one input.

    Attributes
    ----------
    status : "ok"; "already_target" (the option is the row itself); "no_valid_path"; "infeasible" (the row contradicts
        the constraints); "model_error" (the model raises on the row).
    target : the wanted class. paths : one `CounterfactualPath` a centroid.
    dropped : grid points after a path's first valid one that are not valid (or were made so by steering or projection).
    """

    background: Background = field(repr=False)
    status: str
    target: Any
    start: Array = field(repr=False)
    option_codes: Array = field(repr=False)
    probability: Array
    paths: tuple[CounterfactualPath, ...] = field(default=(), repr=False)
    dropped: int = 0

    @cached_property
    def options(self) -> pd.DataFrame:
        """The options as rows in the user's columns and types, nearest to the input first."""
        return self.background.space.frame(self.option_codes)

    @cached_property
    def row(self) -> pd.Series:
        """The input."""
        return self.background.space.frame(self.start[None]).astype(object).iloc[0]

    @cached_property
    def changes(self) -> list[dict[str, tuple[Any, Any]]]:
        """For every option, the columns that change, largest changes first: {name: (from, to)}."""
        space = self.background.space
        changed = space.changed(self.option_codes, self.start)
        gaps = np.abs(self.option_codes - self.start) / np.where(space.spans > 0, space.spans, 1.0)
        size = np.where(changed, np.where(space.numeric & ~np.isnan(gaps), gaps, 1.0), -1.0)
        options = self.options.astype(object)
        return [
            {
                space.names[i]: (self.row.iloc[i], options.iloc[o, i])
                for i in (-size[o]).argsort(kind="stable")[: changed[o].sum()]
            }
            for o in range(len(options))
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "target": self.target,
            "input": self.row.to_dict(),
            "options": self.options.to_dict("records"),
            "probability": self.probability.tolist(),
            "paths": [path.to_dict() for path in self.paths],
        }

    def plot(self) -> Any:
        """An altair chart: the paths one above the other."""
        import altair as alt

        if not self.paths:
            raise ValueError(f"nothing to plot: the explanation's status is {self.status!r} and it has no paths")
        return alt.vconcat(*(path.plot().properties(title=f"centroid {path.component}") for path in self.paths))

    def __str__(self) -> str:
        lines = [f"{self.status}: {len(self.option_codes)} option(s) towards {self.target!r}"]
        for number, (changes, p) in enumerate(zip(self.changes, self.probability, strict=True), 1):
            shown = [f"{name} {_short(old)} -> {_short(new)}" for name, (old, new) in changes.items()]
            if len(shown) > SHOWN:
                shown[SHOWN:] = [f"and {len(shown) - SHOWN} more"]
            lines.append(f"  {number}. p={p:.2f}: {', '.join(shown) or 'no change'}")
        return "\n".join(lines)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
