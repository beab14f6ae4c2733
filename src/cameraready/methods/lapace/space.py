"""The one pair of encoding and decoding that every distance and every call of the model goes through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from cameraready.methods.lapace.columns import Array, Column, infer_kind


@dataclass(frozen=True)
class TabularSpace:
    """Which columns hold what.

    Parameters
    ----------
    continuous, categorical : column names.
    ordinal : column name to its levels, lowest first.
    missing : "refuse", or "indicator": missing numbers get a flag, missing categories a level of their own. A
        counterfactual never recommends leaving a field empty.

    Examples
    --------
    >>> import pandas as pd
    >>> people = pd.DataFrame({"age": [20, 30, 40], "home": ["rent", "own", "rent"]})
    >>> space = TabularSpace(continuous=["age"], categorical=["home"]).fit(people)
    >>> space.encode(people).tolist()
    [[0.0, 0.0, 1.0], [0.5, 1.0, 0.0], [1.0, 0.0, 1.0]]
    >>> bool(space.decode(space.encode(people)).equals(people))
    True
    """

    continuous: Sequence[str] = ()
    categorical: Sequence[str] = ()
    ordinal: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    missing: Literal["refuse", "indicator"] = "refuse"

    def __post_init__(self) -> None:
        if self.missing not in ("refuse", "indicator"):
            raise ValueError(f"missing={self.missing!r}; choose 'refuse' or 'indicator'")
        names = self.names
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"columns {repeated} are declared twice; each column is of one kind")

    @property
    def names(self) -> list[str]:
        return [*self.continuous, *self.categorical, *self.ordinal]

    @classmethod
    def infer(cls, frame: pd.DataFrame, *, missing: Literal["refuse", "indicator"] = "refuse") -> TabularSpace:
        """Numbers with more than two values are continuous, ordered categories ordinal, the rest categorical."""
        require_frame(frame)
        kinds = {name: infer_kind(frame[name]) for name in frame.columns}
        return cls(
            continuous=[name for name, kind in kinds.items() if kind == "continuous"],
            categorical=[name for name, kind in kinds.items() if kind == "categorical"],
            ordinal={name: list(frame[name].dtype.categories) for name, kind in kinds.items() if kind == "ordinal"},
            missing=missing,
        )

    def fit(self, frame: pd.DataFrame) -> FittedSpace:
        """Learn ranges, levels and types from training rows.

        Raises
        ------
        TypeError, ValueError : not a table, undeclared or absent columns, missing or infinite values, unknown levels.
        """
        require_frame(frame)
        if undeclared := [name for name in frame.columns if name not in self.names]:
            raise ValueError(f"columns {undeclared} are not declared; declare or drop them, or TabularSpace.infer(df)")
        _require_columns(frame, self.names)
        if len(frame) == 0:
            raise ValueError("the table has no rows")
        allow = self.missing == "indicator"
        columns = []
        for name in frame.columns:
            if name in self.ordinal:
                columns.append(Column.learn(frame[name], "ordinal", list(self.ordinal[name]), allow_missing=allow))
            else:
                kind: Literal["categorical", "continuous"] = "categorical"
                if name in self.continuous:
                    kind = "continuous"
                columns.append(Column.learn(frame[name], kind, None, allow_missing=allow))
        if all(column.constant for column in columns):
            raise ValueError("every column is constant: no counterfactual can differ")
        return FittedSpace(tuple(columns), allow)


@dataclass(frozen=True)
class FittedSpace:
    """A learned space. Rows come in three forms:

    frames (the user's columns), codes of shape (n, n_columns) (numbers, ranks, level numbers; NaN is missing), and
    encoded rows of shape (n, n_encoded) in [0, 1] with one-hot categories.
    """

    columns: tuple[Column, ...]
    missing_allowed: bool

    @cached_property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @cached_property
    def n_encoded(self) -> int:
        return sum(column.width for column in self.columns)

    @cached_property
    def blocks(self) -> list[slice]:
        """Where each column stands in an encoded row; empty for a constant one."""
        ends = np.cumsum([column.width for column in self.columns])
        return [slice(int(end) - column.width, int(end)) for column, end in zip(self.columns, ends, strict=True)]

    @cached_property
    def groups(self) -> list[slice]:
        """The blocks of the categories."""
        return [block for column, block in self._used if column.kind == "categorical"]

    @cached_property
    def scaled(self) -> NDArray[np.intp]:
        """Encoded positions that are no categories: the scaled numbers and the missing flags."""
        return np.setdiff1d(
            np.arange(self.n_encoded), [i for group in self.groups for i in range(*group.indices(9**9))]
        )

    @cached_property
    def numeric(self) -> NDArray[np.bool_]:
        """Which columns have a distance between values: continuous and ordinal ones."""
        return np.array([column.kind != "categorical" for column in self.columns])

    @cached_property
    def spans(self) -> Array:
        return np.array([column.span for column in self.columns])

    @cached_property
    def weights(self) -> Array:
        """Weights (n_encoded,) that make an L1 distance the mean over columns of a difference in [0, 1]."""
        weights = np.ones(self.n_encoded)
        for column, block in self._used:
            if column.kind == "categorical":
                weights[block] = 0.5  # another category changes two numbers of the one-hot code, and counts once
            elif column.has_missing:
                weights[block.stop - 1] = 0.0
        return weights / sum(not column.constant for column in self.columns)

    @property
    def _used(self) -> list[tuple[Column, slice]]:
        return [(c, block) for c, block in zip(self.columns, self.blocks, strict=True) if not c.constant]

    def codes(self, frame: pd.DataFrame) -> Array:
        """Codes (n, n_columns) of rows in the user's columns, which may come in any order."""
        require_frame(frame)
        _require_columns(frame, self.names)
        if unknown := [name for name in frame.columns if name not in set(self.names)]:
            raise ValueError(f"unknown columns {unknown}; the space has {self.names}")
        codes = np.column_stack([column.codes(frame[column.name]) for column in self.columns])
        if not self.missing_allowed and (gaps := np.isnan(codes).any(axis=0)).any():
            named = [self.names[i] for i in np.flatnonzero(gaps)]
            raise ValueError(f"columns {named} hold missing values; impute them, or use missing='indicator'")
        return codes

    def frame(self, codes: Array) -> pd.DataFrame:
        """Rows in the user's columns and types."""
        return pd.DataFrame({column.name: column.values(codes[:, i]) for i, column in enumerate(self.columns)})

    def scale(self, codes: Array) -> Array:
        """Codes to encoded rows; numbers beyond the learned range are clipped to it."""
        encoded = np.zeros((len(codes), self.n_encoded))
        for i, (column, block) in enumerate(zip(self.columns, self.blocks, strict=True)):
            if column.constant:
                continue
            values, missing = codes[:, i], np.isnan(codes[:, i])
            if column.kind == "categorical":
                places = np.where(missing, column.width - 1, values).astype(int)
                encoded[np.arange(len(codes)), block.start + places] = ~missing | column.has_missing
            else:
                filled = np.where(missing, column.middle, values)
                encoded[:, block.start] = np.clip((filled - column.low) / column.span, 0.0, 1.0)
                if column.has_missing:
                    encoded[:, block.start + 1] = missing
        return encoded

    def snap(self, encoded: Array, allowed: Mapping[int, NDArray[np.bool_]] | None = None) -> Array:
        """Encoded rows to the nearest legal codes: integers rounded, categories by argmax, ranges kept.

        ``allowed`` maps a column's position to the levels that it may take.
        """
        codes = np.empty((len(encoded), len(self.columns)))
        for i, (column, block) in enumerate(zip(self.columns, self.blocks, strict=True)):
            if column.constant:
                codes[:, i] = column.low if column.levels is None else 0.0
            elif column.kind == "categorical":
                shares = encoded[:, block.start : block.start + len(column.levels)]  # type: ignore[arg-type]
                if allowed and i in allowed:
                    shares = np.where(allowed[i], shares, -np.inf)
                codes[:, i] = shares.argmax(axis=1)
            else:
                values = column.low + np.clip(encoded[:, block.start], 0.0, 1.0) * column.span
                codes[:, i] = np.rint(values) if column.whole else values
        return codes

    def encode(self, frame: pd.DataFrame) -> Array:
        return self.scale(self.codes(frame))

    def decode(self, encoded: Array) -> pd.DataFrame:
        return self.frame(self.snap(np.asarray(encoded, dtype=float)))

    def distances(self, a: Array, b: Array) -> Array:
        """L1 distances (len(a), len(b)) between encoded rows, as a mean over columns: 0 same, 1 all different."""
        return cdist(a * self.weights, b * self.weights, "cityblock")

    def distance(self, a: Array, b: Array) -> Array:
        """Row by row, for encoded rows of shapes that broadcast, (..., n_encoded)."""
        return np.abs(a - b) @ self.weights

    def changed(self, a: Array, b: Array) -> NDArray[np.bool_]:
        """Which columns differ between rows of codes (..., n_columns): by over 1e-3 of the range, or a category."""
        tolerance = np.where(self.numeric, 1e-3 * self.spans, 0.0)
        gap = np.abs(a - b) > tolerance
        return gap | (np.isnan(a) != np.isnan(b))


def require_frame(frame: object) -> None:
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"expected a pandas DataFrame, got {type(frame).__name__}; build one with named columns")
    if frame.columns.has_duplicates:
        raise ValueError(f"column names repeat: {list(frame.columns[frame.columns.duplicated()])}; rename them")


def _require_columns(frame: pd.DataFrame, names: Sequence[str]) -> None:
    if absent := [name for name in names if name not in frame.columns]:
        raise ValueError(f"columns {absent} are absent from the table, which has {list(frame.columns)}")
