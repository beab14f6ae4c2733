"""How a run is watched: a live view in a terminal, plain lines elsewhere, JSON lines for machines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from math import isfinite
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from cameraready.evidence.store import TrialRecord
from cameraready.evidence.verdict import ClaimResult, MethodResult
from cameraready.evidence.verify import Item, Run

MARKS = {
    "supported": ("✔", "green"),
    "not supported": ("✘", "red"),
    "inconclusive": ("?", "yellow"),
    "untestable": ("–", "dim"),
    "skipped": ("–", "dim"),
    "not run": ("·", "dim"),
}
PLAIN_EVERY = 10.0


def badge(outcome: str) -> Text:
    """A verdict as a mark and its word."""
    mark, style = MARKS[outcome]
    return Text(f"{mark} {outcome}", style=style)


class LiveView:
    """A bar for each claim with its verdict when known, and one bar with the time left."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[verdict]}"),
            console=console,
        )
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def planned(self, run: Run) -> None:
        """Draw the bars; what the store already had counts as done."""
        for item in run.items:
            if item.specs:
                bar = self._progress.add_task(item.name, total=len(item.specs), completed=len(item.records), verdict="")
                self._bars[item.name] = bar
        total = sum(len(item.specs) for item in run.items)
        done = sum(len(item.records) for item in run.items)
        self._bars[""] = self._progress.add_task("[bold]all trials", total=total, completed=done, verdict="")

    def finished(self, item: Item, record: TrialRecord) -> None:
        """Advance the claim's bar and the total; a failure is printed at once."""
        self._progress.advance(self._bars[item.name])
        self._progress.advance(self._bars[""])
        if not record.ok:
            self.message(f"{record.status}: {record.spec.name}: {record.error}")

    def decided(self, item: Item, result: ClaimResult) -> None:
        """Write the verdict beside the bar."""
        if item.name in self._bars:
            mark, style = MARKS[result.outcome]
            self._progress.update(self._bars[item.name], verdict=f"[{style}]{mark} {result.outcome}")

    def message(self, text: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(Text(text, style="yellow"))


class PlainView:
    """A line for each verdict, and one every ten seconds in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._done = self._total = 0
        self._start = self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def planned(self, run: Run) -> None:
        """Say how much there is to do."""
        self._total = len(run.todo)
        known = sum(len(item.records) for item in run.items)
        self._print(f"{len(run.items)} claims, {self._total} trials to run, {known} taken from the store")

    def finished(self, item: Item, record: TrialRecord) -> None:
        """Say now and then how far it is; always say a failure."""
        self._done += 1
        now = time.monotonic()
        if not record.ok:
            self._print(f"{record.status}: {record.spec.name}: {record.error}")
        if now - self._last >= PLAIN_EVERY:
            self._last = now
            left = (now - self._start) / self._done * (self._total - self._done)
            self._print(f"{self._done}/{self._total} trials, about {left:.0f} s left")

    def decided(self, item: Item, result: ClaimResult) -> None:
        """Say the verdict."""
        self._print(f"{item.name}: {result.outcome}. {result.sentence}")

    def message(self, text: str) -> None:
        """Print a line."""
        self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class JsonView:
    """One JSON object a line: planned, trial, verdict, message. What libraries print meanwhile goes to stderr."""

    def __init__(self) -> None:
        self._out = sys.stdout
        self._others = redirect_stdout(sys.stderr)

    def __enter__(self) -> Self:
        self._others.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._others.__exit__(kind, error, trace)

    def planned(self, run: Run) -> None:
        """The numbers of the plan."""
        self._write("planned", claims=len(run.items), trials=len(run.todo), scale=run.scale)

    def finished(self, item: Item, record: TrialRecord) -> None:
        """One ended trial."""
        self._write(
            "trial",
            claim=item.name,
            seed=record.spec.seed,
            cell=dict(record.spec.cell),
            status=record.status,
            error=record.error,
            seconds=record.seconds,
        )

    def decided(self, item: Item, result: ClaimResult) -> None:
        """One verdict with its interval."""
        self._write("verdict", **verdict_json(item.card.slug, result))

    def message(self, text: str) -> None:
        """A warning."""
        self._write("message", text=text)

    def _write(self, event: str, **values: object) -> None:
        self._out.write(_json_line(event, **values) + "\n")
        self._out.flush()


def plan_lines(run: Run, *, as_json: bool) -> Iterator[str]:
    """What a run would do, claim by claim."""
    for text in run.skipped_files:
        yield _json_line("message", text=text) if as_json else text
    for item in run.items:
        if as_json:
            counts = {"trials": len(item.todo), "stored": len(item.records)}
            yield _json_line("plan", claim=item.name, **counts, outcome=item.outcome, reason=item.reason)
        elif item.outcome:
            yield f"{item.name}: {item.outcome}: {item.reason}"
        else:
            yield f"{item.name}: {len(item.todo)} of {len(item.specs)} trials to run"


def _json_line(event: str, **values: object) -> str:
    plain = {name: _finite(value) for name, value in values.items()}
    return json.dumps({"event": event, **plain}, default=str)


def _finite(value: object) -> object:
    """JSON has no infinity: an interval without an end has null there."""
    return None if isinstance(value, float) and not isfinite(value) else value


def verdict_json(slug: str, result: ClaimResult) -> dict[str, object]:
    """A verdict as plain values."""
    finding = result.finding
    return {
        "claim": f"{slug}:{result.claim.name}",
        "scale": result.scale,
        "outcome": result.outcome,
        "sentence": result.sentence,
        "effect": finding and finding.effect,
        "low": finding and finding.low,
        "high": finding and finding.high,
        "at_least": finding and finding.threshold.at_least,
        "at_most": finding and finding.threshold.at_most,
        "n": finding and finding.n,
        "trials": result.trials,
        "failed": len(result.failed),
        "fingerprint": result.fingerprint,
    }


def verdict_table(methods: Sequence[MethodResult]) -> Group:
    """All verdicts, each with what was measured below it, and how many there are of each kind."""
    results = [(method.card.slug, result) for method in methods for result in method.claims]
    width = max((len(result.outcome) for _, result in results), default=0) + 3
    lines: list[RenderableType] = []
    for slug, result in results:
        verdict = badge(result.outcome)
        verdict.pad_right(width - len(verdict))
        lines.append(verdict.append(f"{slug}:{result.claim.name}", style="bold"))
        lines.append(Padding(Text(result.sentence, style="dim"), (0, 0, 0, width)))
    outcomes = [result.outcome for _, result in results]
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in MARKS if outcome in outcomes)
    return Group(*lines, Text(f"{len(results)} claims: {counts}", style="bold"))
