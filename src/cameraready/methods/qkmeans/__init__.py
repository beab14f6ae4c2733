"""Fast k-means seeding, exact in law (Shah, Agrawal, Jaiswal: ICML 2026)."""

from .diagnostics import Exponent, SeedingStats
from .estimator import QKMeans, QKMeansInit
from .exponent import PlannedWork, plan, quantization_exponent
from .plusplus import qkmeans_plusplus

__all__ = [
    "Exponent",
    "PlannedWork",
    "QKMeans",
    "QKMeansInit",
    "SeedingStats",
    "plan",
    "qkmeans_plusplus",
    "quantization_exponent",
]
