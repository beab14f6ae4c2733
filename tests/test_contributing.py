"""The method that CONTRIBUTING.md documents works as it is printed there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parent.parent / "CONTRIBUTING.md"


@pytest.fixture(scope="module")
def scaffold(tmp_path_factory):
    """Every file that the guide prints, written below an empty folder."""
    root = tmp_path_factory.mktemp("scaffold")
    blocks = re.findall(r"^`(\S+/\S+)`\n\n```\w+\n(.*?)^```$", GUIDE.read_text(), flags=re.MULTILINE | re.DOTALL)
    for name, text in blocks:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert len(blocks) == 6
    return root


def run(scaffold, *command):
    environment = {**os.environ, "CAMERAREADY_METHODS": str(scaffold / "src/cameraready/methods")}
    done = subprocess.run(
        [sys.executable, *command], cwd=scaffold, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_documented_method_is_verified_and_reported(scaffold):
    lines = run(scaffold, "-m", "cameraready.cli", "verify", "trimmed", "--json").splitlines()
    (verdict,) = [event for line in lines if (event := json.loads(line))["event"] == "verdict"]
    assert verdict["outcome"] == "supported"
    run(scaffold, "-m", "cameraready.cli", "report", "trimmed", "--out", "site")
    assert "trimmed" in (scaffold / "site/index.html").read_text()


def test_the_documented_tests_doctest_and_example_pass(scaffold):
    assert "3 passed" in run(
        scaffold, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules", "tests",
        "src/cameraready/methods/trimmed/location.py", "--import-mode=importlib",
    )  # fmt: skip
    assert "trimmed mean" in run(scaffold, "examples/trimmed.py")
