"""What the engine itself costs: 1,000 empty trials, a `verify` with nothing to do, and the commands that only look.

Run ``python benchmarks/overhead.py``; it prints each time with its target and the load of the machine.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

CARD = """---
slug: empty
title: Empty trials
field: benchmarks
venue: none
paper: none
authors: nobody
summary: Trials that do nothing.
interface: none
imports: [nothing]
---
"""
CLAIMS = """
from cameraready.evidence import Scale, at_most, claim

@claim("empty", says="Nothing takes no time.", factors={"k": list(range(100))}, scales={"quick": Scale(seeds=10)},
       holds=at_most("x", "m", 1))
def empty(trial, k):
    trial.record(method="m", x=0)
"""
CLI = [sys.executable, "-m", "cameraready.cli"]
BOTH = "import numpy, scipy.stats, torch"


@dataclass(frozen=True, order=True)
class Cost:
    """Seconds by the clock, and of all cores together: the second depends less on what else the machine does."""

    wall: float
    cpu: float


def main() -> None:
    """Measure and print."""
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f} at the start\n\n{'':<52}{'seconds':>8}{'target':>9}{'CPU':>9}")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for imports, label in (("", "without torch"), (BOTH, "with torch and scipy.stats loaded")):
            method(work, imports)
            show(f"1,000 empty trials, {label}", run(work, [*CLI, "verify", "empty"]), 20)
            show("  again, with nothing to do", best(work, [*CLI, "verify", "empty"]), 2)
            shutil.rmtree(work / "results")
        show("python -c 'import cameraready'", best(work, [sys.executable, "-c", "import cameraready"]), 0.3)
        show("cameraready list", best(work, [*CLI, "list"]), 0.3)
        show("cameraready show empty", best(work, [*CLI, "show", "empty"]), 0.3)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")


def method(work: Path, imports: str) -> None:
    """Write the method; its workers load what its files import."""
    folder = work / "methods" / "empty"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(CARD)
    (folder / "claims.py").write_text(CLAIMS)
    (folder / "__init__.py").write_text(imports)


def best(work: Path, command: list[str], *, repeats: int = 5) -> Cost:
    """The quickest of a few runs: what the program needs when the machine lets it."""
    return min(run(work, command) for _ in range(repeats))


def run(work: Path, command: list[str]) -> Cost:
    """What one run costs; it must end well."""
    environment = {**os.environ, "CAMERAREADY_METHODS": str(work / "methods")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, cwd=work, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def show(label: str, found: Cost, target: float) -> None:
    """One line of the table."""
    verdict = "" if found.wall <= target else "  missed"
    print(f"{label:<52}{found.wall:>8.2f}{target:>9.1f}{found.cpu:>9.2f}{verdict}", flush=True)


if __name__ == "__main__":
    main()
