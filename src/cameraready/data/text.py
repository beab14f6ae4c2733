"""Text in English and in Python that ships with every Python."""

from __future__ import annotations

from cameraready.data.registry import dataset


@dataset(
    "english-text",
    "text",
    returns="str, 465,047 characters on Python 3.11",
    size="0.5 MB",
    licence="PSF-2.0",
    source="pydoc_data.topics: the Python language reference, as `help()` shows it",
    package="python",
)
def english_text() -> str:
    """The Python language reference, topic after topic in alphabetical order: real English technical prose.

    The text is fixed within one Python version (the fingerprint holds the version) and differs a little between
    versions.
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[title].strip() for title in sorted(topics))


@dataset(
    "python-source",
    "text",
    returns="str, about 12 million characters",
    size="12 MB",
    licence="PSF-2.0",
    source="the standard library's top-level modules and packages",
    package="python",
)
def python_source() -> str:
    """Source of the standard library (without tests and installed packages), files in alphabetical order."""
    import sysconfig
    from pathlib import Path

    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    files = sorted(
        path
        for path in root.rglob("*.py")
        # _sysconfigdata* records the machine Python was built on
        if skipped.isdisjoint(path.relative_to(root).parts) and not path.name.startswith("_sysconfigdata")
    )
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
