"""Explore and certify the population loss landscape of two-layer ReLU networks."""

from cameraready.coverage import NotCovered
from cameraready.methods.relu_landscape.audit import AuditTorch
from cameraready.methods.relu_landscape.barriers import barrier, plot_disconnectivity
from cameraready.methods.relu_landscape.basins import basins
from cameraready.methods.relu_landscape.benchmark_problem import as_benchmark_problem
from cameraready.methods.relu_landscape.landscape import Landscape
from cameraready.methods.relu_landscape.orbit_reading import read_pattern
from cameraready.methods.relu_landscape.orbits import Pattern, follow, solve_orbits
from cameraready.methods.relu_landscape.sgd import sgd_ode, simulate_sgd
from cameraready.methods.relu_landscape.stability import drift_spectrum
from cameraready.methods.relu_landscape.starts import split_neuron

__all__ = [
    "AuditTorch",
    "Landscape",
    "NotCovered",
    "Pattern",
    "as_benchmark_problem",
    "barrier",
    "basins",
    "drift_spectrum",
    "follow",
    "plot_disconnectivity",
    "read_pattern",
    "sgd_ode",
    "simulate_sgd",
    "solve_orbits",
    "split_neuron",
]
