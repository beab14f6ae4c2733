"""The eight measures of counterfactual explanations, for anything that explains rows by `explain`.

All distances are means over columns of a difference in [0, 1] (see `FittedSpace.distances`): a number's difference as a
share of its range, 1 for another category.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
from sklearn.base import clone

from cameraready.methods.lapace.background import Background
from cameraready.methods.lapace.black_box import BlackBox
from cameraready.methods.lapace.columns import Array
from cameraready.methods.lapace.space import FittedSpace

NOISE = 0.02  # standard deviation of an input's perturbation, as a share of a column's range


class Explains(Protocol):
    """A method under test: for every row a DataFrame of options, or an object with one in ``options``."""

    def explain(self, X: pd.DataFrame, *, target: Any, n_options: int) -> Sequence[Any]: ...


def evaluate_counterfactuals(
    explainers: Explains | Mapping[str, Explains],
    X: pd.DataFrame,
    *,
    target: Any = "opposite",
    n_options: int = 3,
    models: Sequence[Any] = (),
    background: Background | None = None,
    perturbations: int = 5,
    random_state: int = 0,
) -> pd.DataFrame:
    """The eight measures, a row an explainer: the means over inputs of `measure_each`, which documents them.

    Parameters
    ----------
    explainers : one, or a mapping from name to explainer.
    background : what rows are judged by, default the first explainer's ``background_``.

    Other parameters are those of `measure_each`.
    """
    if not isinstance(explainers, Mapping):
        explainers = {type(explainers).__name__: explainers}
    if not explainers:
        raise ValueError("no explainer to evaluate; pass one, or a mapping from name to explainer")
    if background is None:
        background = getattr(next(iter(explainers.values())), "background_", None)
    tables = {
        name: measure_each(
            explainer,
            X,
            target=target,
            n_options=n_options,
            models=models,
            background=background,
            perturbations=perturbations,
            random_state=random_state,
        ).mean()
        for name, explainer in explainers.items()
    }
    return pd.DataFrame(tables).T.rename_axis("explainer")


def measure_each(
    explainer: Explains,
    X: pd.DataFrame,
    *,
    target: Any = "opposite",
    n_options: int = 3,
    models: Sequence[Any] = (),
    background: Background | None = None,
    perturbations: int = 5,
    random_state: int = 0,
) -> pd.DataFrame:
    """The eight measures of every input of X, a row an input.

    Columns
    -------
    found : 1 if there is an option, else 0; the measures of an empty set are NaN, but for validity.
    validity : share of the options that the model gives the target class; 0 without options.
    proximity, proximity_all : distance to the input of the closest option, and the mean of all.
    sparsity : share of columns that change, mean over options; lower is sparser.
    outlier_factor, inlier : plausibility; LOF (20 neighbours) and scikit-learn's inlier decision, fitted on the
        training rows that the model gives the target class; means over options.
    diversity : mean distance between two options; 0 for one option.
    input_robustness : symmetric Hausdorff distance between the options of x and of x + N(0, 0.02^2), mean over
        perturbations of the numbers; lower is more robust. Perturbed rows that have the target class already are left
        out; an explainer that finds nothing for a perturbed row scores 1.
    model_robustness : mean validity under ``models``; NaN without any.
    milliseconds : time of `explain` per input, all inputs in one call; fitting is not part of it.

    Parameters
    ----------
    explainer : anything with `explain` (see `Explains`). X : inputs.
    target : a class, or "opposite". models : retrained models, see `retrained_models`.
    background : default the explainer's ``background_``.
    perturbations : draws for input_robustness; 0 leaves it NaN, for slow explainers.
    """
    background = getattr(explainer, "background_", None) if background is None else background
    if background is None:
        raise ValueError("pass background=...: this explainer has no background_ to be judged by")
    space = background.space
    codes = space.codes(X)
    goals = background.targets(target, background.box(codes).argmax(axis=1))
    start = time.perf_counter()
    sets = _explain(explainer, background, codes, goals, n_options)
    milliseconds = 1e3 * (time.perf_counter() - start) / max(len(codes), 1)
    boxes = [BlackBox(model, space, classes=background.classes) for model in models]
    robust = _input_robustness(explainer, background, codes, goals, sets, n_options, perturbations, random_state)
    judged = _judge(background, sets, goals, boxes)
    rows = []
    for i, options in enumerate(sets):
        row = {"found": float(len(options) > 0), "validity": 0.0, "milliseconds": milliseconds}
        if len(options):
            row |= {name: float(values[i].mean()) for name, values in judged.items()}
            row |= _distances(background.space, codes[i], options) | {"input_robustness": robust[i]}
        rows.append(row)
    order = ["found", "validity", "proximity", "proximity_all", "sparsity", "outlier_factor", "inlier", "diversity"]
    return pd.DataFrame(rows, columns=[*order, "input_robustness", "model_robustness", "milliseconds"])


def retrained_models(
    estimator: Any, X: pd.DataFrame, y: Any, *, n_models: int = 10, random_state: int = 0
) -> list[Callable[[pd.DataFrame], Array]]:
    """Models as somebody else might have trained them: in turn on a bootstrap sample, with another seed, on 90 %.

    Parameters
    ----------
    estimator : a scikit-learn classifier, cloned for every model. X, y : its training data.

    Returns
    -------
    The models' ``predict_proba``; every sample holds all classes.
    """
    rng = np.random.default_rng(random_state)
    labels, n = np.asarray(y), len(X)
    classes = np.unique(labels)
    models = []
    for i in range(n_models):
        rows = np.arange(n)
        if i % 3 != 1:
            size, again = (n, True) if i % 3 == 0 else (int(0.9 * n), False)
            rows = rng.choice(n, size, replace=again)
        if len(np.unique(labels[rows])) < len(classes):  # a rare class was missed: one row of each goes in
            rows = np.concatenate([rows, [np.flatnonzero(labels == c)[0] for c in classes]])
        model = clone(estimator)
        seeds = [name for name in model.get_params() if name.endswith("random_state")]
        model.set_params(**{name: int(rng.integers(2**31 - 1)) for name in seeds})
        models.append(model.fit(X.iloc[rows], labels[rows]).predict_proba)
    return models


def hausdorff(space: FittedSpace, a: Array, b: Array) -> float:
    """Symmetric Hausdorff distance between two sets of encoded rows, neither empty."""
    between = space.distances(a, b)
    return float(max(between.min(axis=0).max(), between.min(axis=1).max()))


def _explain(explainer: Explains, background: Background, codes: Array, goals: Array, n_options: int) -> list[Array]:
    """Option sets as codes, one call for all inputs of a target."""
    sets: list[Array] = [codes[:0]] * len(codes)
    for goal in np.unique(goals):
        rows = np.flatnonzero(goals == goal)
        frame = background.space.frame(codes[rows])
        found = explainer.explain(frame, target=background.classes[goal], n_options=n_options)
        if len(found) != len(rows):
            raise ValueError(f"explain returned {len(found)} results for {len(rows)} rows; one a row is needed")
        for row, result in zip(rows, found, strict=True):
            if hasattr(result, "option_codes"):  # ours: the same rows, without making a DataFrame of each
                sets[row] = result.option_codes
                continue
            options = result if isinstance(result, pd.DataFrame) else result.options
            sets[row] = background.space.codes(options) if len(options) else codes[:0]
    return sets


def _judge(
    background: Background, sets: Sequence[Array], goals: Array, boxes: Sequence[BlackBox]
) -> dict[str, list[Array]]:
    """What the models and the outlier factor say of every option, one call each for all sets."""
    options, wanted = np.concatenate(sets), np.repeat(goals, [len(options) for options in sets])
    hits = [box(options).argmax(axis=1) == wanted for box in (background.box, *boxes)]
    lof, inlier = np.empty(len(options)), np.empty(len(options))
    for goal in np.unique(wanted):
        encoded = background.space.scale(options[wanted == goal])
        lof[wanted == goal] = background.outlier_factor(encoded, int(goal))
        inlier[wanted == goal] = lof[wanted == goal] <= background.outlier_limit(int(goal))
    robust = np.mean(hits[1:], axis=0) if boxes else np.full(len(options), np.nan)
    columns = {"validity": hits[0], "outlier_factor": lof, "inlier": inlier, "model_robustness": robust}
    ends = np.cumsum([len(options) for options in sets])[:-1]
    return {name: np.split(values, ends) for name, values in columns.items()}


def _distances(space: FittedSpace, start: Array, options: Array) -> dict[str, float]:
    encoded = space.scale(options)
    near = space.distances(encoded, space.scale(start[None]))[:, 0]
    o = len(options)
    return {
        "proximity": float(near.min()),
        "proximity_all": float(near.mean()),
        "sparsity": float(space.changed(options, start).mean()),
        "diversity": float(space.distances(encoded, encoded).sum() / (o * (o - 1))) if o > 1 else 0.0,
    }


def _input_robustness(
    explainer: Explains,
    background: Background,
    codes: Array,
    goals: Array,
    sets: Sequence[Array],
    n_options: int,
    perturbations: int,
    random_state: int,
) -> Array:
    space, rng = background.space, np.random.default_rng(random_state)
    movable = np.array([column.kind == "continuous" and not column.constant for column in space.columns])
    whole = movable & np.array([column.whole for column in space.columns])
    distances = np.full((perturbations, len(codes)), np.nan)
    for draw in range(perturbations):
        moved = codes + rng.normal(0.0, NOISE, codes.shape) * np.where(movable, space.spans, 0.0)
        moved = np.where(whole, np.rint(moved), moved)
        open_ = np.flatnonzero(background.box(moved).argmax(axis=1) != goals)
        for i, options in zip(
            open_, _explain(explainer, background, moved[open_], goals[open_], n_options), strict=True
        ):
            if not len(sets[i]):
                continue
            here = space.scale(sets[i])
            distances[draw, i] = hausdorff(space, here, space.scale(options)) if len(options) else 1.0
    seen = ~np.isnan(distances)
    total = np.where(seen, distances, 0.0).sum(axis=0)
    return np.where(seen.any(axis=0), total / np.maximum(seen.sum(axis=0), 1), np.nan)
