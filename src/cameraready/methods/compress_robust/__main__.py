"""``cameraready run compress_robust model.pt --data test.npz``: audit a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cameraready.methods.compress_robust import audit

app = typer.Typer(add_completion=False)


@app.command()
def main(
    model: Annotated[Path, typer.Argument(help="A whole module saved by torch.save.")],
    data: Annotated[Path, typer.Option(help="An .npz file: x (n, ...) floats inside --bounds, y (n,) class numbers.")],
    eps_inf: Annotated[
        str, typer.Option(help="l_inf radii, comma-separated; fractions such as 8/255 too.")
    ] = "2/255,8/255",
    eps_2: Annotated[str, typer.Option(help="l_2 radii; empty for none.")] = "0.25,0.5",
    low: Annotated[float, typer.Option(help="Smallest valid input value.")] = 0.0,
    high: Annotated[float, typer.Option(help="Largest valid input value.")] = 1.0,
    strong: Annotated[bool, typer.Option(help="Also APGD-CE, APGD-DLR and Square.")] = False,
    limit: Annotated[int, typer.Option(help="Examples used.")] = 1000,
    html: Annotated[Path | None, typer.Option(help="Where to write the page.")] = None,
    trust: Annotated[
        bool, typer.Option(help="The model file is yours: loading a pickled module runs its code.")
    ] = False,
    force_eval: Annotated[bool, typer.Option(help="Audit as if model.eval() had been called.")] = False,
) -> None:
    """Audit a saved torch classifier: layers, attacks, certificates, checks."""
    try:
        report = audit(
            _load_model(model, trust),
            _load_data(data),
            eps={norm: radii for norm, radii in (("inf", _radii(eps_inf)), ("2", _radii(eps_2))) if radii},
            bounds=(low, high),
            attacks="strong" if strong else "fast",
            limit=limit,
            force_eval=force_eval,
        )
    except (ValueError, TypeError, ImportError, FileNotFoundError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(str(report))
    if html is not None:
        report.to_html(html)
        typer.echo(f"page: {html}")


def _load_model(path: Path, trust: bool) -> nn.Module:
    if not path.exists():
        raise FileNotFoundError(f"no file {path}")
    if not trust:
        raise ValueError(f"loading {path} runs the code that is pickled in it; if the file is yours, add --trust")
    model = torch.load(path, map_location="cpu", weights_only=False)
    if not isinstance(model, nn.Module):
        raise TypeError(f"{path} holds a {type(model).__name__}; save the whole module, not its state_dict")
    return model


def _load_data(path: Path) -> DataLoader:
    if not path.exists():
        raise FileNotFoundError(f"no file {path}")
    with np.load(path) as arrays:
        if not {"x", "y"} <= set(arrays.files):
            raise ValueError(f"{path} holds {', '.join(arrays.files) or 'nothing'}; it needs x (n, ...) and y (n,)")
        x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    return DataLoader(TensorDataset(x.float(), y), batch_size=256)


def _radii(text: str) -> list[float]:
    try:
        parts = [part.split("/") for part in text.split(",") if part.strip()]
        return [float(part[0]) / float(part[1]) if len(part) == 2 else float(part[0]) for part in parts]
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"radii {text!r}; write numbers such as 0.05,8/255") from error


if __name__ == "__main__":
    app()
