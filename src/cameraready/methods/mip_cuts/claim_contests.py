"""How the claims' contestants solve an instance, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cameraready.methods.mip_cuts.claims import AGENT, DEFAULT, FAST, GATE, HIGHS, NO_GOMORY, OFF, RANDOM
from cameraready.methods.mip_cuts.solving import SolveRecord, solve

if TYPE_CHECKING:
    from pyscipopt import Model

SELECTORS = {
    DEFAULT: "default",
    OFF: "off",
    FAST: "fast",
    GATE: "gate",
    AGENT: "rl",
    RANDOM: "random",
    NO_GOMORY: "nogomory",
    HIGHS: "highs",
}
SHIFT = 1.0  # seconds, of the shifted geometric mean


def make(family: str, seed: int) -> Model:
    """ "setcover 300x600", "lotsizing 6x12", "cauctions 80x350" or "indset 200"; training used other seeds."""
    from cameraready.methods.mip_cuts import instances

    name, size = family.split()
    numbers = [int(part) for part in size.split("x")]
    return getattr(instances, name)(*numbers, seed=seed)


def contest(
    trial: Any,
    model: str | Path | Model,
    names: Iterable[str],
    *,
    seed: int,
    time_limit: float,
    memory_mb: float | None = None,
    **columns: Any,
) -> dict[str, SolveRecord]:
    """Solve by each contestant, with the same permutation seed and limits, and record."""
    records = {}
    for name in names:
        rate = {}
        if name == RANDOM:  # as many rounds, and as large a share, as the agent just had
            counts, agent = records[AGENT].counts, records[AGENT]
            rate = {"rounds": agent.rounds, "share": agent.cuts_taken / max(1, counts["candidates"])}
        records[name] = solve(
            model, selector=SELECTORS[name], time_limit=time_limit, memory_mb=memory_mb, seed=seed, **rate
        )
    best = _best(records)
    for name, record in records.items():
        seconds = record.seconds if record.success else time_limit
        gap = record.gap if record.gap < 1 else 1.0
        trial.record(
            method=name,
            seconds=seconds,
            shifted_seconds=seconds + SHIFT,
            success=record.success,
            gap=gap,
            objective_gap=1.0 if best is None else min(1.0, abs(record.objective - best) / max(1e-9, abs(best)))
            if record.objective == record.objective else 1.0,
            nodes=record.nodes,
            lp_iterations=record.lp_iterations,
            rounds=record.rounds,
            cuts=record.cuts_taken,
            scip_memory=record.scip_peak_mb if record.scip_peak_mb == record.scip_peak_mb else record.rss_delta_mb,
            process_memory=record.rss_delta_mb,
            **columns,
        )  # fmt: skip
    return records


def _best(records: dict[str, SolveRecord]) -> float | None:
    """The optimum, from whoever has proved it."""
    proved = [record.objective for record in records.values() if record.success]
    return min(proved, key=abs) if proved else None
