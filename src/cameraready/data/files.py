"""`data.open`: a user's own file, checked, in the form a claim or a method takes."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cameraready.data.containers import Table
from cameraready.data.embedding_files import read_embeddings
from cameraready.data.formats import (
    ARROW,
    TEXT,
    family_of,
    is_remote,
    listed,
    read_array,
    read_arrow_table,
    read_text_table,
    require_exists,
    require_matrix,
    split_key,
)
from cameraready.data.graph_files import read_graph
from cameraready.data.image_files import read_images

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("embeddings", "table", "images", "text", "graph", "molecules")
TARGETS = ("y", "target", "label")


def open(path: str | os.PathLike[str], kind: str, *, target: str | None = None) -> Any:
    """Read a user's file as one of the kinds of data that methods and claims take.

    Parameters
    ----------
    path : str or path
        A local path or any fsspec URL (``s3://``, ``https://``, ``memory://``; some need their own package).
        CSV, TSV (also .gz and the like), Parquet, Feather / Arrow IPC, .npy, .npz; a folder of Parquet files; a
        folder of images or one image. An array of a .npz file that holds several: ``vectors.npz::key``.
    kind : {"embeddings", "table", "images", "text", "graph", "molecules"}
    target : str, optional, only for kind "table"
        The target's column. Default: the column named y, target or label if there is one, else there is no target.

    Returns
    -------
    "embeddings"
        Float array (n, D). Float files keep their type, integers become float32 if that holds them exactly (16 bits
        or less) and float64 otherwise. A table gives its one column of lists, or else all its numeric columns. A
        local .npy file of floats stays memory-mapped.
    "table"
        `Table`; missing features stay missing.
    "images"
        List of float32 arrays (height, width, 3) in [0, 1], in the order of their file names.
    "text"
        str, from a UTF-8 file.
    "graph"
        `Graph`, from an .npz file with the arrays of two sparse matrices (adjacency and features) and the labels;
        the error for a missing array names the layout.
    "molecules"
        DataFrame with a column smiles, one molecule a row; every other column is a measurement, NaN where unknown.

    Raises
    ------
    FileNotFoundError
        Nothing is there.
    ValueError
        The file does not fit the kind; the message names the column, row or shape and the way out.

    Examples
    --------
    >>> import os, tempfile, numpy as np
    >>> from cameraready import data
    >>> path = os.path.join(tempfile.mkdtemp(), "vectors.npy")
    >>> np.save(path, np.eye(3, dtype=np.float32))
    >>> data.open(path, kind="embeddings").shape
    (3, 3)
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not known; pass one of {', '.join(KINDS)}")
    if target is not None and kind != "table":
        raise ValueError(f"target={target!r} goes with kind='table', not with kind={kind!r}")
    address, key = split_key(os.fspath(path))
    if not is_remote(address):
        address = str(Path(address).expanduser())
    require_exists(address)
    if kind == "images":
        return read_images(address)
    if kind == "text":
        return _text(address)
    if kind == "graph":
        return read_graph(address)
    if kind == "molecules":
        return _molecules(address, key)
    if kind == "table":
        return _table(address, key, target)
    return read_embeddings(address, key)


def _text(address: str) -> str:
    import fsspec

    try:
        with fsspec.open(address, "rt", encoding="utf-8", compression="infer") as stream:
            return str(stream.read())
    except UnicodeDecodeError as error:
        raise ValueError(f"{address} is not UTF-8 text ({error}); convert it first") from error


def _molecules(address: str, key: str) -> pd.DataFrame:
    frame = _frame(address, key)
    found = [name for name in frame.columns if str(name).lower() == "smiles"]
    if len(found) != 1:
        raise ValueError(f"{address} has {len(found)} columns called smiles; it has {listed(frame.columns)}")
    return frame.rename(columns={found[0]: "smiles"})


def _table(address: str, key: str, target: str | None) -> Table:
    frame = _frame(address, key)
    if frame.shape[0] == 0:
        raise ValueError(f"{address} holds no rows (columns: {listed(frame.columns)})")
    names = list(frame.columns)
    if not frame.columns.is_unique:
        raise ValueError(
            f"{address} has several columns of the same name: "
            f"{listed(frame.columns[frame.columns.duplicated()].unique())}; rename them"
        )
    if target is not None and target not in names:
        close = difflib.get_close_matches(target, [str(name) for name in names], n=1)
        hint = f" (close: {close[0]!r})" if close else ""
        raise ValueError(f"{address} has no column target={target!r}{hint}; it has {listed(names)}")
    found = target if target is not None else next((name for name in TARGETS if name in names), None)
    if found is None:
        return Table(frame, None)
    y = frame[found]
    if y.isna().any():
        row = int(y.isna().to_numpy().argmax())
        raise ValueError(
            f"{address}: the target column {found!r} is missing in row {row} (counted from 0); "
            "remove the rows without a target"
        )
    return Table(frame.drop(columns=found), y)


def _frame(address: str, key: str) -> pd.DataFrame:
    import pandas as pd

    family = family_of(address)
    if family is TEXT:
        return read_text_table(address)
    if family is ARROW:
        return read_arrow_table(address).to_pandas()
    array = read_array(address, key)
    require_matrix(array, address, "a table")
    return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])])
