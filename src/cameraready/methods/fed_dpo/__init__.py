"""Preference optimisation over federated clients and communication graphs, with checkable convergence theory."""

from cameraready.methods.fed_dpo.decentralized import DecentralizedDPO
from cameraready.methods.fed_dpo.federated import FederatedDPO
from cameraready.methods.fed_dpo.flower import flower_app
from cameraready.methods.fed_dpo.graphs import exponential_graph, metropolis, spectral_gap
from cameraready.methods.fed_dpo.history import History, Prediction, compare, predict
from cameraready.methods.fed_dpo.landscape import heterogeneity, optimum, smoothness
from cameraready.methods.fed_dpo.loss import dpo_loss, sequence_logps
from cameraready.methods.fed_dpo.objective import Objective
from cameraready.methods.fed_dpo.preferences import LogLinearPairs, LogLinearPolicy, PreferenceClient, TokenPairs
from cameraready.methods.fed_dpo.theory import (
    best_local_steps,
    consensus_bound,
    consensus_contraction,
    dsgd_bound,
    dsgd_fixed_point,
    fedavg_bound,
    fedavg_fixed_point,
    fit_constants,
    mixing_time,
    nonconvex_terms,
    rounds_to,
)

__all__ = [
    "DecentralizedDPO",
    "FederatedDPO",
    "History",
    "LogLinearPairs",
    "LogLinearPolicy",
    "Objective",
    "Prediction",
    "PreferenceClient",
    "TokenPairs",
    "best_local_steps",
    "compare",
    "consensus_bound",
    "consensus_contraction",
    "dpo_loss",
    "dsgd_bound",
    "dsgd_fixed_point",
    "exponential_graph",
    "fedavg_bound",
    "fedavg_fixed_point",
    "fit_constants",
    "flower_app",
    "heterogeneity",
    "metropolis",
    "mixing_time",
    "nonconvex_terms",
    "optimum",
    "predict",
    "rounds_to",
    "sequence_logps",
    "smoothness",
    "spectral_gap",
]
