"""Theory moved to where the measurements are: a gain, with its interval, at label counts that were not measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from cameraready.methods.preprocess_gain.measurement import Measurements, corrected_interval
from cameraready.methods.preprocess_gain.plugin_accuracy import Array
from cameraready.methods.preprocess_gain.prediction import RAW, Prediction
from cameraready.methods.preprocess_gain.separation import Codes


@dataclass(frozen=True)
class Extrapolation:
    """Shifts of a processor's and of the raw accuracies on the probit scale, and the error that they leave in a gain.

    ``error`` joins that of the measured gain at the largest n, where the shifts have most of their weight, and the
    distance of the measured gains from those of the shifted theory.
    """

    processed: float
    raw: float
    error: float

    def gain(self, processed: Prediction, raw: Prediction) -> Array:
        """The gain at each n of the predictions."""
        return _moved(processed.accuracy, self.processed) - _moved(raw.accuracy, self.raw)

    def interval(self, processed: Prediction, raw: Prediction) -> tuple[Array, Array, Array]:
        """Gain, and ends of its 95 % interval, which has the variance of the predictions too."""
        gain, own = self.gain(processed, raw), (processed.high - processed.low) / 2
        error = np.hypot(own, 1.96 * self.error)
        return gain, gain - error, gain + error


def extrapolation(
    name: str, processed: Prediction, raw: Prediction, measurements: Measurements, n: Codes
) -> Extrapolation:
    """From predictions and measurements at the same n."""
    scores = measurements.scores
    shifts = [_shift(part.accuracy, scores[key].mean(axis=1), n) for part, key in ((processed, name), (raw, RAW))]
    measured = [corrected_interval(row, measurements.cv) for row in scores[name] - scores[RAW]]
    left = np.array([one.mean for one in measured]) - Extrapolation(*shifts, 0.0).gain(processed, raw)
    left = left[~np.isnan(left)]
    return Extrapolation(*shifts, float(np.hypot(measured[-1].error, np.sqrt(np.mean(left**2)) if len(left) else 0.0)))


def last_positive(n: Array, gain: Array) -> float:
    """Where a curve of gains falls below 0 for good: 0 if it always is, inf if it never does, NaN without a curve."""
    if np.isnan(gain).all():
        return float("nan")
    positive = np.flatnonzero(np.nan_to_num(gain) > 0)
    if len(positive) == 0:
        return 0.0
    last = positive[-1]
    if last == len(n) - 1:
        return float("inf")
    share = gain[last] / (gain[last] - gain[last + 1])
    return float(np.exp(np.log(n[last]) + share * (np.log(n[last + 1]) - np.log(n[last]))))


def _moved(accuracy: Array, shift: float) -> Array:
    return ndtr(ndtri(np.clip(accuracy, 1e-6, 1 - 1e-6)) + shift)


def _shift(theory: Array, seen: Array, n: Codes) -> float:
    """Mean probit difference, with weights n, where the theory has a number."""
    known = ~np.isnan(theory)
    if not known.any():
        return 0.0
    difference = ndtri(np.clip(seen, 1e-3, 1 - 1e-3)) - ndtri(np.clip(theory, 1e-6, 1 - 1e-6))
    return float(np.average(difference[known], weights=n[known]))
