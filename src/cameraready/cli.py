"""The command line: list, show, verify, report, serve, run, query. Each command imports what it needs, when it runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cameraready import __version__

if TYPE_CHECKING:
    from cameraready.evidence.verdict import MethodResult

WRONG_USE = 2
OUTCOMES = ("supported", "not supported", "inconclusive", "untestable")
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Targets = Annotated[
    list[str] | None, typer.Argument(metavar="[SLUG[:CLAIM]]...", help="Methods or claims; all if none.")
]
ScaleOption = Annotated[str, typer.Option("--scale", help="quick, full or paper.")]
StoreOption = Annotated[str, typer.Option("--store", help="Folder or fsspec URL (s3://...) of the results.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for machines.")]
OnOption = Annotated[str, typer.Option("--on", metavar="PATH", help="Run the claims on this file or folder of yours.")]
SeedsOption = Annotated[int | None, typer.Option("--seeds", min=1, help="Number of seeds, instead of the scale's.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="FACTOR=V1,V2", help="Other values for a factor; may be repeated.")
]


@app.callback(invoke_without_command=True)
def main_options(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """New machine-learning methods as working software, each with its claims re-tested on your machine."""
    if version:
        typer.echo(f"cameraready {__version__}")
        raise typer.Exit


@app.command("list")
def list_methods(as_json: JsonOption = False, store: StoreOption = "results") -> None:
    """List the methods, with their last verdicts."""
    from cameraready.registry import cards

    with _wrong_use():
        methods = list(cards().values())
        outcomes = {
            card.slug: {name: last["outcome"] for name, last in _last_verdicts(card.slug, store).items()}
            for card in methods
        }
    if as_json:
        names = ("slug", "title", "field", "venue", "interface", "summary")
        rows = [
            {
                **{name: getattr(card, name) for name in names},
                "missing": list(card.missing()),
                "verdicts": outcomes[card.slug],
            }
            for card in methods
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    width = max((len(card.slug) for card in methods), default=0)
    for card in methods:
        found = list(outcomes[card.slug].values())
        counts = ", ".join(f"{found.count(name)} {name}" for name in OUTCOMES if name in found) or "not verified yet"
        typer.echo(f"{card.slug:<{width}}  {card.venue}  {card.summary}\n{'':<{width}}  {card.interface}; {counts}")


@app.command()
def show(slug: str, as_json: JsonOption = False, store: StoreOption = "results") -> None:
    """Show a method's card, interface, claims and last verdicts."""
    from cameraready.evidence.plan import claims_of
    from cameraready.registry import card

    with _wrong_use():
        method = card(slug)
        claims = claims_of(slug)
        last = _last_verdicts(slug, store)
    if as_json:
        described = [
            {"name": c.name, "says": c.says, "source": c.source, "rule": c.holds.describe(), "last": last.get(c.name)}
            for c in claims
        ]
        fields = {"slug": slug, "title": method.title, "imports": list(method.imports), "claims": described}
        typer.echo(json.dumps(fields, indent=1))
        return
    typer.echo(f"{method.title}\n{method.venue}: {method.paper} ({method.authors})\n\n{method.summary}\n")
    typer.echo(f"interface  {method.interface}")
    typer.echo(f"import     from cameraready.methods.{slug} import {', '.join(method.imports)}")
    if missing := method.missing():
        typer.echo(f"missing    {', '.join(missing)}: {method.install_hint}")
    typer.echo("\nclaims")
    for claim in claims:
        verdict = last.get(claim.name)
        typer.echo(f"  {claim.name}: {claim.says}\n    rule  {claim.holds.describe()}")
        if verdict:
            typer.echo(f"    last  {verdict['outcome']} at {verdict['scale']} scale. {verdict['sentence']}")
    typer.echo(f"\n{method.body}")


@app.command()
def verify(
    targets: Targets = None,
    scale: ScaleOption = "quick",
    seeds: SeedsOption = None,
    on: OnOption = "",
    settings: SetOption = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Trials at a time; one a core if not given.")] = None,
    cluster: Annotated[str, typer.Option(metavar="ADDRESS|auto", help="Run on this Ray cluster.")] = "",
    store: StoreOption = "results",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and run nothing.")] = False,
    as_json: JsonOption = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 if a claim is not supported.")] = False,
) -> None:
    """Re-test claims and print their verdicts.

    Exit code: 0 when every trial ran, whatever the verdicts; 1 when one failed or could not be stored; 2 for wrong use;
    3 with --strict when a claim is not supported.
    """
    from rich.console import Console

    from cameraready.evidence.run import LocalExecutor, RayExecutor
    from cameraready.evidence.store import Store
    from cameraready.evidence.verify import Executor, execute, prepare
    from cameraready.evidence.views import JsonView, LiveView, PlainView, plan_lines, verdict_table

    console = Console()
    with _wrong_use():
        place = Store(store)
        run = prepare(targets or [], scale, place, seeds=seeds, overrides=_overrides(settings), on=on)
    if dry_run:
        for line in plan_lines(run, as_json=as_json):
            typer.echo(line)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def executor() -> Executor:
        with _wrong_use():
            return RayExecutor(cluster) if cluster else LocalExecutor(jobs or cores)

    view = JsonView() if as_json else LiveView(console) if console.is_terminal else PlainView(console)
    try:
        with view:
            methods = execute(run, place, executor, view)
    except KeyboardInterrupt:
        typer.echo(f"\ninterrupted; what ended is in {store}, and the same command goes on from there", err=True)
        raise typer.Exit(130) from None
    if not as_json:
        _print_failures(methods)
        console.print(verdict_table(methods))
    results = [result for method in methods for result in method.claims]
    if run.unstored or any(result.failed for result in results):
        raise typer.Exit(1)
    if strict and any(result.outcome == "not supported" for result in results):
        raise typer.Exit(3)


@app.command()
def report(
    targets: Targets = None,
    scale: ScaleOption = "quick",
    seeds: SeedsOption = None,
    on: OnOption = "",
    settings: SetOption = None,
    store: StoreOption = "results",
    out: Annotated[Path, typer.Option(help="Folder of the site.")] = Path("report"),
    pictures: Annotated[
        Literal["png", "svg", "pdf"] | None, typer.Option(help="Also write each picture as a file, for papers.")
    ] = None,
) -> None:
    """Write the report site from the stored trials; open its index.html in a browser."""
    from cameraready.evidence.site import build, write_pictures
    from cameraready.evidence.store import Store
    from cameraready.evidence.verify import collect, prepare

    with _wrong_use():
        run = prepare(targets or [], scale, Store(store), seeds=seeds, overrides=_overrides(settings), on=on)
    for text in run.skipped_files:
        typer.echo(text, err=True)
    methods = collect(run)
    typer.echo(f"report: {build(methods, out).resolve()}")
    if pictures:
        written = write_pictures(methods, out / "pictures", kind=pictures)
        typer.echo(f"{len(written)} pictures: {(out / 'pictures').resolve()}")


@app.command()
def serve(folder: Path = Path("report"), port: int = 8000) -> None:
    """Serve a report on this machine."""
    import http.server
    from functools import partial

    if not (folder / "index.html").exists():
        typer.echo(f"error: {folder}/index.html does not exist; run `cameraready report` first", err=True)
        raise typer.Exit(WRONG_USE)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        typer.echo(f"http://127.0.0.1:{server.server_port} (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


# The command is the Typer `app` of the method's __main__.py; everything after the slug is for it, --help as well.
@app.command(
    "run",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    options_metavar="",
)
def run_command(
    context: typer.Context,
    slug: Annotated[
        str, typer.Argument(metavar="SLUG [ARGUMENTS]...", help="A method with a command of its own.")
    ] = "",
) -> None:
    """Run the command that a method brings with it, on your files."""
    import importlib

    from cameraready.registry import card, cards

    with _wrong_use():
        having = [name for name, method in cards().items() if (method.folder / "__main__.py").is_file()]
        if slug in ("", "--help"):
            typer.echo(f"{context.get_help()}\n\nmethods with a command: {', '.join(having) or '(none)'}")
            return
        method = card(slug)
        if slug not in having:
            raise ValueError(
                f"{slug} has no command, it is a {method.interface}; commands: {', '.join(having) or '(none)'}"
            )
        if missing := method.missing():
            raise ValueError(f"{slug} needs {', '.join(missing)}: {method.install_hint}")
    importlib.import_module(f"cameraready.methods.{slug}.__main__").app(
        context.args, prog_name=f"cameraready run {slug}"
    )


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="SQL over the view `trials`.")], store: StoreOption = "results"
) -> None:
    """Ask the stored trials by SQL, for instance "select _slug, count(*) from trials group by all"."""
    import duckdb

    from cameraready.evidence.store import Store

    with _wrong_use():
        try:
            answer = Store(store).connect().sql(sql)
        except duckdb.Error as error:
            raise ValueError(str(error)) from error
    if answer is not None:  # a statement that is no question has none
        typer.echo(answer)


def main() -> None:
    """Entry point of the command ``cameraready``."""
    app()


@contextmanager
def _wrong_use() -> Iterator[None]:
    """A mistake in what was asked for ends with one line and exit code 2, not with a traceback."""
    try:
        yield
    except (KeyError, ValueError, OSError) as error:
        typer.echo(f"error: {error.args[0] if isinstance(error, KeyError) else error}", err=True)
        raise typer.Exit(WRONG_USE) from error


def _overrides(settings: list[str] | None) -> dict[str, list[Any]]:
    overrides: dict[str, list[Any]] = {}
    for setting in settings or []:
        name, equals, values = setting.partition("=")
        if not equals or not values:
            raise ValueError(f"--set {setting}: write FACTOR=VALUE or FACTOR=V1,V2")
        overrides[name] = [_parse(value) for value in values.split(",")]
    return overrides


def _parse(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _last_verdicts(slug: str, store: str) -> dict[str, dict[str, str]]:
    """Each claim's verdict at the largest scale that has run, from the files that `verify` leaves."""
    if "://" in store:
        from cameraready.evidence.store import Store

        found = Store(store).verdicts(slug)
    else:  # without the file system layer, whose import takes longer than all of `list`
        found = []
        for path in sorted(Path(store, slug).glob("*/*.json")):
            with suppress(OSError, ValueError):
                found.append(json.loads(path.read_text(encoding="utf-8")))
    order = ("quick", "full", "paper")
    valid = (entry for entry in found if isinstance(entry, dict) and entry.get("scale") in order)
    return {entry["claim"]: entry for entry in sorted(valid, key=lambda entry: order.index(entry["scale"]))}


def _print_failures(methods: list[MethodResult]) -> None:
    for method in methods:
        for result in method.claims:
            for failure in result.failed:
                cell = ", ".join(f"{name}={value}" for name, value in failure.cell.items())
                name = f"{method.card.slug}:{result.claim.name} [{cell}, seed={failure.seed}]"
                typer.echo(f"\nfailed trial {name}", err=True)
                typer.echo(f"{failure.error}\n{failure.traceback}", err=True)


if __name__ == "__main__":
    sys.exit(app())
