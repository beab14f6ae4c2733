"""Files that no package ships: a local mirror, then the cache, then their canonical address."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cameraready.data.missing import MissingData


@dataclass(frozen=True)
class Remote:
    """A file at its canonical address.

    Attributes
    ----------
    path : str
        Where it lies in a folder of ``CAMERAREADY_DATA`` and in the cache: "planetoid/ind.cora.x".
    url : str
        Canonical address; "" where its authors publish no single file.
    checksum : str or None
        SHA-256, or another hash as "md5:...". None: its authors publish none and none was computed.
    local : tuple of str
        Files of other packages that hold the same content, tried before the download and not checked.
    """

    path: str
    url: str
    checksum: str | None
    local: tuple[str, ...] = ()


def mirrors() -> list[Path]:
    """The folders that the environment variable CAMERAREADY_DATA names, separated as in PATH."""
    return [Path(part).expanduser() for part in os.environ.get("CAMERAREADY_DATA", "").split(os.pathsep) if part]


def cache() -> Path:
    """Where downloads are kept: CAMERAREADY_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("CAMERAREADY_CACHE"):
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("cameraready"))


def locate(remote: Remote) -> Path:
    """Path of a remote file on this machine, downloaded and checked if need be.

    Raises
    ------
    MissingData
        The copy found is damaged, or there is none and the download fails; says what to put where.
    """
    for root in mirrors():
        if (placed := root / remote.path).is_file():
            _check(placed, remote)
            return placed
    for copy in map(Path, remote.local):
        if copy.is_file():
            return copy
    target = cache() / remote.path
    if not remote.url:
        if target.is_file():
            _check(target, remote)
            return target
        raise MissingData(f"{remote.path} has no single canonical address. {_by_hand(remote)}")
    import ftplib

    import pooch

    try:
        pooch.retrieve(remote.url, known_hash=remote.checksum, fname=target.name, path=target.parent)
    except (OSError, EOFError, ftplib.Error, ValueError) as error:  # ValueError: what arrived has another checksum
        raise MissingData(
            f"{remote.path} could not be downloaded from {remote.url} ({_reason(error)}). {_by_hand(remote)}"
        ) from error
    return target


def locate_member(archive: Remote, member: str) -> Path:
    """Path of one file of a tar or zip archive; unpacked once into the cache, under a temporary name first."""
    for root in mirrors():
        if (placed := root / Path(archive.path).parent / member).is_file():
            return placed
    target = cache() / Path(archive.path).parent / member
    if target.is_file():
        return target
    source = locate(archive)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        _unpack(source, member, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def fetch_sklearn(fetcher: Any, what: str, **options: Any) -> Any:
    """Call one of scikit-learn's own fetchers on ``CAMERAREADY_DATA/scikit-learn``, else on scikit-learn's folder."""
    placed = [root / "scikit-learn" for root in mirrors() if (root / "scikit-learn").is_dir()]
    try:
        return fetcher(data_home=placed[0] if placed else None, **options)
    except OSError as error:
        raise MissingData(
            f"{what} could not be downloaded by sklearn.datasets.{fetcher.__name__} ({_reason(error)}). By hand: run "
            "that fetcher on a machine with a network and copy its data_home (~/scikit_learn_data) here, to the same "
            "place or to the folder scikit-learn/ in a folder that CAMERAREADY_DATA names"
        ) from error


def _unpack(source: Path, member: str, target: Path) -> None:
    import shutil
    import tarfile
    import zipfile

    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as box, box.open(member) as inside, target.open("wb") as out:
                shutil.copyfileobj(inside, out)
        else:
            with tarfile.open(source) as tape, target.open("wb") as out:
                stream = tape.extractfile(member)
                if stream is None:
                    raise KeyError(member)
                shutil.copyfileobj(stream, out)
    except (KeyError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise MissingData(f"{source} is damaged or holds no {member} ({error}); delete it and load again") from error


def _check(path: Path, remote: Remote) -> None:
    if remote.checksum is None:
        return
    import pooch

    algorithm, _, expected = remote.checksum.rpartition(":")
    found = pooch.file_hash(str(path), alg=algorithm or "sha256")
    if found != expected:
        raise MissingData(
            f"{path} is not the file its authors published: its {algorithm or 'sha256'} is {found}, "
            f"expected {expected}. Replace or remove it. {_by_hand(remote)}"
        )


def _reason(error: BaseException) -> str:
    """What went wrong first: requests wraps "Name or service not known" into three more errors."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error) or type(error).__name__


def _by_hand(remote: Remote) -> str:
    named = os.environ.get("CAMERAREADY_DATA") or "not set"
    fetch = f"fetch {remote.url} and " if remote.url else ""
    return (
        f"By hand: {fetch}save it as {remote.path} in a folder that the environment variable CAMERAREADY_DATA "
        f"names (now: {named}), or as {cache() / remote.path}"
    )
