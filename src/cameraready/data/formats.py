"""Reads one file of a known format into an array or a table; addresses are paths or fsspec URLs."""

from __future__ import annotations

import gzip
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray

TEXT = (".csv", ".tsv")
ARROW = (".parquet", ".pq", ".feather", ".arrow", ".ipc")
ARRAY = (".npy", ".npz")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def split_key(path: str) -> tuple[str, str]:
    """Split ``vectors.npz::key`` into address and key ("" where no key is given)."""
    address, separator, key = path.rpartition(".npz::")
    if separator and "/" not in key:
        return f"{address}.npz", key
    return path, ""


def suffix(address: str) -> str:
    """The extension that names the format, in lower case: ".csv" of "a.CSV.gz"."""
    endings = [ending.lower() for ending in PurePosixPath(address.partition("?")[0]).suffixes]
    if endings and endings[-1] in _COMPRESSED:
        endings.pop()
    return endings[-1] if endings else ""


def family_of(address: str) -> tuple[str, ...]:
    """The family of formats `address` belongs to; a local folder is one of Parquet files."""
    if not is_remote(address) and Path(address).is_dir():
        if not any(Path(address).rglob("*.parquet")):
            raise ValueError(f"the folder {address} holds no .parquet files; pass a file, or kind='images' for images")
        return ARROW
    for family in (TEXT, ARROW, ARRAY):
        if suffix(address) in family:
            return family
    raise ValueError(
        f"{address} has the extension {suffix(address) or '(none)'}, which is not read; "
        f"save it as one of {' '.join((*TEXT, *ARROW, *ARRAY))}"
    )


def is_remote(address: str) -> bool:
    return "://" in address


def require_exists(address: str) -> None:
    """Raise FileNotFoundError where a local path leads nowhere; remote addresses fail when they are opened."""
    if not is_remote(address) and not Path(address).exists():
        raise FileNotFoundError(f"no file or folder at {os.path.abspath(address)}")


def _stream(address: str) -> Any:
    import fsspec

    return fsspec.open(address, "rb", compression="infer")


def read_text_table(address: str) -> pd.DataFrame:
    """A CSV or TSV file; with names "x0", "x1", ... where the first row holds data rather than names."""
    import pandas as pd

    try:
        with _stream(address) as stream:
            separator = "\t" if suffix(address) == ".tsv" else _separator(stream.readline())
        with _stream(address) as stream:
            first = pd.read_csv(stream, sep=separator, header=None, nrows=1)
        unnamed = _is_data(first)
        with _stream(address) as stream:
            frame = pd.read_csv(stream, sep=separator, header=None if unnamed else "infer", low_memory=False)
    except (
        pd.errors.EmptyDataError,
        pd.errors.ParserError,
        UnicodeDecodeError,
        EOFError,
        gzip.BadGzipFile,
        zlib.error,
    ) as error:
        raise ValueError(f"{address} is not a readable {suffix(address)[1:].upper()} table: {error}") from error
    if unnamed:
        frame.columns = [f"x{i}" for i in range(frame.shape[1])]
    elif frame.columns[0] == "Unnamed: 0" and frame.iloc[:, 0].equals(pd.Series(range(len(frame)), name="Unnamed: 0")):
        frame = frame.iloc[:, 1:]  # the row numbers that DataFrame.to_csv writes are not a feature
    return frame


def _separator(line: bytes) -> str:
    """Comma, unless the first line has none of it and some of the semicolons or tabs that other programs write."""
    if b"," in line:
        return ","
    return ";" if b";" in line else "\t" if b"\t" in line else ","


def _is_data(first: pd.DataFrame) -> bool:
    """Is a file's first row data? Yes if it is all numbers, unless they are the column numbers 0, 1, 2, ..."""
    values = first.iloc[0]
    if not all(dtype.kind in "if" for dtype in first.dtypes) or values.isna().any():
        return False
    return len(values) == 1 or values.tolist() != list(range(len(values)))


def read_arrow_table(address: str) -> pa.Table:
    """A Parquet file, a local folder of Parquet files, a Feather file or an Arrow file or stream."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if not is_remote(address) and Path(address).is_dir():
            return pq.read_table(address)
        with _stream(address) as stream:
            if suffix(address) in (".parquet", ".pq"):
                return pq.read_table(stream)
            return _read_ipc(stream)
    except pa.ArrowException as error:
        raise ValueError(f"{address} is not a readable {suffix(address)[1:] or 'Parquet'} file: {error}") from error


def _read_ipc(stream: IO[bytes]) -> pa.Table:
    import pyarrow as pa
    from pyarrow import feather

    magic = stream.read(6)
    stream.seek(0)
    if magic == b"ARROW1" or magic[:4] == b"FEA1":
        return feather.read_table(stream)
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_all()


def read_array(address: str, key: str = "") -> NDArray[np.generic]:
    """An array of a .npy file (memory-mapped where local) or of one key of a .npz file."""
    import numpy as np

    if suffix(address) == ".npz":
        return _read_npz(address, key)
    with _explained(address):
        if not is_remote(address) and address.lower().endswith(".npy"):
            return np.load(address, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
        with _stream(address) as stream:
            return np.load(stream, allow_pickle=False)  # type: ignore[no-any-return]


def read_arrays(address: str) -> dict[str, NDArray[np.generic]]:
    """All arrays of a .npz file by name."""
    import numpy as np

    if suffix(address) != ".npz":
        raise ValueError(f"{address} is no .npz file; save the arrays in one by numpy.savez")
    with _stream(address) as stream, _explained(address), np.load(stream, allow_pickle=False) as arrays:
        return dict(arrays)


def _read_npz(address: str, key: str) -> NDArray[np.generic]:
    import numpy as np

    with _stream(address) as stream:
        with _explained(address):
            arrays = np.load(stream, allow_pickle=False)
        keys = list(arrays.files)
        if key and key not in keys:
            raise ValueError(f"{address} holds no array {key!r}; it holds {', '.join(keys)}")
        if not key and len(keys) != 1:
            raise ValueError(
                f"{address} holds {len(keys)} arrays: {', '.join(keys)}; name the one to read, "
                f"as {address}::{keys[0] if keys else 'key'}"
            )
        with _explained(address):
            return arrays[key or keys[0]]  # type: ignore[no-any-return]


@contextmanager
def _explained(address: str) -> Iterator[None]:
    """Turn NumPy's errors about a file's inside into one that names the file and the way out."""
    try:
        yield
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        if any(word in str(error) for word in ("pickle", "Object arrays", "Python objects")):
            raise ValueError(
                f"{address} holds Python objects or is no NumPy file; only arrays of numbers are read "
                "(loading a pickle can run code): save it with dtype float"
            ) from error
        raise ValueError(f"{address} is damaged or no NumPy file: {error}") from error


def require_matrix(array: NDArray[Any], address: str, what: str) -> None:
    """Refuse an array that is not real numbers with two axes; `what` it should be is named in the error."""
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{address} holds {array.dtype} values; {what} must be real numbers")
    if array.ndim != 2:
        raise ValueError(
            f"{address} has shape {array.shape}; {what} must have two axes (n, D): "
            "reshape it to one row a sample and save it again"
        )


def listed(names: Any, limit: int = 12) -> str:
    """Names joined by commas, cut after `limit` of them."""
    shown = [str(name) for name in names]
    return ", ".join(shown[:limit]) + (f", ... ({len(shown)} in all)" if len(shown) > limit else "")
