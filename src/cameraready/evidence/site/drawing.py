"""Claims' charts and forest plots as Vega-Lite specifications, and those as pictures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import pandas as pd
import vl_convert

from cameraready.evidence.charts import Chart
from cameraready.evidence.finding import Finding
from cameraready.evidence.site.axis import round_values
from cameraready.evidence.site.forest import Panel, panels
from cameraready.evidence.site.palette import LIGHT, SHAPES, Theme
from cameraready.evidence.site.summary import Summary, domain, summarise
from cameraready.evidence.site.wording import interval, needed, value
from cameraready.evidence.wording import words

Levels = Mapping[str, Sequence[Any]]
PictureKind = Literal["png", "svg", "pdf"]
WIDTH = 640
FACET_WIDTH = 240
FEW_TICKS = 8
LONG_LABEL = 10
PLAIN = ",~f"
LABEL_WIDTH = 36
LINES = "split(datum.label, '\\n')"


def chart_spec(
    chart: Chart, table: pd.DataFrame, *, levels: Levels | None = None, theme: Theme = LIGHT
) -> dict[str, Any]:
    """Draw a claim's chart as a Vega-Lite specification with its data, aggregated, inside.

    Parameters
    ----------
    chart : what is on which axis.
    table : the measurements, one row a `Trial.record`.
    levels : column to the order of its values (methods, factors); a method's place in ``levels["method"]`` is also its
        colour and shape, so that it looks alike in all charts of a page. Other values follow, sorted.
    theme : colours; the page's theme refers to CSS variables.

    Raises
    ------
    ValueError : a column that was not recorded or has nothing to draw.

    Examples
    --------
    >>> from cameraready.evidence.charts import line
    >>> table = pd.DataFrame({"seed": [0, 1, 0, 1], "method": "A", "k": [8, 8, 64, 64], "cost": [1.0, 1.2, 3.0, 3.1]})
    >>> spec = chart_spec(line(x="k", y="cost", log="x"), table)
    >>> [layer["mark"]["type"] for layer in spec["layer"]]
    ['area', 'line', 'point']
    """
    return chart_of(chart, summarise(chart, table), levels=levels, theme=theme)


def chart_of(chart: Chart, summary: Summary, *, levels: Levels | None = None, theme: Theme = LIGHT) -> dict[str, Any]:
    """Like `chart_spec`, from a summary that has been made already."""
    frame, order = summary.frame, levels or {}
    colors = domain(chart.color, list(frame["color"].unique()), order)
    draw = {"line": _line, "bar": _bar, "point": _points}[chart.mark]
    names = list(domain(chart.facet or "", list(frame["facet"].unique()), order)) if "facet" in frame else []
    if names:
        frame = frame.assign(facet=[f"{chart.facet}: {name}" for name in frame["facet"]])
    data = alt.InlineData(values=frame.to_dict("records"))
    layers = alt.layer(*draw(chart, summary, _series(chart, colors, theme), order, theme), data=data)
    picture: alt.LayerChart | alt.FacetChart
    if names:
        facet = alt.Facet("facet:N", title=None, sort=[f"{chart.facet}: {name}" for name in names])
        picture = layers.properties(width=FACET_WIDTH).facet(
            facet=facet, columns=2 if len(names) == 4 else min(len(names), 3)
        )
        if "y" not in chart.log and _far_apart(frame):
            picture = picture.resolve_scale(y="independent")
    else:
        picture = layers.properties(width=WIDTH)
    spec: dict[str, Any] = picture.properties(title=chart.title or title_of(chart)).to_dict()
    return spec | {"config": theme.config(), "usermeta": {"longest": max(map(len, colors))}}


def forest_spec(finding: Finding, *, theme: Theme = LIGHT) -> dict[str, Any]:
    """Draw effects with their 95 % intervals, and shade the effects for which the claim holds; parts are rows."""
    laid_out = panels(finding)
    names = [_wrapped(panel.name(row)) for panel in laid_out for row in panel.rows]
    extent = 8 + max(7 * len(line) for name in names for line in name.splitlines())
    pictures = [_forest_panel(panel, theme, extent) for panel in laid_out]
    spec: dict[str, Any] = alt.vconcat(*pictures, spacing=18).resolve_scale(x="independent").to_dict()
    config = theme.config() | {"concat": {"spacing": 18}}
    return spec | {"config": config, "usermeta": {"longest": 0}}


def title_of(chart: Chart) -> str:
    """What a chart shows, where its author gave no title."""
    y = words(chart.y)
    return f"{y[:1].upper()}{y[1:]} {'by' if chart.mark == 'bar' else 'against'} {words(chart.x)}"


def render(spec: Mapping[str, Any], kind: PictureKind = "png", *, scale: float = 2.0) -> bytes:
    """Render a specification as a file's content; ``scale`` is a PNG's pixels a unit."""
    if kind == "svg":
        return vl_convert.vegalite_to_svg(dict(spec)).encode()
    if kind == "pdf":
        return vl_convert.vegalite_to_pdf(dict(spec))
    return vl_convert.vegalite_to_png(dict(spec), scale=scale)


@dataclass(frozen=True)
class Series:
    """The series of a chart in order, with the channels that tell them apart."""

    names: list[str]
    color: alt.Color
    shape: alt.Shape


def _series(chart: Chart, colors: Mapping[str, int], theme: Theme) -> Series:
    names = list(colors)
    title = None if chart.color == "method" else words(chart.color)
    legend = None if chart.color in (chart.facet, chart.x) else alt.Legend(title=title)
    palette = [theme.series[place % len(theme.series)] for place in colors.values()]
    shapes = [SHAPES[place % len(SHAPES)] for place in colors.values()]
    return Series(
        names,
        alt.Color("color:N", scale=alt.Scale(domain=names, range=palette), legend=legend),
        alt.Shape("color:N", scale=alt.Scale(domain=names, range=shapes), legend=legend),
    )


def _line(chart: Chart, summary: Summary, series: Series, levels: Levels, theme: Theme) -> list[alt.Chart]:
    x = _horizontal(chart, summary, levels)
    y = _vertical(chart, summary.frame)
    color, base = series.color, alt.Chart().encode(x=x)
    return [
        base.mark_area(opacity=0.16).encode(y=y, y2="high:Q", color=color),
        base.mark_line(strokeWidth=2).encode(y=alt.Y("y:Q"), color=color),
        base.mark_point(filled=True, opacity=1, size=55).encode(
            y=alt.Y("y:Q"), color=color, shape=series.shape, tooltip=_tooltip(chart, summary)
        ),
    ]


def _bar(chart: Chart, summary: Summary, series: Series, levels: Levels, theme: Theme) -> list[alt.Chart]:
    """Bars from zero, lying down where names are long; on a logarithmic axis, which has no zero, points."""
    frame = summary.frame
    log = "y" in chart.log
    names = list(domain(chart.x, list(frame["x"].unique()), levels))
    lying = max(map(len, names)) > LONG_LABEL or len(names) > FEW_TICKS
    category, measure = ("y", "x") if lying else ("x", "y")
    title = None if chart.x == chart.color else words(chart.x)
    axis = alt.Axis(title=title, labelAngle=0, grid=False, ticks=False, labelLimit=WIDTH // 3)
    place = {"y": alt.Y, "x": alt.X}[category](
        "x:N", sort=names, axis=axis, scale=alt.Scale(paddingInner=0.35, paddingOuter=0.2)
    )
    channels: dict[str, Any] = {category: place}
    if chart.color != chart.x:
        offset = {"y": alt.YOffset, "x": alt.XOffset}[category]
        channels[f"{category}Offset"] = offset("color:N", sort=series.names, scale=alt.Scale(paddingInner=0.15))
    quantity = {"x": alt.X, "y": alt.Y}[measure]
    height = len(names) * (34 if chart.color == chart.x else 14 + 20 * len(series.names)) if lying else 260
    base = alt.Chart().encode(**channels).properties(height=height)
    mark = base.mark_point(filled=True, size=80, opacity=1) if log else base.mark_bar()
    shape = {"shape": series.shape} if log else {}
    values = pd.concat([frame["low"], frame["high"]])
    scale = alt.Scale(type="log", nice=False, padding=12) if log else alt.Scale(zero=True, nice=True)
    position = {measure: quantity("y:Q", axis=_axis(chart.y, values, log=log), scale=scale)}
    whisker = {measure: quantity("low:Q"), f"{measure}2": "high:Q"}
    return [
        mark.encode(**position, color=series.color, tooltip=_tooltip(chart, summary), **shape),
        base.mark_rule(strokeWidth=1.5, color=theme.ink).encode(**whisker),
    ]


def _points(chart: Chart, summary: Summary, series: Series, levels: Levels, theme: Theme) -> list[alt.Chart]:
    points = alt.Chart().mark_point(filled=True, opacity=0.6, size=36)
    return [
        points.encode(
            x=_horizontal(chart, summary, levels),
            y=_vertical(chart, summary.frame),
            tooltip=_tooltip(chart, summary),
            color=series.color,
            shape=series.shape,
        ).properties(height=300)
    ]


def _horizontal(chart: Chart, summary: Summary, levels: Levels) -> alt.X:
    values = summary.frame["x"]
    if not summary.numeric_x:
        names = list(domain(chart.x, list(values.unique()), levels))
        return alt.X("x:O", sort=names, axis=alt.Axis(title=words(chart.x), labelAngle=0, labelOverlap=True))
    distinct = [float(value) for value in sorted(values.unique())]
    axis = _axis(chart.x, values, log="x" in chart.log)
    axis.grid = False
    if len(distinct) <= FEW_TICKS:
        axis.values = distinct
        if axis.format == PLAIN:  # which takes its digits from the distance of the ticks: 0.95 would read 0.9
            axis.format = ",.6~r"
    return alt.X("x:Q", axis=axis, scale=_scale(log="x" in chart.log))


def _vertical(chart: Chart, frame: pd.DataFrame) -> alt.Y:
    name = "low" if "low" in frame else "y"
    values = pd.concat([frame["low"], frame["high"]]) if name == "low" else frame["y"]
    return alt.Y(f"{name}:Q", axis=_axis(chart.y, values, log="y" in chart.log), scale=_scale(log="y" in chart.log))


def _scale(*, log: bool) -> alt.Scale:
    if log:
        return alt.Scale(type="log", nice=False, padding=12)
    return alt.Scale(zero=False, nice=False, padding=12)


def _axis(title: str, values: pd.Series[float], *, log: bool) -> alt.Axis:
    """Few ticks, as plain numbers, with letters (k, M, m, µ) where these would be long, or as powers of ten."""
    sizes = values.abs()
    long = float(sizes.max()) >= 1e5 or 0 < float(sizes.max()) < 1e-3
    shape = "~e" if log and float(sizes.min()) < 1e-6 else "~s" if long else PLAIN
    axis = alt.Axis(title=words(title), format=shape, tickCount=5, labelOverlap="greedy")
    if log:
        axis.values = list(round_values(float(values.min()) * 0.9, float(values.max()) * 1.1, log=True))
    return axis


def _tooltip(chart: Chart, summary: Summary) -> list[alt.Tooltip]:
    exact = ",.4~g"
    shown = [alt.Tooltip("color:N", title=chart.color)] if chart.color != chart.x else []
    shown += [
        alt.Tooltip("x:Q", title=chart.x, format=exact) if summary.numeric_x else alt.Tooltip("x:N", title=chart.x),
        alt.Tooltip("y:Q", title=chart.y if chart.mark == "point" else f"mean {chart.y}", format=exact),
    ]
    if "low" in summary.frame:
        shown += [
            alt.Tooltip("low:Q", title="lowest seed", format=exact),
            alt.Tooltip("high:Q", title="highest seed", format=exact),
            alt.Tooltip("seeds:Q", title="seeds"),
        ]
    return shown


def _far_apart(frame: pd.DataFrame) -> bool:
    """Whether facets differ so much in size that one axis would flatten some of them."""
    sizes = frame["y"].abs().groupby(frame["facet"]).max()
    return bool(sizes.max() > 4 * sizes.min())


def _forest_panel(panel: Panel, theme: Theme, extent: int) -> alt.LayerChart | alt.FacetChart:
    zone_low, zone_high = panel.threshold.at_least, panel.threshold.at_most
    records = [
        {
            "label": _wrapped(panel.name(row)),
            "effect": row.effect,
            "low": _inside(row.low, panel, row.effect),
            "high": _inside(row.high, panel, row.effect),
            "verdict": row.verdict,
            "interval": f"{value(row)} {interval(row)}",
        }
        for row in panel.rows
        if panel.drawable(row)
    ]
    verdicts = ["supported", "not supported", "inconclusive"]
    color = alt.Color(
        "verdict:N",
        scale=alt.Scale(domain=verdicts, range=[theme.verdict(name) for name in verdicts]),
        legend=None,
    )
    x = alt.X(
        "low:Q",
        scale=alt.Scale(type="log" if panel.log else "linear", domain=[panel.low, panel.high], nice=False, zero=False),
        axis=alt.Axis(title=None, values=list(panel.ticks), format=",~g", grid=False),
    )
    names = alt.Axis(
        title=None,
        labelExpr=LINES,
        labelOffset={
            "condition": [{"test": f"length({LINES}) == {lines}", "value": -7 * (lines - 1)} for lines in (2, 3, 4)],
            "value": 0,
        },
        labelLimit=extent,
        minExtent=extent,
        domain=False,
        ticks=False,
        labelColor=theme.ink,
        grid=False,
    )
    y = alt.Y("label:N", sort=None, axis=names)
    base = alt.Chart(alt.InlineData(values=records)).encode(y=y)
    zone = alt.Chart(
        alt.InlineData(
            values=[
                {
                    "from": panel.low if zone_low is None else max(zone_low, panel.low),
                    "to": panel.high if zone_high is None else min(zone_high, panel.high),
                }
            ]
        )
    )
    limits = alt.Chart(alt.InlineData(values=[{"limit": limit} for limit in panel.limits]))
    heading = f"{panel.heading}: " if panel.heading else ""
    return alt.layer(
        zone.mark_rect(color=theme.zone).encode(x=alt.X("from:Q"), x2="to:Q"),
        limits.mark_rule(color=theme.ink, strokeDash=[4, 3]).encode(x=alt.X("limit:Q")),
        base.mark_rule(strokeWidth=2.5).encode(x=x, x2="high:Q", color=color),
        base.mark_point(filled=True, size=90, opacity=1).encode(x=alt.X("effect:Q"), color=color),
        base.mark_text(align="left", dx=8, dy=-10, fontSize=11).encode(
            x=alt.X("effect:Q"), text="interval:N", color=alt.value(theme.muted)
        ),
    ).properties(
        width=WIDTH - extent,
        height=alt.Step(48 if extent > 150 else 36),
        title=alt.TitleParams(
            f"{heading}needs {needed(panel.threshold)}", fontSize=12, fontWeight=400, anchor="start", offset=6
        ),
    )


def _inside(end: float, panel: Panel, effect: float) -> float:
    """An interval's end on the axis; without an interval, the effect itself."""
    return effect if math.isnan(end) else min(max(end, panel.low), panel.high)


def _wrapped(label: str) -> str:
    return textwrap.fill(label, LABEL_WIDTH)
