"""A table of molecules x assays, as files have it: 1 active, 0 inactive, empty unknown."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cameraready.data.formats import listed, read_text_table, require_exists
from cameraready.methods.recog.molecules import Molecules

UNKNOWN = -1


@dataclass(frozen=True)
class LoadReport:
    """What reading a table changed."""

    n_rows: int
    rejected: tuple[tuple[int, str], ...]
    duplicates: int
    conflicts: int
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.n_rows} rows read"]
        if self.rejected:
            some = ", ".join(f"row {row}: {text!r}" for row, text in self.rejected[:5])
            more = ", ..." if len(self.rejected) > 5 else ""
            lines.append(f"{len(self.rejected)} left out, not a molecule ({some}{more}; rows counted from 0)")
        if self.duplicates:
            lines.append(f"{self.duplicates} repeat a molecule and were merged by majority")
        if self.conflicts:
            lines.append(f"{self.conflicts} labels of repeated molecules are tied, so unknown")
        if self.left_out:
            lines.append(f"columns left out, as they are not 0 / 1 / empty: {listed(self.left_out)}")
        return "; ".join(lines)


@dataclass(frozen=True)
class MoleculeTable:
    """Molecules with their labels in a number of tasks (assays).

    Attributes
    ----------
    molecules : Molecules, n of them, each once
    labels : int8 array (n, n_tasks): 1, 0, or -1 where unknown
    tasks : tuple of str
    report : LoadReport, what was left out and merged; print it

    Examples
    --------
    >>> frame = pd.DataFrame({"smiles": ["CCO", "OCC", "oops", "CC"], "a": [1, 1, 0, None], "b, c": [0, 1, 1, 1]})
    >>> table = MoleculeTable.from_frame(frame)
    >>> print(table)
    2 molecules x 2 tasks, 50 % known
    >>> print(table.report)
    4 rows read; 1 left out, not a molecule (row 2: 'oops'; rows counted from 0); 1 repeat a molecule and were merged \
by majority; 1 labels of repeated molecules are tied, so unknown
    """

    molecules: Molecules
    labels: NDArray[np.int8]
    tasks: tuple[str, ...]
    report: LoadReport

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], *, smiles: str = "smiles", **options: Any) -> MoleculeTable:
        """Read a CSV or TSV file, also compressed; see `from_frame` for the options.

        Raises
        ------
        FileNotFoundError, ValueError : no such file, not a table, or one that `from_frame` refuses.
        """
        address = os.fspath(path)
        require_exists(address)
        return cls.from_frame(read_text_table(address), smiles=smiles, **options)

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        smiles: str = "smiles",
        tasks: Sequence[str] | None = None,
        binarise: float | Mapping[str, float] | Literal["median"] | None = None,
        largest_fragment: bool = False,
    ) -> MoleculeTable:
        """Take a DataFrame apart.

        Parameters
        ----------
        frame : one row a molecule
        smiles : the column of SMILES
        tasks : the columns of labels; default: all numeric ones whose values are 0, 1 or missing, or, with
            `binarise`, all numeric ones.
        binarise : measured values become 1 where they are above this number (one for all tasks, or one a task), or
            above each task's own median. Repeated measurements of a molecule are averaged first.
        largest_fragment : keep only the largest part of salts and mixtures.

        Raises
        ------
        ValueError : a column that is not there or there twice, labels other than 0, 1 and missing, no label at all,
            no molecule.
        TypeError : something else than a DataFrame.
        """
        if not isinstance(frame, pd.DataFrame):
            raise TypeError(f"frame is a {type(frame).__name__}; pass a DataFrame, or a file to from_csv")
        if not frame.columns.is_unique:
            repeated = frame.columns[frame.columns.duplicated()].unique()
            raise ValueError(f"several columns are called {listed(repeated)}; rename them")
        if missing := [name for name in (smiles, *(tasks or ())) if name not in frame.columns]:
            raise ValueError(f"no column {missing[0]!r}; there is {listed(frame.columns)}")
        chosen, left_out = _task_columns(frame, smiles, tasks, binarise is not None)
        values = _numbers(frame, chosen)
        molecules = Molecules.from_smiles(frame[smiles].tolist(), largest_fragment=largest_fragment)
        if len(molecules) == 0:
            raise ValueError(f"none of the {len(frame)} rows of column {smiles!r} is a molecule")
        _, first, group = np.unique(np.array(molecules.smiles), return_index=True, return_inverse=True)
        place = np.argsort(np.argsort(first))[group]  # keep the file's order
        labels, conflicts = _merge(values[molecules.rows], place, chosen, binarise)
        report = LoadReport(len(frame), molecules.rejected, len(molecules) - len(first), conflicts, left_out)
        return cls(molecules.take(np.sort(first)), labels, chosen, report)

    def __len__(self) -> int:
        return len(self.molecules)

    def __str__(self) -> str:
        known = 100 * np.mean(self.labels != UNKNOWN)
        return f"{len(self)} molecules x {len(self.tasks)} tasks, {known:.0f} % known"

    def columns_of(self, tasks: Sequence[str]) -> NDArray[np.intp]:
        """Column numbers of tasks; ValueError names one that is not there or is asked for twice."""
        if isinstance(tasks, str):
            raise TypeError(f"tasks={tasks!r} is one string; pass a list of names")
        place = {name: column for column, name in enumerate(self.tasks)}
        if unknown := [name for name in tasks if name not in place]:
            raise ValueError(f"no task is called {unknown[0]!r}; the tasks are {listed(self.tasks)}")
        if len(set(tasks)) < len(tasks):
            raise ValueError(f"tasks={list(tasks)!r} names one twice")
        return np.array([place[name] for name in tasks], dtype=np.intp)

    def select(self, *, rows: NDArray[Any] | None = None, tasks: Sequence[str] | None = None) -> MoleculeTable:
        """A part of the table: molecules by number or mask, tasks by name."""
        columns = self.columns_of(self.tasks if tasks is None else tasks)
        numbers = np.arange(len(self))[slice(None) if rows is None else rows]
        names = tuple(self.tasks[column] for column in columns)
        molecules = self.molecules if rows is None else self.molecules.take(numbers)
        return MoleculeTable(molecules, self.labels[np.ix_(numbers, columns)], names, self.report)

    def context(self, smiles: Sequence[str], *, tasks: Sequence[str] | None = None) -> pd.DataFrame:
        """The labels that this table has for other files' molecules, NaN where none: a `context` for `adapt`."""
        names = tuple(self.tasks if tasks is None else tasks)
        place = {name: row for row, name in enumerate(self.molecules.smiles)}
        asked = Molecules.from_smiles(smiles)
        found = np.full((len(smiles), len(names)), np.nan)
        columns = self.columns_of(names)
        for row, name in zip(asked.rows, asked.smiles, strict=True):
            if name in place:
                labels = self.labels[place[name], columns]
                found[row] = np.where(labels == UNKNOWN, np.nan, labels)
        return pd.DataFrame(found, columns=list(names))


def _task_columns(
    frame: pd.DataFrame, smiles: str, tasks: Sequence[str] | None, measured: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns to read as tasks, and the numeric ones that are left out."""
    if tasks is not None:
        if isinstance(tasks, str) or len(set(tasks)) < len(tasks) or smiles in tasks:
            raise ValueError(f"tasks={tasks!r}: pass a list of label columns, each once, without {smiles!r}")
        return tuple(tasks), ()
    numeric = frame.drop(columns=smiles).select_dtypes(["number", "bool", "boolean"])
    fits = {name: measured or bool(numeric[name].dropna().isin([0, 1]).all()) for name in numeric}
    chosen = tuple(name for name, fit in fits.items() if fit)
    if not chosen or (len(chosen) < len(fits) and numeric[list(chosen)].isna().all(axis=None)):
        hint = "; are they measurements? Then pass binarise='median' or a threshold" if len(fits) else ""
        raise ValueError(f"no column holds labels 0 / 1 / empty (numeric columns: {listed(fits) or 'none'}){hint}")
    return chosen, tuple(name for name, fit in fits.items() if not fit)


def _numbers(frame: pd.DataFrame, tasks: Sequence[str]) -> NDArray[np.float64]:
    for name in tasks:
        try:
            pd.to_numeric(frame[name])
        except (TypeError, ValueError) as error:
            raise ValueError(f"task {name!r} holds text ({error}); write 1, 0, or nothing where unknown") from error
    return frame[list(tasks)].apply(pd.to_numeric).to_numpy(dtype=np.float64, na_value=np.nan)


def _merge(
    values: NDArray[np.float64],
    place: NDArray[np.intp],
    tasks: Sequence[str],
    binarise: float | Mapping[str, float] | Literal["median"] | None,
) -> tuple[NDArray[np.int8], int]:
    """One row a molecule, and how many labels are tied. Mean of the known values, against the threshold."""
    known = ~np.isnan(values)
    total, number = np.zeros((2, place.max() + 1, values.shape[1]))
    np.add.at(total, place, np.where(known, values, 0.0))
    np.add.at(number, place, known)
    mean = np.divide(total, number, out=np.full_like(total, np.nan), where=number > 0)
    if binarise is None:
        bad = known & (values != 0) & (values != 1)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise ValueError(
                f"task {tasks[column]!r} holds {values[row, column]:g}; labels are 1, 0 and empty. "
                "Measured values: pass binarise='median' or a threshold"
            )
        thresholds: NDArray[np.float64] = np.full(len(tasks), 0.5)
        tied = mean == 0.5
        mean[tied] = np.nan
        conflicts = int(tied.sum())
    else:
        conflicts = 0
        thresholds = _thresholds(mean, tasks, binarise)
    if np.isnan(mean).all():
        raise ValueError(f"no molecule has a label in any of the tasks {listed(tasks)}")
    return np.where(np.isnan(mean), UNKNOWN, mean > thresholds).astype(np.int8), conflicts


def _thresholds(
    mean: NDArray[np.float64], tasks: Sequence[str], binarise: float | Mapping[str, float] | Literal["median"]
) -> NDArray[np.float64]:
    if isinstance(binarise, str):
        if binarise != "median":
            raise ValueError(f"binarise={binarise!r}; pass 'median', a number, or a number for each task")
        return np.array([np.median(column[~np.isnan(column)]) if (~np.isnan(column)).any() else 0 for column in mean.T])
    if isinstance(binarise, Mapping):
        if missing := [name for name in tasks if name not in binarise]:
            raise ValueError(f"binarise has no threshold for task {missing[0]!r}")
        thresholds = np.array([float(binarise[name]) for name in tasks])
    else:
        thresholds = np.full(len(tasks), float(binarise))
    if np.isnan(thresholds).any():
        raise ValueError(f"binarise={binarise!r}; a threshold is a number")
    return thresholds
