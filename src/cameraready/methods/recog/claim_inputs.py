"""The claims' data: assays of a data set or of a user's file, which of them are new, and planted junk."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch._dynamo  # noqa: F401  (the first optimizer that is made imports it: preloaded, it costs no trial a second)

from cameraready.methods.recog.episodes import draw_episode
from cameraready.methods.recog.model import ReCoG
from cameraready.methods.recog.table import UNKNOWN, MoleculeTable

# ChEMBL targets of MoleculeACE that are G-protein coupled receptors, or kinases.
RECEPTORS = "214_Ki 218_EC50 219_Ki 231_Ki 233_Ki 234_Ki 236_Ki 237_EC50 237_Ki 264_Ki 4616_EC50 4792_Ki"
KINASES = "1862_Ki 2147_Ki 262_Ki 2835_Ki 2971_Ki 4005_Ki 4203_Ki"
CHEMBL = tuple(sorted(f"CHEMBL{name}" for name in f"{RECEPTORS} {KINASES}".split()))
# New tasks as the field has them: the last ones.
LAST = {"SR-p53": 3, "MUV-859": 5}


def assays(dataset: pd.DataFrame, *, molecules: int, rng: np.random.Generator) -> MoleculeTable:
    """A random sample of a data set's molecules, or all if there are not so many.

    Columns of 0, 1 and NaN are the assays. A file without any holds measured values, which are cut at each median;
    MoleculeACE is such a one.
    """
    if set(CHEMBL) <= set(dataset.columns):
        tasks = list(CHEMBL)
        dataset = dataset.loc[dataset[tasks].notna().any(axis=1), ["smiles", *tasks]]
    if len(dataset) > molecules:
        dataset = dataset.iloc[np.sort(rng.choice(len(dataset), size=molecules, replace=False))]
    numeric = dataset.select_dtypes(["number", "bool"]).dropna(axis=1, how="all")
    labelled = any(numeric[name].dropna().isin([0, 1]).all() for name in numeric)
    table = MoleculeTable.from_frame(dataset, binarise=None if labelled else "median")
    if len(table.tasks) < 4:
        raise ValueError(f"the file has {len(table.tasks)} assays; the claims need at least 4, some old and some new")
    return table


def new_tasks(table: MoleculeTable, seed: int) -> list[str]:
    """The last of Tox21 and MUV, as papers have it; elsewhere every fourth, starting at another one each seed."""
    for name, number in LAST.items():
        if name in table.tasks:
            return list(table.tasks[-number:])
    return list(table.tasks[seed % 4 :: 4])


def with_junk(table: MoleculeTable, times: int, rng: np.random.Generator) -> MoleculeTable:
    """As many random tasks for each real one, with the same number of labels known and active."""
    columns, names = [table.labels], list(table.tasks)
    for number in range(times):
        junk = table.labels.copy()
        for column in junk.T:
            known = np.flatnonzero(column != UNKNOWN)
            column[known] = rng.permutation(column[known])
        columns.append(junk)
        names += [f"junk {number} {name}" for name in table.tasks]
    return MoleculeTable(table.molecules, np.concatenate(columns, axis=1), tuple(names), table.report)


def gates_by_kind(model: ReCoG, table: MoleculeTable, new: list[str], rng: np.random.Generator) -> pd.Series:
    """Mean gate of the old labels of new assays' molecules, by whether the old assay is junk."""
    explained = []
    for column in table.columns_of(new):
        draw = draw_episode(table.labels, column, shots=10, n_queries=200, rng=rng)
        columns = table.columns_of(model.tasks_)
        known = [table.labels[np.ix_(rows, columns)] for rows in (draw.support, draw.query)]
        classifier = model.adapt(table.molecules.take(draw.support), table.labels[draw.support, column], known[0])
        explained.append(classifier.explain(table.molecules.take(draw.query), known[1]).dropna(subset="task"))
    gates = pd.concat(explained)
    return gates["gate"].groupby(gates["task"].str.startswith("junk ")).mean()
