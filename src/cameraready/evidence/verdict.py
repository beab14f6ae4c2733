"""What stands at the end: each claim's verdict with everything that a reader needs to judge it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from cameraready.evidence.claim import Claim
from cameraready.evidence.rules import Finding
from cameraready.registry import Card

if TYPE_CHECKING:
    import pandas as pd

Outcome = Literal["supported", "not supported", "inconclusive", "untestable", "skipped", "not run"]


@dataclass(frozen=True)
class FailedTrial:
    """A trial that raised, timed out or died."""

    seed: int
    cell: Mapping[str, Any]
    error: str
    traceback: str


@dataclass(frozen=True)
class ClaimResult:
    """One claim at one scale: verdict, evidence, and the circumstances under which it was found."""

    claim: Claim
    scale: str
    outcome: Outcome
    reason: str = ""
    finding: Finding | None = None
    table: pd.DataFrame | None = None
    trials: int = 0
    planned: int = 0
    failed: tuple[FailedTrial, ...] = ()
    fingerprint: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    peak_rss: int = 0
    on: str = ""

    @property
    def sentence(self) -> str:
        """The verdict in a sentence: what was measured against what was declared, or why nothing was."""
        if self.finding is None:
            return self.reason
        return f"{self.finding.sentence} ({self.reason})" if self.reason else self.finding.sentence


@dataclass(frozen=True)
class MethodResult:
    """A method's card with the results of its claims, in the order of its claims.py."""

    card: Card
    claims: tuple[ClaimResult, ...]
