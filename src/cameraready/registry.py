"""Find the methods: read each card's front matter and import nothing else."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

import cameraready.methods

LISTS = ("imports", "requires", "data_packages")


@dataclass(frozen=True)
class Card:
    """What a method's README.md says of it: the front matter by name, the text as `body`."""

    slug: str
    title: str
    field: str
    venue: str
    paper: str
    authors: str
    summary: str
    interface: str
    imports: tuple[str, ...]
    url: str = ""
    extra: str = ""
    requires: tuple[str, ...] = ()
    data_packages: tuple[str, ...] = ()
    body: str = ""
    folder: Path = Path()

    def missing(self) -> tuple[str, ...]:
        """Modules that the method needs and that are not installed (looked up, not imported)."""
        return tuple(name for name in self.requires if not _is_installed(name))

    @property
    def install_hint(self) -> str:
        """The command that installs what the method needs."""
        return f"pip install 'cameraready[{self.extra}]'" if self.extra else "pip install cameraready"


@cache
def cards() -> dict[str, Card]:
    """Every method's card, by slug in alphabetical order.

    Of two methods with one slug the first on the search path counts, as it does for ``import``.
    """
    found: dict[str, Path] = {}
    for folder in cameraready.methods.__path__:
        for readme in Path(folder).glob("*/README.md"):
            found.setdefault(readme.parent.name, readme)
    return {slug: read_card(found[slug]) for slug in sorted(found)}


def card(slug: str) -> Card:
    """The card of one method; a `KeyError` with the nearest names where there is none."""
    if slug in cards():
        return cards()[slug]
    raise KeyError(f"no method {slug!r}; {suggest(slug, cards(), 'the methods are')}")


def suggest(name: str, known: Iterable[str], introduction: str) -> str:
    """The names near to a wrong one, or all there are."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"{introduction} {', '.join(names) or '(none)'}"


def read_card(readme: Path) -> Card:
    """Parse one card; a `ValueError` names the file and the key that is missing, unknown or of the wrong type."""
    text = readme.read_text(encoding="utf-8")
    _, separator, rest = text.partition("---\n")
    front, closing, body = rest.partition("\n---\n")
    if not separator or not closing or text.partition("---\n")[0].strip():
        raise ValueError(f"{readme}: a card starts with YAML front matter between two lines of ---")
    try:
        values: Any = yaml.load(front, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(f"{readme}: the front matter is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{readme}: the front matter must be `key: value` lines")
    known = {entry.name: entry for entry in fields(Card) if entry.name not in ("body", "folder")}
    if unknown := set(values) - set(known):
        raise ValueError(f"{readme}: unknown keys {sorted(unknown)}; the keys are {', '.join(known)}")
    if missing := {name for name, entry in known.items() if entry.default is MISSING and name not in values}:
        raise ValueError(f"{readme}: missing keys {sorted(missing)}")
    for name, value in values.items():
        if name in LISTS:
            if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
                raise ValueError(f"{readme}: {name} must be a list of names, like [{value}]")
            values[name] = tuple(value)
        elif not isinstance(value, str):
            raise ValueError(f'{readme}: {name} must be text; write {name}: "{value}"')
    if values["slug"] != readme.parent.name:
        raise ValueError(f"{readme}: slug is {values['slug']!r} but the folder is {readme.parent.name!r}")
    return Card(**values, body=body.strip(), folder=readme.parent)


def claims_module(slug: str) -> ModuleType:
    """Load a method's ``claims.py`` by its path, without importing the method (and its heavy dependencies) first."""
    name = f"cameraready.methods.{slug}.claims"
    if name in sys.modules:
        return sys.modules[name]
    path = card(slug).folder / "claims.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; every method has a claims.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of a dotted name is missing
        return False
