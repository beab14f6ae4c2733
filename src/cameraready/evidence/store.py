"""Results on disk or in object storage: one Parquet file a trial, written whole or not at all.

Layout below the root: ``<slug>/<claim>/<fingerprint>.parquet``. Factors and recorded values are columns; what the engine
adds starts with an underscore. Any number of runs may share a store: a trial's file has one name and one content,
and it appears under that name only when it is complete.
"""

from __future__ import annotations

import io
import json
import os
import posixpath
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from cameraready.evidence.plan import TrialSpec

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# An upload to these appears whole when it is complete, and they have no rename.
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "az", "memory"}


@dataclass(frozen=True)
class TrialRecord:
    """What came of a trial: its rows, or its failure, and what it cost."""

    spec: TrialSpec
    status: str
    rows: tuple[dict[str, Any], ...] = ()
    error: str = ""
    traceback: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss: int = 0
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the trial ended as it should."""
        return self.status == "ok"


class Store:
    """Trials by fingerprint, at any fsspec URL.

    Parameters
    ----------
    url : a folder, or ``s3://bucket/prefix`` and the like (needs that file system's package, such as s3fs).
    """

    def __init__(self, url: str = "results") -> None:
        self.url = url
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ValueError(f"--store {url}: {error}") from error
        self._local = isinstance(self._fs, LocalFileSystem)

    def path(self, spec: TrialSpec) -> str:
        """Where this trial's file is, or will be."""
        return posixpath.join(self._root, spec.slug, spec.claim, f"{spec.fingerprint}.parquet")

    def write(self, record: TrialRecord) -> None:
        """Store one trial; an `OSError` (a full disk, say) leaves nothing behind."""
        buffer = io.BytesIO()
        _parquet().write_table(_to_table(record), buffer, compression="zstd")
        self._put(self.path(record.spec), buffer.getvalue())

    def read(self, specs: Iterable[TrialSpec]) -> tuple[dict[str, TrialRecord], list[str]]:
        """The stored ones among these trials, and a message for each file that had to be skipped."""
        found: dict[str, TrialRecord] = {}
        skipped: list[str] = []
        names: dict[str, set[str]] = {}
        for spec in specs:
            path = self.path(spec)
            folder = posixpath.dirname(path)
            if folder not in names:
                names[folder] = self._names(folder)
            if posixpath.basename(path) not in names[folder]:
                continue
            try:
                found[spec.fingerprint] = _to_record(self._read_table(path), spec)
            except Exception as error:  # a foreign or truncated file can make the reader raise anything
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                skipped.append(f"skipped {path}: not a complete trial file ({reason}); the trial runs again")
        return found, skipped

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection with the view ``trials`` over every readable file of the store."""
        import duckdb

        connection = duckdb.connect()
        if not self._local:
            connection.register_filesystem(self._fs)
        paths = [path for path in self._fs.glob(posixpath.join(self._root, "*/*/*.parquet")) if self._readable(path)]
        if not paths:
            raise FileNotFoundError(f"no trials in {self.url}; run `cameraready verify` first")
        prefix = "" if self._local else f"{self._protocol}://"
        files = ", ".join("'" + (prefix + path).replace("'", "''") + "'" for path in paths)
        connection.execute(f"create view trials as select * from read_parquet([{files}], union_by_name=true)")
        return connection

    def write_text(self, name: str, text: str) -> None:
        """Store a small text file, replacing the one of that name at once."""
        self._put(posixpath.join(self._root, name), text.encode())

    def read_text(self, name: str) -> str | None:
        """A text file of the store, or None."""
        try:
            return str(self._fs.cat_file(posixpath.join(self._root, name)).decode())
        except (FileNotFoundError, UnicodeDecodeError):
            return None

    @property
    def _protocol(self) -> str:
        protocol = self._fs.protocol
        return protocol if isinstance(protocol, str) else protocol[0]

    def _put(self, path: str, content: bytes) -> None:
        if self._protocol in OBJECT_STORES:
            self._fs.pipe_file(path, content)
            return
        folder, name = posixpath.split(path)
        temporary = posixpath.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
        self._fs.makedirs(folder, exist_ok=True)
        try:
            if self._local:
                with open(temporary, "wb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(temporary, path)
            else:
                self._fs.pipe_file(temporary, content)
                self._fs.mv(temporary, path)
        except BaseException:
            if self._fs.exists(temporary):
                self._fs.rm(temporary)
            raise

    def _names(self, folder: str) -> set[str]:
        self._fs.invalidate_cache(folder)
        try:
            return {posixpath.basename(path) for path in self._fs.ls(folder, detail=False)}
        except FileNotFoundError:
            return set()

    def _read_table(self, path: str) -> pa.Table:
        return _parquet().ParquetFile(io.BytesIO(self._fs.cat_file(path))).read(use_threads=False)

    def _readable(self, path: str) -> bool:
        try:
            with self._fs.open(path, "rb") as stream:
                return "_fingerprint" in _parquet().read_schema(stream).names
        except Exception:
            return False


def _to_table(record: TrialRecord) -> pa.Table:
    import pyarrow as pa

    shared = {
        "_fingerprint": record.spec.fingerprint,
        "_slug": record.spec.slug,
        "_claim": record.spec.claim,
        "_status": record.status,
        "_error": record.error,
        "_traceback": record.traceback,
        "_seconds": record.seconds,
        "_cpu_seconds": record.cpu_seconds,
        "_peak_rss": record.peak_rss,
        "_environment": json.dumps(record.environment, sort_keys=True),
        "seed": record.spec.seed,
        **record.spec.cell,
    }
    rows = [{**shared, **row, "_row": True} for row in record.rows] or [{**shared, "_row": False}]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: [row.get(name) for row in rows] for name in columns})


def _to_record(table: pa.Table, spec: TrialSpec) -> TrialRecord:
    rows = table.to_pylist()
    first = rows[0]
    if first["_fingerprint"] != spec.fingerprint:
        raise ValueError(f"it holds trial {first['_fingerprint']}")
    known = {"seed", *spec.cell}
    return TrialRecord(
        spec=spec,
        status=first["_status"],
        rows=tuple(
            {key: value for key, value in row.items() if not key.startswith("_") and key not in known and value is not None}
            for row in rows
            if row["_row"]
        ),
        error=first["_error"],
        traceback=first["_traceback"],
        seconds=first["_seconds"],
        cpu_seconds=first["_cpu_seconds"],
        peak_rss=first["_peak_rss"],
        environment=json.loads(first["_environment"]),
    )


def _parquet() -> Any:
    import pyarrow.parquet

    return pyarrow.parquet
