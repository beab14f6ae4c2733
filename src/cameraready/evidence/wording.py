"""Numbers and conditions in words, for the sentences of findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def number(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, written out unless it is very large or very small."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if not -5 < magnitude < 7:
        return f"{value:.{digits}g}"
    return f"{round(value, digits - 1 - magnitude):.{max(digits - 1 - magnitude, 0)}f}"


def numbers(values: Sequence[float], bounds: Sequence[float]) -> list[str]:
    """Numbers with three significant digits, or more where rounding would put them on the other side of a bound."""
    for digits in range(3, 9):
        texts = [number(value, digits) for value in values]
        if all(
            math.isclose(value, bound, rel_tol=1e-9) or float(text) != bound
            for value, text in zip(values, texts, strict=True)
            for bound in bounds
        ):
            break
    return texts


def interval(low: float, high: float, bounds: Sequence[float]) -> str:
    """An interval in words: 0.10 to 0.15."""
    return " to ".join(numbers([low, high], bounds))


def limits(at_least: float | None, at_most: float | None) -> str:
    """A range in words: at most 0.5, at least 2, between 0.9 and 1.1."""
    if at_least is not None and at_most is not None:
        return f"between {at_least:g} and {at_most:g}"
    return f"at most {at_most:g}" if at_least is None else f"at least {at_least:g}"


def condition(where: Mapping[str, Any]) -> str:
    """Conditions in words: k = 512, dataset = digits or wine, the largest n."""
    parts = []
    for column, wanted in where.items():
        if isinstance(wanted, str) and wanted in ("max", "min"):
            parts.append(f"the {'largest' if wanted == 'max' else 'smallest'} {column}")
        else:
            values = wanted if isinstance(wanted, (list, tuple, set)) else [wanted]
            parts.append(f"{column} = {' or '.join(map(str, values))}")
    return ", ".join(parts)


def words(column: str) -> str:
    """A column's name as a reader says it: "squared error"."""
    return column.replace("_", " ")


def seeds(n: int) -> str:
    return "1 seed" if n == 1 else f"{n} seeds"


def verb(metric: str) -> str:
    """How a method has a metric: it takes seconds, uses bytes, and has anything else."""
    parts = words(metric.lower()).split()
    if {"seconds", "second", "minutes", "hours", "time", "ms", "milliseconds"} & set(parts):
        return "took"
    return "used" if {"bytes", "memory", "rss", "flops", "calls", "evaluations", "tokens"} & set(parts) else "had"
