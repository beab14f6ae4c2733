"""What an audit found: tables, and the same in a terminal and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from cameraready.methods.compress_robust.lipschitz import LipschitzBound
from cameraready.methods.compress_robust.masking import MaskingCheck
from cameraready.methods.compress_robust.sensitive import SensitiveDirections


@dataclass(frozen=True)
class AuditReport:
    """What `audit` found.

    Attributes
    ----------
    layers : see `layer_table`.
    robustness : one row an attack, norm and eps: clean, adv (accuracy), low, high (95 % Wilson interval of adv),
        relative (adv / clean), loss_gap, loss_gap_bound (NaN where not covered).
    certified : norm, eps, accuracy that is proved at each radius; empty for a norm that is not covered.
    not_covered : norm to the reason why nothing is certified.
    bounds : norm to the network's `LipschitzBound`.
    uap : norm, eps, clean, accuracy, random; universal perturbations on examples that they were not made from.
    sensitive : `SensitiveDirections` at the inputs, or None where the model has no gradient.
    attack_energy : mean share of the strongest l_2 (else l_inf) perturbations inside them.
    masking : the `MaskingCheck`s.
    warnings : what a reader of the numbers must know.
    n : examples.
    model : a line that says which model.
    """

    layers: pd.DataFrame
    robustness: pd.DataFrame
    certified: pd.DataFrame
    not_covered: Mapping[str, str]
    bounds: Mapping[str, LipschitzBound]
    uap: pd.DataFrame
    sensitive: SensitiveDirections | None
    attack_energy: float
    masking: tuple[MaskingCheck, ...]
    warnings: tuple[str, ...]
    n: int
    model: str
    attacks: str

    @property
    def clean(self) -> float:
        return float(self.robustness["clean"].iloc[0])

    @property
    def parts(self) -> pd.DataFrame:
        """Log10 of energy, concentration and spread, summed over the layers, for either norm; ``norm`` is their sum."""
        rows = []
        for p, tail in (("2", ""), ("inf", "_inf")):
            with np.errstate(divide="ignore"):
                logs = np.log10(self.layers[[f"{name}{tail}" for name in ("energy", "concentration", "spread")]]).sum()
            rows.append({"norm": p, "energy": logs.iloc[0], "concentration": logs.iloc[1], "spread": logs.iloc[2]})
            rows[-1]["norm_product"] = float(logs.sum())
        return pd.DataFrame(rows)

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one self-contained page; written to ``path`` if given."""
        from cameraready.methods.compress_robust.report import page

        text = page(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def __str__(self) -> str:
        lines = [f"{self.model}: clean accuracy {self.clean:.1%} on {self.n} examples", ""]
        shown = self.robustness[["norm", "eps", "attack", "adv", "low", "high", "relative"]]
        lines += [shown.to_string(index=False, float_format=lambda v: f"{v:.3f}"), ""]
        columns = "name rows k_rows k stable_rank energy concentration spread opnorm_2 opnorm_inf".split()  # noqa: SIM905
        lines += [self.layers[columns].to_string(index=False, float_format=lambda v: f"{v:.3g}"), ""]
        for p in self.bounds:
            at = self.certified[self.certified["norm"] == p]
            half = at.loc[at["accuracy"] >= 0.5 * self.clean, "eps"].max()
            lines.append(f"certified, l_{p}: half of the correct predictions hold up to eps {half:.3g}")
        lines += [f"certified, l_{p}: not covered, {why}" for p, why in self.not_covered.items()]
        for row in self.uap.itertuples():
            lines.append(f"universal, l_{row.norm}, eps {row.eps:.3g}: {row.accuracy:.1%} (noise {row.random:.1%})")
        lines += [str(check) for check in self.masking]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])
