"""Sharpness, edge of stability, weighted path norm and shatterability meters, with bounds from them."""

from cameraready.coverage import NotCovered
from cameraready.methods.stable_minima.bound import Bound, generalisation_bound
from cameraready.methods.stable_minima.learning_rate import suggest_lr
from cameraready.methods.stable_minima.monitor import StabilityMonitor
from cameraready.methods.stable_minima.rates import Rate, predicted_rate
from cameraready.methods.stable_minima.regressor import TwoLayerReLURegressor
from cameraready.methods.stable_minima.relu_report import ReluReport, relu_report
from cameraready.methods.stable_minima.sharpness import Sharpness, sharpness
from cameraready.methods.stable_minima.shatterability import Shatter, shatterability
from cameraready.methods.stable_minima.weight_function import weight_function

__all__ = [
    "Bound",
    "NotCovered",
    "Rate",
    "ReluReport",
    "Sharpness",
    "Shatter",
    "StabilityMonitor",
    "TwoLayerReLURegressor",
    "generalisation_bound",
    "predicted_rate",
    "relu_report",
    "sharpness",
    "shatterability",
    "suggest_lr",
    "weight_function",
]
