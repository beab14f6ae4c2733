"""Open-set anomaly detection on graphs."""

from cameraready.methods.demo.detector import DEMO
from cameraready.methods.demo.explanation import Explanation
from cameraready.methods.demo.injection import inject_anomalies
from cameraready.methods.demo.open_set import OpenSetSplit, open_set_benchmark, open_set_split

__all__ = ["DEMO", "Explanation", "OpenSetSplit", "inject_anomalies", "open_set_benchmark", "open_set_split"]
