"""``cameraready run recog predict new.csv --label active --assays old.csv``: rank molecules from a few labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from cameraready import data
from cameraready.data.formats import listed, read_text_table, require_exists
from cameraready.methods.recog import MoleculeTable, ReCoG

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
    old = [name for name in table.tasks if name != label]  # never the column that is to be predicted
    context = table.context(frame[smiles].tolist(), tasks=old)
    here = [name for name in old if name in frame.columns]
    context[here] = frame[here].reset_index(drop=True).combine_first(context[here])
    labels = pd.to_numeric(frame[label])
    has = labels.notna().to_numpy()
    if has.all():
        raise ValueError(f"every row of {path} has a label in {label!r}; leave it empty where it is to be predicted")
    model.fit(table, old)
    context = context[list(model.tasks_)]
    classifier = model.adapt(frame.loc[has, smiles].tolist(), labels[has], context[has])
    names, known = frame.loc[~has, smiles].tolist(), context[~has]
    probability = classifier.predict_proba(names, known)[:, 1]
    order = np.argsort(-probability, kind="stable")  # what is not a molecule (NaN) comes last
    ranking = pd.DataFrame({"row": np.flatnonzero(~has), "smiles": names, "probability": probability}).iloc[order]
    best = [row for row in order[:5] if not np.isnan(probability[row])]
    explained = classifier.explain([names[row] for row in best], known.iloc[best])
    with_context = int(known.notna().any(axis=1).sum())
    report = (
        f"old assays: {table} ({table.report})\n"
        f"labelled: {int(labels[has].sum())} active, {int((1 - labels[has]).sum())} inactive; "
        f"to rank: {len(names)}, {with_context} of them with a label in an old assay"
    )
    return ranking, explained, report


def _assays(name: str, smiles: str, binarise: str) -> MoleculeTable:
    threshold = None if not binarise else "median" if binarise == "median" else float(binarise)
    if name in {entry.name for entry in data.catalogue() if entry.kind == "molecules"}:
        return MoleculeTable.from_frame(data.load(name), smiles=smiles, binarise=threshold)
    return MoleculeTable.from_csv(name, smiles=smiles, binarise=threshold)


if __name__ == "__main__":
    app()
