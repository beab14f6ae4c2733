"""Fingerprints: a digest of everything that a trial's result depends on, so that what has run is not run again."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

import cameraready
from cameraready.registry import card

SHARED = ("nn", "rl", "llm")
BASIS = ("numpy", "scipy", "torch", "sklearn")
# Modules that are not called like their distribution; others are looked up, which takes longer.
DISTRIBUTIONS = {"sklearn": "scikit-learn", "faiss": "faiss-cpu", "PIL": "pillow", "yaml": "pyyaml"}


def digest_of(value: Any) -> str:
    """Twenty hexadecimal digits that stand for a JSON-like value."""
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@cache
def source_digest(slug: str, claim: str) -> str:
    """Digest of the method's code, of the claim's own function, and of the shared packages that the method imports.

    Comments, layout and docstrings do not count, nor do the other claims of the same file, nor the declaration of this one: a
    rule that is read again needs no new measurement.
    """
    folder = card(slug).folder
    parts = {path.name: _code(path) for path in sorted(folder.glob("*.py")) if path.name != "claims.py"}
    parts["claims.py"] = _code(folder / "claims.py", only=claim)
    root = Path(cameraready.__file__).parent
    for name in SHARED:
        if f"cameraready.{name}" in imported_modules(slug):
            parts.update({f"{name}/{path.name}": _code(path) for path in sorted((root / name).rglob("*.py"))})
    return digest_of(parts)


@cache
def versions(slug: str) -> dict[str, str]:
    """Versions of Python and of every distribution whose modules the method's files import."""
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
def data_digests(slug: str) -> dict[str, str]:
    """Digest of the loader of every data set that the method's claims.py names."""
    from cameraready import data

    strings = {
        node.value
        for node in ast.walk(_tree(card(slug).folder / "claims.py"))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {name: data.fingerprint(name) for name in sorted(strings & {entry.name for entry in data.catalogue()})}


@cache
def imported_modules(slug: str) -> frozenset[str]:
    """Every module that the method's files import, two levels deep ("cameraready.nn", "sklearn.cluster")."""
    found: set[str] = set()
    for path in card(slug).folder.glob("*.py"):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            found |= {".".join(name.split(".")[:2]) for name in names}
    return frozenset(found)


@cache
def _owners() -> dict[str, list[str]]:
    """Module to distributions: slow, since it reads every installed package's file list."""
    return {module: sorted(set(names)) for module, names in importlib.metadata.packages_distributions().items()}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _code(path: Path, only: str | None = None) -> str:
    """The syntax tree without docstrings; with ``only``, without the other claims and without this one's decorator."""
    lines: list[str] = []
    for node in _tree(path).body:
        if only is not None and isinstance(node, ast.FunctionDef) and (name := _claim_name(node)) is not None:
            if name != only:
                continue
            node = ast.FunctionDef(**{**dict(ast.iter_fields(node)), "decorator_list": []})
        lines.append(ast.dump(_without_docstrings(node)))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _claim_name(function: ast.FunctionDef) -> str | None:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "claim":
            first = decorator.args[0] if decorator.args else None
            return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
    return None


class _DocstringRemover(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> ast.AST:
        node = self.generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and isinstance(body, list):
            node.body = [statement for statement in body if not _is_text(statement)] or [ast.Pass()]
        return node


def _without_docstrings(node: ast.stmt) -> ast.AST:
    return ast.Constant(None) if _is_text(node) else _DocstringRemover().visit(node)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
