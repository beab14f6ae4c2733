"""What a counterfactual may change: declared in the user's columns, kept exactly on every returned row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cameraready.methods.lapace.columns import Array
from cameraready.methods.lapace.space import FittedSpace

PROJECTIONS = 30  # rounds of projecting onto the linear constraints; rows that still violate one are dropped


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Actionability constraints.

    Parameters
    ----------
    immutable : columns that keep the input's value.
    increasing, decreasing : numeric or ordinal columns that may not fall below, or rise above, the input's value.
    ranges : column to (lowest, highest) allowed value, ends included; None for an open end.
    linear : tuples ``({column: coefficient, ...}, "<=" or ">=", bound)`` over numeric columns.
    banned : categorical column to levels that may not be recommended.

    Raises
    ------
    ValueError : a column that must stay and must change, an empty range, an unknown operator.

    Examples
    --------
    >>> Constraints(immutable=["sex"], increasing=["age"], linear=[({"loan": 1, "income": -0.4}, "<=", 0)]).columns
    ['age', 'income', 'loan', 'sex']
    """

    immutable: Sequence[str] = ()
    increasing: Sequence[str] = ()
    decreasing: Sequence[str] = ()
    ranges: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    linear: Sequence[tuple[Mapping[str, float], str, float]] = ()
    banned: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what in ("immutable", "increasing", "decreasing"):
            if isinstance(getattr(self, what), str):
                raise TypeError(f"{what}={getattr(self, what)!r} is one string; pass a list of column names")
        fixed = set(self.immutable)
        if asked := sorted(fixed & (set(self.ranges) | set(self.banned))):
            raise ValueError(
                f"columns {asked} are immutable and also have a range or banned levels; keep one of the two"
            )
        for coefficients, operator, bound in self.linear:
            if operator not in ("<=", ">="):
                raise ValueError(f"operator {operator!r} in linear; write '<=' or '>='")
            if not coefficients or not np.isfinite([*coefficients.values(), bound]).all():
                raise ValueError(f"linear constraint {dict(coefficients)} {operator} {bound}: give finite coefficients")
            if set(coefficients) <= fixed:
                raise ValueError(f"linear constraint on {sorted(coefficients)}: all of them are immutable")

    @property
    def columns(self) -> list[str]:
        """All columns that a constraint names."""
        linear = [name for coefficients, _, _ in self.linear for name in coefficients]
        lists = (self.immutable, self.increasing, self.decreasing, self.ranges, self.banned, linear)
        return sorted({name for names in lists for name in names})

    def bind(self, space: FittedSpace, inputs: Array) -> BoundConstraints:
        """The constraints of every input, given as codes (n, n_columns).

        Raises
        ------
        ValueError : unknown columns or levels, a kind of column that the constraint does not fit, a constraint that
            excludes the whole training range.
        """
        place = {name: i for i, name in enumerate(space.names)}
        if unknown := [name for name in self.columns if name not in place]:
            raise ValueError(f"constraints name unknown columns {unknown}; the table has {space.names}")
        linear_columns = [name for coefficients, _, _ in self.linear for name in coefficients]
        for name in (*self.increasing, *self.decreasing, *self.ranges, *linear_columns):
            if space.columns[place[name]].kind == "categorical":
                raise ValueError(f"column {name!r} is categorical and has no order; use immutable or banned for it")
        for name in linear_columns:
            if space.columns[place[name]].kind == "ordinal":
                raise ValueError(f"column {name!r} is ordinal; linear constraints take continuous columns only")
        lower = np.full(inputs.shape, -np.inf)
        upper = np.full(inputs.shape, np.inf)
        for name, ends in self.ranges.items():
            i = place[name]
            low, high = _ends(space, i, name, ends)
            lower[:, i], upper[:, i] = low, high
        for name in self.increasing:
            lower[:, place[name]] = np.fmax(lower[:, place[name]], inputs[:, place[name]])
        for name in self.decreasing:
            upper[:, place[name]] = np.fmin(upper[:, place[name]], inputs[:, place[name]])
        fixed = np.array([column.constant or column.name in set(self.immutable) for column in space.columns])
        return BoundConstraints(
            space=space,
            inputs=inputs,
            lower=lower,
            upper=upper,
            fixed=fixed,
            allowed={place[name]: _allowed(space, place[name], levels) for name, levels in self.banned.items()},
            **self._linear(space, place),
        )

    def _linear(self, space: FittedSpace, place: Mapping[str, int]) -> dict[str, Array]:
        A, b = np.zeros((len(self.linear), len(place))), np.zeros(len(self.linear))
        for row, (coefficients, operator, bound) in enumerate(self.linear):
            sign = 1.0 if operator == "<=" else -1.0
            b[row] = sign * bound
            for name, coefficient in coefficients.items():
                A[row, place[name]] = sign * coefficient
            low = np.array([column.low for column in space.columns])
            least = np.where(A[row] != 0, np.minimum(A[row] * low, A[row] * (low + space.spans)), 0.0).sum()
            if least > b[row]:
                named = f"{dict(coefficients)} {operator} {bound}"
                raise ValueError(f"linear constraint {named} excludes the whole training range of these columns")
        return {"A": A, "b": b}


@dataclass(frozen=True, kw_only=True)
class BoundConstraints:
    """Constraints of n inputs in codes: bounds (n, n_columns), fixed columns, allowed levels, and A v <= b."""

    space: FittedSpace
    inputs: Array
    lower: Array
    upper: Array
    fixed: NDArray[np.bool_]
    allowed: Mapping[int, NDArray[np.bool_]]
    A: Array
    b: Array

    @cached_property
    def active(self) -> bool:
        """Whether anything but the constant columns is constrained."""
        varying = np.array([not column.constant for column in self.space.columns])
        bounded = np.isfinite(self.lower).any() or np.isfinite(self.upper).any()
        return bool((self.fixed & varying).any() or bounded or self.allowed or len(self.b))

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """Inputs (n,) whose own value leaves room: "may not fall" above a range's end does not."""
        return (self.lower <= self.upper).all(axis=1)

    def project(self, codes: Array, rows: NDArray[np.intp]) -> Array:
        """Codes (m, n_columns) moved to where the constraints of the inputs ``rows`` (m,) hold, as far as that goes."""
        codes = codes.copy()
        codes[:, self.fixed] = self.inputs[rows][:, self.fixed]
        if self.active:
            lower, upper = self.lower[rows], self.upper[rows]
            free = ~self.fixed
            codes[:, free] = np.clip(codes[:, free], lower[:, free], upper[:, free])
        self._round_to_types(codes)
        if not len(self.b):
            return codes
        movable = self.space.numeric & ~self.fixed
        whole = np.array([column.whole for column in self.space.columns])
        scaled = self.space.spans**2 * movable
        low = np.array([column.low for column in self.space.columns])
        bottom, top = np.fmax(lower, low), np.fmin(upper, low + self.space.spans)
        bottom, top = np.fmin(bottom, top), np.fmax(bottom, top)  # an input may lie beyond the training range
        for _ in range(PROJECTIONS):
            excess = codes @ self.A.T - self.b
            over = np.flatnonzero((excess > 0).any(axis=1))
            if not len(over):
                break
            worst = excess[over].argmax(axis=1)
            a = self.A[worst]
            direction = a * scaled
            # A hair beyond the plane, lest rounding leaves the row on the wrong side of it.
            step = excess[over, worst] + 1e-6 * (np.abs(self.b[worst]) + np.abs(a * codes[over]).sum(axis=1))
            slope = (a * direction).sum(axis=1)
            step /= np.where(slope > 0, slope, np.inf)  # nothing to move: the row stays, and is dropped
            moved = codes[over] - step[:, None] * direction
            moved = np.where(whole, np.where(a > 0, np.floor(moved), np.ceil(moved)), moved)
            codes[over] = np.where(movable & (a != 0), np.clip(moved, bottom[over], top[over]), codes[over])
            self._round_to_types(codes)
        return codes

    def _round_to_types(self, codes: Array) -> None:
        """Single-precision columns hold what their type can: constraints are judged on the values that are returned."""
        single = [i for i, column in enumerate(self.space.columns) if column.dtype == np.float32]
        codes[:, single] = codes[:, single].astype(np.float32)

    def satisfied(self, codes: Array, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which rows of codes (m, n_columns) keep every constraint of their input, exactly."""
        if not self.active:
            return np.ones(len(codes), dtype=bool)
        inputs = self.inputs[rows]
        same = (codes == inputs) | (np.isnan(codes) & np.isnan(inputs))
        kept = same[:, self.fixed].all(axis=1)
        kept &= ~((codes < self.lower[rows]) | (codes > self.upper[rows])).any(axis=1)
        for i, levels in self.allowed.items():
            kept &= levels[np.nan_to_num(codes[:, i]).astype(int)]
        return kept & (codes @ self.A.T <= self.b).all(axis=1)


def _ends(space: FittedSpace, i: int, name: str, ends: tuple[Any, Any]) -> tuple[float, float]:
    column = space.columns[i]
    codes = []
    for end, open_end in zip(ends, (-np.inf, np.inf), strict=True):
        if end is None:
            codes.append(open_end)
        elif column.levels is None:
            codes.append(float(end))
        elif end in column.levels:
            codes.append(float(column.levels.get_loc(end)))
        else:
            raise ValueError(f"range of {name!r}: {end!r} is not among its levels {list(column.levels)}")
    low, high = column.inward(codes[0], upper=False), column.inward(codes[1], upper=True)
    if not low <= high:
        raise ValueError(f"range of {name!r}: no value lies between {ends[0]!r} and {ends[1]!r}")
    if low > column.high or high < column.low:
        raise ValueError(
            f"range of {name!r}: {ends[0]!r} to {ends[1]!r} excludes the whole training range, "
            f"{column.low:g} to {column.high:g}"
        )
    return low, high


def _allowed(space: FittedSpace, i: int, banned: Sequence[Any]) -> NDArray[np.bool_]:
    column = space.columns[i]
    if column.kind != "categorical":
        raise ValueError(f"banned levels of {column.name!r}, which is {column.kind}; use ranges for it")
    assert column.levels is not None
    if isinstance(banned, str) or (unknown := [level for level in banned if level not in column.levels]):
        shown = banned if isinstance(banned, str) else unknown
        raise ValueError(f"banned levels of {column.name!r}: {shown!r}; pass a list out of {list(column.levels)}")
    allowed = ~column.levels.isin(list(banned))
    if not allowed.any():
        raise ValueError(f"all levels of {column.name!r} are banned; leave at least one")
    return allowed
