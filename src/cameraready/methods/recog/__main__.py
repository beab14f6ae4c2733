"""``cameraready run recog predict new.csv --label active --assays old.csv``: rank molecules from a few labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from cameraready import data
from cameraready.data.formats import listed, read_text_table, require_exists
from cameraready.methods.recog import Molecules, MoleculeTable, ReCoG
from cameraready.methods.recog.classifier import as_context

app = typer.Typer(add_completion=False)


@app.callback()
def main() -> None:
    """Few-shot property prediction for molecules."""


@app.command()
def predict(
    molecules: Annotated[
        Path, typer.Argument(help="CSV of SMILES, some of them with a label 1 or 0; rows without one are ranked.")
    ],
    label: Annotated[str, typer.Option(help="Column of the labels, empty where unknown.")],
    assays: Annotated[
        str, typer.Option(help="Old assays to learn from: a CSV (1, 0, empty), or a data set such as tox21.")
    ],
    smiles: Annotated[str, typer.Option(help="Column of the SMILES, in both files.")] = "smiles",
    binarise: Annotated[str, typer.Option(help="For measured values in --assays: a threshold, or median.")] = "",
    encoder: Annotated[str, typer.Option(help="ecfp, or gin (needs torch_geometric).")] = "ecfp",
    steps: Annotated[int, typer.Option(help="Training steps.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the training.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="File for the ranking; default: the best 20 are shown.")] = None,
    why: Annotated[bool, typer.Option(help="Also what the best five predictions rest on.")] = False,
) -> None:
    """Rank the molecules of a file that have no label yet, from those that have one."""
    try:
        ranking, explained, report = rank(
            molecules,
            label=label,
            table=_assays(assays, smiles, binarise),
            smiles=smiles,
            model=ReCoG(encoder, steps=steps, random_state=seed, device=device),  # type: ignore[arg-type]
        )
    except (ValueError, TypeError, ImportError, FileNotFoundError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(report)
    if out is not None:
        ranking.to_csv(out, index=False)
        typer.echo(f"ranking of {len(ranking)} molecules: {out}")
    else:
        typer.echo(ranking.head(20).to_string(index=False))
    if why:
        typer.echo(explained.round(3).to_string(index=False))


def rank(
    path: Path, *, label: str, table: MoleculeTable, smiles: str, model: ReCoG
) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """The unlabelled rows of a file by descending probability, what the first five rest on, and what was read.

    Labels that the file itself has in the old assays, in columns of the same names, complete those that the table has.
    """
    require_exists(str(path))
    frame = read_text_table(str(path))
    if missing := [name for name in (smiles, label) if name not in frame.columns]:
        raise ValueError(f"{path} has no column {missing[0]!r}; it has {listed(frame.columns)}")
    molecules = Molecules.from_smiles(frame[smiles].tolist())
    frame = frame.iloc[molecules.rows]
    labels = _labels(frame[label], path)
    old = [name for name in table.tasks if name != label]  # never the column that is to be predicted
    context = table.context(frame[smiles].tolist(), tasks=old)
    here = [name for name in old if name in frame.columns]
    context[here] = frame[here].reset_index(drop=True).combine_first(context[here])
    as_context(context, len(context), old)  # refuses the file's own labels now, not after the training
    model.fit(table, old)
    context = context[list(model.tasks_)]
    given, asked = np.flatnonzero(labels.notna()), np.flatnonzero(labels.isna())
    classifier = model.adapt(molecules.take(given), labels.iloc[given], context.iloc[given])
    queries, known = molecules.take(asked), context.iloc[asked]
    probability = classifier.predict_proba(queries, known)[:, 1]
    order = np.argsort(-probability, kind="stable")
    ranking = pd.DataFrame(
        {"row": molecules.rows[asked], "smiles": frame[smiles].iloc[asked], "probability": probability}
    )
    explained = classifier.explain(queries.take(order[:5]), known.iloc[order[:5]])
    with_context, n_active = int(known.notna().any(axis=1).sum()), int(labels.sum())
    lines = [f"old assays: {table} ({table.report})"]
    if molecules.rejected:
        some = ", ".join(f"row {row}: {text!r}" for row, text in molecules.rejected[:5])
        lines.append(
            f"{len(molecules.rejected)} rows of {path} are not molecules and left out ({some}; counted from 0)"
        )
    lines.append(
        f"labelled: {n_active} active, {len(given) - n_active} inactive; "
        f"to rank: {len(asked)}, {with_context} of them with a label in an old assay"
    )
    return ranking.iloc[order], explained, "\n".join(lines)


def _labels(column: pd.Series, path: Path) -> pd.Series:
    """The few labels, NaN where one is to be predicted; refused before the training if they cannot be used."""
    try:
        labels = pd.to_numeric(column)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{column.name!r} of {path} holds text ({error}); write 1, 0, or nothing where unknown"
        ) from error
    if set(labels.dropna()) != {0, 1}:
        raise ValueError(
            f"{column.name!r} of {path} holds {listed(labels.dropna().unique()) or 'no label'} in rows with a molecule"
            "; write 1 for an active and 0 for an inactive, at least one of each, and leave the others empty"
        )
    if labels.notna().all():
        raise ValueError(f"every molecule of {path} has a label in {column.name!r}; leave those to be ranked empty")
    return labels


def _assays(name: str, smiles: str, binarise: str) -> MoleculeTable:
    try:
        threshold = None if not binarise else "median" if binarise == "median" else float(binarise)
    except ValueError as error:
        raise ValueError(f"--binarise {binarise}: pass a number, or median") from error
    if name in {entry.name for entry in data.catalogue() if entry.kind == "molecules"}:
        return MoleculeTable.from_frame(data.load(name), smiles=smiles, binarise=threshold)
    return MoleculeTable.from_csv(name, smiles=smiles, binarise=threshold)


if __name__ == "__main__":
    app()
