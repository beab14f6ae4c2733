"""Charts that are read without the paper: gain over labels, predicted against measured, and where processing helps."""

from __future__ import annotations

from textwrap import wrap

import altair as alt
import numpy as np
import pandas as pd

from cameraready.methods.preprocess_gain.plugin_accuracy import acc_plugin
from cameraready.methods.preprocess_gain.processing_gain import break_even
from cameraready.methods.preprocess_gain.verdicts import DO_NOT, PROCESS, UNDECIDED, Calibration

_VERDICTS = alt.Scale(domain=[PROCESS, UNDECIDED, DO_NOT], range=["#1a7f5a", "#8a8a8a", "#c2452d"])


def gain_chart(report: pd.DataFrame, predicted: pd.DataFrame, n_labels: int) -> alt.FacetChart:
    """Line and band: predicted gain; dots with bars: measured; dashed: the labels you have. A panel a processor."""
    measured = report.dropna(subset=["measured_gain"]).drop(columns=["predicted_gain"])
    table = pd.concat([measured, predicted.dropna(subset=["predicted_gain"])], ignore_index=True)
    for column in ("measured_gain", "ci_low", "ci_high", "predicted_gain", "low", "high"):
        table[column] = 100 * table[column].astype(float)
    table = table.assign(have=n_labels, zero=0.0)
    x = alt.X("n:Q", title="labels", scale=alt.Scale(type="log"))
    title = "gain over raw, points"
    base = alt.Chart().encode(x=x)
    predictions = base.transform_filter("isValid(datum.predicted_gain)")
    layers = [
        base.mark_rule(color="#999").encode(x=alt.X(), y=alt.Y("zero:Q", title=title)),
        base.mark_rule(strokeDash=[4, 3], color="#999").encode(x="have:Q"),
        predictions.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", title=title), y2="high:Q"),
        predictions.mark_line().encode(y=alt.Y("predicted_gain:Q", title=title)),
        base.mark_rule().encode(y="ci_low:Q", y2="ci_high:Q", color=alt.Color("verdict:N", scale=_VERDICTS)),
        base.mark_circle(size=60, opacity=1).encode(
            y="measured_gain:Q",
            color=alt.Color("verdict:N", scale=_VERDICTS, title="measured (dots, 95 % bars)"),
            tooltip=["processor", "n", "measured_gain", "ci_low", "ci_high", "verdict"],
        ),
    ]
    return (
        alt.layer(*layers, data=table)
        .properties(width=230, height=170)
        .facet(alt.Facet("processor:N", title=None, sort=list(dict.fromkeys(report["processor"]))), columns=3)
        .resolve_scale(y="independent")
        .properties(title="Gain from processing: predicted (line, 95 % band) and measured (dots); dashed: your labels")
    )


def calibration_chart(report: pd.DataFrame, calibration: Calibration) -> alt.LayerChart:
    """Measured against predicted gain with the line where they agree."""
    table = report.dropna(subset=["predicted_gain", "measured_gain"]).copy()
    for column in ("predicted_gain", "measured_gain", "ci_low", "ci_high"):
        table[column] = 100 * table[column]
    values = table[["predicted_gain", "measured_gain"]].to_numpy()
    ends = [float(values.min()), float(values.max())] if len(values) else [-1.0, 1.0]
    diagonal = alt.Chart(pd.DataFrame({"a": ends, "b": ends})).mark_line(color="#999", strokeDash=[4, 3])
    points = alt.Chart(table).encode(x=alt.X("predicted_gain:Q", title="gain predicted by theory, points"))
    return alt.layer(
        diagonal.encode(x="a:Q", y="b:Q"),
        points.mark_rule().encode(y="ci_low:Q", y2="ci_high:Q", color="processor:N"),
        points.mark_circle(size=60, opacity=1).encode(
            y=alt.Y("measured_gain:Q", title="gain measured (95 % interval), points"),
            color=alt.Color("processor:N", title=None),
            tooltip=["processor", "n", "predicted_gain", "measured_gain"],
        ),
    ).properties(
        width=380,
        height=300,
        title=alt.Title("Predicted and measured gain", subtitle=wrap(str(calibration), 70)),
    )


def phase_chart(m: float, d: float, k: float, n: int, *, kept: float, name: str = "processing") -> alt.LayerChart:
    """Gain of a projection from d to k dimensions by labels and by share of |mu|^2 kept; the black line is no gain.

    Parameters
    ----------
    m, d : separation and dimension of the raw features.
    k : dimension after processing.
    n : labels of the user, the dot's place.
    kept : share of |mu|^2 that the user's processor keeps, the dot's height; above 1 is drawn at 1.
    """
    labels = np.geomspace(max(2, n / 16), 16 * n, 41)
    shares = np.linspace(0.02, 1.0, 50)
    edges, step = np.sqrt(labels[1:] * labels[:-1]), shares[1] - shares[0]
    left, right = np.concatenate([labels[:1], edges]), np.concatenate([edges, labels[-1:]])
    gain = acc_plugin(np.sqrt(shares)[:, None] * m, k, labels) - acc_plugin(m, d, labels)
    table = pd.DataFrame(
        {
            "n": np.tile(left, len(shares)),
            "n2": np.tile(right, len(shares)),
            "kept": np.repeat(shares - step / 2, len(labels)),
            "kept2": np.repeat(shares + step / 2, len(labels)),
            "gain": 100 * gain.ravel(),
        }
    )
    most = float(np.clip(2 * table["gain"].max(), 5.0, 50.0))  # losses beyond share the last colour
    line = pd.DataFrame({"n": labels, "kept": break_even(m, d, min(k, d), labels)})
    you = pd.DataFrame({"n": [float(n)], "kept": [float(np.clip(kept, 0, 1))], "label": [f"you: {name}"]})
    x = alt.X("n:Q", title="labels", scale=alt.Scale(type="log", nice=False))
    y = alt.Y("kept:Q", title="share of the signal kept", scale=alt.Scale(domain=[0, 1.02], nice=False))
    colour = alt.Color(
        "gain:Q", title="gain, points", scale=alt.Scale(scheme="redblue", domain=[-most, most], clamp=True)
    )
    return alt.layer(
        alt.Chart(table).mark_rect().encode(x=x, x2="n2:Q", y=y, y2="kept2:Q", color=colour),
        alt.Chart(line).mark_line(color="black").encode(x=x, y=y),
        alt.Chart(you).mark_point(filled=True, size=120, color="black", opacity=1).encode(x=x, y=y),
        alt.Chart(you).mark_text(align="left", dx=9, dy=-9, fontWeight="bold").encode(x=x, y=y, text="label:N"),
    ).properties(
        width=420,
        height=300,
        title=f"Above the line a projection from {d:.0f} to {k:.0f} dimensions helps (effective ones; m = {m:.2f})",
    )
