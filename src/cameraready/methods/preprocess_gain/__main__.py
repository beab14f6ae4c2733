"""``cameraready run preprocess_gain data.npz --label y --classifier logistic``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

app = typer.Typer(add_completion=False)


class Classifier(StrEnum):
    logistic = "logistic"
    lda = "lda"
    nearest_mean = "nearest-mean"
    svm = "svm"
    mlp = "mlp"
    forest = "forest"


@app.command()
def main(
    path: Annotated[Path, typer.Argument(help="npz with arrays, or csv / parquet table with a label column.")],
    label: Annotated[str, typer.Option(help="The array, or column, of labels.")] = "y",
    data: Annotated[str, typer.Option(help="The array of inputs (npz): (n, p), or (n, H, W[, C]) for images.")] = "X",
    unlabelled: Annotated[str, typer.Option(help="The array of unlabelled inputs (npz), if there is one.")] = "X_unl",
    classifier: Annotated[Classifier, typer.Option(help="What classifies.")] = Classifier.logistic,
    metric: Annotated[str, typer.Option(help="balanced_accuracy, accuracy, or another scorer.")] = "balanced_accuracy",
    repeats: Annotated[int, typer.Option(help="Repeats of the cross-validation.")] = 4,
    n: Annotated[list[int] | None, typer.Option(help="Label counts to measure at; may be repeated.")] = None,
    predict: Annotated[list[int] | None, typer.Option(help="Label counts to predict at; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of folds and subsets.")] = 0,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Write the report as csv.")] = None,
    chart: Annotated[Path | None, typer.Option(help="Write the chart as html, png or svg.")] = None,
) -> None:
    """Will denoising, compressing or encoding help this classifier on these data?"""
    try:
        X, y, pool = read_file(path, label=label, data=data, unlabelled=unlabelled)
        from cameraready.methods.preprocess_gain import ProcessingAdvisor  # after the file is known to be good

        advisor = ProcessingAdvisor(
            make_classifier(classifier), metric=metric, repeats=repeats, n_grid=n or "auto", random_state=seed,
            n_jobs=jobs,
        ).fit(X, y, X_unlabelled=pool)  # fmt: skip
        table = advisor.predict_gain(predict) if predict else None
    except (ValueError, TypeError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    columns = ["processor", "n", "predicted_gain", "measured_gain", "ci_low", "ci_high", "verdict", "needs"]
    typer.echo(advisor.report_[columns].round(3).to_string(index=False, na_rep="-"))
    typer.echo("\n" + advisor.summary())
    if table is not None:
        typer.echo("\n" + table.round(3).to_string(index=False, na_rep="-"))
    if out is not None:
        advisor.report_.to_csv(out, index=False)
    if chart is not None:
        advisor.plot().save(str(chart))


def read_file(path: Path, *, label: str, data: str = "X", unlabelled: str = "X_unl") -> tuple[Any, Any, Any]:
    """Inputs, labels and unlabelled inputs (or None) of an npz file or of a table (its rows without a label)."""
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            if missing := [name for name in (data, label) if name not in arrays]:
                raise ValueError(f"{path} holds no array {missing[0]!r}, only {', '.join(arrays)}; see --data, --label")
            return arrays[data], arrays[label], arrays.get(unlabelled)
    import pandas as pd

    readers = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    if path.suffix not in readers:
        raise ValueError(f"{path}: files of kind {path.suffix!r} are not read; pass .npz, .csv or .parquet")
    table = readers[path.suffix](path)
    if label not in table:
        raise ValueError(f"{path} has no column {label!r}, only {', '.join(map(str, table.columns))}; see --label")
    known = table[label].notna()
    X = table.drop(columns=label)
    return X[known], table.loc[known, label], X[~known] if (~known).any() else None


def make_classifier(kind: Classifier) -> Any:
    """A scikit-learn classifier at its usual settings; its regularisation is tuned by the adviser."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import NearestCentroid
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    models = {
        Classifier.logistic: lambda: LogisticRegression(max_iter=1000, class_weight="balanced"),
        Classifier.lda: lambda: LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1),
        Classifier.nearest_mean: NearestCentroid,
        Classifier.svm: lambda: SVC(class_weight="balanced"),
        Classifier.mlp: lambda: MLPClassifier((128,), max_iter=300, random_state=0),
        Classifier.forest: lambda: RandomForestClassifier(class_weight="balanced", random_state=0),
    }
    return make_pipeline(StandardScaler(), models[kind]())


if __name__ == "__main__":
    app()
