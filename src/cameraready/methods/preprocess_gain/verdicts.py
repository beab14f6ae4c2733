"""From a measured gain with its interval to a decision, and what an undecided case needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from sklearn.isotonic import IsotonicRegression

from cameraready.methods.preprocess_gain.measurement import Interval
from cameraready.methods.preprocess_gain.plugin_accuracy import Array

PROCESS, DO_NOT, UNDECIDED = "process", "do not", "undecided"
NEGLIGIBLE = 0.002  # a predicted gain below 0.2 points is not worth a step in the pipeline
_POWER = 1.96 + 0.84  # normal quantiles of a two-sided 5 % test with power 0.8


@dataclass(frozen=True)
class Calibration:
    """How predicted gains relate to measured ones, over all processors and label counts that have both.

    ``residual_sd`` is that of an isotonic fit which leaves out each processor in turn; NaN with fewer than two.
    """

    predicted: Array
    measured: Array
    fitted: Array
    residual_sd: float

    def __str__(self) -> str:
        if math.isnan(self.residual_sd):
            return "calibration: fewer than two processors have predicted and measured gains"
        return (
            f"calibration: measured gains lie {100 * self.residual_sd:.1f} points (sd) around an isotonic function of "
            f"the predicted ones, each processor left out in turn ({len(self.predicted)} points)"
        )


def decide(measured: Interval, predicted: float, *, repeats: int, labels: int) -> tuple[str, str]:
    """The verdict, and for an undecided one what it takes: repeats where they can do it, labels where they cannot.

    Parameters
    ----------
    measured : gain with its interval.
    predicted : gain by theory; NaN where it is not covered.
    repeats : of the cross-validation so far.
    labels : labelled samples so far.
    """
    if measured.low > 0:
        return PROCESS, ""
    if measured.high < 0:
        return DO_NOT, ""
    # A small prediction settles it only where the measurement shows no sign of the contrary.
    if abs(predicted) < NEGLIGIBLE and measured.mean <= measured.error:
        return DO_NOT, f"predicted gain below {100 * NEGLIGIBLE:g} points"
    if measured.mean == 0:
        return UNDECIDED, "no difference seen"
    wanted = (abs(measured.mean) / _POWER) ** 2  # variance of the mean at which this gain would be seen
    variance, floor = measured.error**2, measured.floor**2
    if wanted > floor:
        more = math.ceil(repeats * (variance - floor) / (wanted - floor)) - repeats
        if 0 < more <= 10 * repeats:
            return UNDECIDED, f"{more} more repeats"
    more = max(math.ceil(labels * (variance / wanted - 1)), 1)
    return UNDECIDED, f"about {more} more labels" if more <= 100 * labels else "a gain too small to settle"


def calibrate(predicted: Array, measured: Array, processor: Array) -> Calibration:
    """Isotonic fit of measured on predicted gains, leaving one processor out at a time; all of shape (n_points,)."""
    fitted = np.full(len(predicted), np.nan)
    for name in np.unique(processor):
        out = processor == name
        if (~out).any():
            model = IsotonicRegression(out_of_bounds="clip").fit(predicted[~out], measured[~out])
            fitted[out] = model.predict(predicted[out])
    sd = float(np.sqrt(np.mean((measured - fitted) ** 2))) if len(predicted) and not np.isnan(fitted).any() else np.nan
    return Calibration(predicted, measured, fitted, sd)
