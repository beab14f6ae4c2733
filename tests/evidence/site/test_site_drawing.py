"""Charts and forest plots as specifications: what is aggregated, ordered, placed and refused."""

from __future__ import annotations

import json
import math
from itertools import combinations, pairwise

import numpy as np
import pandas as pd
import pytest
import vl_convert

from cameraready.evidence.charts import bar, line, scatter
from cameraready.evidence.finding import Finding, Threshold, combine
from cameraready.evidence.rules import all_of, ratio
from cameraready.evidence.site.axis import round_values
from cameraready.evidence.site.drawing import chart_spec, forest_spec, render
from cameraready.evidence.site.forest import panels
from cameraready.evidence.site.palette import DARK, LIGHT, Theme
from cameraready.evidence.site.summary import MOST_PLACES, MOST_POINTS, rows, summarise
from cameraready.evidence.site.wording import interval, needed, number, value


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"seed": seed, "method": method, "k": k, "data": data, "cost": base * k + seed}
            for seed in range(3)
            for method, base in (("ours", 1.0), ("peer", 2.0))
            for k in (10, 100)
            for data in ("a", "b")
        ]
    )


def finding(effect: float, low: float, high: float, kind: str = "ratio", label: str = "x", **bounds: float) -> Finding:
    threshold = Threshold(**bounds)
    return Finding(effect, low, high, threshold, 5, threshold.verdict(low, high), "", label, kind)


def values(spec: dict) -> list[dict]:
    [data] = spec["datasets"].values()
    return data


def colors(spec: dict) -> dict[str, str]:
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    return dict(zip(scale["domain"], scale["range"], strict=True))


def test_a_line_is_the_mean_over_seeds_of_the_mean_over_cells_and_its_band_their_range(table: pd.DataFrame) -> None:
    table.loc[table["data"] == "b", "cost"] += 4  # cells are averaged inside a seed: +2
    spec = chart_spec(line(x="k", y="cost"), table)
    [point] = [row for row in values(spec) if row["color"] == "ours" and row["x"] == 10]
    assert (point["low"], point["y"], point["high"], point["seeds"]) == (12, 13, 14, 3)


@pytest.mark.parametrize("mark", [line, bar, scatter])
@pytest.mark.parametrize(("log", "facet"), [("", None), ("xy", "data")])
def test_every_kind_of_chart_renders_to_a_png_and_to_strict_json(table, mark, log, facet) -> None:
    spec = chart_spec(mark(x="k", y="cost", log=log, facet=facet), table)
    json.dumps(spec, allow_nan=False)
    assert render(spec, scale=1).startswith(b"\x89PNG")


def test_a_logarithmic_axis_has_points_instead_of_bars_because_it_has_no_zero(table: pd.DataFrame) -> None:
    marks = [layer["mark"]["type"] for layer in chart_spec(bar(x="method", y="cost", log="y"), table)["layer"]]
    assert marks == ["point", "rule"]
    assert chart_spec(bar(x="method", y="cost"), table)["layer"][0]["mark"]["type"] == "bar"


def test_values_near_zero_are_powers_of_ten_on_a_logarithmic_axis(table: pd.DataFrame) -> None:
    small = table.assign(cost=table["cost"].where(table["method"] == "peer", 1e-13))
    for log, shape in (("y", "~e"), ("", ",~f")):
        encoding = chart_spec(bar(x="method", y="cost", log=log), small)["layer"][0]["encoding"]
        assert encoding["y"]["axis"]["format"] == shape


def test_bars_with_long_names_lie_down(table: pd.DataFrame) -> None:
    long = table.replace({"peer": "a method with a very long name"})
    assert chart_spec(bar(x="method", y="cost"), long)["layer"][0]["encoding"]["y"]["field"] == "x"
    assert chart_spec(bar(x="method", y="cost"), table)["layer"][0]["encoding"]["x"]["field"] == "x"


def test_a_method_keeps_its_colour_in_every_chart_of_a_page(table: pd.DataFrame) -> None:
    levels = {"method": ["ours", "absent", "peer"]}
    both = colors(chart_spec(line(x="k", y="cost"), table, levels=levels))
    one = colors(chart_spec(bar(x="k", y="cost"), table[table["method"] == "peer"], levels=levels))
    assert both == {"ours": LIGHT.series[0], "peer": LIGHT.series[2]}
    assert one == {"peer": LIGHT.series[2]}


def test_the_order_does_not_depend_on_the_order_of_the_rows(table: pd.DataFrame) -> None:
    shuffled = table.sample(frac=1, random_state=3)
    for chart in (line(x="k", y="cost"), bar(x="data", y="cost"), line(x="k", y="cost", color="data")):
        assert colors(chart_spec(chart, table)) == colors(chart_spec(chart, shuffled))


def test_numbers_come_before_words_and_in_the_order_of_their_size(table: pd.DataFrame) -> None:
    spec = chart_spec(bar(x="k", y="cost", color="k"), table.assign(k=table["k"].map({10: 9, 100: 1000})))
    assert list(colors(spec)) == ["9", "1000"]


def test_column_names_with_dots_and_brackets_are_drawn(table: pd.DataFrame) -> None:
    odd = table.rename(columns={"k": "n.items[0]", "cost": "a.b"})
    spec = chart_spec(line(x="n.items[0]", y="a.b"), odd)
    assert spec["layer"][0]["encoding"]["x"]["axis"]["title"] == "n.items[0]"
    assert values(spec)[0]["y"] == 11


def test_points_beyond_the_limit_are_sampled_and_said_so() -> None:
    many = pd.DataFrame({"seed": range(9000), "method": "m", "a": np.arange(9000.0), "b": np.arange(9000.0)})
    summary = summarise(scatter(x="a", y="b"), many)
    assert len(summary.frame) == MOST_POINTS
    assert f"{MOST_POINTS:,} of 9,000 points" in summary.notes[0]
    assert summary.frame.equals(summarise(scatter(x="a", y="b"), many).frame)


def test_a_line_through_thousands_of_places_is_condensed_and_keeps_its_course() -> None:
    place = np.arange(20_000)
    many = pd.DataFrame({"seed": 0, "method": "m", "step": place, "loss": 2.0 * place})
    summary = summarise(line(x="step", y="loss"), many)
    assert len(summary.frame) == MOST_PLACES
    np.testing.assert_allclose(summary.frame["y"], 2 * summary.frame["x"])
    assert summary.notes


def test_rows_without_a_place_on_the_axes_are_left_out_and_counted(table: pd.DataFrame) -> None:
    table.loc[0, "cost"] = math.nan
    table.loc[1, "cost"] = math.inf
    table.loc[2, "cost"] = -1
    summary = summarise(line(x="k", y="cost", log="y"), table)
    assert [note.split(" rows")[0] for note in summary.notes] == ["2 of 24", "1 of 22"]
    assert np.isfinite(summary.frame["y"]).all()


def test_a_table_of_nullable_columns_is_drawn_like_one_of_plain_columns(table: pd.DataFrame) -> None:
    table.loc[0, "cost"] = math.nan
    nullable = table.convert_dtypes()
    for chart in (line(x="k", y="cost"), bar(x="k", y="cost", facet="data")):
        assert chart_spec(chart, nullable) == chart_spec(chart, table)


@pytest.mark.parametrize(
    ("chart", "said"),
    [
        (line(x="k", y="speed"), "column 'speed' was not recorded; the columns are seed, method, k, data, cost"),
        (line(x="k", y="data"), "column 'data' holds text"),
        (line(x="k", y="cost", facet="rho"), "column 'rho' was not recorded"),
    ],
)
def test_a_chart_of_what_was_not_measured_is_refused_with_the_columns_there_are(table, chart, said) -> None:
    with pytest.raises(ValueError, match=said):
        chart_spec(chart, table)


def test_a_chart_without_a_drawable_row_is_refused(table: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="no row has values for k and cost"):
        chart_spec(line(x="k", y="cost", log="y"), table.assign(cost=-1.0))


def test_the_table_beside_a_chart_has_its_numbers_in_the_page_s_order(table: pd.DataFrame) -> None:
    chart = bar(x="method", y="cost")
    headings, cells, note = rows(chart, summarise(chart, table), {"method": ["peer", "ours"]})
    assert headings == ["method", "mean cost", "lowest", "highest", "seeds"]
    assert cells == [["peer", "111", "110", "112", "3"], ["ours", "56", "55", "57", "3"]]
    assert note == ""


def test_a_forest_plot_shades_where_the_claim_holds_and_places_ratios_by_their_logarithm() -> None:
    [panel] = panels(finding(0.25, 0.2, 0.5, at_most=0.5))
    assert panel.log
    assert panel.zone[0] == 0
    assert panel.zone[1] == pytest.approx(panel.place(0.5))
    assert panel.place(0.5) - panel.place(0.25) == pytest.approx(panel.place(1.0) - panel.place(0.5), abs=0.01)
    assert all(panel.low <= tick <= panel.high for tick in panel.ticks)


def test_parts_with_one_threshold_share_an_axis_and_others_have_their_own() -> None:
    cost = "cost of A at most 1.05 times that of B"
    each = combine(
        [
            finding(1.01, 1.0, 1.02, at_most=1.05, label=f"{cost}, at data = a"),
            finding(0.9, 0.8, 1.2, at_most=1.05, label=f"{cost}, at data = b"),
        ],
        f"{cost}, for each data",
    )
    whole = combine([finding(0.1, 0.05, 0.2, at_most=0.5, label="seconds of A"), each], "all of")
    first, second = panels(whole)
    assert [first.heading, second.heading] == ["", f"{cost}, for each data"]
    assert [second.name(row) for row in second.rows] == ["data = a", "data = b"]
    assert second.outcome == "inconclusive"
    assert first.name(first.rows[0]) == "seconds of A"


def test_findings_of_the_real_rules_are_laid_out_with_names_that_tell_them_apart(table: pd.DataFrame) -> None:
    table.attrs["factors"] = ["k", "data"]
    table["seconds"] = table["cost"] * np.where(table["method"] == "ours", 0.1, 1.0)
    cost = ratio("cost", "ours", to="peer", at_most=1.005, each="data")
    whole = all_of(ratio("seconds", "ours", to="peer", at_most=0.5, where={"k": "max"}), cost)(table)
    assert [panel.heading for panel in panels(whole)] == ["", cost.describe()]
    assert [panel.name(row) for panel in panels(whole) for row in panel.rows] == [
        "seconds of ours at most 0.5 times that of peer, at k = 100",
        "data = a",
        "data = b",
    ]
    [alone] = panels(ratio("cost", "ours", to="peer", at_most=1.005)(table))
    assert alone.name(alone.rows[0]) == "ratio"
    assert needed(alone.threshold) == "≤ 1.005"


@pytest.mark.parametrize(
    "odd",
    [
        finding(math.nan, math.nan, math.nan, at_most=1.0),
        finding(-math.inf, -math.inf, math.inf, kind="difference", at_least=0.0),
        finding(0.0, 0.0, 0.0, kind="value", at_most=0.0),
        finding(-3.0, -4.0, 2.0, at_most=0.5),
        finding(1e9, 1e9, 1e9, kind="value", at_least=1e-9),
        finding(2.0, math.nan, math.nan, kind="slope", at_least=1.0, at_most=3.0),
    ],
)
def test_findings_without_a_finite_interval_still_draw(odd: Finding) -> None:
    [panel] = panels(odd)
    places = [panel.place(end) for end in (odd.low, odd.effect, odd.high)]
    assert all(0 <= place <= 100 for place in places)
    assert render(forest_spec(odd), scale=1).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("low", "high", "log"), [(0, 1, False), (-7e-9, 3e-9, False), (0.01, 1e7, True), (0.9, 1.1, True)]
)
def test_an_axis_has_a_few_round_values_inside_its_range(low: float, high: float, log: bool) -> None:
    ticks = round_values(low, high, log=log)
    assert 3 <= len(ticks) <= 8
    assert all(low <= tick <= high for tick in ticks)
    assert all(len(f"{tick:g}") <= 6 for tick in ticks)


def _luminance(color: str) -> float:
    linear = _linear(color)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def _linear(color: str) -> np.ndarray:
    channels = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_series_and_chart_texts_stand_out_from_their_background(theme: Theme) -> None:
    assert min(contrast(color, theme.surface) for color in theme.series) >= 3
    texts = (theme.ink, theme.muted, theme.supported, theme.not_supported, theme.inconclusive)
    assert min(contrast(color, theme.surface) for color in texts) >= 4.5


# Viénot, Brettel and Mollon (1999): what the dichromat eye sees, in linear RGB.
PROTAN = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
DEUTAN = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])


def _lab(linear: np.ndarray) -> np.ndarray:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear.clip(0, 1)
    scaled = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * scaled[1] - 16, 500 * (scaled[0] - scaled[1]), 200 * (scaled[1] - scaled[2])])


@pytest.mark.parametrize("theme", [LIGHT, DARK])
@pytest.mark.parametrize("sight", [np.eye(3), PROTAN, DEUTAN])
@pytest.mark.parametrize(("first", "apart"), [(4, 35), (8, 20)])
def test_series_stay_apart_for_colour_blind_eyes(theme: Theme, sight: np.ndarray, first: int, apart: float) -> None:
    seen = [_lab(sight @ _linear(color)) for color in theme.series[:first]]
    assert min(float(np.linalg.norm(one - other)) for one, other in combinations(seen, 2)) > apart


@pytest.mark.parametrize(
    ("number_", "text"),
    [
        (0.02136, "0.0214"),
        (-3.2, "−3.2"),
        (12_400, "12,400"),
        (1.234e9, "1.23e+09"),
        (0, "0"),
        (100, "100"),
        (1e-7, "1e−07"),
    ],
)
def test_numbers_are_written_with_three_digits(number_: float, text: str) -> None:
    assert number(number_) == text


def test_an_effect_and_its_interval_have_the_digits_that_tell_them_from_each_other_and_from_the_limit() -> None:
    close = finding(1.0004, 0.9961, 1.0049, at_most=1.005)
    assert f"{value(close)} {interval(close)}" == "1.0004 [0.99610, 1.0049]"
    assert interval(finding(2.0, math.nan, math.nan, at_most=3.0)) == "no interval"


def test_a_legend_says_what_its_numbers_are(table: pd.DataFrame) -> None:
    def legend(chart) -> dict | None:
        return chart_spec(chart, table)["layer"][0]["encoding"]["color"]["legend"]

    assert legend(line(x="k", y="cost", color="data"))["title"] == "data"
    assert legend(line(x="k", y="cost"))["title"] is None  # names of methods speak for themselves


def test_four_facets_make_a_square(table: pd.DataFrame) -> None:
    four = pd.concat([table.assign(part=part) for part in range(4)])
    assert chart_spec(line(x="k", y="cost", facet="part"), four)["columns"] == 2
    assert chart_spec(line(x="k", y="cost", facet="part"), four[four["part"] < 3])["columns"] == 3


def test_labels_on_a_forest_axis_do_not_run_into_each_other() -> None:
    [panel] = panels(finding(0.0033, 0.0028, 0.0037, kind="value", at_most=0.005))
    assert len(panel.labels) < len(panel.ticks)
    for (left, first), (right, second) in pairwise(panel.labels):
        assert right - left > 4 * (len(first) + len(second)) / 2


def test_the_few_measured_places_are_written_in_full() -> None:
    few = pd.DataFrame({"seed": 0, "method": "m", "share": [0.5, 0.8, 0.95], "gain": [1.0, 2.0, 3.0]})
    drawing = vl_convert.vegalite_to_svg(chart_spec(line(x="share", y="gain"), few))
    assert [text for text in ("0.5", "0.8", "0.95", "0.9") if f">{text}</text>" in drawing] == ["0.5", "0.8", "0.95"]
