"""What the loaders return where one array is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray
    from scipy.sparse import csr_matrix


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with named columns and, where there is one, a target. Unpacks as ``X, y = table``.

    Attributes
    ----------
    X : DataFrame, shape (n, n_columns)
        The features; categories keep pandas' ``category`` or ``str`` dtype.
    y : Series of length n, or None
        The target, named after its column.
    """

    X: pd.DataFrame
    y: pd.Series[Any] | None

    def __iter__(self) -> Iterator[Any]:
        yield self.X
        yield self.y


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images of one size with a class each. Unpacks as ``images, labels = ...``.

    Attributes
    ----------
    images : uint8 array, shape (n, height, width) grey or (n, height, width, 3) colour, 0 to 255
    labels : int64 array, shape (n,)
        Class (or, for faces, person) numbers from 0.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __iter__(self) -> Iterator[Any]:
        yield self.images
        yield self.labels


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with node features and labels.

    Attributes
    ----------
    adjacency : csr_matrix, shape (n, n)
        As its authors give it; see the loader for direction and weights.
    features : csr_matrix, shape (n, n_features)
    labels : int64 array, shape (n,)
        -1 where a node has no label.
    train, validation, test : int64 arrays of node numbers, or None
        The authors' own split, where they published one.
    """

    adjacency: csr_matrix
    features: csr_matrix
    labels: NDArray[np.int64]
    train: NDArray[np.int64] | None = None
    validation: NDArray[np.int64] | None = None
    test: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Interactions:
    """Who rated what, when; with what is known of users and items.

    Attributes
    ----------
    ratings : DataFrame with columns user, item, rating, timestamp (seconds since 1970)
    users, items : DataFrames indexed by user and item number
    """

    ratings: pd.DataFrame
    users: pd.DataFrame
    items: pd.DataFrame
