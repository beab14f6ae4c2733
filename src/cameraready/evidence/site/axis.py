"""Round values for an axis, linear or logarithmic."""

from __future__ import annotations

import math


def round_values(low: float, high: float, *, log: bool = False) -> tuple[float, ...]:
    """About three to six round values from ``low`` to ``high``.

    On a logarithmic axis: powers of ten over many decades, 1-2-5 over few, evenly spaced values below half a decade.

    Examples
    --------
    >>> round_values(0.0, 10.0)
    (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
    >>> round_values(0.5, 2000.0, log=True)
    (1.0, 10.0, 100.0, 1000.0)
    """
    if not low < high:
        return (low,)
    if log and high / low > 100:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        step = max(1, math.ceil((last - first + 1) / 6))
        return tuple(_clean(10.0**power) for power in range(first, last + 1, step))
    if log and high / low > 4:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        values = [_clean(digit * 10.0**power) for power in powers for digit in (1, 2, 5)]
        return tuple(value for value in values if low <= value <= high)
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step_size = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= raw * 0.9)
    first, last = math.ceil(low / step_size - 1e-9), math.floor(high / step_size + 1e-9)
    return tuple(_clean(place * step_size) for place in range(first, last + 1))


def _clean(value: float) -> float:
    return float(f"{value:.10g}")
