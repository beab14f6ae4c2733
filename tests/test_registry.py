"""The registry: cards are read, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cameraready import registry

TRIAL = """
@claim("a", says="", factors={}, scales={"quick": Scale(seeds=1)}, holds=at_most("x", "m", 1))
def a(trial):
    trial.record(method="m", x=0)
"""


def test_a_card_is_read_with_its_text(methods: Any) -> None:
    folder = methods.write("one", TRIAL, more='extra: graph\nrequires: [numpy]\nurl: ""\n')
    card = registry.read_card(folder / "README.md")
    assert (card.slug, card.imports, card.requires, card.extra) == ("one", ("shift",), ("numpy",), "graph")
    assert card.body == "## How to use"
    assert card.install_hint == "pip install 'cameraready[graph]'"
    assert card.missing() == ()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("---\nslug", "slug", "starts with YAML front matter"),
        ("field: testing\n", "", r"missing keys \['field'\]"),
        ("field: testing\n", "field: testing\ncolour: red\n", r"unknown keys \['colour'\]"),
        ("venue: nowhere", "venue: 2026", 'venue must be text; write venue: "2026"'),
        ("imports: [shift]", "imports: shift", "imports must be a list"),
        ("imports: [shift]", "imports: [1]", "imports must be a list of names"),
        ("title: A throw-away method", "title: a: b", "not YAML"),
        ("slug: one", "slug: two", "slug is 'two' but the folder is 'one'"),
    ],
)
def test_a_card_that_is_wrong_is_refused_with_its_file_and_key(methods: Any, old: str, new: str, said: str) -> None:
    readme = methods.write("one", TRIAL) / "README.md"
    readme.write_text(readme.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=said) as caught:
        registry.read_card(readme)
    assert str(readme) in str(caught.value)


def test_modules_that_are_not_installed_are_missing_even_below_a_missing_parent(methods: Any) -> None:
    folder = methods.write("one", TRIAL, more="requires: [numpy.linalg, no_such_module, no_such_parent.child]\n")
    assert registry.read_card(folder / "README.md").missing() == ("no_such_module", "no_such_parent.child")


def test_the_first_of_two_methods_with_one_slug_counts_as_it_does_for_import(methods: Any, tmp_path: Path) -> None:
    methods.write("one", TRIAL)
    second = type(methods)(tmp_path / "second")
    second.write("one", TRIAL)
    with methods.visible(), second.visible():
        assert registry.card("one").folder == methods.folder / "one"


def test_an_unknown_method_is_refused_with_the_near_names(methods: Any) -> None:
    methods.write("spherical", TRIAL)
    with methods.visible():
        with pytest.raises(KeyError, match="did you mean spherical"):
            registry.card("sperical")
        with pytest.raises(KeyError, match=r"the methods are .*spherical"):
            registry.card("zzz")


def test_a_claims_file_that_fails_is_not_remembered_half_loaded(methods: Any) -> None:
    folder = methods.write("one", "raise RuntimeError('first time')\n")
    with methods.visible():
        with pytest.raises(RuntimeError, match="first time"):
            registry.claims_module("one")
        (folder / "claims.py").write_text("VALUE = 1\n")
        assert registry.claims_module("one").VALUE == 1


def test_a_method_without_claims_file_says_so(methods: Any) -> None:
    folder = methods.write("one", TRIAL)
    (folder / "claims.py").unlink()
    with methods.visible(), pytest.raises(FileNotFoundError, match=r"every method has a claims\.py"):
        registry.claims_module("one")
