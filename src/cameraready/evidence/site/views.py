"""What the templates show: results turned into texts, tables and chart specifications."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cameraready.evidence.charts import Chart
from cameraready.evidence.site import drawing, forest, summary, wording
from cameraready.evidence.site.palette import PAGE
from cameraready.evidence.verdict import ClaimResult, MethodResult
from cameraready.registry import Card

EASY_COLORS = 4


@dataclass(frozen=True)
class Figure:
    """A chart with its caption and the same content as a table; ``problem`` says why there is no chart."""

    title: str
    caption: str
    spec: Mapping[str, Any] | None = None
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    rows_note: str = ""
    problem: str = ""


@dataclass(frozen=True)
class ClaimView:
    """One claim on a method's page."""

    result: ClaimResult
    slug: str
    anchor: str
    levels: Mapping[str, Sequence[Any]]

    @property
    def rerun(self) -> str:
        """The command that repeats this claim."""
        words = ["cameraready", "verify", f"{self.slug}:{self.result.claim.name}", "--scale", self.result.scale]
        return shlex.join(words + (["--on", self.result.on] if self.result.on else []))

    @property
    def rule(self) -> str:
        return self.result.claim.holds.describe()

    @cached_property
    def panels(self) -> list[forest.Panel]:
        return forest.panels(self.result.finding) if self.result.finding else []

    @cached_property
    def figures(self) -> list[Figure]:
        table = self.result.table
        if table is None or table.empty:
            return []
        return [_figure(chart, self.result, self.levels) for chart in self.result.claim.charts]

    @property
    def factors(self) -> list[tuple[str, str]]:
        """Factor to its values at this scale."""
        return [(name, ", ".join(map(wording.label, values))) for name, values in _factors(self.result).items()]

    @property
    def peers(self) -> list[tuple[str, str]]:
        return list(self.result.claim.peers.items())

    @property
    def facts(self) -> list[tuple[str, str]]:
        """How much was run, and what it took."""
        result = self.result
        seeds = _seeds(result)
        cells = _cells(result, seeds)
        trials = f"{result.trials:,} of {result.planned:,}" if result.trials != result.planned else f"{result.trials:,}"
        facts = [
            ("Scale", result.scale),
            ("Data", result.on),
            ("Seeds", f"{seeds:,}" if seeds else ""),
            ("Cells", f"{cells:,}" if cells else ""),
            ("Trials", trials if result.planned else ""),
            ("Failed", f"{len(result.failed):,}" if result.failed else ""),
            ("Time", wording.duration(result.seconds) if result.seconds else ""),
            ("Peak memory", wording.size(result.peak_rss) if result.peak_rss else ""),
            ("Fingerprint", result.fingerprint),
        ]
        return [(name, value) for name, value in facts if value]

    @property
    def gap(self) -> str:
        """A warning where the verdict rests on fewer trials than were planned."""
        result = self.result
        if not result.planned or (result.trials >= result.planned and not result.failed):
            return ""
        failed = f"{wording.plural(len(result.failed), 'trial')} failed" if result.failed else ""
        absent = max(result.planned - result.trials - len(result.failed), 0)
        missing = f"{wording.plural(absent, 'trial')} not run" if absent else ""
        return f"{' and '.join(filter(None, (failed, missing)))}, of {result.planned:,} planned."


@dataclass(frozen=True)
class MethodView:
    """One method: its card on the index and its page."""

    card: Card
    claims: Sequence[ClaimView]

    @property
    def href(self) -> str:
        return f"methods/{self.card.slug}.html"

    @property
    def counts(self) -> list[tuple[str, int]]:
        return count(claim.result for claim in self.claims)

    @property
    def words(self) -> str:
        """What the index's search looks through."""
        card = self.card
        said = [claim.result.claim.says for claim in self.claims]
        parts = [card.slug, card.title, card.field, card.venue, card.paper, card.authors, card.summary, *card.imports]
        return " ".join([*parts, *said]).casefold()

    @property
    def environments(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Each environment that claims of this page ran in, with the names of those claims."""
        found: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for claim in self.claims:
            if claim.result.environment:
                found.setdefault(tuple(claim.result.environment.items()), []).append(claim.result.claim.name)
        return [(", ".join(names), list(items)) for items, names in found.items()]


def view(method: MethodResult) -> MethodView:
    """Prepare a method; colours and orders are settled over all its claims, so that a page is consistent.

    A page with more contestants than the first four colours, which are the easiest to tell apart, settles them claim by
    claim.
    """
    names = Counter(result.claim.name for result in method.claims)
    page = _levels(method.claims)
    claims = []
    for result in method.claims:
        levels = page if len(page) <= EASY_COLORS else _levels([result])
        anchor = result.claim.name if names[result.claim.name] == 1 else f"{result.claim.name}-{result.scale}"
        factors = _factors(result)
        claims.append(ClaimView(result, method.card.slug, anchor, {**factors, "method": levels}))
    return MethodView(method.card, claims)


def count(results: Iterable[ClaimResult]) -> list[tuple[str, int]]:
    """Outcomes that occur, in the order in which a reader wants them, with their numbers."""
    counts: Counter[str] = Counter(result.outcome for result in results)
    return [(outcome, counts[outcome]) for outcome in wording.OUTCOMES if counts[outcome]]


def _levels(results: Sequence[ClaimResult]) -> list[str]:
    """Contestants in the charts: the methods that the page is about, then their peers as the claims list them."""
    seen = dict.fromkeys(name for result in results for name in _drawn(result))
    peers = dict.fromkeys(name for result in results for name in result.claim.peers if name in seen)
    return [*(name for name in seen if name not in peers), *peers]


def _drawn(result: ClaimResult) -> list[str]:
    """The methods that have a place in one of the claim's charts, sorted."""
    table, found = result.table, set()
    for chart in result.claim.charts:
        if table is not None and {"method", chart.x, chart.y} <= set(table.columns):
            found |= set(table.dropna(subset=[chart.x, chart.y])["method"].dropna().astype(str))
    return sorted(found)


def _figure(chart: Chart, result: ClaimResult, levels: Mapping[str, Sequence[Any]]) -> Figure:
    title = chart.title or drawing.title_of(chart)
    try:
        assert result.table is not None
        drawn = summary.summarise(chart, result.table)
    except ValueError as error:
        return Figure(title, "", problem=f"This chart could not be drawn: {error}.")
    spec = drawing.chart_of(chart, drawn, levels=levels, theme=PAGE)
    del spec["title"]
    headings, rows, note = summary.rows(chart, drawn, levels)
    return Figure(title, " ".join([_caption(chart, drawn), *drawn.notes]), spec, headings, rows, note)


def _caption(chart: Chart, drawn: summary.Summary) -> str:
    if chart.mark == "point":
        return "One point for each recorded row."
    most = int(drawn.frame["seeds"].max())
    if most == 1:
        return "One seed."
    spread = {"line": "the line is the mean, the band the range", "bar": "the bar is the mean, the whisker the range"}
    said = (
        spread[chart.mark]
        if not (chart.mark == "bar" and "y" in chart.log)
        else "the point is the mean, the whisker the range"
    )
    return f"Over {wording.plural(most, 'seed')}: {said}."


def _factors(result: ClaimResult) -> dict[str, tuple[Any, ...]]:
    """The values of each factor: those that were measured, in the order of the claim, or those that are declared."""
    declared: dict[str, dict[Any, None]] = {name: {} for name in result.claim.factors}
    if result.scale in result.claim.scales:
        for cell in result.claim.cells(result.scale, overrides=_on(result)):
            for name, value in cell.items():
                declared[name][value if isinstance(value, (str, int, float, bool)) else str(value)] = None
    if result.table is not None:
        for name, values in declared.items():
            if name in result.table and len(measured := list(result.table[name].dropna().unique())):
                places = [wording.label(value) for value in values]
                known = [value for value in values if wording.label(value) in map(wording.label, measured)]
                declared[name] = dict.fromkeys([*known, *(new for new in measured if wording.label(new) not in places)])
    return {name: tuple(values) for name, values in declared.items()}


def _on(result: ClaimResult) -> dict[str, Sequence[Any]]:
    factor = result.claim.dataset_factor
    return {factor[0]: (result.on,)} if factor and result.on else {}


def _cells(result: ClaimResult, seeds: int) -> int:
    """Planned trials a seed, where that is a whole number."""
    return result.planned // seeds if seeds and result.planned % seeds == 0 else 0


def _seeds(result: ClaimResult) -> int:
    return int(result.table["seed"].nunique()) if result.table is not None and "seed" in result.table else 0
