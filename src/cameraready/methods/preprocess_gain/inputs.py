"""What a user brings, checked before work starts: inputs, labels, an unlabelled pool, label counts, processors."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.utils import get_tags

from cameraready.methods.preprocess_gain.plugin_accuracy import Array
from cameraready.methods.preprocess_gain.separation import Codes

_PROBE = 20  # rows a class that show whether a processor needs labels


@dataclass(frozen=True, eq=False)
class Inputs:
    """Rows for processors (``values``, numbers) and for the classifier (the same, or the table they come from).

    ``y`` are the labels, ``codes`` the same as 0 .. K - 1, and ``pool`` the unlabelled rows, shape (N, p).
    """

    values: Array
    y: np.ndarray
    codes: Codes
    pool: Array
    frame: pd.DataFrame | None = None
    image_shape: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def for_classifier(self, rows: Codes, processed: Array | None = None) -> Any:
        """The rows as the classifier gets them; a table keeps its names, and columns that are not numbers."""
        values = self.values[rows] if processed is None else processed
        if self.frame is None:
            return values
        part = self.frame.iloc[rows]
        if processed is None:
            return part
        numbers = part.select_dtypes("number").columns
        names = numbers if values.shape[1] == len(numbers) else [f"feature_{i}" for i in range(values.shape[1])]
        table = pd.DataFrame(values, columns=names, index=part.index)
        return pd.concat([table, part.drop(columns=numbers)], axis=1)


def read_inputs(X: Any, y: Any, X_unlabelled: Any = None, *, transductive: bool = False) -> Inputs:
    """What a user brings, checked.

    Raises
    ------
    ValueError : no rows, no numbers, values that are missing or infinite; labels of another number, missing, of one
        class, of a class with one sample, or of so many classes that they look like a regression target; a pool with
        other columns, or (unless ``transductive``) with rows of X: processors would be fitted on test inputs.
    """
    values, shape = _numbers(X, "X")
    y, codes = _labels(y, len(values))
    pool = np.empty((0, values.shape[1])) if X_unlabelled is None else _numbers(X_unlabelled, "X_unlabelled")[0]
    if pool.shape[1] != values.shape[1]:
        raise ValueError(f"X_unlabelled has {pool.shape[1]} columns of numbers, X has {values.shape[1]}")
    known = {row.tobytes() for row in values}
    shared = sum(row.tobytes() in known for row in pool)
    if shared and not transductive:
        raise ValueError(
            f"{shared} rows of X_unlabelled are also in X, so processors would be fitted on test inputs; drop them, or "
            "pass transductive=True if your test inputs are known before you decide"
        )
    frame = X.reset_index(drop=True) if isinstance(X, pd.DataFrame) else None
    return Inputs(values, y, codes, pool, frame, shape)


def transformed(processor: Any, values: Array) -> Array:
    """What a fitted processor makes of rows, as rows of finite numbers."""
    processed = dense(processor.transform(values)).reshape(len(values), -1)
    if not np.isfinite(processed).all():
        raise ValueError(f"the processed inputs hold {np.count_nonzero(~np.isfinite(processed))} non-finite values")
    return processed


def dense(X: Any) -> Array:
    """An array of floats, of a sparse matrix too."""
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=float)


def _numbers(X: Any, name: str) -> tuple[Array, tuple[int, ...] | None]:
    """Rows of numbers, and the shape of the images that they are."""
    if isinstance(X, pd.DataFrame):
        numbers = X.select_dtypes("number")
        if numbers.shape[1] == 0:
            raise ValueError(f"{name} has no column of numbers (columns: {', '.join(map(str, X.columns[:5]))}); encode")
        X = numbers
    try:
        values = dense(X)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} does not hold numbers: {error}; encode categories first") from None
    if values.ndim not in (2, 3, 4) or values.size == 0:
        raise ValueError(f"{name} has shape {values.shape}; it must be (n, p), or (n, H, W[, C]) for images")
    if bad := np.count_nonzero(~np.isfinite(values)):
        raise ValueError(f"{name} holds {bad} values that are missing or infinite; impute or drop them first")
    return np.ascontiguousarray(values).reshape(len(values), -1), values.shape[1:] if values.ndim > 2 else None


def _labels(y: Any, n: int) -> tuple[np.ndarray, Codes]:
    """Labels as given, and as numbers 0 .. K - 1."""
    y = np.asarray(y)
    if y.shape != (n,):
        raise ValueError(f"y has shape {y.shape}, X has {n} rows; y must have shape ({n},)")
    if pd.isna(y).any():
        raise ValueError(f"y holds {np.count_nonzero(pd.isna(y))} missing labels; put these rows into X_unlabelled")
    try:
        labels, codes = np.unique(y, return_inverse=True)
    except TypeError as error:
        raise TypeError(f"y mixes kinds of labels: {error}; pass numbers, or strings") from None
    counts = np.bincount(codes)
    if len(labels) > 20 and len(labels) > n / 4:
        raise ValueError(f"y holds {len(labels)} classes in {n} rows: is it a regression target? Bin it first")
    if len(labels) < 2:
        raise ValueError(f"y holds one class only ({labels[0]!r}); at least two are needed")
    if counts.min() < 2:
        rare = labels[counts.argmin()]
        raise ValueError(f"class {rare} has {counts.min()} sample; at least 2 a class are needed: drop or merge it")
    return y, codes


def read_n_grid(n_grid: Any, counts: Codes, cv: int) -> Codes:
    """Numbers of labels to measure at: given ones, or four on a log scale up to the smallest training part.

    Raises
    ------
    ValueError : more labels than a training part has, or fewer than two a class.
    """
    available = int(counts.sum() - np.ceil(counts / cv).sum())
    fewest = min(int(np.ceil(2 * counts.sum() / counts.min())), available)
    if isinstance(n_grid, str):
        if n_grid != "auto":
            raise ValueError(f"n_grid={n_grid!r}; pass 'auto' or numbers of labels")
        start = min(max(fewest, 10 * len(counts)), available)
        return np.unique(np.geomspace(start, available, 4).round().astype(int))
    grid = np.atleast_1d(np.asarray(n_grid, dtype=float))
    if len(grid) == 0 or not np.isfinite(grid).all():
        raise ValueError(f"n_grid={n_grid!r}; pass 'auto' or numbers of labels")
    grid = np.unique(grid.astype(int))
    if grid.max() > available:
        limit = f"{available} labels are available to train on in {cv}-fold cross-validation of {counts.sum()}"
        raise ValueError(f"n_grid goes up to {grid.max()}, but only {limit}; predict_gain(n) looks beyond")
    if grid.min() < 2 * len(counts):
        raise ValueError(f"n_grid starts at {grid.min()}; {len(counts)} classes need at least {2 * len(counts)} labels")
    return grid


def uses_labels(processor: Any, inputs: Inputs, *, of_the_classifier: bool = False) -> bool:
    """Whether fitting needs y: by its signature, by its tags, or because it fits a few rows with y only.

    ``of_the_classifier``: the rows are given as the classifier gets them, which matters for tables.
    """
    parameters = inspect.signature(processor.fit).parameters
    if "y" in parameters and parameters["y"].default is inspect.Parameter.empty:
        return True
    try:
        if get_tags(processor).target_tags.required:
            return True
    except (AttributeError, TypeError):  # a transformer that is not built on scikit-learn's base classes
        pass
    few = np.concatenate([np.flatnonzero(inputs.codes == k)[:_PROBE] for k in range(inputs.codes.max() + 1)])
    X, y = inputs.for_classifier(few) if of_the_classifier else inputs.values[few], inputs.y[few]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            clone(processor).fit(X)
        except Exception:
            try:
                clone(processor).fit(X, y)
            except Exception:
                return False  # broken either way; the measurement will say how
            return True
    return False


def supervised_names(
    processors: Sequence[tuple[str, Any]], inputs: Inputs, *, allow_supervised: bool
) -> frozenset[str]:
    """Names of the processors that use labels, after refusing what cannot be measured.

    Raises
    ------
    ValueError : no processors, names that repeat or mean raw, or one that uses labels without ``allow_supervised``.
    TypeError : what has no fit and transform.
    """
    names = [name for name, _ in processors]
    if not names:
        raise ValueError("processors is empty; pass transformers, or 'auto'")
    if len(set(names)) < len(names) or "raw" in names:
        raise ValueError(f"processors are named {names}; names must differ, and 'raw' is the unprocessed rival")
    supervised = set()
    for name, processor in processors:
        if not (hasattr(processor, "fit") and hasattr(processor, "transform")):
            raise TypeError(f"processor {name!r} is a {type(processor).__name__} without fit and transform")
        if not uses_labels(processor, inputs):
            continue
        supervised.add(name)
        if not allow_supervised:
            raise ValueError(
                f"processor {name!r} is fitted with labels, so it is a part of the classifier and no pre-processing; "
                "pass allow_supervised=True to fit it on each training part's labels"
            )
    return frozenset(supervised)
