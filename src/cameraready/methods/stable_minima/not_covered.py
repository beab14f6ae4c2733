"""The one answer given outside the theory's regime."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NotCovered:
    """Stands where a number would, with the reason why there is none; it is false, and no arithmetic works on it.

    Examples
    --------
    >>> print(NotCovered("no learning rate was given"))
    not covered: no learning rate was given
    """

    reason: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"not covered: {self.reason}"

    def __format__(self, spec: str) -> str:
        return str(self)
