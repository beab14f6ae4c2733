"""SCIP's separators in eight families, and the switches that turn a family off and on while SCIP runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyscipopt import Model
    from pyscipopt.scip import Row

FAMILIES = ("gomory", "aggregation", "zerohalf", "clique", "network", "bounds", "constraints", "other")

_SEPARATORS = {
    "gomory": "gomory", "gomorymi": "gomory", "strongcg": "gomory", "lagromory": "gomory",
    "aggregation": "aggregation", "cmir": "aggregation", "flowcover": "aggregation", "knapsackcover": "aggregation",
    "zerohalf": "zerohalf",
    "clique": "clique", "oddcycle": "clique",
    "mcf": "network", "flower": "network",
    "impliedbounds": "bounds", "mixing": "bounds", "intobj": "bounds",
}  # fmt: skip
# Row names are not unique, but their beginning tells which separator made the row.
_ROW_PREFIXES = (
    ("gom", "gomory"), ("scg", "gomory"), ("strongcg", "gomory"), ("lagromory", "gomory"),
    ("cmir", "aggregation"), ("flowcover", "aggregation"), ("lifted", "aggregation"), ("knapsack", "aggregation"),
    ("zerohalf", "zerohalf"), ("clique", "clique"), ("oddcycle", "clique"), ("mcf", "network"),
    ("implbd", "bounds"), ("mixing", "bounds"), ("objrow", "bounds"),
)  # fmt: skip
_FROM_CONSTRAINT = (1, 2)  # SCIP_ROWORIGINTYPE: a constraint handler, a constraint


def family_of(row: Row) -> int:
    """The index in `FAMILIES` of what made this row: its origin, else its name's beginning."""
    if row.getOrigintype() in _FROM_CONSTRAINT:
        return FAMILIES.index("constraints")
    name = row.name
    return FAMILIES.index(next((family for prefix, family in _ROW_PREFIXES if name.startswith(prefix)), "other"))


class FamilySwitches:
    """Turns families of separators off and on through SCIP's frequencies, also inside a callback.

    ``separating/<name>/freq`` and ``constraints/<name>/sepafreq`` are set to -1 (never); SCIP reads them anew in each
    round. A family that is opened gets the frequencies that the user had set. Separators of all families leave cuts in
    the pool, so ``separating/poolfreq`` is -1 only while every family is closed.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._frequencies: dict[str, dict[str, int]] = {family: {} for family in FAMILIES}
        self.is_open = dict.fromkeys(FAMILIES, True)
        self._pool_frequency = int(model.getParam("separating/poolfreq"))
        for name, value in model.getParams().items():
            parts = name.split("/")
            if parts[0] == "separating" and parts[-1] == "freq" and len(parts) == 3:
                family = _SEPARATORS.get(parts[1], "other")
            elif parts[0] == "constraints" and parts[-1] == "sepafreq":
                family = "constraints"
            else:
                continue
            if value >= 0:
                self._frequencies[family][name] = int(value)

    def close(self, families: Iterable[str] = FAMILIES) -> None:
        """Separate no more by these families."""
        for family in families:
            if self.is_open[family]:
                self.is_open[family] = False
                for name in self._frequencies[family]:
                    self.model.setParam(name, -1)
        if not any(self.is_open.values()):
            self.model.setParam("separating/poolfreq", -1)

    def open(self, families: Iterable[str] = FAMILIES) -> None:
        """Separate by these families as the user's settings said."""
        for family in families:
            if not self.is_open[family]:
                self.is_open[family] = True
                for name, frequency in self._frequencies[family].items():
                    self.model.setParam(name, frequency)
        if any(self.is_open.values()):
            self.model.setParam("separating/poolfreq", self._pool_frequency)
