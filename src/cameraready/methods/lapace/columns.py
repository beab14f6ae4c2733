"""One column of a table: what it holds, and how its values become codes and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]
Kind = Literal["continuous", "ordinal", "categorical"]
CLIP = (0.005, 0.995)  # quantiles that become 0 and 1: a few extreme values would squeeze the rest together


@dataclass(frozen=True)
class Column:
    """A learned column. Codes are floats: the value itself, the rank or the number of the level; NaN is missing.

    Attributes
    ----------
    low, high : the codes that are encoded as 0 and 1, for continuous and ordinal columns.
    levels : the categories or ranks, in order; None for a continuous column.
    whole : decoded values are rounded to integers.
    constant : one value only; the column is left out of the encoding and copied through.
    has_missing : missing values were seen (and are allowed).
    """

    name: str
    kind: Kind
    dtype: Any
    low: float
    high: float
    levels: pd.Index | None
    whole: bool
    constant: bool
    has_missing: bool
    middle: float

    @classmethod
    def learn(cls, series: pd.Series, kind: Kind, levels: list[Any] | None, *, allow_missing: bool) -> Column:
        """Learn range, levels and type from the training rows' values."""
        name = str(series.name)
        missing = series.isna().to_numpy()
        if missing.any() and not allow_missing:
            raise ValueError(
                f"column {name!r} holds {missing.sum()} missing values; impute or drop them, or missing='indicator'"
            )
        if missing.all():
            raise ValueError(f"column {name!r} holds no value at all; drop it")
        if kind == "continuous":
            values = _numbers(series, name)[~missing]
            low, high = np.quantile(values, CLIP)
            if not high > low:
                low, high = values.min(), values.max()
            whole = bool((values == np.rint(values)).all())
            if whole:
                low, high = np.floor(low), np.ceil(high)
            found = None
            constant = bool(values.min() == values.max())
            middle = float(np.median(values))
        else:
            found = _levels(series, levels)
            low, high, whole = 0.0, float(max(len(found) - 1, 1)), True
            constant = len(found) == 1
            codes = found.get_indexer(pd.Index(series[~missing]))
            if (codes < 0).any():
                raise ValueError(f"column {name!r} holds levels that its declared order lacks: {list(found)}")
            middle = float(np.median(codes))
        return cls(
            name,
            kind,
            series.dtype,
            float(low),
            float(high),
            found,
            whole,
            constant and not missing.any(),
            bool(missing.any()),
            middle,
        )

    @property
    def width(self) -> int:
        """Encoded numbers: one a level (and one for missing) if categorical, else the value (and a missing flag)."""
        if self.constant:
            return 0
        return (len(self.levels) if self.kind == "categorical" else 1) + self.has_missing  # type: ignore[arg-type]

    @property
    def span(self) -> float:
        return self.high - self.low

    def codes(self, series: pd.Series) -> Array:
        """Values to codes, shape (n,)."""
        if self.levels is None:
            return _numbers(series, self.name)
        codes = self.levels.get_indexer(pd.Index(series)).astype(float)
        missing = series.isna().to_numpy()
        if (unknown := (codes < 0) & ~missing).any():
            raise ValueError(
                f"column {self.name!r}: unknown level {series[unknown].iloc[0]!r}; it has {list(self.levels)}"
            )
        codes[missing] = np.nan
        return codes

    def values(self, codes: Array) -> pd.api.extensions.ExtensionArray | np.ndarray:
        """Codes back to values of the column's own type."""
        missing = np.isnan(codes)
        if self.levels is not None:
            places = np.where(missing, -1, codes).astype(int)
            taken = self.levels.take(places, allow_fill=bool(missing.any()), fill_value=None)
            keeps = isinstance(self.dtype, pd.CategoricalDtype) or not missing.any()
            return taken.astype(self.dtype).array if keeps else taken.array
        if pd.api.types.is_integer_dtype(self.dtype) and (missing.any() or (codes != np.rint(codes)).any()):
            return codes  # a query may hold what an integer column cannot: it is copied, never truncated
        return codes.astype(self.dtype) if isinstance(self.dtype, np.dtype) else pd.array(codes, dtype=self.dtype)

    def inward(self, bound: float, *, upper: bool) -> float:
        """The nearest code within the bound that the column's type can hold."""
        if not np.isfinite(bound):
            return bound
        if self.whole:
            return float(np.floor(bound) if upper else np.ceil(bound))
        if self.dtype == np.float32:
            near = np.float32(bound)
            # float(): numpy would round the bound to single precision before it compares
            outside = float(near) > bound if upper else float(near) < bound
            return float(np.nextafter(near, np.float32(-np.inf if upper else np.inf)) if outside else near)
        return float(bound)


def infer_kind(series: pd.Series) -> Kind:
    """Numbers are continuous unless there are two at most; ordered categories are ordinal; the rest categorical."""
    dtype = series.dtype
    if pd.api.types.is_datetime64_any_dtype(dtype) or pd.api.types.is_timedelta64_dtype(dtype):
        raise TypeError(f"column {series.name!r} holds {dtype}; turn it into numbers (days, a year) or drop it")
    if isinstance(dtype, pd.CategoricalDtype):
        return "ordinal" if dtype.ordered else "categorical"
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype):
        return "continuous" if series.nunique() > 2 else "categorical"
    return "categorical"


def _numbers(series: pd.Series, name: str) -> Array:
    if not pd.api.types.is_numeric_dtype(series.dtype):
        raise TypeError(f"column {name!r} holds {series.dtype}, not numbers; declare it categorical or ordinal")
    values = series.to_numpy(dtype=float, na_value=np.nan)
    if np.isinf(values).any():
        raise ValueError(f"column {name!r} holds infinite values; replace them")
    return values


def _levels(series: pd.Series, declared: list[Any] | None) -> pd.Index:
    if declared is not None:
        return pd.Index(declared)
    present = series.dropna()
    if isinstance(series.dtype, pd.CategoricalDtype):
        used = set(present)
        return pd.Index([level for level in series.dtype.categories if level in used])
    try:
        return pd.Index(np.sort(present.unique()))
    except TypeError:  # levels of several types have no order of their own
        return pd.Index(sorted(present.unique(), key=str))
