"""What the claims run on: a table split in two, a black box trained on one part, unfavoured people of the other."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch._dynamo  # noqa: F401  (the first optimizer that is made imports it: preloaded, it costs no trial a second)
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from cameraready.methods.lapace.explainer import LAPACEExplainer
from cameraready.methods.lapace.results import Explanation
from cameraready.methods.lapace.space import TabularSpace

MOST_CLASSES = 20
UNSEEN = 1000  # added to the seeds: splits that nobody had looked at when methods, peers and rules were settled


@dataclass(frozen=True)
class Setting:
    """A black box, its training rows, and test rows that it gives another class than ``target``."""

    X: pd.DataFrame
    y: pd.Series
    inputs: pd.DataFrame
    target: Any
    model: Pipeline
    space: TabularSpace


def prepare(table: Any, *, n: int, inputs: int, seed: int, family: str = "mlp") -> Setting:
    """At most n complete rows, 70 % to train on. The favourable class is the most frequent one."""
    if table.y is None:
        raise ValueError("the table has no target column; name it y, target or label")
    if not 2 <= table.y.nunique() <= MOST_CLASSES:
        raise ValueError(f"the target {table.y.name!r} has {table.y.nunique()} values; classes are needed, 2 to 20")
    seed += UNSEEN
    complete = table.X.notna().all(axis=1) & table.y.notna()
    X = table.X[complete].sample(n=min(n, int(complete.sum())), random_state=seed)
    y = table.y[X.index]
    X_train, X_test, y_train, _ = train_test_split(X, y, test_size=0.3, random_state=seed, stratify=y)
    X_train, X_test = X_train.reset_index(drop=True), X_test.reset_index(drop=True)
    space = TabularSpace.infer(X_train)
    known = [X_test[name].isin(X_train[name].unique()) for name in space.categorical]
    for column in known:
        X_test = X_test[column[X_test.index]]
    model = make_pipeline(FunctionTransformer(space.fit(X_train).encode), _classifier(family, seed))
    warnings.filterwarnings("ignore", category=ConvergenceWarning)  # 60 epochs are what the black box gets
    model.fit(X_train, y_train)
    target = y_train.mode().iloc[0]
    unfavoured = X_test[model.predict(X_test) != target].head(inputs)
    if len(unfavoured) < 2:
        raise ValueError(f"the model gives {len(unfavoured)} test rows another class than {target!r}; 2 are needed")
    return Setting(X_train, y_train, unfavoured.reset_index(drop=True), target, model, space)


def _classifier(family: str, seed: int) -> Any:
    if family == "mlp":
        return MLPClassifier((32, 32), learning_rate_init=3e-3, max_iter=60, alpha=1e-3, random_state=seed)
    if family == "forest":
        return RandomForestClassifier(random_state=seed)
    return GradientBoostingClassifier(random_state=seed)


@dataclass(frozen=True)
class Selecting:
    """A fitted explainer with one choice along its paths, as a contestant."""

    explainer: LAPACEExplainer
    options: Mapping[str, Any]

    @property
    def background_(self) -> Any:
        return self.explainer.background_

    def explain(self, X: pd.DataFrame, *, target: Any, n_options: int) -> list[Explanation]:
        return self.explainer.explain(X, target=target, n_options=n_options, **self.options)
