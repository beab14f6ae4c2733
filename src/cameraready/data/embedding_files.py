"""Embeddings from a user's file: an array, a column of lists, or numeric columns; checked to be finite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cameraready.data.formats import (
    ARRAY,
    ARROW,
    family_of,
    listed,
    read_array,
    read_arrow_table,
    read_text_table,
    require_matrix,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray


def read_embeddings(address: str, key: str) -> NDArray[Any]:
    """Float array (n, D) of the file at `address` (of its array `key`); see `data.open`."""
    import numpy as np

    family = family_of(address)
    if family is ARRAY:
        array = read_array(address, key)
        require_matrix(array, address, "embeddings")
        columns = [f"column {i}" for i in range(array.shape[1])]
    elif family is ARROW:
        table = read_arrow_table(address)
        column = _list_column(table, address)
        if column is None:
            array, columns = _numeric_columns(table.to_pandas(), address)
        else:
            array = _stack_lists(table, column, address)
            columns = [f"entry {i} of column {column!r}" for i in range(array.shape[1])]
    else:
        array, columns = _numeric_columns(read_text_table(address), address)
    if array.shape[0] == 0 or array.shape[1] == 0:
        raise ValueError(f"{address} has shape {array.shape}; embeddings need at least one row and one column")
    if array.dtype.kind != "f":
        array = array.astype(np.result_type(array.dtype, np.float32))
    _require_finite(array, columns, address)
    return array


def _numeric_columns(frame: pd.DataFrame, address: str) -> tuple[NDArray[Any], list[str]]:
    """The numeric columns of a table as one array, and what to call each in an error."""
    import numpy as np

    numeric = frame.select_dtypes("number", exclude=["timedelta", "complexfloating"])
    if numeric.shape[1] == 0:
        kinds = listed(f"{name} ({dtype})" for name, dtype in frame.dtypes.items())
        raise ValueError(f"{address} has no numeric column and no column of lists; its columns are {kinds}")
    # pandas' nullable types have no NumPy equivalent that can hold a missing value but float
    dtypes = [dtype if isinstance(dtype, np.dtype) else np.dtype(float) for dtype in numeric.dtypes]
    array = np.ascontiguousarray(numeric.to_numpy(dtype=np.result_type(*dtypes), na_value=np.nan))
    return array, [f"column {name!r}" for name in numeric.columns]


def _require_finite(array: NDArray[Any], columns: list[str], address: str) -> None:
    import numpy as np

    rows = max(1, (1 << 22) // array.shape[1])  # blocks, so that a memory-mapped file is never held whole
    for start in range(0, array.shape[0], rows):
        finite = np.isfinite(array[start : start + rows])
        if not finite.all():
            row, column = (int(i) for i in np.argwhere(~finite)[0])
            value = "inf" if np.isinf(array[start + row, column]) else "NaN"
            raise ValueError(
                f"{address}: {columns[column]} is {value} in row {start + row} (counted from 0); "
                "remove such rows or fill them in"
            )


def _list_column(table: pa.Table, address: str) -> str | None:
    """Name of the one column of number lists, None where there is none."""
    import pyarrow as pa

    def holds_numbers(kind: pa.DataType) -> bool:
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            return False
        return bool(pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))

    names = [field.name for field in table.schema if holds_numbers(field.type)]
    if len(names) > 1:
        raise ValueError(
            f"{address} has {len(names)} columns of lists: {listed(names)}; "
            "save a file with the one that holds the embeddings"
        )
    return names[0] if names else None


def _stack_lists(table: pa.Table, column: str, address: str) -> NDArray[Any]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = table[column]
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    if len(lengths) == 0:
        return np.empty((0, 0))
    # A missing list has length NaN, which is unequal to any, itself included.
    different = np.flatnonzero(lengths != lengths[0])
    if len(different):
        row = int(different[0])
        raise ValueError(
            f"{address}: column {column!r} has lists of unequal length: row 0 holds {lengths[0]:.0f} "
            f"numbers, row {row} {lengths[row]:.0f} (nan: the list is missing); all must hold the same"
        )
    flat: NDArray[Any] = pa.chunked_array([chunk.flatten() for chunk in lists.chunks]).to_numpy()
    return flat.reshape(len(lengths), -1)
