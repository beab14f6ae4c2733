"""Re-test claims: plan, take what the store has, run the rest, decide."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from cameraready.evidence.claim import SCALES, Claim
from cameraready.evidence.fingerprint import digest_of
from cameraready.evidence.plan import TrialSpec, claims_of, plan
from cameraready.evidence.store import Store, TrialRecord
from cameraready.evidence.verdict import ClaimResult, FailedTrial, MethodResult, Outcome
from cameraready.registry import Card, card, cards, suggest


class Executor(Protocol):
    """Runs trials somewhere and yields their records as they end."""

    def run(self, specs: Sequence[TrialSpec]) -> Generator[TrialRecord, None, None]: ...


class Listener(Protocol):
    """Is told what happens: a live view, plain lines, or JSON."""

    def planned(self, run: Run) -> None: ...
    def finished(self, item: Item, record: TrialRecord) -> None: ...
    def decided(self, item: Item, result: ClaimResult) -> None: ...
    def message(self, text: str) -> None: ...


@dataclass
class Item:
    """One claim of a run: its trials, and what is known of them."""

    card: Card
    claim: Claim
    scale: str
    specs: list[TrialSpec] = field(default_factory=list)
    outcome: Outcome | None = None
    reason: str = ""
    records: dict[str, TrialRecord] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``slug:claim``."""
        return f"{self.card.slug}:{self.claim.name}"

    @property
    def todo(self) -> list[TrialSpec]:
        """The trials that have not ended well yet."""
        return [spec for spec in self.specs if spec.fingerprint not in self.records]


@dataclass
class Run:
    """All claims that were asked for, in the order of the cards and of each claims.py."""

    items: list[Item]
    scale: str
    on: str = ""
    skipped_files: list[str] = field(default_factory=list)
    as_declared: bool = True  # with the scale's own seeds, factors and data sets
    unstored: list[TrialRecord] = field(default_factory=list)

    @property
    def todo(self) -> list[TrialSpec]:
        """Every trial that must run."""
        return [spec for item in self.items for spec in item.todo]


def select(targets: Sequence[str]) -> list[tuple[Card, Claim]]:
    """The claims that ``slug`` or ``slug:claim`` name; all of them for no target.

    Raises
    ------
    KeyError : an unknown method or claim, with the names there are.
    """
    chosen: dict[tuple[str, str], tuple[Card, Claim]] = {}
    for target in targets or list(cards()):
        slug, _, wanted = target.partition(":")
        claims = claims_of(card(slug).slug)
        if wanted and wanted not in {claim.name for claim in claims}:
            names = [claim.name for claim in claims]
            raise KeyError(f"{slug} has no claim {wanted!r}; {suggest(wanted, names, 'its claims are')}")
        for claim in claims:
            if not wanted or claim.name == wanted:
                chosen[slug, claim.name] = (card(slug), claim)
    return list(chosen.values())


def prepare(
    targets: Sequence[str],
    scale: str,
    store: Store,
    *,
    seeds: int | None = None,
    overrides: Mapping[str, Sequence[Any]] | None = None,
    on: str = "",
) -> Run:
    """Plan a run and take from the store what is there.

    Raises
    ------
    KeyError, ValueError : an unknown name, a factor that no chosen claim has, a file that does not fit.
    """
    if scale not in SCALES:
        raise ValueError(f"--scale {scale}: no such scale; {suggest(scale, SCALES, 'the scales are')}")
    overrides = overrides or {}
    chosen = select(targets)
    factors = sorted({name for _, claim in chosen for name in claim.factors})
    for name in overrides:
        if name not in factors:
            raise ValueError(f"--set {name}: no such factor; {suggest(name, factors, 'the factors are')}")
    if on and "://" not in on:
        on = os.path.abspath(on)
    digest = ""
    if on:
        chosen, digest = _fitting(on, chosen)
    items = []
    for method, claim in chosen:
        item = Item(method, claim, scale)
        items.append(item)
        if missing := method.missing():
            item.outcome, item.reason = "skipped", f"needs {', '.join(missing)}: {method.install_hint}"
        elif scale in claim.untestable_at:
            item.outcome, item.reason = "untestable", claim.untestable_at[scale]
        elif scale not in claim.scales:
            item.outcome, item.reason = "untestable", f"the claim declares no {scale} scale"
        else:
            mine = {name: values for name, values in overrides.items() if name in claim.factors}
            item.specs = plan(method.slug, claim, scale, seeds=seeds, overrides=mine, on=on, on_digest=digest)
    found, skipped = store.read(spec for item in items for spec in item.specs)
    for item in items:
        for spec in item.specs:
            record = found.get(spec.fingerprint)
            if record is not None and record.ok:
                item.records[spec.fingerprint] = record
    return Run(items, scale, on, skipped, as_declared=not (seeds or overrides or on))


def execute(run: Run, store: Store, executor: Callable[[], Executor], listener: Listener) -> list[MethodResult]:
    """Run what is left to run, store each trial as it ends, and decide each claim as soon as it can be decided."""
    listener.planned(run)
    for text in run.skipped_files:
        listener.message(text)
    owners: dict[str, list[Item]] = defaultdict(list)
    for item in run.items:
        for spec in item.todo:
            owners[spec.fingerprint].append(item)
    results = {item.name: _announce(item, run, listener) for item in run.items if not item.todo}
    if todo := list({spec.fingerprint: spec for spec in run.todo}.values()):
        with closing(executor().run(todo)) as records:  # however the loop is left, the workers end at once
            for record in records:
                if (error := _try_to_store(store, record)) is not None:
                    run.unstored.append(record)
                    listener.message(f"could not store {record.spec.name} in {store.url}: {error}")
                for item in owners[record.spec.fingerprint]:
                    item.records[record.spec.fingerprint] = record
                    listener.finished(item, record)
                    if len(item.records) == len(item.specs):
                        results[item.name] = _announce(item, run, listener)
    run.unstored = [record for record in run.unstored if _try_to_store(store, record) is not None]
    if run.unstored:
        count = f"{len(run.unstored)} trial{'s are' if len(run.unstored) > 1 else ' is'}"
        listener.message(f"{count} not in {store.url} and will run again next time; what was stored is safe")
    methods = _by_method(run, results)
    if run.as_declared:
        _remember(store, methods)
    return methods


def collect(run: Run) -> list[MethodResult]:
    """Decide every claim on what the store has, and run nothing."""
    return _by_method(run, {item.name: decide(item, run.on) for item in run.items})


def decide(item: Item, on: str = "") -> ClaimResult:
    """The verdict of one claim on the trials that ended."""
    common: dict[str, Any] = {"claim": item.claim, "scale": item.scale, "on": on}
    if item.outcome:
        return ClaimResult(**common, outcome=item.outcome, reason=item.reason)
    ended = [item.records[spec.fingerprint] for spec in item.specs if spec.fingerprint in item.records]
    if missing := next((record for record in ended if record.status == "missing data"), None):
        return ClaimResult(**common, outcome="skipped", reason=missing.error)
    good = [record for record in ended if record.ok]
    failed = tuple(
        FailedTrial(record.spec.seed, record.spec.cell, f"{record.status}: {record.error}", record.traceback)
        for record in ended
        if not record.ok
    )
    common |= {
        "trials": len(good),
        "planned": len(item.specs),
        "failed": failed,
        "fingerprint": digest_of(sorted(spec.fingerprint for spec in item.specs)),
        "seconds": sum(record.seconds for record in ended),
        "peak_rss": max((record.peak_rss for record in ended), default=0),
        "environment": good[0].environment if good else {},
    }
    if not good:
        reason = f"all {len(failed)} trials failed" if failed else "not run yet"
        return ClaimResult(**common, outcome="inconclusive" if failed else "not run", reason=reason)
    table = _table(good, item.claim)
    try:
        finding = item.claim.holds(table)
    except Exception as error:  # whatever one rule does, the other claims keep their verdicts
        reason = f"the rule could not decide: {type(error).__name__}: {error}"
        return ClaimResult(**common, outcome="inconclusive", reason=reason, table=table)
    outcome, reason = finding.verdict, ""
    if len(good) < len(item.specs):
        # What did not end is not missing at random: no verdict rests on the trials that happened to survive.
        outcome = "inconclusive"
        reason = f"{len(item.specs) - len(good)} of {len(item.specs)} trials did not end, which leaves no verdict"
    return ClaimResult(**common, outcome=outcome, reason=reason, finding=finding, table=table)


def _table(records: Iterable[TrialRecord], claim: Claim) -> Any:
    import pandas as pd

    table = pd.DataFrame(
        [{"seed": record.spec.seed, **record.spec.cell, **row} for record in records for row in record.rows]
    )
    table.attrs["factors"] = list(claim.factors)
    return table


def _announce(item: Item, run: Run, listener: Listener) -> ClaimResult:
    result = decide(item, run.on)
    listener.decided(item, result)
    return result


def _by_method(run: Run, results: Mapping[str, ClaimResult]) -> list[MethodResult]:
    groups: dict[str, list[Item]] = defaultdict(list)
    for item in run.items:
        groups[item.card.slug].append(item)
    return [
        MethodResult(items[0].card, tuple(results[item.name] for item in items if item.name in results))
        for items in groups.values()
    ]


def _remember(store: Store, methods: Iterable[MethodResult]) -> None:
    """Keep the verdicts beside the trials, for `list` and `show`, which load no numerical library."""
    for method in methods:
        for result in method.claims:
            if result.outcome not in ("skipped", "not run"):
                entry = {"outcome": result.outcome, "sentence": result.sentence}
                with suppress(OSError):  # a full disk has been reported by the trials
                    store.write_verdict(method.card.slug, result.claim.name, result.scale, entry)


def _try_to_store(store: Store, record: TrialRecord) -> OSError | None:
    try:
        store.write(record)
    except OSError as error:
        return error
    return None


def _fitting(on: str, chosen: Sequence[tuple[Card, Claim]]) -> tuple[list[tuple[Card, Claim]], str]:
    """The claims that the user's file suits, and its digest; a file that suits none is refused before work starts."""
    from cameraready import data

    kinds = sorted({claim.dataset_factor[1].kind for _, claim in chosen if claim.dataset_factor})
    if not kinds:
        raise ValueError(f"--on {on}: none of these claims takes a data set of yours")
    refusals: dict[str, ValueError] = {}
    for kind in kinds:
        try:
            data.open(on, kind=kind)
        except ValueError as error:
            refusals[kind] = error
    if len(refusals) == len(kinds):
        raise refusals[kinds[0]]
    suited = [
        (card, claim)
        for card, claim in chosen
        if claim.dataset_factor is not None and claim.dataset_factor[1].kind not in refusals
    ]
    return suited, data.digest(on)
