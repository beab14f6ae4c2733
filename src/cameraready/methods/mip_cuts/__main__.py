"""``cameraready run mip_cuts solve model.mps --selector rl`` and ``cameraready run mip_cuts train policy.npz``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True)


class Selector(StrEnum):
    rl = "rl"
    default = "default"
    off = "off"
    fast = "fast"
    gate = "gate"
    random = "random"
    nogomory = "nogomory"
    highs = "highs"


class TrainingSize(StrEnum):
    small = "small"
    shipped = "shipped"
    paper = "paper"


@app.command("solve")
def solve_command(
    path: Annotated[Path, typer.Argument(help="The model: .mps, .lp or .cip.")],
    selector: Annotated[Selector, typer.Option(help="The learned selector, or what to compare it with.")] = Selector.rl,
    policy: Annotated[str, typer.Option(help="A policy of the package, or an .npz file.")] = "setcover",
    time_limit: Annotated[float | None, typer.Option(help="Processor seconds.")] = None,
    memory_mb: Annotated[float | None, typer.Option(help="Limit of SCIP's memory in MB.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Most rounds of separation of the learned selector.")] = None,
    cuts: Annotated[int | None, typer.Option(help="Most cuts of the learned selector.")] = None,
    seed: Annotated[int | None, typer.Option(help="SCIP's permutation seed.")] = None,
) -> None:
    """Solve a model in a process of its own, and print what it took."""
    try:
        from cameraready.methods.mip_cuts import Budget, solve

        record = solve(
            path, selector=selector.value, policy=policy, budget=Budget(rounds=rounds, cuts=cuts, memory_mb=memory_mb),
            time_limit=time_limit, memory_mb=memory_mb, seed=seed,
        )  # fmt: skip
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(record)


@app.command("train")
def train_command(
    out: Annotated[Path, typer.Argument(help="The policy file to write (.npz).")],
    scale: Annotated[TrainingSize, typer.Option(help="small: a minute; shipped: the package's; paper: days.")] = (
        TrainingSize.shipped
    ),
    seed: Annotated[int, typer.Option(help="Seed of instances' order, weights and decisions.")] = 0,
    episodes: Annotated[int | None, typer.Option(help="Of the last stage; the scale's own number by default.")] = None,
    imitate: Annotated[bool, typer.Option(help="Imitate SCIP's choices first.")] = True,
    curriculum: Annotated[bool, typer.Option(help="Go from small to large instances.")] = True,
) -> None:
    """Record SCIP's choices, imitate them, improve by reinforcement learning, and write the policy."""
    try:
        from cameraready.methods.mip_cuts.curriculum import train

        run = train(scale.value, seed=seed, imitate=imitate, curriculum=curriculum, episodes=episodes,
                    log=typer.echo, save=lambda policy: policy.save(out))  # fmt: skip
        run.policy.save(out)
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"wrote {out}")


if __name__ == "__main__":
    app()
