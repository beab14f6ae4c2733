"""Find the methods: read each card's front matter and import nothing else."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

import cameraready.methods


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
        return tuple(name for name in self.requires if importlib.util.find_spec(name) is None)

    @property
    def install_hint(self) -> str:
        """The command that installs what the method needs."""
        return f"pip install 'cameraready[{self.extra}]'" if self.extra else "pip install cameraready"


@cache
def cards() -> dict[str, Card]:
    """Every method's card, by slug in alphabetical order."""
    found = {
        readme.parent.name: read_card(readme)
        for folder in cameraready.methods.__path__
        for readme in sorted(Path(folder).glob("*/README.md"))
    }
    return dict(sorted(found.items()))


def card(slug: str) -> Card:
    """The card of one method; a `KeyError` with the nearest names where there is none."""
    if slug in cards():
        return cards()[slug]
    near = difflib.get_close_matches(slug, cards(), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the methods are {', '.join(cards()) or '(none)'}"
    raise KeyError(f"no method {slug!r}; {hint}")


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
    for name in ("imports", "requires", "data_packages"):
        if not isinstance(values.get(name, []), list):
            raise ValueError(f"{readme}: {name} must be a list, like [{values[name]}]")
        values[name] = tuple(values.get(name, ()))
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
