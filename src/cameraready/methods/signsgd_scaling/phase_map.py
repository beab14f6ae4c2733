"""The plane of feature and target decay: where which terms bind and where signSGD's slope is the steeper one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    import altair as alt

EQUAL = 1e-6
REGIONS = ("signSGD steeper", "equal", "SGD steeper")
COLORS = ("#2a6f97", "#e9ecef", "#c1666b")


@dataclass(frozen=True, eq=False)
class PhaseMap:
    """Slopes and phases on a grid.

    Attributes
    ----------
    table : DataFrame: alpha, beta, slope_sgd, phase_sgd, slope_signsgd, phase_signsgd.
    """

    table: pd.DataFrame

    @property
    def region(self) -> pd.Series:
        """ "signSGD steeper", "equal" or "SGD steeper" at each point."""
        gain = self.table["slope_signsgd"] - self.table["slope_sgd"]
        return pd.Series(REGIONS[1], index=gain.index).mask(gain > EQUAL, REGIONS[0]).mask(gain < -EQUAL, REGIONS[2])

    def chart(self, *, point: tuple[float, float] | None = None) -> alt.LayerChart:
        """An Altair chart of the regions with the boundaries of the phases; ``point`` (alpha, beta) marks a user's
        case.

        ``.save("map.html")`` or ``.save("map.png")`` writes it.
        """
        import altair as alt

        alphas, betas = sorted(self.table["alpha"].unique()), sorted(self.table["beta"].unique())
        steps = [min(b - a for a, b in pairwise(v)) if len(v) > 1 else 0.1 for v in (alphas, betas)]
        data = self.table.assign(region=self.region, gain=self.table["slope_signsgd"] - self.table["slope_sgd"])
        for axis, step in zip(("alpha", "beta"), steps, strict=True):
            data[f"{axis}_low"], data[f"{axis}_high"] = data[axis] - step / 2, data[axis] + step / 2
        cells = (
            alt.Chart(data)
            .mark_rect()
            .encode(
                x=alt.X("alpha_low:Q", title="feature decay alpha", scale=alt.Scale(zero=False, nice=False)),
                x2="alpha_high:Q",
                y=alt.Y("beta_low:Q", title="target decay beta", scale=alt.Scale(zero=False, nice=False)),
                y2="beta_high:Q",
                color=alt.Color(
                    "region:N", title="compute-optimal slope", scale=alt.Scale(domain=REGIONS, range=COLORS)
                ),
                tooltip=["alpha", "beta", "gain", "slope_sgd", "phase_sgd", "slope_signsgd", "phase_signsgd"],
            )
        )
        layers = [cells]
        if point is not None:
            mark = pd.DataFrame({"alpha": [point[0]], "beta": [point[1]], "label": ["your data"]})
            layers.append(
                alt.Chart(mark).mark_point(size=90, filled=True, color="black").encode(x="alpha:Q", y="beta:Q")
            )
            layers.append(alt.Chart(mark).mark_text(dx=8, align="left").encode(x="alpha:Q", y="beta:Q", text="label"))
        return alt.layer(*layers).properties(width=420, height=420, title="Where signSGD's scaling law beats SGD's")
