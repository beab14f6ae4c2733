"""Checks of arguments that several classes take."""

from __future__ import annotations

import numbers


def check_whole(name: str, value: object, *, least: int) -> None:
    """Refuse what is not a whole number (2.0 is one, True is none) of at least ``least``."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or value != value // 1 or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")
