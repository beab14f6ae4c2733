"""Results on disk or in object storage: one Parquet file a trial, written whole or not at all.

Layout below the root: ``<slug>/<claim>/<fingerprint>.parquet``. Factors and recorded values are columns; what the
engine adds starts with an underscore. Beside them ``<slug>/<claim>/<scale>.json`` is the last verdict. Any number of
runs may share a store: a file has one name and one content, and it appears under that name only when it is complete.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import posixpath
import uuid
from collections.abc import Iterable, Iterator, Mapping
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
WORTH_PACKING = 65536


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
        table = _to_table(record)
        buffer = io.BytesIO()
        # A few rows are read back in half the time when nothing is packed.
        compression = "zstd" if table.nbytes > WORTH_PACKING else "none"
        _parquet().write_table(table, buffer, compression=compression, use_dictionary=False, write_statistics=False)
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
        found = self._glob("*/*/*.parquet")
        paths = [path for path in found if self._holds(path)]
        if not paths:
            raise FileNotFoundError(f"no trials in {self.url}; run `cameraready verify` first")
        prefix = "" if self._local else f"{self._protocol}://"
        files = ", ".join("'" + (prefix + path).replace("'", "''") + "'" for path in paths)
        connection.execute(f"create view trials as select * from read_parquet([{files}], union_by_name=true)")
        return connection

    def write_verdict(self, slug: str, claim: str, scale: str, verdict: Mapping[str, str]) -> None:
        """Remember a claim's verdict: a file each, so that runs that end together don't overwrite one another's."""
        path = posixpath.join(self._root, slug, claim, f"{scale}.json")
        self._put(path, json.dumps({"claim": claim, "scale": scale, **verdict}, indent=1).encode())

    def verdicts(self, slug: str) -> list[dict[str, str]]:
        """The remembered verdicts of a method, those in unreadable files left out."""
        found = []
        for path in self._glob(f"{slug}/*/*.json"):
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads(self._fs.cat_file(path)))
        return found

    @property
    def _protocol(self) -> str:
        protocol = self._fs.protocol
        return protocol if isinstance(protocol, str) else protocol[0]

    def _glob(self, pattern: str) -> list[str]:
        self._fs.invalidate_cache()
        with _as_os_error(self.url):
            return sorted(self._fs.glob(posixpath.join(self._root, pattern)))

    def _put(self, path: str, content: bytes) -> None:
        if self._protocol in OBJECT_STORES:
            with _as_os_error(self.url):
                self._fs.pipe_file(path, content)
            return
        folder, name = posixpath.split(path)
        temporary = posixpath.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
        try:
            self._fs.makedirs(folder, exist_ok=True)
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
            with contextlib.suppress(OSError):
                if self._fs.exists(temporary):
                    self._fs.rm(temporary)
            raise

    def _names(self, folder: str) -> set[str]:
        self._fs.invalidate_cache(folder)
        try:
            with _as_os_error(self.url):
                return {posixpath.basename(path) for path in self._fs.ls(folder, detail=False)}
        except FileNotFoundError:
            return set()

    def _read_table(self, path: str) -> pa.Table:
        return _parquet().ParquetFile(io.BytesIO(self._fs.cat_file(path))).read(use_threads=False)

    def _holds(self, path: str) -> bool:
        """Whether this file is a trial, and the one that its name says."""
        try:
            column = _parquet().ParquetFile(io.BytesIO(self._fs.cat_file(path))).read(["_fingerprint"])[0]
            return bool(column[0].as_py() == posixpath.basename(path).removesuffix(".parquet"))
        except Exception:
            return False


@contextlib.contextmanager
def _as_os_error(url: str) -> Iterator[None]:
    """Object storage clients have exceptions of their own for what is an unreachable disk to everyone else."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{url}: {type(error).__name__}: {error}") from error


def _to_table(record: TrialRecord) -> pa.Table:
    import pyarrow as pa

    cell = {
        name: value if _is_plain(value) else json.dumps(value, default=repr) for name, value in record.spec.cell.items()
    }
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
        **cell,
    }
    rows = [{**shared, **row, "_row": True} for row in record.rows] or [{**shared, "_row": False}]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: _column([row.get(name) for row in rows]) for name in columns})


def _column(values: list[Any]) -> list[Any]:
    """One type a column: whole numbers among fractions become fractions, and text is what UTF-8 can hold."""
    if any(isinstance(value, float) for value in values):
        return [value if value is None else float(value) for value in values]
    return [value.encode(errors="replace").decode() if isinstance(value, str) else value for value in values]


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, bool, int, float))


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
            {name: value for name, value in row.items() if name[0] != "_" and name not in known and value is not None}
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
