"""Intervals for a mean over seeds, and the few statistics that the decision rules need: pure functions of arrays.

Every function takes the seeds on the last axis and works on many samples at once, so that the coverage that the documents
promise is measured (``tests/evidence/test_statistics.py``) on the function that decides.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 4999
BOOTSTRAP_SEED = 20260  # fixed: the same measurements always give the same interval
SMALLEST_BOOTSTRAP = 5  # below, five values or fewer have too few distinct resamples to say anything about a tail
ROUNDING = 1e-12  # relative differences below this are floating-point noise and count as equal


def mean_interval(samples: ArrayLike, *, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """Confidence interval for the mean of each sample.

    Fewer than five values: Student's t interval. Five or more: the smallest interval that contains both the t interval and
    the BCa bootstrap interval (`scipy.stats.bootstrap`), the latter at the expanded level of Hesterberg (2015), formula
    Φ(-√(n/(n-1)) t). Either alone falls short: plain BCa covers 85 % of normal samples of five, the t interval misses the
    long tail of skewed ones.
    Constant samples have the exact interval of length zero.

    Parameters
    ----------
    samples : finite values of shape (..., n), n >= 2 independent replicates on the last axis.
    confidence : nominal coverage.

    Returns
    -------
    low, high : arrays of shape (...).

    Notes
    -----
    Measured coverage of the 95 % interval, n = 2 to 50: normal 95-96 %, uniform 92-97 %, Student t with 3 degrees of
    freedom 95-97 %, gamma with shape 4 (skewness 1) 93-96 %. Strong skewness is not cured at small n: exponential
    samples are covered in 87-91 % for n <= 5 and 93-96 % from n = 8, log-normal ones (σ = 1) in 83-90 % for
    n <= 10 and 94 % at n = 50; nearly all misses are on the side of the long tail. Ratios are safe from this, because their
    interval is made for the logarithm, and so are paired differences, whose distribution is symmetric without an effect.

    Examples
    --------
    >>> low, high = mean_interval([9.0, 10.0, 11.0])
    >>> print(f"{low:.2f} {high:.2f}")
    7.52 12.48
    """
    values = np.asarray(samples, dtype=np.float64)
    n = values.shape[-1]
    if n < 2:
        raise ValueError(f"{n} value in a sample; an interval needs at least 2")
    center, error = values.mean(axis=-1), stats.sem(values, axis=-1)
    t = stats.t.ppf((1 + confidence) / 2, n - 1)
    low, high = center - t * error, center + t * error
    constant = is_constant(values)
    if n >= SMALLEST_BOOTSTRAP and not constant.all():
        level = 1 - 2 * float(stats.norm.cdf(-np.sqrt(n / (n - 1)) * t))
        varying = ~constant
        bca_low, bca_high = _bca_interval(values[varying], level)
        low[varying] = np.minimum(low[varying], bca_low)
        high[varying] = np.maximum(high[varying], bca_high)
    first = values[..., 0]
    return np.where(constant, first, low), np.where(constant, first, high)


def _bca_interval(samples: Array, level: float) -> tuple[Array, Array]:
    """BCa bootstrap interval for the mean of each row of ``samples``, shape (m, n); all rows share their resamples."""
    n = samples.shape[-1]
    # A resample is a vector of counts: one matrix product gives the means of all rows. This is the mean exactly, since
    # shifting by the first value keeps the precision of samples that vary little around something large.
    shifted = samples - samples[:, :1]

    def means(index: Any, axis: int = -1) -> Array:
        rows = np.atleast_2d(index)
        offsets = n * np.arange(len(rows))[:, None]
        counts = np.bincount((rows + offsets).ravel(), minlength=n * len(rows)).reshape(len(rows), n)
        return (shifted @ (counts.T / rows.shape[-1])).reshape(len(samples), *np.shape(index)[:-1])

    interval = stats.bootstrap(
        (np.arange(n),),
        means,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=level,
        method="BCa",
        rng=np.random.default_rng(BOOTSTRAP_SEED),
    ).confidence_interval
    return interval.low + samples[:, 0], interval.high + samples[:, 0]
