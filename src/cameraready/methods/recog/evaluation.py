"""The few-shot protocol: the same supports and queries for every method, over draws, tasks, splits and densities."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.metrics import average_precision_score, roc_auc_score

from cameraready.methods.recog.classifier import FewShotMethod
from cameraready.methods.recog.episodes import draw_episode
from cameraready.methods.recog.table import UNKNOWN, MoleculeTable

Split = Literal["overlap", "molecule", "scaffold"]
TEST_SHARE = 0.3
SPLITS = ("overlap", "molecule", "scaffold")
CONTEXTS = ("full", "support", "none")


def evaluate_fewshot(
    models: FewShotMethod | Mapping[str, FewShotMethod],
    table: MoleculeTable,
    test_tasks: Sequence[str],
    *,
    shots: int = 10,
    draws: int = 10,
    split: Split = "overlap",
    context: Literal["full", "support", "none"] = "full",
    density: float | Sequence[float] = 1.0,
    random_state: int = 0,
) -> pd.DataFrame:
    """Train on the other tasks, adapt to each test task from a few labels, and score the ranking of the rest.

    Parameters
    ----------
    models : a method, or names to methods; they are cloned, fitted, and get the same supports, queries and contexts.
    table : all molecules and tasks
    test_tasks : never seen in training
    shots : molecules of each class in the support; fewer for a task with less than twice as many.
    draws : supports drawn for each task
    split : "overlap" trains on all molecules, so that queries were seen there with other labels, as papers do.
        "molecule" trains on 70 % of the molecules and draws supports and queries from the others, "scaffold" does so
        by Bemis-Murcko scaffolds.
    context : whether support and queries, the support alone, or neither come with their labels in the other tasks.
    density : share of those labels that is kept; several values are scored with the same trained models.
    random_state : of draws, splits and hidden labels

    Returns
    -------
    DataFrame with one row a method, task, draw and density: roc_auc, pr_auc, ece (expected calibration error in 10
    bins), n_queries, n_active, shots (as drawn), seconds (adapting and predicting).

    Raises
    ------
    ValueError : unknown or too few tasks, a test task without two molecules of each class, options out of range.
    """
    named = {type(models).__name__: models} if isinstance(models, FewShotMethod) else models
    if not isinstance(named, Mapping) or not named or not all(isinstance(m, FewShotMethod) for m in named.values()):
        raise TypeError(f"models={models!r}; pass a method or a dict of them (wrap scikit-learn's in FewShotSklearn)")
    densities = [density] if isinstance(density, int | float) else list(density)
    train_tasks = _check(table, test_tasks, shots, draws, split, context, densities)
    rng = np.random.default_rng(random_state)
    is_test = _test_molecules(table, split, rng)
    _require_both_classes(table, test_tasks, is_test)
    train = table if split == "overlap" else table.select(rows=~is_test)
    fitted = {name: clone(model).fit(train, train_tasks) for name, model in named.items()}
    results = score_fewshot(
        fitted, table, test_tasks, shots=shots, draws=draws, context=context, density=densities, rows=is_test, rng=rng
    )
    results.insert(3, "split", split)
    return results


def score_fewshot(
    fitted: Mapping[str, FewShotMethod],
    table: MoleculeTable,
    test_tasks: Sequence[str],
    *,
    shots: int,
    draws: int,
    rng: np.random.Generator,
    context: str = "full",
    density: Sequence[float] = (1.0,),
    rows: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """`evaluate_fewshot` of fitted models; supports and queries are among `rows` (a mask; all)."""
    is_test = np.ones(len(table), dtype=bool) if rows is None else rows
    _require_both_classes(table, test_tasks, is_test)
    train_tasks = [name for name in table.tasks if name not in set(test_tasks)]
    scores = []
    for task, column in zip(test_tasks, table.columns_of(test_tasks), strict=True):
        labels = np.where(is_test[:, None], table.labels, UNKNOWN)
        for draw in range(draws):
            episode = draw_episode(labels, column, shots=shots, n_queries=None, rng=rng)
            kept = rng.random((2, len(table), len(train_tasks)))
            support, query = table.molecules.take(episode.support), table.molecules.take(episode.query)
            y, truth = table.labels[episode.support, column], table.labels[episode.query, column]
            for share in density:
                for name, model in fitted.items():
                    known = [
                        _context(table, model, chosen, kept[part], train_tasks, share if has else 0.0)
                        for part, (chosen, has) in enumerate(
                            [(episode.support, context != "none"), (episode.query, context == "full")]
                        )
                    ]
                    start = time.perf_counter()
                    active = model.adapt(support, y, known[0]).predict_proba(query, known[1])[:, 1]
                    seconds = time.perf_counter() - start
                    scores.append(
                        {
                            "method": name,
                            "task": task,
                            "draw": draw,
                            "density": share,
                            "roc_auc": roc_auc_score(truth, active),
                            "pr_auc": average_precision_score(truth, active),
                            "ece": calibration_error(truth, active),
                            "n_queries": len(truth),
                            "n_active": int((truth == 1).sum()),
                            "shots": len(y) // 2,
                            "seconds": seconds,
                        }
                    )
    return pd.DataFrame(scores)


def calibration_error(y: NDArray[Any], probability: NDArray[Any], *, bins: int = 10) -> float:
    """Expected calibration error: mean gap between predicted and true rate in bins of equal width."""
    place = np.minimum((probability * bins).astype(int), bins - 1)
    gaps = [abs(np.sum(y[place == b] - probability[place == b])) for b in np.unique(place)]
    return float(np.sum(gaps) / len(y))


@dataclass(frozen=True)
class Comparison:
    """Differences of one method to all others, paired by task and draw."""

    method: str
    metric: str
    table: pd.DataFrame

    def __str__(self) -> str:
        shown = self.table.to_string(index=False, float_format=lambda value: f"{value:.3f}")
        return f"{self.metric} of {self.method} minus that of each other, with 95 % intervals\n{shown}"


def compare(results: pd.DataFrame, method: str, *, metric: str = "roc_auc", random_state: int = 0) -> Comparison:
    """Paired differences with bootstrap intervals over tasks and draws.

    Parameters
    ----------
    results : from `evaluate_fewshot`, of one split and density
    method : which is compared with every other
    metric : "roc_auc", "pr_auc" or "ece"

    Raises
    ------
    ValueError : an unknown method or metric, several splits or densities at once.
    """
    if method not in set(results["method"]) or metric not in results:
        raise ValueError(f"no {metric!r} of {method!r}; methods are {', '.join(sorted(set(results['method'])))}")
    if len(results[["split", "density"]].drop_duplicates()) > 1:
        raise ValueError("results hold several splits or densities; compare one at a time")
    wide = results.pivot_table(index=["task", "draw"], columns="method", values=metric, sort=False)
    n_tasks = wide.index.get_level_values("task").nunique()
    cube = wide.to_numpy().reshape(n_tasks, -1, wide.shape[1])
    rng = np.random.default_rng(random_state)
    tasks = rng.integers(n_tasks, size=(2000, n_tasks, 1))
    draws = rng.integers(cube.shape[1], size=(2000, n_tasks, cube.shape[1]))
    rows = []
    mine = cube[..., wide.columns.get_loc(method)]
    for number, name in enumerate(wide.columns):
        gap = mine - cube[..., number]
        low, high = np.quantile(gap[tasks, draws].mean(axis=(1, 2)), [0.025, 0.975])
        mean = cube[..., number].mean()
        rows.append({"method": name, metric: mean, "difference": gap.mean(), "low": low, "high": high})
    table = pd.DataFrame(rows).sort_values(metric, ascending=metric == "ece", ignore_index=True)
    table.loc[table["method"] == method, ["difference", "low", "high"]] = np.nan
    return Comparison(method, metric, table)


def _check(
    table: MoleculeTable,
    test_tasks: Sequence[str],
    shots: int,
    draws: int,
    split: str,
    context: str,
    densities: Sequence[float],
) -> list[str]:
    """The other tasks."""
    table.columns_of(test_tasks)
    train_tasks = [name for name in table.tasks if name not in set(test_tasks)]
    if not test_tasks or len(train_tasks) < 2:
        raise ValueError(f"{len(test_tasks)} of {len(table.tasks)} tasks to test on; keep at least 2 to train on")
    if shots < 1 or draws < 1:
        raise ValueError(f"shots={shots}, draws={draws}; pass at least 1")
    if split not in SPLITS or context not in CONTEXTS:
        raise ValueError(f"split={split!r}, context={context!r}; choose of {SPLITS} and {CONTEXTS}")
    if not densities or not all(0 <= share <= 1 for share in densities):
        raise ValueError(f"density={densities!r}; shares of the labels are between 0 and 1")
    return train_tasks


def _require_both_classes(table: MoleculeTable, test_tasks: Sequence[str], is_test: NDArray[np.bool_]) -> None:
    labels = table.labels[np.ix_(is_test, table.columns_of(test_tasks))]
    few = np.minimum((labels == 1).sum(axis=0), (labels == 0).sum(axis=0)) < 2
    if few.any():
        raise ValueError(
            f"task {test_tasks[few.argmax()]!r} has less than two molecules of a class to test on; leave it out"
        )


def _test_molecules(table: MoleculeTable, split: str, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which molecules supports and queries are drawn from."""
    if split == "overlap":
        return np.ones(len(table), dtype=bool)
    if split == "molecule":
        return rng.random(len(table)) < TEST_SHARE
    _, group = np.unique(np.array(table.molecules.scaffolds), return_inverse=True)
    order = rng.permutation(group.max() + 1)
    size = np.bincount(group)[order]
    chosen = np.zeros(len(order), dtype=bool)
    chosen[order[np.cumsum(size) - size < TEST_SHARE * len(table)]] = True
    return chosen[group]


def _context(
    table: MoleculeTable,
    model: FewShotMethod,
    rows: NDArray[np.intp],
    kept: NDArray[np.float64],
    train_tasks: Sequence[str],
    share: float,
) -> NDArray[np.int8]:
    """Known labels of some molecules in the tasks that the model was fitted on, each kept with probability `share`."""
    place = [train_tasks.index(name) for name in model.tasks_]
    labels = table.labels[np.ix_(rows, table.columns_of(model.tasks_))]
    return np.where(kept[np.ix_(rows, place)] < share, labels, UNKNOWN).astype(np.int8)
