"""What all few-shot methods share: fit on old assays, adapt to a few labels, predict; and how input is checked."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from cameraready.data.formats import listed
from cameraready.methods.recog.molecules import Molecules
from cameraready.methods.recog.table import UNKNOWN, MoleculeTable

Context = pd.DataFrame | NDArray[np.int8] | None


class FewShotMethod(ABC):
    """Learns from a table of assays, and adapts to a new one."""

    def fit(self, table: MoleculeTable, tasks: Sequence[str] | None = None) -> FewShotMethod:
        """Learn from these tasks of the table (default: all)."""
        if not isinstance(table, MoleculeTable):
            raise TypeError(f"fit takes a MoleculeTable, got {type(table).__name__}; see MoleculeTable.from_frame")
        part = table.select(tasks=tasks)
        known = (part.labels != UNKNOWN).any(axis=0)
        if not known.all():
            part = part.select(tasks=[name for name, has in zip(part.tasks, known, strict=True) if has])
        self.tasks_ = part.tasks
        self._fit(part)
        return self

    def adapt(self, support: Sequence[str] | Molecules, y: ArrayLike, context: Context = None) -> FewShotClassifier:
        """A classifier for a new task, from a few labelled molecules.

        Parameters
        ----------
        support : SMILES of the labelled molecules
        y : their labels, 0 or 1, at least one of each
        context : DataFrame with one row a molecule and the fitted tasks as columns (`tasks_`): 1, 0, or NaN where
            unknown. Columns that are not there are unknown. `MoleculeTable.context` looks labels up.

        Raises
        ------
        ValueError : labels other than 0 and 1, a class without a molecule, a context that does not fit.

        Warns
        -----
        UserWarning : SMILES that cannot be read; they are left out.
        """
        if not hasattr(self, "tasks_"):
            raise ValueError("adapt comes after fit; call fit(table) first")
        molecules = as_molecules(support)
        labels = np.asarray(y)
        if labels.dtype == object:  # of numbers, in a DataFrame that also holds text
            labels = np.array(labels.tolist())
        n = len(molecules) + len(molecules.rejected)
        if labels.shape != (n,):
            raise ValueError(f"y has shape {labels.shape} for {n} support molecules; pass one label each")
        if labels.dtype.kind not in "biuf" or not np.isin(labels, (0, 1)).all():
            bad = next((value for value in labels.tolist() if value not in (0, 1)), labels.dtype)
            raise ValueError(f"y holds {bad!r}; support labels are 0 and 1")
        known = as_context(context, n, self.tasks_)
        if molecules.rejected:
            _warn_of(molecules, "are left out of the support")
        labels, known = labels[molecules.rows].astype(np.int8), known[molecules.rows]
        if len(set(labels.tolist())) < 2:
            raise ValueError(
                f"the support has {int(labels.sum())} actives and {int((1 - labels).sum())} inactives that can be "
                "read; it needs at least one of each"
            )
        return self._adapt(molecules, labels, known)

    @abstractmethod
    def _fit(self, table: MoleculeTable) -> None: ...

    @abstractmethod
    def _adapt(self, support: Molecules, y: NDArray[np.int8], context: NDArray[np.int8]) -> FewShotClassifier: ...


class FewShotClassifier(ABC):
    """Predicts one task; made by `adapt`."""

    classes_ = np.array([0, 1])

    def __init__(self, tasks: Sequence[str]) -> None:
        self.tasks_ = tuple(tasks)

    def predict_proba(self, query: Sequence[str] | Molecules, context: Context = None) -> NDArray[np.float64]:
        """Probabilities of inactive and active, (n, 2); NaN, with a warning, for what is not a molecule.

        They hold where actives are as frequent as in the support; the ranking does not depend on that. `context` is
        as in `adapt`.
        """
        molecules = as_molecules(query)
        n = len(molecules) + len(molecules.rejected)
        known = as_context(context, n, self.tasks_)[molecules.rows]
        if molecules.rejected:
            _warn_of(molecules, "have no prediction (NaN)")
        active = np.full(n, np.nan)
        if len(molecules):
            active[molecules.rows] = self._probability(molecules, known)
        return np.column_stack([1 - active, active])

    def predict(self, query: Sequence[str] | Molecules, context: Context = None) -> NDArray[np.int_]:
        """The likelier class of each molecule; ValueError for what is not one."""
        active = self.predict_proba(query, context)[:, 1]
        if np.isnan(active).any():
            raise ValueError(f"row {int(np.isnan(active).argmax())} is not a molecule; remove it, or use predict_proba")
        return (active > 0.5).astype(int)

    @abstractmethod
    def _probability(self, molecules: Molecules, context: NDArray[np.int8]) -> NDArray[Any]:
        """Probability of active, (n,)."""


def as_molecules(smiles: Sequence[str] | Molecules) -> Molecules:
    return smiles if isinstance(smiles, Molecules) else Molecules.from_smiles(smiles)


def as_context(context: Context, n: int, tasks: Sequence[str]) -> NDArray[np.int8]:
    """Labels (n, n_tasks) of 1, 0 and -1 from what a user passes."""
    if context is None:
        return np.full((n, len(tasks)), UNKNOWN, dtype=np.int8)
    if not isinstance(context, pd.DataFrame | np.ndarray):
        raise TypeError(f"context is a {type(context).__name__}; pass a DataFrame with the fitted tasks as columns")
    if len(context) != n:
        raise ValueError(f"context has {len(context)} rows for {n} molecules; pass one row each")
    if isinstance(context, np.ndarray):
        if (
            context.shape[1:] != (len(tasks),)
            or context.dtype != np.int8
            or not np.isin(context, (UNKNOWN, 0, 1)).all()
        ):
            raise ValueError(
                f"an array as context is int8 of shape ({n}, {len(tasks)}) of 1, 0 and -1; pass a DataFrame instead"
            )
        return context
    if unknown := [name for name in context.columns if name not in tasks]:
        raise ValueError(f"context column {unknown[0]!r} is not a fitted task; those are {listed(tasks)}")
    if not context.columns.is_unique:
        raise ValueError(f"context has two columns {context.columns[context.columns.duplicated()][0]!r}; keep one")
    try:
        values = context.reindex(columns=list(tasks)).to_numpy(dtype=float, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise ValueError(f"context holds text ({error}); labels are 1, 0 and NaN") from error
    bad = ~(np.isnan(values) | (values == 0) | (values == 1))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(f"context holds {values[row, column]:g} in {tasks[column]!r}; labels are 1, 0 and NaN")
    return np.where(np.isnan(values), UNKNOWN, values).astype(np.int8)


def _warn_of(molecules: Molecules, what: str) -> None:
    some = ", ".join(f"{row} ({text!r})" for row, text in molecules.rejected[:5])
    more = ", ..." if len(molecules.rejected) > 5 else ""
    warnings.warn(f"rows {some}{more} are not molecules and {what}", stacklevel=3)
