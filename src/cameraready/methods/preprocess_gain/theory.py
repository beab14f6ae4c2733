"""The plug-in theory on the features that a user's classifier sees, raw and behind each processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import clone

from cameraready.coverage import NotCovered
from cameraready.methods.preprocess_gain.coverage import plugin_rule, steps_before
from cameraready.methods.preprocess_gain.inputs import Inputs, dense, transformed, uses_labels
from cameraready.methods.preprocess_gain.plugin_accuracy import Array
from cameraready.methods.preprocess_gain.prediction import RAW, Prediction, accuracy_curve, predict_gains
from cameraready.methods.preprocess_gain.separation import class_statistics, pairs_in_metric

_METRICS = ("balanced_accuracy", "accuracy")


class FeatureTheory:
    """What the theory says about one classifier and one data set, or why it says nothing."""

    def __init__(
        self,
        classifier: Any,
        processors: Sequence[tuple[str, Any]],
        inputs: Inputs,
        supervised: frozenset[str],
        metric: str,
        seed: int,
    ) -> None:
        self.codes, self.counts, self.metric, self.seed = inputs.codes, np.bincount(inputs.codes), metric, seed
        self.features: dict[str, Array] = {}
        self.reasons: dict[str, NotCovered] = {}
        before = steps_before(classifier)
        try:
            if metric not in _METRICS:
                raise NotCovered(f"metric={metric!r}; the theory gives {' and '.join(_METRICS)}")
            self.rule = plugin_rule(classifier, self.counts)
            if before is not None and uses_labels(before, inputs, of_the_classifier=True):
                raise NotCovered("a step of the pipeline uses labels, so the classifier's features depend on n")
        except NotCovered as reason:
            self.reasons = dict.fromkeys((RAW, *(name for name, _ in processors)), reason)
            return
        everything = np.arange(len(inputs))
        for name, processor in [(RAW, None), *processors]:
            try:
                processed = None
                if name in supervised:
                    raise NotCovered("the processor uses labels, so its features depend on n")
                if processor is not None:
                    fitted = clone(processor).fit(np.concatenate([inputs.values, inputs.pool]))
                    processed = transformed(fitted, inputs.values)
                seen = inputs.for_classifier(everything, processed)
                self.features[name] = dense(seen if before is None else clone(before).fit_transform(seen))
            except NotCovered as reason:
                self.reasons[name] = reason
            except Exception as error:  # measured too, where it is reported as failed, or raised if it is the raw one
                self.reasons[name] = NotCovered(f"{type(error).__name__}: {error}")

    def predict(self, n: Any) -> dict[str, Prediction | NotCovered]:
        found: dict[str, Prediction | NotCovered] = dict(self.reasons)
        if RAW in self.features:
            balanced = self.metric == "balanced_accuracy"
            found |= predict_gains(self.features, self.codes, self.rule, n, balanced=balanced, seed=self.seed)
        else:
            found |= dict.fromkeys(self.features, self.reasons.get(RAW, NotCovered("no raw features")))
        return found

    def effective(self, name: str) -> tuple[float, float]:
        """(m, d) of two classes in the metric that the theory chose at the present number of labels."""
        if name not in self.features:
            raise self.reasons.get(name, ValueError(f"{name!r} is none of {', '.join(self.features)}"))
        if len(self.counts) != 2:
            raise NotCovered(f"{len(self.counts)} classes; the phase diagram is that of two")
        statistics = class_statistics(self.features[name], self.codes)
        n, shares = np.array([float(len(self.codes))]), self.counts / len(self.codes)
        best = accuracy_curve(statistics, self.rule, n, shares=shares)[1]
        pairs = pairs_in_metric(statistics, self.rule.alphas[int(best[0])])
        if pairs.m[0] == 0:
            raise NotCovered(f"{name} features: separation not distinguishable from 0")
        return float(pairs.m[0]), float(pairs.d[0])
