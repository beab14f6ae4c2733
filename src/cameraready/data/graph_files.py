"""A user's graph: one .npz file with the arrays of two sparse matrices and the labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cameraready.data.containers import Graph
from cameraready.data.formats import read_arrays, require_matrix

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse import csr_matrix

LAYOUT = (
    "adj_data, adj_indices, adj_indptr, adj_shape for the adjacency; attr_data, attr_indices, attr_indptr, attr_shape, "
    "or attr_matrix, for the features; labels (optional): the data, indices, indptr and shape of two scipy csr_matrix"
)


def read_graph(address: str) -> Graph:
    """The graph in an .npz file of gnn-benchmark's layout; see `LAYOUT`.

    Raises
    ------
    ValueError : an array is missing, shapes do not fit together, or a number is not finite.
    """
    import numpy as np

    arrays = read_arrays(address)
    adjacency = _sparse(arrays, "adj", address)
    features = _sparse(arrays, "attr", address)
    n = adjacency.shape[0]
    labels = arrays.get("labels", np.full(n, -1))
    if adjacency.shape != (n, n) or features.shape[0] != n or labels.shape != (n,):
        raise ValueError(
            f"{address}: adjacency {adjacency.shape}, features {features.shape} and labels {labels.shape} do not fit "
            "together; for n nodes they are (n, n), (n, n_features) and (n,)"
        )
    if labels.dtype.kind not in "iub":
        raise ValueError(
            f"{address} holds labels of type {labels.dtype}; number the classes 0, 1, ... and -1 for unknown"
        )
    return Graph(adjacency, features, labels.astype(np.int64))


def _sparse(arrays: dict[str, NDArray[Any]], part: str, address: str) -> csr_matrix:
    import numpy as np
    from scipy.sparse import csr_matrix

    names = [f"{part}_{name}" for name in ("data", "indices", "indptr", "shape")]
    if f"{part}_matrix" in arrays:
        require_matrix(arrays[f"{part}_matrix"], address, "the features")
        matrix = csr_matrix(arrays[f"{part}_matrix"])
    elif missing := [name for name in names if name not in arrays]:
        raise ValueError(f"{address} has no {', '.join(missing)}; a graph file holds {LAYOUT}")
    else:
        data, indices, indptr, shape = (arrays[name] for name in names)
        try:
            matrix = csr_matrix((data, indices, indptr), shape=tuple(int(size) for size in shape))
            matrix.check_format(full_check=True)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{address}: the arrays {', '.join(names)} are no sparse matrix: {error}") from error
    if not np.isfinite(matrix.data).all():
        raise ValueError(f"{address} holds values of {part} that are not finite; drop or impute them")
    return matrix
