"""From measurements to what a chart shows: means and ranges over seeds, few enough to embed in a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from cameraready.evidence.charts import Chart
from cameraready.evidence.site.wording import label, number

MOST_POINTS = 1_000
MOST_PLACES = 200
MOST_ROWS = 100


@dataclass(frozen=True)
class Summary:
    """What is drawn.

    ``frame`` has the columns color and x, with y, low, high and seeds (mean, range and number of seeds; for points
    only y), and facet where the chart has one. ``notes`` say in sentences what was left out or condensed.
    """

    frame: pd.DataFrame
    numeric_x: bool
    notes: tuple[str, ...]


def summarise(chart: Chart, table: pd.DataFrame) -> Summary:
    """Average cells inside a seed, then take mean and range over seeds; keep points as they are up to a limit.

    Raises
    ------
    ValueError : a column that was not recorded, a ``y`` that is not a number, or nothing left to draw.
    """
    data, notes = _drawable(chart, table)
    numeric = pd.api.types.is_numeric_dtype(data["x"])
    if chart.mark == "point":
        if len(data) > MOST_POINTS:
            notes.append(f"{MOST_POINTS:,} of {len(data):,} points are drawn, picked at random; the verdict uses all.")
            data = data.sample(MOST_POINTS, random_state=0).sort_index()
        return Summary(data.drop(columns="seed").reset_index(drop=True), numeric, tuple(notes))
    if numeric and chart.mark == "line" and data["x"].nunique() > MOST_PLACES:
        notes.append(f"{data['x'].nunique():,} values of {chart.x} are averaged into {MOST_PLACES} neighbourhoods.")
        place = pd.qcut(data["x"].rank(method="dense"), MOST_PLACES, labels=False)
        data["x"] = data.groupby(place)["x"].transform("mean")
    keys = [name for name in ("color", "facet", "x") if name in data]
    seeds = data.groupby([*keys, "seed"], sort=False, observed=True)["y"].mean().reset_index()
    frame = seeds.groupby(keys, sort=False, observed=True)["y"].agg(["mean", "min", "max", "count"]).reset_index()
    frame = frame.rename(columns={"mean": "y", "min": "low", "max": "high", "count": "seeds"})
    if chart.mark == "bar" and len(frame) > MOST_PLACES:
        notes.append(f"The first {MOST_PLACES} of {len(frame):,} bars are drawn.")
        frame = frame.head(MOST_PLACES)
    return Summary(frame, numeric, tuple(notes))


def domain(column: str, values: Sequence[Any], levels: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """Categories to their place in a stable order: first the declared levels, then the others, sorted.

    Only categories among ``values`` are returned, but a place counts all declared levels, so that a method keeps its
    colour in every chart of a page.
    """
    declared = [label(value) for value in levels.get(column, ())]
    present = {label(value): value for value in values}
    others = sorted((text for text in present if text not in declared), key=lambda text: _natural(present[text]))
    places = {text: place for place, text in enumerate(dict.fromkeys([*declared, *others]))}
    return {text: place for text, place in places.items() if text in present}


def rows(chart: Chart, summary: Summary, levels: Mapping[str, Sequence[Any]]) -> tuple[list[str], list[list[str]], str]:
    """The chart as a table for readers who want numbers: headings, cells, and a note where the table was cut."""
    frame = summary.frame
    if chart.mark == "point":
        keys = [name for name in ("color", "facet") if name in frame]
        spread = {"points": ("y", "size"), "y": ("y", "mean"), "low": ("y", "min"), "high": ("y", "max")}
        frame = frame.groupby(keys, sort=False, observed=True).agg(**spread).reset_index()
    headings = {
        "facet": chart.facet or "",
        "color": chart.color,
        "x": chart.x,
        "points": "points",
        "y": f"mean {chart.y}",
        "low": "lowest",
        "high": "highest",
        "seeds": "seeds",
    }
    if chart.color in (chart.x, chart.facet):
        frame = frame.drop(columns="color")
    shown = [name for name in headings if name in frame]
    order = pd.DataFrame(
        {name: _places(frame[name], headings[name], levels) for name in ("facet", "color", "x") if name in shown}
    )
    frame = frame.loc[order.sort_values(list(order)).index] if len(order.columns) else frame
    cells = [
        [
            number(float(value)) if name in ("y", "low", "high") else label(value)
            for name, value in zip(shown, row, strict=True)
        ]
        for row in frame[shown].head(MOST_ROWS).itertuples(index=False)
    ]
    note = f"The first {MOST_ROWS} of {len(frame):,} rows." if len(frame) > MOST_ROWS else ""
    return [headings[name] for name in shown], cells, note


def _places(values: pd.Series[Any], column: str, levels: Mapping[str, Sequence[Any]]) -> pd.Series[Any]:
    if pd.api.types.is_numeric_dtype(values):
        return values
    return values.map(domain(column, list(values.unique()), levels))


def _drawable(chart: Chart, table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The chart's columns under fixed names, without rows that have no place on the axes."""
    wanted = {"x": chart.x, "y": chart.y, "color": chart.color} | ({"facet": chart.facet} if chart.facet else {})
    for name in wanted.values():
        if name not in table:
            raise ValueError(f"column {name!r} was not recorded; the columns are {', '.join(map(str, table.columns))}")
    data = pd.DataFrame({role: _plain(table[name]) for role, name in wanted.items()})
    data["seed"] = table["seed"].to_numpy() if "seed" in table else np.arange(len(table))
    data = data.dropna(subset=["color", *(["facet"] if chart.facet else [])])
    if not pd.api.types.is_numeric_dtype(data["y"]):
        raise ValueError(f"column {chart.y!r} holds text; the vertical axis needs numbers")
    notes: list[str] = []
    truth = pd.api.types.is_bool_dtype(data["x"])
    axes = ["y"] if truth or not pd.api.types.is_numeric_dtype(data["x"]) else ["x", "y"]
    for name in axes:
        data[name] = data[name].astype(float)
    data = data.replace([np.inf, -np.inf], np.nan)
    data = _keep(data, data[["x", "y"]].notna().all(axis=1), f"without a finite {chart.x} and {chart.y}", notes)
    for name in axes:
        if name in chart.log:
            column = wanted[name]
            data = _keep(data, data[name] > 0, f"with {column} ≤ 0 have no place on a logarithmic axis and", notes)
    if data.empty:
        raise ValueError(f"no row has values for {chart.x} and {chart.y}" + (f" ({'; '.join(notes)})" if notes else ""))
    for name in ("color", "facet"):
        if name in data:
            data[name] = data[name].map(label)
    if "x" not in axes or chart.mark == "bar":
        data["x"] = data["x"].map(label)
    return data, notes


def _plain(values: pd.Series[Any]) -> Any:
    """A column as NumPy holds it, whatever the table was read with; what is missing is NaN."""
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        return values.to_numpy(dtype=float, na_value=np.nan)
    return values.astype(object).where(values.notna(), np.nan).infer_objects().to_numpy()


def _keep(data: pd.DataFrame, keep: pd.Series[bool], what: str, notes: list[str]) -> pd.DataFrame:
    if dropped := len(data) - int(keep.sum()):
        notes.append(f"{dropped:,} of {len(data):,} rows {what} are not drawn.")
    return data[keep]


def _natural(value: Any) -> tuple[int, float, str]:
    """Numbers by size before words by alphabet."""
    try:
        return (0, float(value), "")
    except (TypeError, ValueError):
        return (1, 0.0, str(value).casefold())
