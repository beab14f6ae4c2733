"""Scaling laws of signSGD and SGD in linear regression (Kim, Song, Yun: ICLR 2026)."""

from cameraready.coverage import NotCovered

from .coverage import Coverage
from .decay import Decay, fit_decay
from .law import Allocation, ScalingLaw
from .phase_map import PhaseMap
from .power_law import PLRF
from .recommend import Recommendation, recommend
from .regression import GaussianRegression
from .runs import RunFit, fit_runs
from .schedule import WSD
from .torch_optim import WSDLR, SignSGD

__all__ = [
    "PLRF",
    "WSD",
    "WSDLR",
    "Allocation",
    "Coverage",
    "Decay",
    "GaussianRegression",
    "NotCovered",
    "PhaseMap",
    "Recommendation",
    "RunFit",
    "ScalingLaw",
    "SignSGD",
    "fit_decay",
    "fit_runs",
    "recommend",
]
