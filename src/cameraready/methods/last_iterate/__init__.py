"""Stochastic proximal methods whose last iterate is the answer (Vaidyan, Friedlander, Alacaoglu: ICML 2026)."""

from .certificate import Certificate, certify, solve_exactly
from .cross_validation import NetworkLassoCV
from .edge_penalty import EdgePenalty
from .estimator import NetworkLassoClassifier, NetworkLassoRegressor
from .graph import TaskGraph, read_graph
from .problem import Problem
from .rates import RateReport, rate_study
from .solver import Run, Settings, run, tune_eta0
from .torch_optim import ProxSGD

__all__ = [
    "Certificate",
    "EdgePenalty",
    "NetworkLassoCV",
    "NetworkLassoClassifier",
    "NetworkLassoRegressor",
    "Problem",
    "ProxSGD",
    "RateReport",
    "Run",
    "Settings",
    "TaskGraph",
    "certify",
    "rate_study",
    "read_graph",
    "run",
    "solve_exactly",
    "tune_eta0",
]
