"""Fingerprints: a digest of everything that a trial's result depends on, so that what has run is not run again.

Comments, layout and docstrings do not count. Of a ``claims.py`` only what the claim's own function uses counts: not its
declaration, since a rule that is read again needs no new measurement, nor the other claims.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import cameraready
from cameraready.registry import card

SHARED = ("nn", "rl", "llm")
BASIS = ("numpy", "scipy", "torch", "sklearn")
LOOKED_UP = {"globals", "vars", "eval", "exec", "__name__"}
# Modules that are not called like their distribution; others are looked up, which takes longer.
DISTRIBUTIONS = {"sklearn": "scikit-learn", "faiss": "faiss-cpu", "PIL": "pillow", "yaml": "pyyaml"}


def digest_of(value: Any) -> str:
    """Twenty hexadecimal digits that stand for a JSON-like value."""
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@cache
def source_digest(slug: str, claim: str) -> str:
    """Digest of the claim's code, of the method's other files, and of the shared packages that the method imports."""
    folder = card(slug).folder
    parts = {str(path.relative_to(folder)): _content(path) for path in _files(folder)}
    parts["claims.py"] = _dump(_claim_code(slug, claim))
    parts |= {str(path.relative_to(_ROOT)): _content(path) for name in _shared(slug) for path in _files(_ROOT / name)}
    return digest_of(parts)


@cache
def versions(slug: str) -> dict[str, str]:
    """Versions of Python and of every distribution that the method's files, or the shared ones it uses, import."""
    modules = {name.partition(".")[0] for name in imported_modules(slug)} | set(BASIS)
    modules -= set(sys.stdlib_module_names) | {"cameraready"}
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for module in sorted(modules):
        name = DISTRIBUTIONS.get(module, module)
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found |= {owner: importlib.metadata.version(owner) for owner in _owners().get(module, ())}
    return found


@cache
def data_digests(slug: str, claim: str) -> dict[str, str]:
    """Digest of the loader of every data set that the method's files or this claim's code name."""
    strings = set(_method_strings(slug)).union(*map(_strings, _claim_code(slug, claim)))
    return {name: found for name in sorted(strings) if (found := data_digest(name)) is not None}


@cache
def data_digest(name: str) -> str | None:
    """Digest of a data set's loader; None if nothing is called so."""
    from cameraready import data

    if name.partition(":")[0] not in {entry.name.partition(":")[0] for entry in data.catalogue()}:
        return None
    try:
        return data.fingerprint(name)
    except ValueError:  # a family's own name, or a member that it does not have: a trial that loads it fails
        return None


@cache
def imported_modules(slug: str) -> frozenset[str]:
    """Every module that the method's files and the shared packages it uses import, down to "sklearn.cluster"."""
    found: set[str] = set()
    folders = [card(slug).folder, *(_ROOT / name for name in _shared(slug))]
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        found |= _imports(path)
    return frozenset(found)


_ROOT = Path(cameraready.__file__).parent


@cache
def _shared(slug: str) -> tuple[str, ...]:
    """Which of the shared packages the method uses, directly or through one another."""
    used: set[str] = set()
    waiting = [card(slug).folder]
    while waiting:
        imported = {module for path in waiting.pop().rglob("*.py") for module in _imports(path)}
        new = {name for name in SHARED if f"cameraready.{name}" in imported} - used
        used |= new
        waiting += [_ROOT / name for name in sorted(new)]
    return tuple(sorted(used))


@cache
def _imports(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.Module(_tree(path).body, [])):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.ImportFrom) and node.level > 1:  # `from ... import nn`; one dot is the method itself
            found |= {f"cameraready.{name}" for name in (node.module, *(alias.name for alias in node.names)) if name}
    return frozenset(".".join(name.split(".")[:2]) for name in found)


def _files(folder: Path) -> Iterator[Path]:
    """All files that can change what the code does: not the card, not claims.py, which is read claim by claim."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and path not in (folder / "README.md", folder / "claims.py"):
            yield path


@cache
def _content(path: Path) -> str:
    if path.suffix == ".py":
        return _dump(_tree(path).body)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _tree(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    return tree


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _dump(statements: Iterable[ast.stmt]) -> str:
    return hashlib.sha256("\n".join(ast.dump(node) for node in statements).encode()).hexdigest()


@cache
def _claim_code(slug: str, claim: str) -> tuple[ast.stmt, ...]:
    """The statements of claims.py that the claim's function needs, itself without its decorator.

    A statement that defines nothing (a loop, a call) may have any effect and always belongs to it. Where no decorated
    function of that claim is found, or names are looked up as text, the whole file does.
    """
    body = [node for node in _tree(card(slug).folder / "claims.py").body if not _is_engine_import(node)]
    own = next((node for node in body if isinstance(node, ast.FunctionDef) and _claim_name(node) == claim), None)
    if own is None:
        return tuple(body)
    bare = ast.FunctionDef(**{**dict(ast.iter_fields(own)), "decorator_list": []})
    definitions = [(node, _defined(node)) for node in body if node is not own]
    needed = [bare, *(node for node, names in definitions if not names)]
    used = {name for node in needed for name in _names(node)}
    while more := [node for node, names in definitions if names & used and node not in needed]:
        needed += more
        used |= {name for node in more for name in _names(node)}
    if used & LOOKED_UP:
        return tuple(body)
    return (bare, *(node for node in body if node in needed))


def _is_engine_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cameraready.evidence")


def _defined(node: ast.stmt) -> set[str]:
    """The names that a statement of a module brings into being."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        return names if "*" not in names else set()
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return set()


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


@cache
def _method_strings(slug: str) -> frozenset[str]:
    """Every text constant of the method's files other than claims.py."""
    trees = (_tree(path) for path in _files(card(slug).folder) if path.suffix == ".py")
    return frozenset[str]().union(*map(_strings, trees))


def _strings(node: ast.AST) -> set[str]:
    constants = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


@cache
def _owners() -> dict[str, list[str]]:
    """Module to distributions: slow, since it reads every installed package's file list."""
    return {module: sorted(set(names)) for module, names in importlib.metadata.packages_distributions().items()}


def _claim_name(function: ast.FunctionDef) -> str | None:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "claim":
            first = decorator.args[0] if decorator.args else None
            return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
    return None
