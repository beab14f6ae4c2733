"""Digests: of a file or folder's bytes, and of a loader's code."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import IO, Any

_OURS = "cameraready.data"


def digest(path: str | Path) -> str:
    """SHA-256 of a file, or of a folder's relative names and contents, as 64 hex digits.

    Streams: memory stays at one megabyte however large the file. A ``path.npz::key`` form hashes the whole file and
    the key. Any fsspec URL works (``s3://...``, ``memory://...``).

    Raises
    ------
    FileNotFoundError
        Nothing is at `path`.
    """
    import fsspec

    from cameraready.data.formats import split_key

    address, key = split_key(str(path))
    system, root = fsspec.core.url_to_fs(address)
    total = hashlib.sha256()
    if system.isdir(root):
        for name in sorted(system.find(root)):
            relative = name.removeprefix(root).lstrip("/").encode()
            # Lengths keep the boundary between a name and its content, so that no two folders run together.
            total.update(b"%d %d " % (len(relative), system.size(name)) + relative)
            with system.open(name, "rb") as stream:
                _feed(total, stream)
    else:
        with system.open(root, "rb") as stream:
            _feed(total, stream)
    if key:
        total.update(b"::" + key.encode())
    return total.hexdigest()


def _feed(total: Any, stream: IO[bytes]) -> None:
    while block := stream.read(1 << 20):
        total.update(block)


def source_digest(loader: Callable[..., Any], *labels: str) -> str:
    """16 hex digits over the source of `loader`, all it uses from this package, and `labels`."""
    total = hashlib.sha256(repr(labels).encode())
    for text in _sources(loader):
        total.update(text.encode() + b"\0")
    return total.hexdigest()[:16]


def _sources(loader: Callable[..., Any]) -> Iterator[str]:
    """Source of a function and, once each, of the functions, classes and constants of this package it names."""
    waiting: list[Any] = [inspect.unwrap(loader)]
    seen: set[int] = set()
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield _code(item)
        if not isinstance(item, FunctionType):
            continue
        for name in sorted(set(_names(item.__code__))):
            value = item.__globals__.get(name)
            if isinstance(value, FunctionType | type):
                if value.__module__.startswith(_OURS):
                    waiting.append(value)
            elif value is not None and not isinstance(value, ModuleType) and not callable(value):
                yield f"{name} = {value!r}"


def _code(item: Any) -> str:
    """Source without comments, docstrings and a function's decorator (`dataset`, which holds its description)."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(item)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
            if isinstance(node, ast.FunctionDef):
                node.decorator_list = []
    return ast.unparse(tree)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):  # a comprehension or inner function has names of its own
            yield from _names(constant)
