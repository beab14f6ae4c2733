"""How a classifier does in each group, and how much it relies on an attribute that should not matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.feature_selection import mutual_info_classif

from cameraready.methods.cbdebug.inputs import check_length
from cameraready.methods.cbdebug.model import ConceptModel


@dataclass(frozen=True, eq=False)
class GroupReport:
    """Accuracy in each group of class and attribute.

    Attributes
    ----------
    table : DataFrame, a row for each pair (class, attribute): n, accuracy; NaN where the group is empty.
    worst_group : least accuracy of a group that has images.
    mean : accuracy over all images.
    gap : mean minus worst_group.
    """

    table: pd.DataFrame
    worst_group: float
    mean: float
    gap: float

    def __str__(self) -> str:
        row, summary = self.table.accuracy.idxmin(), f"mean {self.mean:.1%}, gap {self.gap:.1%}"
        text = self.table.accuracy.map("{:.1%}".format).where(self.table.n > 0, "no images")
        shown = self.table.assign(accuracy=text).to_string()
        return f"{shown}\nworst group {self.worst_group:.1%} (class {row[0]}, attribute {row[1]}), {summary}"


def group_report(model: Any, images: Any, y: ArrayLike, attribute: ArrayLike) -> GroupReport:
    """Accuracy per group (class, attribute), with counts: a mean hides a group that fails.

    Parameters
    ----------
    model : anything with ``predict(images)``.
    y, attribute : (N,) each.

    Examples
    --------
    >>> from sklearn.dummy import DummyClassifier
    >>> X, y, background = np.zeros((4, 1)), [0, 0, 0, 1], ["water", "land", "land", "land"]
    >>> report = group_report(DummyClassifier().fit(X, y), X, y, background)
    >>> report.mean, report.worst_group, int(report.table.n[(1, "water")])
    (0.75, 0.0, 0)
    """
    labels, groups = np.asarray(y), np.asarray(attribute)
    check_length("attribute", groups, len(labels))
    predicted = np.asarray(model.predict(images))
    check_length("y", labels, len(predicted))
    frame = pd.DataFrame({"class": labels, "attribute": groups, "accuracy": predicted == labels})
    grouped = frame.groupby(["class", "attribute"]).accuracy
    every = pd.MultiIndex.from_product([np.unique(labels), np.unique(groups)], names=["class", "attribute"])
    table = pd.DataFrame({"n": grouped.size(), "accuracy": grouped.mean()}).reindex(every)
    table["n"] = table.n.fillna(0).astype(int)
    worst, mean = float(table.accuracy.min()), float(frame.accuracy.mean())
    return GroupReport(table, worst, mean, mean - worst)


def flip_rate(model: Any, images: Any, counterfactual: Any) -> float:
    """Share of predictions that change when only what should not matter was changed in the images."""
    before, after = np.asarray(model.predict(images)), np.asarray(model.predict(counterfactual))
    check_length("counterfactual", after, len(before))
    return float(np.mean(before != after))


def concept_reliance(model: ConceptModel, images: Any, attribute: ArrayLike) -> pd.DataFrame:
    """What each concept knows of an attribute, in nats, and its share of the head's absolute weight.

    Returns
    -------
    DataFrame with a row a concept, and columns information (mutual information with the attribute) and head_share.
        The sum of their product says how much knowledge of the attribute the head can draw on.
    """
    activations = model.concepts(images)
    check_length("attribute", np.asarray(attribute), len(activations))
    size = np.abs(model.head_weight_).sum(axis=0)
    information = mutual_info_classif(activations, np.asarray(attribute), random_state=0)
    share = size / size.sum() if size.any() else size
    return pd.DataFrame({"information": information, "head_share": share}, index=model.concept_names_)
