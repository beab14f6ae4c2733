"""The exponent in n at which the generalisation gap of stable minima is bound to shrink, by the data's geometry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cameraready.coverage import NotCovered


@dataclass(frozen=True)
class Rate:
    """The gap's bound shrinks like n^-exponent up to constants and logarithms.

    Attributes
    ----------
    exponent : of n.
    weight_exponent : g ~ s^weight_exponent for the cap of height s below the sphere.
    cap_exponent : P ~ s^cap_exponent, its probability.
    """

    exponent: float
    weight_exponent: float
    cap_exponent: float

    def __str__(self) -> str:
        return f"gap <~ n^-{self.exponent:.4g}   (g ~ s^{self.weight_exponent:.4g}, P ~ s^{self.cap_exponent:.4g})"


def predicted_rate(
    kind: Literal["radial", "balls"], *, d: int | None = None, m: int | None = None, alpha: float = 1.0
) -> Rate | NotCovered:
    """Exponent for isotropic data that concentrate near a sphere, or for a mixture of low-dimensional balls.

    A cap of height s has P ~ s^(alpha + (d - 1)/2) and g ~ s^(2 alpha + d); the shell of that thickness has mass
    s^alpha. Balancing the deep neurons' s^-(2 alpha + d) n^-1/2 against s^alpha gives the exponent
    alpha / (2 (3 alpha + d)), an upper bound on the gap; the paper's own exponents may be sharper. A mixture of J balls
    of dimension m has d replaced by m, and n by n / J.

    Parameters
    ----------
    kind : "radial", P(1 - |x| < z) ~ z^alpha in R^d; "balls", of dimension m whatever the ambient dimension.
    d, m : dimension, of the space or of the balls.
    alpha : radial exponent: 1 is uniform by volume near the surface, towards 0 the sphere.

    Returns
    -------
    A `Rate`; `NotCovered` at alpha = 0, the sphere, where flat interpolators exist and no rate holds.

    Examples
    --------
    >>> print(predicted_rate("radial", d=5, alpha=1.0))
    gap <~ n^-0.0625   (g ~ s^7, P ~ s^3)
    >>> predicted_rate("balls", m=1).exponent
    0.125
    >>> print(predicted_rate("radial", d=5, alpha=0.0))
    not covered: on the sphere (alpha = 0) flat interpolators exist, so no rate holds
    """
    if kind not in ("radial", "balls"):
        raise ValueError(f"kind={kind!r}; choose 'radial' (with d) or 'balls' (with m)")
    dimension, name = (d, "d") if kind == "radial" else (m, "m")
    if dimension is None or (m if kind == "radial" else d) is not None:
        raise ValueError(f"kind={kind!r} takes the dimension {name}= and no other")
    if dimension < 1 or not 0 <= alpha < float("inf"):
        raise ValueError(f"{name}={dimension}, alpha={alpha}: a dimension is at least 1, alpha finite and at least 0")
    if alpha == 0:
        return NotCovered("on the sphere (alpha = 0) flat interpolators exist, so no rate holds")
    return Rate(
        exponent=alpha / (2 * (3 * alpha + dimension)),
        weight_exponent=2 * alpha + dimension,
        cap_exponent=alpha + (dimension - 1) / 2,
    )
