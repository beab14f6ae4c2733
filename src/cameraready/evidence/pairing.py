"""From a table of measurements to arrays with one line a seed: choosing rows, pairing methods, finding what is missing.

Methods are paired by seed and cell; a cell is one combination of the factors (``table.attrs["factors"]``). Rows that
one trial records of one method are averaged inside the cell, unless the rule runs along a column (``x=``, ``over=``),
picks rows (``where=``) or splits them (``each=``). Two methods of a pair must have equally many rows there, or averages
would compare different things.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cameraready.evidence.statistics import Array


@dataclass(frozen=True)
class Observations:
    """The values of one metric: ``values[method, seed, column]``, for the seeds in which nothing is missing.

    ``cells`` names each column's cell; ``levels`` holds its place along the rule's column, where there is one.
    ``gap`` says in words what is missing, "" if nothing is.
    """

    values: Array
    methods: tuple[str, ...]
    cells: tuple[str, ...]
    levels: tuple[Any, ...]
    gap: str


def resolve(table: pd.DataFrame, where: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values that ``where`` stands for: "max" and "min" of a column of numbers become its largest and smallest."""
    chosen: dict[str, list[Any]] = {}
    for column, wanted in where.items():
        check_column(table, column)
        numeric = pd.api.types.is_numeric_dtype(table[column])
        if numeric and isinstance(wanted, str) and wanted in ("max", "min"):
            chosen[column] = [table[column].max() if wanted == "max" else table[column].min()]
        else:
            chosen[column] = list(wanted) if isinstance(wanted, (list, tuple, set)) else [wanted]
    return chosen


def select(table: pd.DataFrame, chosen: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """The rows whose columns have the chosen values.

    ``attrs["seeds"]`` keeps the seeds that there were, so that one of which no row is left counts as missing.
    """
    seeds = [seed for seed in _seeds(table) if seed in chosen.get("seed", [seed])]
    rows = table.copy(deep=False)
    for column, wanted in chosen.items():
        if unknown := [value for value in wanted if not _matches(table[column], value).any()]:
            raise ValueError(f"no row has {column} = {unknown[0]!r}; there is {_some(table[column].unique().tolist())}")
        rows = rows[np.logical_or.reduce([_matches(rows[column], value) for value in wanted])]
    if rows.empty:
        conditions = " and ".join(f"{column} in {wanted}" for column, wanted in chosen.items())
        raise ValueError(f"no row has {conditions} at once")
    rows.attrs["seeds"] = seeds
    return rows


def distinct(table: pd.DataFrame, column: str) -> list[Any]:
    """A column's values in order of appearance; in a factor NaN is a value (None), elsewhere it is none."""
    values = table[column] if column in table.attrs.get("factors", ()) else table[column].dropna()
    if values.empty:
        raise ValueError(f"no row has a value in column {column!r}")
    return list(values.drop_duplicates())


def _matches(column: pd.Series[Any], value: Any) -> NDArray[np.bool_]:
    missing = value is None or value != value
    return np.asarray(column.isna() if missing else column == value, dtype=np.bool_)


def observe(
    table: pd.DataFrame,
    metric: str,
    methods: Sequence[str] | None,
    *,
    along: str | None = None,
    positive: str = "",
) -> Observations:
    """Arrange one metric by method, seed and cell.

    Parameters
    ----------
    table : one row a `Trial.record`.
    metric : column of numbers.
    methods : in the wanted order; None takes all that recorded the metric.
    along : a column whose values are kept apart; rows that lack it are not part of what is measured along it.
    positive : if given, what needs positive values, for the error message.

    Raises
    ------
    ValueError : an unknown column or method, a value that is not finite (or not positive).
    """
    for column in ("seed", "method", metric, *([along] if along else [])):
        check_column(table, column)
    if "factors" not in table.attrs:
        raise ValueError("table.attrs['factors'] is missing; name the factor columns, [] if there are none")
    factors = [name for name in table.attrs["factors"] if name in table and name != along]
    rows = _measured(table, metric, methods, factors)
    if along:
        rows = rows[rows[along].notna()]
        if rows.empty:
            raise ValueError(f"no row that has {metric!r} has a value in column {along!r}")
    cells = _cells(rows, factors)
    _check_values(rows, cells, metric, positive)
    of_row = list(zip(cells, rows[along].tolist() if along else [0] * len(rows), strict=True))
    columns = sorted(set(of_row))
    seeds = _seeds(table)
    names = tuple(dict.fromkeys(rows["method"])) if methods is None else tuple(methods)
    axes = ((names, rows["method"]), (seeds, rows["seed"]), (columns, of_row))
    index = tuple(_positions(order, items) for order, items in axes)
    sums = np.zeros((len(names), len(seeds), len(columns)))
    counts = np.zeros(sums.shape, dtype=np.int_)
    np.add.at(sums, index, rows["value"].to_numpy())
    np.add.at(counts, index, 1)
    places = [_place(cell, f"{along} = {level}" if along else "") for cell, level in columns]
    complete, gap = _gaps(counts, metric, places, seeds, names)
    return Observations(
        values=sums[:, complete] / counts[:, complete],
        methods=names,
        cells=tuple(cell for cell, _ in columns),
        levels=tuple(level for _, level in columns),
        gap=gap,
    )


def _seeds(table: pd.DataFrame) -> list[Any]:
    return sorted(table.attrs.get("seeds", table["seed"].unique().tolist()))


def _positions(order: Sequence[Any], items: Iterable[Any]) -> list[int]:
    position = {item: place for place, item in enumerate(order)}
    return [position[item] for item in items]


def check_column(table: pd.DataFrame, column: str) -> None:
    if column not in table:
        raise ValueError(f"no column {column!r} in the measurements; there is {_some(table.columns)}")


def _measured(table: pd.DataFrame, metric: str, methods: Sequence[str] | None, factors: Sequence[str]) -> pd.DataFrame:
    """The methods' rows that record the metric, as floats in the column "value".

    A row may lack the metric because its `Trial.record` was about something else. Such rows have, over all seeds, other
    columns than the rows that do record it; a NaN among rows that record the same columns is a value, an error later.
    """
    for name in methods or ():
        if not (table["method"] == name).any():
            raise ValueError(f"no row of method {name!r}; there is {_some(table['method'].unique())}")
    rows = table if methods is None else table[table["method"].isin(methods)]
    try:
        values = rows[metric].astype(float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {metric!r} is not numeric ({error}); a rule needs numbers") from None
    if values.isna().any():
        others = [name for name in table.columns if name not in {"seed", "method", metric, *factors}]
        pattern = [str(tuple(row)) for row in rows[others].notna().to_numpy()]
        rows = rows[values.notna().groupby([rows["method"], pattern]).transform("any")]
    rows = rows.assign(value=values)
    for name in methods or ():
        if not (rows["method"] == name).any():
            raise ValueError(f"no row of {name!r} has a number in column {metric!r}: all are NaN or were not recorded")
    return rows


def _cells(rows: pd.DataFrame, factors: Sequence[str]) -> list[str]:
    varying = [name for name in factors if rows[name].astype(str).nunique() > 1]
    return [
        ", ".join(f"{name} = {value}" for name, value in zip(varying, values, strict=True))
        for values in zip(*(rows[name] for name in varying), strict=True)
    ] or [""] * len(rows)


def _check_values(rows: pd.DataFrame, cells: Sequence[str], metric: str, positive: str) -> None:
    values = rows["value"].to_numpy()
    bad = ~np.isfinite(values)
    need = "a rule needs finite numbers; where a method diverged, record that as a metric of its own"
    if positive and not bad.any():
        bad = values <= 0
        need = f"{positive} needs positive values; use difference(), or record a metric that is positive"
    if bad.any():
        first = int(bad.argmax())
        place = _place(rows["method"].iloc[first], f"seed {rows['seed'].iloc[first]}", cells[first])
        raise ValueError(f"{metric} = {values[first]:g} in row {rows.index[first]} ({place}); {need}")


def _gaps(
    counts: NDArray[np.int_],
    metric: str,
    places: Sequence[str],
    seeds: Sequence[Any],
    names: Sequence[str],
) -> tuple[NDArray[np.bool_], str]:
    """Which seeds have every method in every cell equally often, and a sentence about the first gap in the others.

    ``counts[method, seed, column]`` is a number of rows.
    """
    gaps = (counts.min(axis=0) == 0) | (counts.min(axis=0) != counts.max(axis=0))
    complete = ~gaps.any(axis=1)
    if complete.all():
        return complete, ""
    seed, column = (int(axis[0]) for axis in np.nonzero(gaps))
    at = _place(f"seed {seeds[seed]}", places[column])
    here = counts[:, seed, column]
    least, most = names[int(here.argmin())], names[int(here.argmax())]
    text = f"{least} has no {metric} at {at}"
    if here.min() > 0:
        text = f"{most} has {here.max()} rows with {metric} but {least} has {here.min()} at {at}"
    more = int(gaps.sum()) - 1
    return complete, text + (f" (and {more} more {'gap' if more == 1 else 'gaps'})" if more else "")


def _place(*names: str) -> str:
    return ", ".join(filter(None, names))


def _some(values: Any, limit: int = 12) -> str:
    names = [repr(value) for value in list(values)]
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
