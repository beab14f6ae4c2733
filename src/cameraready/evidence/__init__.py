"""Claims, the rules that decide them, and the charts that show them: all that a ``claims.py`` needs."""

from cameraready.evidence.charts import bar, line, scatter
from cameraready.evidence.claim import Claim, Dataset, Scale, claim
from cameraready.evidence.rules import (
    agree,
    all_of,
    at_least,
    at_most,
    difference,
    rank,
    ratio,
    slope,
    trend,
)

__all__ = [
    "Claim",
    "Dataset",
    "Scale",
    "agree",
    "all_of",
    "at_least",
    "at_most",
    "bar",
    "claim",
    "difference",
    "line",
    "rank",
    "ratio",
    "scatter",
    "slope",
    "trend",
]
