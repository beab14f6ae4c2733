"""What the documents say is what the code does."""

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cameraready.registry import cards

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in (SOURCE / "cameraready").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


def test_the_table_of_methods_in_the_readme_is_that_of_the_cards():
    done = subprocess.run([sys.executable, "tools/cards.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_quick_requirements_are_the_archives_that_the_cards_name():
    pins = dict(
        line.split("==") for line in (ROOT / "requirements/data.txt").read_text().split() if re.match(r"[\w-]+==", line)
    )
    named = {name for card in cards().values() for name in card.data_packages}
    quick = {line for line in (ROOT / "requirements/quick.txt").read_text().splitlines() if not line.startswith("#")}
    assert quick == {f"{name}=={pins[name]}" for name in named}


@pytest.mark.parametrize("slug", cards())
def test_every_method_has_all_its_parts(slug):
    card = cards()[slug]
    for heading in ("How to use", "How it works", "Evidence", "When not to use it", "Attribution"):
        assert f"## {heading}" in card.body, f"{slug}'s card has no section {heading!r}"
    package = importlib.import_module(f"cameraready.methods.{slug}")
    assert set(card.imports) <= set(package.__all__)
    assert (card.folder / "claims.py").exists()
    assert (ROOT / f"examples/{slug}.py").exists()
    assert list((ROOT / "tests/methods" / slug).glob("test_*.py"))


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_example_runs(example, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_are_right(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted
    assert result.failed == 0
