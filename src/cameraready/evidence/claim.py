"""What a method's ``claims.py`` is written with: `claim`, `Scale`, `Dataset`.

Nothing here imports an array library, so that ``cameraready list`` and ``show`` can read claims in milliseconds.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from cameraready.evidence.charts import Chart
from cameraready.evidence.rules import Rule

SCALES = ("quick", "full", "paper")


@dataclass(frozen=True)
class Dataset:
    """A factor whose values are data sets; ``--on PATH`` replaces them by the user's file.

    Parameters
    ----------
    kind : what the trial function receives, one of the kinds of `cameraready.data.open`.
    default : the name, or names, that `cameraready.data.load` knows.
    """

    kind: str
    default: str | Sequence[str]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.default,) if isinstance(self.default, str) else tuple(self.default)


@dataclass(frozen=True, init=False)
class Scale:
    """How much is run: the number of seeds, and other values for some of the factors.

    ``Scale(seeds=10, k=[64, 512])`` runs seeds 0 to 9 and replaces the values of the factor ``k``.
    """

    seeds: int
    factors: Mapping[str, tuple[Any, ...]]

    def __init__(self, seeds: int, **factors: Any) -> None:
        if seeds < 1:
            raise ValueError(f"seeds={seeds}; a scale needs at least one seed")
        object.__setattr__(self, "seeds", seeds)
        object.__setattr__(self, "factors", {name: _values(value) for name, value in factors.items()})


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper as an experiment and a decision rule, both fixed before anything runs."""

    name: str
    says: str
    factors: Mapping[str, Any]
    scales: Mapping[str, Scale]
    holds: Rule
    run: Callable[..., None]
    charts: tuple[Chart, ...] = ()
    source: str = ""
    peers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 300.0
    untestable_at: Mapping[str, str] = field(default_factory=dict)

    def cells(self, scale: str, *, overrides: Mapping[str, Sequence[Any]] | None = None) -> Iterator[dict[str, Any]]:
        """Every combination of the factors' values at this scale."""
        values = {name: _values(value) for name, value in self.factors.items()}
        values.update(self.scales[scale].factors)
        values.update({name: tuple(value) for name, value in (overrides or {}).items()})
        for combination in product(*values.values()):
            yield dict(zip(values, combination, strict=True))

    @property
    def dataset_factor(self) -> tuple[str, Dataset] | None:
        """The factor that ``--on`` replaces, with its declaration."""
        return next(((name, value) for name, value in self.factors.items() if isinstance(value, Dataset)), None)


def claim(
    name: str,
    *,
    says: str,
    factors: Mapping[str, Any],
    scales: Mapping[str, Scale],
    holds: Rule,
    chart: Chart | Sequence[Chart] = (),
    source: str = "",
    peers: Mapping[str, str] | None = None,
    timeout: float = 300.0,
    untestable_at: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., None]], Claim]:
    """Turn a trial function into a `Claim`.

    Parameters
    ----------
    name : kebab-case, unique in the method.
    says : the claim in one sentence.
    factors : name to values; the full cross product are the cells. A single value is a constant that a scale may
        replace.
    scales : "quick", "full" and "paper" to `Scale`; a scale that is left out cannot be asked for.
    holds : the rule that decides, declared here and never after the run.
    chart : one chart or several, drawn from the measurements.
    source : where the paper makes the claim.
    peers : each contestant's name to its settings, printed in the report.
    timeout : seconds that one trial may take.
    untestable_at : scale to the reason why the claim cannot be tested there; it is reported so and nothing is run.

    Raises
    ------
    ValueError : a name that is not kebab-case, an unknown scale, a factor that the function does not take.
    """
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"claim name {name!r} is not kebab-case; write for instance 'seeding-speed'")
    if unknown := (set(scales) | set(untestable_at or {})) - set(SCALES):
        raise ValueError(f"claim {name!r}: unknown scale {sorted(unknown)}; the scales are {', '.join(SCALES)}")
    for label, scale in scales.items():
        if stray := set(scale.factors) - set(factors):
            raise ValueError(f"claim {name!r}: scale {label!r} sets {sorted(stray)}, which are not among its factors")

    def wrap(run: Callable[..., None]) -> Claim:
        _, *arguments = inspect.signature(run).parameters
        if set(arguments) != set(factors):
            taken = f"the function takes {sorted(arguments)} after `trial`"
            raise ValueError(f"claim {name!r}: {taken}, the factors are {sorted(factors)}")
        return Claim(
            name=name,
            says=says,
            factors=dict(factors),
            scales=dict(scales),
            holds=holds,
            run=run,
            charts=(chart,) if isinstance(chart, Chart) else tuple(chart),
            source=source,
            peers=dict(peers or {}),
            timeout=timeout,
            untestable_at=dict(untestable_at or {}),
        )

    return wrap


def _values(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Dataset):
        return value.names
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (value,)
    return tuple(value)
