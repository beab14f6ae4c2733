"""The report's colours, once: for pictures (light or dark) and, by CSS variables, for charts inside a page.

The series colours keep a contrast of at least 3:1 against their background. They were searched, inside bands of hue,
for the largest distances as normal, protanopic and deuteranopic eyes see them, the first four most of all. Charts never
rely on colour alone: every series also has its own point shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")


@dataclass(frozen=True)
class Theme:
    """Colours as strings that Vega accepts: hexadecimal, or ``var(--name)`` where the page's style sheet decides."""

    surface: str
    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]
    supported: str
    not_supported: str
    inconclusive: str
    zone: str

    def verdict(self, outcome: str) -> str:
        """The colour of a verdict; outcomes that judge nothing are muted."""
        return {
            "supported": self.supported,
            "not supported": self.not_supported,
            "inconclusive": self.inconclusive,
        }.get(outcome, self.muted)

    def css(self) -> dict[str, str]:
        """CSS variable name to colour, for the head of a page."""
        names = {f"--series-{place}": color for place, color in enumerate(self.series, start=1)}
        return names | {
            "--surface": self.surface,
            "--ink": self.ink,
            "--muted": self.muted,
            "--grid": self.grid,
            "--supported": self.supported,
            "--not-supported": self.not_supported,
            "--inconclusive": self.inconclusive,
            "--zone": self.zone,
        }

    def config(self) -> dict[str, Any]:
        """The Vega configuration that gives every chart the report's look."""
        return {
            "background": "transparent" if self.surface.startswith("var") else self.surface,
            "font": FONT,
            "aria": False,
            "view": {"stroke": None},
            "axis": {
                "domainColor": self.grid,
                "gridColor": self.grid,
                "gridOpacity": 0.7,
                "tickColor": self.grid,
                "labelColor": self.muted,
                "labelFontSize": 12,
                "labelPadding": 6,
                "labelSeparation": 6,
                "titleColor": self.ink,
                "titleFontSize": 12,
                "titleFontWeight": 600,
                "titlePadding": 10,
                "tickSize": 4,
            },
            "legend": {
                "orient": "top",
                "direction": "horizontal",
                "columnPadding": 20,
                "rowPadding": 4,
                "labelColor": self.ink,
                "labelFontSize": 12,
                "labelLimit": 0,
                "titleColor": self.muted,
                "titleFontSize": 12,
                "titleFontWeight": 400,
                "symbolOpacity": 1,
                "symbolSize": 80,
                "symbolStrokeWidth": 2,
                "offset": 14,
            },
            "header": {"labelColor": self.ink, "labelFontSize": 12, "labelFontWeight": 600, "labelPadding": 8},
            "title": {
                "color": self.ink,
                "fontSize": 14,
                "anchor": "start",
                "offset": 14,
                "subtitleColor": self.muted,
                "subtitleFontSize": 12,
            },
        }


LIGHT = Theme(
    surface="#ffffff",
    ink="#1d1f23",
    muted="#5a5f67",
    grid="#dedbd2",
    series=("#0a5fae", "#d27f00", "#45a075", "#640c42", "#635a00", "#43236b", "#6e2124", "#3b9ca6"),
    supported="#0d6a40",
    not_supported="#a8281c",
    inconclusive="#7d5300",
    zone="#e3f1e8",
)

DARK = Theme(
    surface="#1b1e23",
    ink="#ebe8e2",
    muted="#a6abb3",
    grid="#363b43",
    series=("#6db3ff", "#b75f2c", "#93f8e1", "#ae467f", "#feed8c", "#6b5fca", "#da827b", "#6cb3cc"),
    supported="#7edba8",
    not_supported="#ff9f92",
    inconclusive="#f1c56d",
    zone="#173325",
)

PAGE = Theme(
    surface="var(--surface)",
    ink="var(--ink)",
    muted="var(--muted)",
    grid="var(--grid)",
    series=tuple(f"var(--series-{place})" for place in range(1, len(LIGHT.series) + 1)),
    supported="var(--supported)",
    not_supported="var(--not-supported)",
    inconclusive="var(--inconclusive)",
    zone="var(--zone)",
)
