"""The audit as one self-contained HTML page: no scripts, no network, charts as inline SVG."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import altair as alt
import numpy as np
import pandas as pd
import vl_convert
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

if TYPE_CHECKING:
    from cameraready.methods.compress_robust.audit_report import AuditReport

COLOURS = {"energy": "#4c78a8", "concentration": "#e45756", "spread": "#f2a93b"}
NAMES = {"2": "ℓ₂", "inf": "ℓ∞"}
MOST_LAYERS = 40  # in the chart; the table has all


def page(report: AuditReport) -> str:
    """The whole page."""
    environment = Environment(
        loader=PackageLoader("cameraready.methods.compress_robust"), autoescape=select_autoescape(), trim_blocks=True
    )
    environment.filters.update(percent=_percent, short=_short)
    return environment.get_template("audit.html").render(
        report=report,
        names=NAMES,
        findings=findings(report),
        robustness=report.robustness.to_dict("records"),
        layers=report.layers.to_dict("records"),
        uap=report.uap.to_dict("records"),
        parts=report.parts.set_index("norm").to_dict("index"),
        accuracy_chart=_svg(accuracy_chart(report)),
        layer_chart=_svg(layer_chart(report.layers)),
    )


def findings(report: AuditReport) -> list[str]:
    """The audit in a few sentences."""
    found = []
    for p, rows in report.robustness.groupby("norm", sort=False):
        worst = rows.sort_values(["eps", "adv"]).groupby("eps").first().iloc[-1]
        turned = f"an attacker turns {1 - worst['relative']:.0%} of the correct predictions"
        text = f"Within {NAMES[p]} distance {worst.name:.3g} {turned}"
        if p in report.not_covered:
            text += f"; nothing is certified ({report.not_covered[p]})."
        else:
            at = report.certified[(report.certified["norm"] == p) & (report.certified["eps"] >= worst.name - 1e-12)]
            text += f"; {at['accuracy'].iloc[0]:.0%} are proved correct there, whatever the attack."
        found.append(text)
    for p, tail in (("2", ""), ("inf", "_inf")):
        excess = _excess(report.layers, tail)
        if excess.notna().any():
            worst_layer = excess.idxmax()
            found.append(
                f"Layer {report.layers['name'][worst_layer]} has the most uneven {NAMES[p]} norm: "
                f"{excess[worst_layer]:.1f} times the least that its energy allows. Regularise its spread first."
            )
    if report.sensitive is not None and not math.isnan(report.attack_energy):
        s = report.sensitive
        found.append(
            f"{report.attack_energy:.0%} of the attacks' energy lies in the {s.rank} most sensitive input directions "
            f"({s.chance:.1%} would by chance), which carry {s.share:.0%} of the network's sensitivity."
        )
    return found


def _excess(layers: pd.DataFrame, tail: str) -> pd.Series:
    """Matrix norm over that of a layer of the same energy whose rows (l_inf) or singular values (l_2) are all alike."""
    columns = layers["parameters"] / layers["rows"]
    entries = layers["rows"] if tail else np.minimum(layers["rows"], columns) ** 0.5
    return (layers[f"concentration{tail}"] * layers[f"spread{tail}"] * entries).where(layers[f"energy{tail}"] > 0)


def accuracy_chart(report: AuditReport) -> alt.Chart:
    """Accuracy under each attack, and the accuracy that is proved, over eps."""
    attacked = report.robustness[["norm", "eps", "attack", "adv"]].rename(columns={"adv": "accuracy", "attack": "what"})
    start = [
        {"norm": p, "eps": 0.0, "what": what, "accuracy": report.clean}
        for p, rows in attacked.groupby("norm")
        for what in rows["what"].unique()
    ]
    proved = report.certified.assign(what="proved, any attack")
    # Beyond the attacked radii the proved curve is zero or of no interest.
    frame = pd.concat([attacked, pd.DataFrame(start), proved])
    frame = frame[frame["eps"] <= frame["norm"].map(attacked.groupby("norm")["eps"].max())]
    parts = report.parts.set_index("norm")
    pictures = [
        alt.Chart(
            rows, title=alt.Title(f"{NAMES[p]} attacks", subtitle=_parts_line(parts.loc[p])), width=350, height=230
        )
        .mark_line(strokeWidth=2.5)
        .encode(
            x=alt.X("eps:Q", title="largest perturbation eps, in units of the input", axis=alt.Axis(tickCount=5)),
            strokeDash=alt.StrokeDash("what:N", title=None),
            y=alt.Y("accuracy:Q", title="accuracy", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
            color=alt.Color("what:N", title=None),
        )
        for p, rows in frame.groupby("norm", sort=False)
    ]
    return alt.hconcat(*pictures)


def _parts_line(parts: pd.Series) -> str:
    return f"all layers: energy 10^{parts['energy']:.1f}, concentration 10^{parts['concentration']:.1f}"


def layer_chart(layers: pd.DataFrame) -> alt.Chart:
    """Each layer's norm as log10 energy + log10 concentration + log10 spread, for both norms."""
    shown = layers.head(MOST_LAYERS)
    order = list(shown["name"])
    pictures = []
    for p, tail in (("2", ""), ("inf", "_inf")):
        logs = pd.DataFrame(
            {part: np.log10(shown[f"{part}{tail}"].where(shown[f"{part}{tail}"] > 0)) for part in COLOURS}
        )
        bars = logs.assign(layer=order).melt("layer", var_name="part", value_name="log10").dropna()
        totals = pd.DataFrame({"layer": order, "log10": logs.sum(axis=1, skipna=False)}).dropna()
        y = alt.Y("layer:N", sort=order, title=None, axis=alt.Axis(labelLimit=130))
        stack = (
            alt.Chart(bars)
            .mark_bar()
            .encode(
                y=y,
                x=alt.X("log10:Q", title="log₁₀; the three bars add up to the mark"),
                color=alt.Color(
                    "part:N", title=None, scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
                ),
                order=alt.Order("part:N"),
            )
        )
        ticks = alt.Chart(totals).mark_tick(thickness=3, color="#111", size=14).encode(y=y, x="log10:Q")
        title = f"{NAMES[p]} norm of each layer (black mark)"
        pictures.append((stack + ticks).properties(title=title, width=350, height={"step": 20}))
    return alt.hconcat(*pictures)


def _svg(chart: alt.Chart) -> Markup:
    configured = chart.configure(font="system-ui, sans-serif", background="white").configure_legend(orient="bottom")
    return Markup(vl_convert.vegalite_to_svg(configured.to_json()))


def _percent(value: float) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.1%}"


def _short(value: float) -> str:
    return "–" if value is None or (isinstance(value, float) and math.isnan(value)) else f"{value:.3g}"
