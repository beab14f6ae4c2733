"""A trial: one call of a claim's function, with one seed and one cell of its factors."""

from __future__ import annotations

import gc
import multiprocessing
import numbers
import pickle
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Scalar = str | int | float
EXACT_INTEGERS = 2**53  # beyond, a column that also holds fractions could not be stored


@dataclass(frozen=True)
class Timing:
    """The best wall time of a contestant, in seconds, and what its last call returned."""

    seconds: float
    value: Any


class Trial:
    """What a claim's function receives first: its seed, its randomness, and where it records what it measured."""

    def __init__(self, seed: int, cell: Mapping[str, Any]) -> None:
        self.seed = seed
        self.cell = cell
        self.rows: list[dict[str, Scalar]] = []
        self._is_label: dict[str, bool] = {}

    @cached_property
    def rng(self) -> np.random.Generator:
        """A generator that depends on the seed alone: the same draws in every cell, so that cells are paired."""
        import numpy as np

        return np.random.default_rng(self.seed)

    @cached_property
    def device(self) -> str:
        """The torch device: "cuda" where there is one, else "cpu"."""
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"

    def record(self, *, method: str, **values: Any) -> None:
        """Record one row: numbers are metrics, strings are labels.

        Raises
        ------
        TypeError : a method that is not text.
        ValueError : a value that is neither, a column that holds both, or a name that is already a factor or starts
            with an underscore.
        """
        if not isinstance(method, str):
            raise TypeError(f"record(method={method!r}): the contestant's name is text, got {type(method).__name__}")
        row: dict[str, Scalar] = {"method": method}
        for name, value in values.items():
            if name in self.cell or name == "seed" or name.startswith("_"):
                raise ValueError(f"record({name}=...): {name!r} is already a column; choose another name")
            row[name] = _scalar(name, value)
            if isinstance(row[name], str) != self._is_label.setdefault(name, isinstance(row[name], str)):
                raise ValueError(f"record({name}={value!r}): {name!r} holds numbers in one row and text in another")
        self.rows.append(row)

    def alternate(self, contestants: Mapping[str, Callable[[], Any]], *, repeats: int = 3) -> dict[str, Timing]:
        """Time the contestants in turn, starting with another one each round, so that a slow spell hits them all.

        Returns the best of ``repeats`` times for each. Warm up compiled code before.
        """
        if not contestants or repeats < 1:
            given = f"alternate({len(contestants)} contestants, repeats={repeats})"
            raise ValueError(f"{given}: at least one contestant and one repeat are needed")
        names = list(contestants)
        best = dict.fromkeys(names, float("inf"))
        last: dict[str, Any] = {}
        for turn in range(repeats):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                start = time.perf_counter()
                last[name] = contestants[name]()
                best[name] = min(best[name], time.perf_counter() - start)
        return {name: Timing(best[name], last[name]) for name in names}

    def peak_memory(self, function: Callable[[], Any]) -> int:
        """Peak resident memory, in bytes above the start, of ``function()`` run in a forked child of its own."""
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_measure_peak, args=(function, sender))
        process.start()
        sender.close()
        try:
            answer = receiver.recv()
        except EOFError:
            process.join()
            raise MemoryError(f"the measured function died with exit code {process.exitcode}") from None
        process.join()
        if isinstance(answer, BaseException):
            raise answer
        return int(answer)


def peak_rss() -> int:
    """This process's peak resident memory in bytes (Linux counts KiB, macOS bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _measure_peak(function: Callable[[], Any], sender: Connection) -> None:
    gc.freeze()  # or the first collection would touch, and so copy, every page that is shared with the parent
    start = peak_rss()
    try:
        function()
    except BaseException as error:
        _send_error(sender, error)
    else:
        sender.send(peak_rss() - start)


def _send_error(sender: Connection, error: BaseException) -> None:
    error.add_note("in the measured child process:\n" + traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception that needs more than its message to be made again
        error = RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    sender.send(error)


def _scalar(name: str, value: Any) -> Scalar:
    if hasattr(value, "item"):  # numpy and torch scalars
        try:
            value = value.item()
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"record({name}=...): expected one number, got an array; record it row by row") from error
    if isinstance(value, str):
        return value
    if isinstance(value, numbers.Integral):  # a truth value counts as 0 or 1
        return int(value) if abs(int(value)) <= EXACT_INTEGERS else float(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise ValueError(f"record({name}={value!r}): expected one number or string, got {type(value).__name__}")
