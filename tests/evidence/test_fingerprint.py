"""Fingerprints: what makes a trial run again, and what does not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cameraready.evidence import fingerprint
from cameraready.evidence.plan import claims_of, plan

CLAIMS = '''"""Claims."""
from pathlib import Path

SETTINGS = {"depth": 3}
PEERS = {"old": "its defaults"}

def helper(k):
    """Twice."""
    return 2 * k * depth()

def depth():
    return SETTINGS["depth"]

def unrelated():
    return 1

@claim("mine", says="It holds.", factors={"k": [1, 2]}, scales={"quick": Scale(seeds=2)}, peers=PEERS,
       holds=at_most("x", "m", 1))
def mine(trial, k):
    """Measure."""
    from cameraready.methods.one.inner import work
    trial.record(method="m", x=helper(k) + work())  # a comment

@claim("other", says="Too.", factors={"k": [1]}, scales={"quick": Scale(seeds=1)}, holds=at_most("x", "m", 1))
def other(trial, k):
    trial.record(method="m", x=unrelated())
'''
INNER = '"""Inner."""\nimport fakedependency\n\ndef work():\n    """Work."""\n    return 1\n'
FILES = {"inner.py": INNER, "table.txt": "1 2 3"}


@pytest.fixture
def trials(
    methods: Any, forget: Callable[[list[str]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """The fingerprints of claim ``one:mine``, read anew at every call."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    release(tmp_path, "1.0")
    methods.write("one", CLAIMS, files=FILES)

    def read(**options: Any) -> set[str]:
        forget(["one"])
        claim = next(claim for claim in claims_of("one") if claim.name == "mine")
        return {spec.fingerprint for spec in plan("one", claim, "quick", **options)}

    with methods.visible():
        yield read
        sys.modules.pop("fakedependency", None)


def release(root: Path, version: str) -> None:
    """Install this version of a small distribution into a folder of the test."""
    site = root / "site"
    for info in site.glob("fakedependency-*.dist-info/METADATA"):
        info.unlink()
        info.parent.rmdir()
    folder = site / f"fakedependency-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fakedependency\nVersion: {version}\n")
    (site / "fakedependency.py").write_text("")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("claims.py", "helper(k) + work()", "helper(k) - work()"),
        ("claims.py", "return 2 * k", "return 3 * k"),
        ("claims.py", '"depth": 3', '"depth": 4'),
        ("claims.py", "def unrelated", "SETTINGS['depth'] = 5\ndef unrelated"),
        ("claims.py", "def unrelated", "SETTINGS.update(depth=5)\ndef unrelated"),
        ("claims.py", "def unrelated", "for name in list(SETTINGS): SETTINGS[name] += 1\n\ndef unrelated"),
        ("inner.py", "return 1", "return 2"),
        ("table.txt", "1 2 3", "1 2 4"),
        ("claims.py", "helper(k) + work()", "helper(k) + len('wine') + work()"),
    ],
    ids=lambda text: text.replace("\n", " ")[:40],
)
def test_what_changes_the_measurement_makes_the_trials_run_again(
    trials: Any, methods: Any, file: str, old: str, new: str
) -> None:
    before = trials()
    edit(methods.folder / "one" / file, old, new)
    assert not before & trials()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("claims.py", "# a comment", "# another one"),
        ("claims.py", '"""Measure."""', '"""Measure, and say more."""'),
        ("claims.py", '"""Twice."""', ""),
        ("claims.py", '"""Claims."""', '"""All claims."""'),
        ("claims.py", 'says="It holds."', 'says="It does hold.", source="Table 1"'),
        ("claims.py", 'holds=at_most("x", "m", 1))\ndef mine', 'holds=at_least("x", "m", 2))\ndef mine'),
        ("claims.py", "peers=PEERS,", "peers=PEERS, timeout=5,"),
        ("claims.py", '"its defaults"', '"its recommended settings"'),
        ("claims.py", "x=unrelated()", "x=unrelated() + 1"),
        ("claims.py", "return 1", "return 7"),
        ("claims.py", "from pathlib import Path", "from cameraready.evidence import trend\n\n\n"),
        ("claims.py", "# a comment", "# a comment\n\n\n"),
        ("inner.py", '"""Inner."""', '"""The inner part."""  # why'),
        ("inner.py", '    """Work."""\n', "\n\n"),
        ("README.md", "A throw-away method", "A better title"),
    ],
    ids=lambda text: text.replace("\n", " ")[:40],
)
def test_words_rules_and_other_claims_leave_the_stored_trials_good(
    trials: Any, methods: Any, file: str, old: str, new: str
) -> None:
    before = trials()
    edit(methods.folder / "one" / file, old, new)
    assert trials() == before


def test_a_new_value_of_a_factor_or_a_new_seed_runs_only_what_is_new(trials: Any, methods: Any) -> None:
    before = trials()
    path = methods.folder / "one" / "claims.py"
    edit(path, '"k": [1, 2]}, scales={"quick": Scale(seeds=2)', '"k": [1, 3]}, scales={"quick": Scale(seeds=3)')
    after = trials()
    assert len(after) == 6
    assert len(before & after) == 2


def test_a_new_version_of_what_the_method_imports_makes_its_trials_run_again(trials: Any, tmp_path: Path) -> None:
    before = trials()
    assert fingerprint.versions("one")["fakedependency"] == "1.0"
    release(tmp_path, "1.1")
    assert not before & trials()


def test_a_file_in_a_folder_of_the_method_counts(trials: Any, methods: Any) -> None:
    before = trials()
    (methods.folder / "one" / "below").mkdir()
    (methods.folder / "one" / "below" / "more.py").write_text("X = 1\n")
    first = trials()
    (methods.folder / "one" / "below" / "more.py").write_text("X = 2\n")
    assert len({frozenset(found) for found in (before, first, trials())}) == 3


def test_compiled_leftovers_do_not_count(trials: Any, methods: Any) -> None:
    before = trials()
    (methods.folder / "one" / "__pycache__").mkdir()
    (methods.folder / "one" / "__pycache__" / "inner.cpython-311.pyc").write_bytes(b"1")
    assert trials() == before


def test_a_claim_that_is_not_a_decorated_function_depends_on_its_whole_file(trials: Any, methods: Any) -> None:
    path = methods.folder / "one" / "claims.py"
    edit(path, '@claim("mine"', 'NAME = "mine"\n@claim(NAME')
    before = trials()
    edit(path, "x=unrelated()", "x=unrelated() + 1")
    assert not before & trials()


def test_a_claim_that_looks_names_up_as_text_depends_on_its_whole_file(trials: Any, methods: Any) -> None:
    path = methods.folder / "one" / "claims.py"
    edit(path, "helper(k) + work()", "globals()['helper'](k) + work()")
    before = trials()
    edit(path, "return 2 * k", "return 3 * k")
    assert not before & trials()


def test_the_versions_of_the_numerical_basis_always_count(trials: Any) -> None:
    trials()
    assert {"python", "numpy", "scipy", "torch", "scikit-learn"} <= set(fingerprint.versions("one"))


def test_a_shared_package_counts_where_it_is_used_directly_or_through_another(
    trials: Any, methods: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"rl": "from cameraready.nn import blocks\n", "nn": "SIZE = 1\n", "llm": "SIZE = 1\n"}.items():
        (tmp_path / "root" / name).mkdir(parents=True)
        (tmp_path / "root" / name / "blocks.py").write_text(text)
    monkeypatch.setattr(fingerprint, "_ROOT", tmp_path / "root")
    edit(methods.folder / "one" / "inner.py", "import fakedependency", "from cameraready import rl")
    before = trials()
    edit(tmp_path / "root" / "llm" / "blocks.py", "1", "2")
    assert trials() == before
    edit(tmp_path / "root" / "nn" / "blocks.py", "1", "2")
    assert not trials() & before
