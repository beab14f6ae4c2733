"""A checked graph with node features, and the two ways in which features travel along its edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGEST = 1e15  # squares and their sums stay within float32


@dataclass(frozen=True, eq=False)
class NodeGraph:
    """A graph without self loops or repeated edges.

    Attributes
    ----------
    adjacency : float32 csr_array, shape (n, n)
        Row i holds the weights of the edges that end in node i: what i averages over.
    x : float32 array, shape (n, d)
    """

    adjacency: sp.csr_array
    x: NDArray[np.float32]

    @property
    def n(self) -> int:
        return self.x.shape[0]

    def same_as(self, other: NodeGraph) -> bool:
        """Whether features and edges are equal, number by number."""
        if self is other:
            return True
        a, b = self.adjacency, other.adjacency
        pairs = [(self.x, other.x), (a.indptr, b.indptr), (a.indices, b.indices), (a.data, b.data)]
        return all(np.array_equal(left, right) for left, right in pairs)


def read_graph(data: Any, *, undirected: bool = True) -> NodeGraph:
    """Check a graph and bring it into one form.

    Parameters
    ----------
    data : `torch_geometric.data.Data` with float ``x`` of shape (n, d), ``edge_index`` of shape (2, E) and, optionally,
        ``edge_weight`` of shape (E,); or a graph of `cameraready.data` (``adjacency``, ``features``).
    undirected : let every edge work both ways (default). Of repeated edges the largest weight counts.

    Raises
    ------
    TypeError : neither kind of graph.
    ValueError : no nodes, features or weights that are not finite, negative weights, an edge to a missing node.
    """
    if isinstance(data, NodeGraph):
        return data
    if hasattr(data, "adjacency") and hasattr(data, "features"):
        edges = sp.coo_array(data.adjacency)
        target, source, weight = edges.row, edges.col, edges.data
        x = data.features.toarray() if sp.issparse(data.features) else np.asarray(data.features)
    elif getattr(data, "x", None) is not None and getattr(data, "edge_index", None) is not None:
        x, index = _array(data.x), _array(data.edge_index)
        if index.ndim != 2 or index.shape[0] != 2 or index.dtype.kind not in "iu":
            raise ValueError(
                f"edge_index has shape {index.shape} and type {index.dtype}; pass integers of shape (2, E)"
            )
        source, target = index
        given = getattr(data, "edge_weight", None)
        weight = np.ones(len(source), dtype=np.float32) if given is None else _array(given).ravel()
    else:
        raise TypeError(
            f"{type(data).__name__} is no graph with node features; pass a torch_geometric Data with x and edge_index"
        )
    x = _checked(x)
    return NodeGraph(_adjacency(source, target, weight, len(x), undirected), x)


def _array(values: Any) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _checked(x: NDArray[Any]) -> NDArray[np.float32]:
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"x has shape {x.shape}; pass node features of shape (n, d), at least one of each")
    if x.dtype.kind not in "fiub":
        raise TypeError(f"x has type {x.dtype}; pass numbers, categories as columns of 0 and 1")
    bad = ~(np.abs(x) < LARGEST).all(axis=1)
    if bad.any():
        raise ValueError(
            f"x has values that are not finite, or not below {LARGEST:g}, in {bad.sum()} nodes (the first is node "
            f"{bad.argmax()}); impute or rescale them"
        )
    return np.ascontiguousarray(x, dtype=np.float32)


def _adjacency(
    source: NDArray[Any], target: NDArray[Any], weight: NDArray[Any], n: int, undirected: bool
) -> sp.csr_array:
    if len(weight) != len(source):
        raise ValueError(f"edge_weight has {len(weight)} values for {len(source)} edges; pass one an edge")
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise ValueError("edge_weight holds negative or non-finite values; drop those edges, or pass weights >= 0")
    ends = np.concatenate([source, target]).astype(np.int64)
    if len(ends) and not 0 <= ends.min() <= ends.max() < n:
        raise ValueError(f"edge_index runs from {ends.min()} to {ends.max()}, but x has the nodes 0 to {n - 1}")
    row, column = (ends[len(source) :], ends[: len(source)])
    if undirected:
        row, column, weight = np.r_[row, column], np.r_[column, row], np.r_[weight, weight]
    keep = row != column
    row, column, weight = row[keep], column[keep], weight[keep]
    order = np.lexsort((weight, column, row))
    row, column, weight = row[order], column[order], weight[order]
    last = np.r_[(np.diff(row) != 0) | (np.diff(column) != 0), True][: len(row)]
    indptr = np.r_[0, np.cumsum(np.bincount(row[last], minlength=n))]
    return sp.csr_array((weight[last].astype(np.float32), column[last], indptr), shape=(n, n))


def mean_weights(adjacency: sp.csr_array) -> sp.csr_array:
    """D^-1 A: the weighted mean over a node's neighbours, zero where it has none."""
    total = np.asarray(adjacency.sum(axis=1), dtype=np.float64)
    inverse = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)
    return sp.csr_array(sp.diags_array(inverse) @ adjacency, dtype=np.float32)


def symmetric_weights(adjacency: sp.csr_array) -> sp.csr_array:
    """A_sym = D^-1/2 (A + I) D^-1/2, a graph convolution's operator."""
    looped = sp.csr_array(adjacency + sp.eye_array(adjacency.shape[0], dtype=np.float32))
    left, right = (np.asarray(looped.sum(axis=axis), dtype=np.float64) ** -0.5 for axis in (1, 0))
    return sp.csr_array(sp.diags_array(left) @ looped @ sp.diags_array(right), dtype=np.float32)


class Operator:
    """A sparse matrix to multiply features by, with its transpose kept for the backward pass."""

    def __init__(self, matrix: sp.csr_array, device: torch.device | str = "cpu") -> None:
        self.shape = matrix.shape
        self.matrix = _torch_csr(matrix, device)
        self.transpose = _torch_csr(sp.csr_array(matrix.T), device)

    def __matmul__(self, x: Tensor) -> Tensor:
        return _Multiply.apply(x, self.matrix, self.transpose)


class _Multiply(torch.autograd.Function):
    # torch transposes a CSR matrix anew in every backward pass, which costs several times the product.
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, transpose: Tensor) -> Tensor:
        ctx.transpose = transpose
        return matrix @ x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transpose @ grad.contiguous(), None, None


def _torch_csr(matrix: sp.csr_array, device: torch.device | str) -> Tensor:
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data),
            size=matrix.shape,
            device=device,
            check_invariants=False,  # scipy's matrices hold them
        )
