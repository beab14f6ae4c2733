"""Which classifiers the plug-in theory speaks about, and in which metrics each of them measures distances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, RidgeClassifier, RidgeClassifierCV
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC, LinearSVC

from cameraready.coverage import NotCovered

# Ridge terms, in units of the mean variance, of which a tuned classifier has the best.
_TUNED = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, math.inf)
_MOST_IMBALANCE = 1.5
_SEARCHES = GridSearchCV | RandomizedSearchCV


@dataclass(frozen=True)
class PluginRule:
    """A linear rule that tends to the Bayes rule of Gaussian classes with one covariance.

    ``alphas`` are the metrics that it may choose from (see `separation`).
    """

    name: str
    alphas: tuple[float, ...]


def plugin_rule(classifier: Any, counts: np.ndarray | None = None) -> PluginRule:
    """The plug-in rule behind a scikit-learn classifier, looking through pipelines and searches.

    Parameters
    ----------
    classifier : NearestCentroid, LinearDiscriminantAnalysis, or a linear model with a ridge penalty: logistic
        regression, ridge classifier, linear support vector machine.
    counts : shape (K,), training samples a class, to see whether priors shift the decision.

    Raises
    ------
    NotCovered : any other classifier; or an imbalanced training set that the classifier does not compensate for, where
        the theory's threshold, half way between the means, is not the classifier's.

    Examples
    --------
    >>> plugin_rule(NearestCentroid()).alphas
    (inf,)
    """
    model = final_estimator(classifier)
    name = type(model).__name__
    if isinstance(model, NearestCentroid):
        if model.metric != "euclidean" or model.shrink_threshold is not None:
            raise NotCovered("NearestCentroid with another metric or a shrink_threshold is not the plug-in rule")
        alphas, even = (math.inf,), getattr(model, "priors", "uniform") == "uniform"  # scikit-learn 1.6 has no priors
    elif isinstance(model, LinearDiscriminantAnalysis):
        alphas = (0.0,) if model.shrinkage is None else _TUNED
        even = model.priors is not None and np.ptp(model.priors) < 1e-9
    elif _is_ridge_like(model):
        alphas, even = _TUNED, model.class_weight == "balanced"
    else:
        raise NotCovered(
            f"{name} is not a linear rule that tends to the Bayes rule of Gaussian classes; its measured gain stands, "
            "and a prediction needs for instance LogisticRegression, LinearDiscriminantAnalysis or NearestCentroid"
        )
    if counts is not None and not even and counts.max() > _MOST_IMBALANCE * counts.min():
        way_out = "even priors" if hasattr(model, "priors") else "class_weight='balanced'"
        raise NotCovered(
            f"the largest class has {counts.max() / counts.min():.1f} times the samples of the smallest and {name} "
            f"moves its threshold accordingly; the theory's threshold is half way between the means: pass {way_out}"
        )
    return PluginRule(name, alphas)


def final_estimator(classifier: Any) -> Any:
    """The estimator inside searches and at the end of pipelines."""
    while isinstance(classifier, _SEARCHES | Pipeline):
        classifier = classifier.estimator if isinstance(classifier, _SEARCHES) else classifier[-1]
    return classifier


def steps_before(classifier: Any) -> Any | None:
    """What a pipeline does before its classifier, as a pipeline; None where there is none."""
    if isinstance(classifier, _SEARCHES):
        classifier = classifier.estimator
    return classifier[:-1] if isinstance(classifier, Pipeline) and len(classifier) > 1 else None


def _is_ridge_like(model: Any) -> bool:
    if isinstance(model, LogisticRegression | LogisticRegressionCV):
        ratio = getattr(model, "l1_ratio", None) or getattr(model, "l1_ratios", None)
        return getattr(model, "penalty", "l2") in ("l2", None, "deprecated") and ratio in (None, 0, 0.0, (0.0,))
    if isinstance(model, LinearSVC):
        return bool(model.penalty == "l2")
    if isinstance(model, SVC):
        return bool(model.kernel == "linear")
    return isinstance(model, RidgeClassifier | RidgeClassifierCV)
