"""Throw-away methods, and the command line in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# A shell's background jobs ignore Ctrl-C, and so would the commands that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

CARD = """---
slug: {slug}
title: A throw-away method
field: testing
venue: nowhere
paper: none
authors: nobody
summary: Written by a test.
interface: function
imports: [shift]
{more}---
## How to use
"""
HEADER = "from cameraready.evidence import Dataset, Scale, at_least, at_most, claim, difference, line, ratio\n"


class Methods:
    """A folder of throw-away methods, and `cameraready` run on them from a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "methods"
        self.cwd = root / "work"
        self.folder.mkdir(parents=True)
        self.cwd.mkdir()
        self.command = [sys.executable, "-m", "cameraready.cli"]
        self.mark = f"CAMERAREADY_TEST_{uuid.uuid4().hex}"

    def write(self, slug: str, claims: str, *, files: Mapping[str, str] | None = None, more: str = "") -> Path:
        """Write a method; ``more`` are further lines of its card's front matter."""
        folder = self.folder / slug
        folder.mkdir(exist_ok=True)
        (folder / "README.md").write_text(CARD.format(slug=slug, more=more))
        (folder / "claims.py").write_text(HEADER + claims)
        for name, text in {"__init__.py": "", **(files or {})}.items():
            (folder / name).write_text(text)
        return folder

    def environment(self, **more: str) -> dict[str, str]:
        """What the command line is run with; the mark finds its processes again."""
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"}
        return {**os.environ, **threads, "CAMERAREADY_METHODS": str(self.folder), self.mark: "1", **more}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start `cameraready` and go on."""
        return subprocess.Popen(
            [*self.command, *arguments],
            cwd=self.cwd,
            env=self.environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `cameraready` to its end."""
        process = self.start(*arguments, **environment)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            command = " ".join(arguments)
            raise AssertionError(f"cameraready {command} took more than {timeout} s\n{out}\n{err}") from None
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def events(self, *arguments: str, code: int = 0, **environment: str) -> list[dict[str, Any]]:
        """Run `cameraready verify ... --json` and parse what it prints, line by line."""
        done = self.run("verify", *arguments, "--json", **environment)
        assert done.returncode == code, done.stdout + done.stderr
        try:
            return [json.loads(line) for line in done.stdout.splitlines()]
        except ValueError:
            raise AssertionError(f"not JSON lines:\n{done.stdout}\n{done.stderr}") from None

    def processes(self) -> list[int]:
        """The processes that descend from this folder's command lines and still run."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                alive = entry.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
                if alive and self.mark.encode() in entry.joinpath("environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    @contextmanager
    def visible(self) -> Iterator[None]:
        """Make the methods known to this very process too, and to the workers that it starts."""
        import cameraready.methods
        from cameraready import registry

        before = os.environ.get("CAMERAREADY_METHODS")
        os.environ["CAMERAREADY_METHODS"] = str(self.folder)
        cameraready.methods.__path__.append(str(self.folder))
        registry.cards.cache_clear()
        try:
            yield
        finally:
            cameraready.methods.__path__.remove(str(self.folder))
            forget([path.name for path in self.folder.iterdir()])
            if before is None:
                del os.environ["CAMERAREADY_METHODS"]
            else:
                os.environ["CAMERAREADY_METHODS"] = before


def forget(slugs: list[str]) -> None:
    """Read the methods' files anew, as the next process would."""
    from cameraready import registry
    from cameraready.evidence import fingerprint

    registry.cards.cache_clear()
    for function in vars(fingerprint).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()
    for slug in slugs:
        for name in [name for name in sys.modules if f"{name}.".startswith(f"cameraready.methods.{slug}.")]:
            del sys.modules[name]


def wait_until(condition: Callable[[], Any], *, seconds: float) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


@pytest.fixture
def methods(tmp_path: Path) -> Methods:
    return Methods(tmp_path)


@pytest.fixture(scope="module")
def shared_methods(tmp_path_factory: pytest.TempPathFactory) -> Methods:
    """One folder of methods for all tests of a file."""
    return Methods(tmp_path_factory.mktemp("shared"))


@pytest.fixture(name="wait_until", scope="session")
def _wait_until() -> Callable[..., bool]:
    return wait_until


@pytest.fixture(name="forget", scope="session")
def _forget() -> Callable[[list[str]], None]:
    return forget


def verdicts(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The verdict events by claim."""
    return {event["claim"]: event for event in events if event["event"] == "verdict"}


@pytest.fixture(name="verdicts", scope="session")
def _verdicts() -> Callable[[list[dict[str, Any]]], dict[str, dict[str, Any]]]:
    return verdicts
