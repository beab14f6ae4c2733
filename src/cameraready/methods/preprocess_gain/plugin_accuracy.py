"""Exact expected accuracy of a plug-in classifier of two Gaussian classes, for every dimension and sample size.

Classes +1 and -1 are N(+mu, sigma^2 I_d) and N(-mu, sigma^2 I_d) with m = |mu|. The plug-in rule puts estimated class
means in place of the true ones. A test point is on the right side when a difference of two independent noncentral
chi-squared variables is positive,

    lambda_1 chi2_d(delta_1) - lambda_2 chi2_d(delta_2) > 0,

because the score is a product of two Gaussian vectors. The probability is Imhof's integral (Biometrika 1961), exact to
rounding here, in d of any size; d need not be an integer, which the effective dimensions of real data use.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]

# Midpoint rule in x after u = u_0 sinh(x): the integrand is even and analytic, so the error falls exponentially in
# 1/step; the last node is where the slowest tail (d = 1, falling as exp(-2x)) is below 1e-13. The sine turns as often
# as the mean of the difference exceeds its standard deviation: beyond 4 standard deviations the step is refined.
_STEP, _REACH, _TURNS = 0.06, 15.36, 4.0
_BLOCK = 4096  # rows of the (rows, nodes) array that are in memory at a time


def acc_bayes(m: ArrayLike, sigma: ArrayLike = 1.0) -> Array | float:
    """Accuracy of the Bayes rule, Phi(m / sigma), the limit of the plug-in rule for many labels.

    Parameters
    ----------
    m : half the distance between the class means, at least 0.
    sigma : standard deviation of the noise in every direction.

    Examples
    --------
    >>> round(acc_bayes(1.0), 4)
    0.8413
    """
    m, sigma = _checked(m=m, sigma=sigma)
    return _plain(ndtr(m / sigma))


def acc_plugin(m: ArrayLike, d: ArrayLike, n: ArrayLike, sigma: ArrayLike = 1.0) -> Array | float:
    """Expected accuracy of sign(w.x), w the mean of y_i x_i over n labelled samples; arguments broadcast.

    With s = sigma / sqrt(n) it is E Phi(m/sigma . A / sqrt(A^2 + s^2 C)), A ~ N(m, s^2), C ~ chi2_(d-1). Since
    w/s + x/sigma and w/s - x/sigma are independent, it also is P(chi2_d(delta_1) > chi2_d(delta_2)) with
    delta = (sqrt(n) +- 1)^2 m^2 / (2 sigma^2), and that is computed.

    Parameters
    ----------
    m : half the distance between the class means, at least 0.
    d : dimension, at least 1 (effective dimensions may be fractions).
    n : labelled samples of both classes together, at least 1; ``inf`` gives the Bayes rule.
    sigma : standard deviation of the noise in every direction.

    Raises
    ------
    ValueError : an argument that is out of range, by name.

    Examples
    --------
    >>> round(acc_plugin(1.0, 500, 100), 4)
    0.6583
    >>> acc_plugin(1.0, [1, 20, 500], 20).round(4).tolist()
    [0.8413, 0.7598, 0.5776]
    """
    m, d, n, sigma = _checked(m=m, d=d, n=n, sigma=sigma)
    snr = np.minimum((m / sigma) ** 2, 1e4)  # beyond, the accuracy is 1 to the last digit
    finite = np.where(np.isinf(n), 1.0, n)
    root = np.sqrt(finite)
    accuracy = probability_positive(d, 1.0, 1.0, (root + 1) ** 2 * snr / 2, (root - 1) ** 2 * snr / 2)
    # In one dimension w has the wrong sign or the right one, and in all dimensions nothing beats the Bayes rule.
    return _plain(np.where(np.isinf(n), ndtr(m / sigma), accuracy))


def class_accuracies(
    m: ArrayLike, d: ArrayLike, n1: ArrayLike, n2: ArrayLike, sigma: ArrayLike = 1.0
) -> tuple[Array | float, Array | float]:
    """Expected accuracy on either class of the nearer of two estimated means, from n1 and n2 samples.

    For x of class 1, a = x - mean_2 and b = x - mean_1 have per coordinate the covariance
    [[sigma^2 + s_2^2, sigma^2], [sigma^2, sigma^2 + s_1^2]], s_i^2 = sigma^2 / n_i, and |a|^2 - |b|^2 > 0 is the right
    side. Diagonalising that form gives the two chi-squared variables.

    Parameters
    ----------
    m, d, sigma : as in `acc_plugin`.
    n1, n2 : labelled samples of the two classes, at least 1 each; both may be ``inf``.

    Examples
    --------
    >>> [round(accuracy, 3) for accuracy in class_accuracies(1.0, 100, 95, 5)]
    [0.988, 0.073]
    """
    m, d, n1, n2, sigma = _checked(m=m, d=d, n1=n1, n2=n2, sigma=sigma)
    m = np.minimum(m / sigma, 100.0)
    infinite = np.isinf(n1) & np.isinf(n2)
    with np.errstate(divide="ignore"):
        s1, s2 = np.where(infinite, 1.0, 1 / n1), np.where(infinite, 1.0, 1 / n2)
    bayes = ndtr(m)
    first, second = _one_class(m, d, s1, s2), _one_class(m, d, s2, s1)
    return _plain(np.where(infinite, bayes, first)), _plain(np.where(infinite, bayes, second))


def acc_plugin_unbalanced(
    m: ArrayLike, d: ArrayLike, n1: ArrayLike, n2: ArrayLike, sigma: ArrayLike = 1.0
) -> Array | float:
    """Expected balanced accuracy of the nearer of two estimated class means, from n1 and n2 samples.

    Examples
    --------
    >>> acc_plugin_unbalanced(1.0, 100, [50, 80, 95], [50, 20, 5]).round(3).tolist()
    [0.759, 0.701, 0.53]
    """
    first, second = class_accuracies(m, d, n1, n2, sigma)
    return _plain((np.asarray(first) + np.asarray(second)) / 2)


def probability_positive(
    d: ArrayLike, lambda_1: ArrayLike, lambda_2: ArrayLike, delta_1: ArrayLike, delta_2: ArrayLike
) -> Array:
    """P(lambda_1 chi2_d(delta_1) > lambda_2 chi2_d(delta_2)) by Imhof's integral; arguments broadcast, unchecked."""
    parts = np.broadcast_arrays(d, lambda_1, lambda_2, delta_1, delta_2)
    d, lambda_1, lambda_2, delta_1, delta_2 = (np.asarray(part, dtype=float).reshape(-1, 1) for part in parts)
    spread = np.sqrt(2 * (lambda_1**2 * (d + 2 * delta_1) + lambda_2**2 * (d + 2 * delta_2)))
    turns = np.abs(lambda_1 * (d + delta_1) - lambda_2 * (d + delta_2)) / spread
    refine = np.ceil(turns[:, 0] / _TURNS).astype(int)
    answer = np.empty(len(d))
    for factor in np.unique(refine):
        rows = np.flatnonzero(refine == factor)
        nodes = _nodes(max(int(factor), 1))
        for start in range(0, len(rows), _BLOCK):
            part = rows[start : start + _BLOCK]
            arguments = (x[part] for x in (d, lambda_1, lambda_2, delta_1, delta_2, spread))
            answer[part] = _imhof(*arguments, *nodes)
    return answer.reshape(parts[0].shape)


@cache
def _nodes(factor: int) -> tuple[Array, Array]:
    """sinh(x) at the nodes, and the weights, with a step that is ``factor`` times finer."""
    x = _STEP / factor * (np.arange(round(_REACH / _STEP * factor)) + 0.5)
    return np.sinh(x), _STEP / factor / np.tanh(x) / np.pi


def _imhof(
    d: Array,
    lambda_1: Array,
    lambda_2: Array,
    delta_1: Array,
    delta_2: Array,
    spread: Array,
    sinh: Array,
    weight: Array,
) -> Array:
    """Imhof's integral; the first arguments of shape (rows, 1)."""
    u = 2 / spread * sinh
    a, b = lambda_1 * u, lambda_2 * u
    a2, b2 = a * a, b * b
    angle = (d * (np.arctan(a) - np.arctan(b)) + delta_1 * a / (1 + a2) - delta_2 * b / (1 + b2)) / 2
    decay = d / 4 * (np.log1p(a2) + np.log1p(b2)) + (delta_1 * a2 / (1 + a2) + delta_2 * b2 / (1 + b2)) / 2
    return np.clip(0.5 + (np.sin(angle) * np.exp(-decay)) @ weight, 0.0, 1.0)


def _one_class(m: Array, d: Array, s1: Array, s2: Array) -> Array:
    """Accuracy on the class whose mean has variance s1, in units of sigma."""
    trace, determinant = s2 - s1, s1 + s2 + s1 * s2
    root = np.sqrt(trace**2 + 4 * determinant)
    lambda_1, lambda_2 = (root + trace) / 2, (root - trace) / 2
    delta_1 = 4 * m**2 * (1 + (1 + s1) / lambda_1) / root
    delta_2 = 4 * m**2 * np.maximum((1 + s1) / lambda_2 - 1, 0.0) / root
    return probability_positive(d, lambda_1, lambda_2, delta_1, delta_2)


def _checked(**arguments: ArrayLike) -> list[Array]:
    """The arguments as arrays of one shape, each in its range."""
    lowest = {"m": 0.0, "d": 1.0, "k": 1.0}
    arrays = []
    for name, value in arguments.items():
        array = np.asarray(value, dtype=float)
        low = lowest.get(name, 1.0 if name.startswith("n") else 0.0)
        bad = np.isnan(array) | (array < low) | ((name == "sigma") & (array == 0))
        if not name.startswith("n"):
            bad |= np.isinf(array)
        if bad.any():
            limit = "positive" if name == "sigma" else f"at least {low:g}"
            raise ValueError(
                f"{name}={array[bad].flat[0]:g}; {name} must be {limit}" + " and finite" * (name[0] != "n")
            )
        arrays.append(array)
    return list(np.broadcast_arrays(*arrays))


def _plain(value: Array) -> Array | float:
    """A float for scalars, an array otherwise."""
    return float(value) if np.ndim(value) == 0 else value
