"""The adviser: predicted and measured gain of every processor before a user's classifier, with a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from cameraready.coverage import NotCovered
from cameraready.methods.preprocess_gain.default_processors import named_processors
from cameraready.methods.preprocess_gain.extrapolation import extrapolation, last_positive
from cameraready.methods.preprocess_gain.inputs import read_inputs, read_n_grid, supervised_names
from cameraready.methods.preprocess_gain.measurement import corrected_interval, measure
from cameraready.methods.preprocess_gain.prediction import RAW, Prediction
from cameraready.methods.preprocess_gain.separation import estimate_separation
from cameraready.methods.preprocess_gain.theory import FeatureTheory
from cameraready.methods.preprocess_gain.tuning import regularisation_grid
from cameraready.methods.preprocess_gain.verdicts import PROCESS, calibrate, decide

if TYPE_CHECKING:
    import altair as alt

_LOOK_AHEAD = 16  # predictions go up to this multiple of the present labels
_NUMBERS = ("predicted_gain", "predicted_low", "predicted_high", "measured_gain", "ci_low", "ci_high")
_COLUMNS = ("processor", "n", *_NUMBERS, "raw_score", "verdict", "needs", "note")


class ProcessingAdvisor(BaseEstimator):
    """Will denoising, compressing or encoding help this classifier on these data? Predicted, measured, decided.

    Parameters
    ----------
    classifier : a scikit-learn classifier, pipeline or search, not fitted.
    processors : "auto" (`default_processors`), a list of transformers or of (name, transformer) pairs.
    metric : "balanced_accuracy" or "accuracy"; under imbalance they can disagree in sign. Any other scorer of
        scikit-learn is measured, and not predicted.
    cv, repeats : of the stratified cross-validation; a single split of 20 labels scatters by some 5 points.
    n_grid : numbers of labels to measure at; "auto" for four up to what a training part holds.
    param_grid : what is tuned inside every training set, for raw and processed alike; "auto" for the classifier's
        regularisation, {} for nothing. A search as ``classifier`` tunes itself.
    transductive : whether X_unlabelled may hold test inputs.
    allow_supervised : whether processors may use the labels of the training part.
    n_jobs : of joblib, over folds.
    random_state : seed of folds and subsets.

    Attributes
    ----------
    report_ : DataFrame, one row a processor and n: predicted_gain, predicted_low, predicted_high, measured_gain,
        ci_low, ci_high, verdict ("process", "do not", "undecided", "failed"), needs, note.
    best_ : name of the processor with the largest gain among those to "process" with at the largest n; else "raw".
    separation_ : `Separation` of the raw features.
    calibration_ : `Calibration` of predicted against measured gains.

    Examples
    --------
    >>> from sklearn.neighbors import NearestCentroid
    >>> from cameraready.methods.preprocess_gain import PCAWiener
    >>> rng = np.random.default_rng(0)
    >>> y = np.tile([0, 1], 60)
    >>> X = rng.normal(size=(120, 80)) + 0.25 * (2 * y[:, None] - 1) * np.sign(np.sin(np.arange(80) / 12))
    >>> advisor = ProcessingAdvisor(NearestCentroid(), [("wiener", PCAWiener(sigma=1.0))], random_state=0).fit(X, y)
    >>> advisor.report_[["processor", "n", "verdict"]].shape
    (4, 3)
    """

    def __init__(
        self,
        classifier: Any,
        processors: Any = "auto",
        *,
        metric: str = "balanced_accuracy",
        cv: int = 5,
        repeats: int = 4,
        n_grid: Any = "auto",
        param_grid: Mapping[str, Sequence[Any]] | str = "auto",
        transductive: bool = False,
        allow_supervised: bool = False,
        n_jobs: int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.classifier = classifier
        self.processors = processors
        self.metric = metric
        self.cv = cv
        self.repeats = repeats
        self.n_grid = n_grid
        self.param_grid = param_grid
        self.transductive = transductive
        self.allow_supervised = allow_supervised
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, X_unlabelled: Any = None) -> ProcessingAdvisor:
        """Predict, measure and decide.

        Parameters
        ----------
        X : array (n, p), images (n, H, W[, C]), or a DataFrame, whose columns of numbers are processed.
        y : shape (n,), classes.
        X_unlabelled : more inputs of the same kind, disjoint from X, that processors are fitted on too.

        Raises
        ------
        ValueError, TypeError : what is wrong with X, y, the pool, n_grid or a processor, and the way out.
        """
        if self.cv < 2 or self.repeats < 1:
            raise ValueError(f"cv={self.cv}, repeats={self.repeats}; at least 2 folds and 1 repeat are needed")
        inputs = read_inputs(X, y, X_unlabelled, transductive=self.transductive)
        counts = np.bincount(inputs.codes)
        n_grid = read_n_grid(self.n_grid, counts, max(2, min(self.cv, counts.min())))
        processors = named_processors(self.processors, inputs)
        supervised = supervised_names(processors, inputs, allow_supervised=self.allow_supervised)
        seed = int(np.random.default_rng(self.random_state).integers(2**31))
        self.n_labels_, self.n_unlabelled_, self.n_grid_ = len(inputs), len(inputs.pool), n_grid
        self._theory = FeatureTheory(self.classifier, processors, inputs, supervised, self.metric, seed)
        self.separation_ = estimate_separation(inputs.values, inputs.codes)
        grid = regularisation_grid(self.classifier) if self.param_grid == "auto" else dict(self.param_grid)
        self.measurements_ = measure(
            self.classifier, processors, inputs, n_grid, supervised=supervised, grid=grid, metric=self.metric,
            cv=self.cv, repeats=self.repeats, seed=seed % 100_000, n_jobs=self.n_jobs,
        )  # fmt: skip
        predictions = self._theory.predict(n_grid)
        self._extrapolations = {
            name: extrapolation(name, prediction, predictions[RAW], self.measurements_, n_grid)
            for name, prediction in predictions.items()
            if isinstance(prediction, Prediction) and name in self.measurements_.scores
        }
        self.report_ = pd.DataFrame([row for name, _ in processors for row in self._rows(name, predictions[name])])
        both = self.report_.dropna(subset=["predicted_gain", "measured_gain"])
        columns = (both[name].to_numpy() for name in ("predicted_gain", "measured_gain", "processor"))
        self.calibration_ = calibrate(*columns)
        last = self.report_[(self.report_["n"] == n_grid[-1]) & (self.report_["verdict"] == PROCESS)]
        self.best_ = RAW if last.empty else str(last.loc[last["measured_gain"].idxmax(), "processor"])
        return self

    def predict_gain(self, n: Any) -> pd.DataFrame:
        """Gain of every processor over raw at n labels, also beyond those you have.

        The theory's accuracies are first shifted, on the probit scale, to the measured ones: one number a
        processor, and one for raw. The 95 % interval adds the variances of the jackknife, of the measured gains, and of
        what is left between the shifted theory and the measurements.

        Returns
        -------
        DataFrame with columns processor, n, predicted_gain, low, high, status ("covered", or "not covered: ..." with
        NaN for numbers). n beyond 16 times the labels you have is not covered.

        Raises
        ------
        ValueError : n below two a class.
        """
        check_is_fitted(self, "report_")
        n = np.atleast_1d(np.asarray(n, dtype=float))
        least = 2 * len(self._theory.counts)
        if np.isnan(n).any() or (n < least).any():
            raise ValueError(f"n={n.min():g}; {len(self._theory.counts)} classes need at least {least} labels")
        found = self._theory.predict(n)
        rows = []
        for name in dict.fromkeys(self.report_["processor"]):
            numbers = np.full((3, len(n)), np.nan)
            if name in self._extrapolations:
                numbers = np.stack(self._extrapolations[name].interval(found[name], found[RAW]))
            for labels, (gain, low, high) in zip(n, numbers.T, strict=True):
                reason = self._why_not(name, found[name], labels, gain)
                if reason:
                    gain = low = high = np.nan
                status = str(NotCovered(reason)) if reason else "covered"
                rows.append(
                    {"processor": name, "n": labels, "predicted_gain": gain, "low": low, "high": high, "status": status}
                )
        return pd.DataFrame(rows)

    def break_even_labels(self) -> dict[str, float]:
        """For each processor the labels beyond which no gain is predicted.

        0: none is predicted at any number; inf: it lasts up to 16 times the present labels; NaN: not covered.
        """
        curves = self._look_ahead().groupby("processor", sort=False)
        return {
            str(name): last_positive(*curve[["n", "predicted_gain"]].to_numpy(dtype=float).T) for name, curve in curves
        }

    def summary(self) -> str:
        """The answer in a few lines."""
        check_is_fitted(self, "report_")
        last = self.report_[self.report_["n"] == self.n_grid_[-1]]
        lines = [f"{self.n_labels_} labels, {self.n_unlabelled_} unlabelled inputs; raw features: {self.separation_}"]
        even = self.break_even_labels()
        for row in last.itertuples():
            if row.verdict == "failed":
                lines.append(f"  {row.processor}: {row.note}")
                continue
            text = (
                f"  {row.processor}: {row.verdict} at n = {row.n}; measured gain {100 * row.measured_gain:+.1f} points"
            )
            text += f" ({100 * row.ci_low:+.1f} to {100 * row.ci_high:+.1f})"
            text += f"; {row.needs}" if row.needs else ""
            ever = (self.report_.loc[self.report_["processor"] == row.processor, "verdict"] == PROCESS).any()
            limit = even.get(row.processor, np.nan) if ever else np.nan
            if np.isfinite(limit):
                text += f"; predicted to help up to about {limit:.0f} labels"
            elif limit == np.inf:
                text += f"; predicted to help up to {_LOOK_AHEAD * self.n_labels_} labels at least"
            lines.append(text)
        notes = {note for note in self.report_["note"] if note.startswith("not covered")}
        lines += [f"  prediction {note}" for note in sorted(notes)]
        lines.append(f"  {self.calibration_}")
        lines.append(f"Best at n = {self.n_grid_[-1]}: {self.best_}")
        return "\n".join(lines)

    def plot(self) -> alt.FacetChart:
        """Predicted and measured gain over the number of labels, a panel a processor (altair)."""
        from cameraready.methods.preprocess_gain.charts import gain_chart

        predicted = self._look_ahead()
        return gain_chart(self.report_, predicted, self.n_labels_)

    def plot_calibration(self) -> alt.LayerChart:
        """Measured against predicted gain, a point a processor and n (altair)."""
        from cameraready.methods.preprocess_gain.charts import calibration_chart

        return calibration_chart(self.report_, self.calibration_)

    def plot_phase(self, processor: str) -> alt.LayerChart:
        """Where a projection like this processor helps, by labels and by share of the signal kept; you are the dot.

        Raises
        ------
        NotCovered : more than two classes, or separations that are not distinguishable from 0.
        """
        from cameraready.methods.preprocess_gain.charts import phase_chart

        (m, d), (m_p, d_p) = self._theory.effective(RAW), self._theory.effective(processor)
        return phase_chart(m, d, min(d_p, d), self.n_labels_, kept=(m_p / m) ** 2, name=processor)

    def _look_ahead(self) -> pd.DataFrame:
        """Predictions on a grid from the fewest measured labels to the most that are covered."""
        check_is_fitted(self, "report_")
        return self.predict_gain(np.unique(np.geomspace(self.n_grid_[0], _LOOK_AHEAD * self.n_labels_, 40).round()))

    def _rows(self, name: str, prediction: Prediction | NotCovered) -> list[dict[str, Any]]:
        """The report's rows of one processor."""
        scores, failure = self.measurements_.scores, self.measurements_.failures.get(name)
        note = f"failed: {failure}" if failure else str(prediction) if isinstance(prediction, NotCovered) else ""
        rows = []
        for i, n in enumerate(self.n_grid_):
            row = dict.fromkeys(_NUMBERS, np.nan) | {"verdict": "failed", "needs": "", "note": note}
            row |= {"processor": name, "n": int(n), "raw_score": scores[RAW][i].mean()}
            if isinstance(prediction, Prediction):
                gain, low, high = (part[i] for part in (prediction.gain, prediction.low, prediction.high))
                row |= {"predicted_gain": gain, "predicted_low": low, "predicted_high": high}
            if not failure:
                measured = corrected_interval(scores[name][i] - scores[RAW][i], self.measurements_.cv)
                row |= {"measured_gain": measured.mean, "ci_low": measured.low, "ci_high": measured.high}
                row["verdict"], row["needs"] = decide(
                    measured, row["predicted_gain"], repeats=self.repeats, labels=self.n_labels_
                )
            rows.append({column: row[column] for column in _COLUMNS})
        return rows

    def _why_not(self, name: str, prediction: Prediction | NotCovered, n: float, gain: float) -> str:
        """Why there is no prediction; empty where there is one."""
        if isinstance(prediction, NotCovered):
            return prediction.reason
        if name not in self._extrapolations:
            return "the processor failed"
        if n > _LOOK_AHEAD * self.n_labels_:
            return f"n={n:g} is beyond {_LOOK_AHEAD} times the {self.n_labels_} labels that speak for it"
        return f"a covariance without ridge cannot be inverted from n={n:g} labels" if np.isnan(gain) else ""
