"""Where signSGD's risk formula holds, and the answer given where it does not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cameraready.coverage import NotCovered
from cameraready.methods.signsgd_scaling.sign_statistics import drift_gain, expected_sign

LARGEST_LINEARISATION_ERROR = 0.10


@dataclass(frozen=True)
class Coverage:
    """Whether a statement of the theory applies, and why.

    Attributes
    ----------
    covered : truth value; `bool(coverage)` is the same.
    reason : one sentence for the user, in both cases.
    """

    covered: bool
    reason: str

    def __bool__(self) -> bool:
        return self.covered

    def __str__(self) -> str:
        return self.reason if self.covered else f"not covered: {self.reason}"

    def require(self) -> None:
        """Raise `NotCovered` outside the regime."""
        if not self.covered:
            raise NotCovered(self.reason)


def linearisation(top_share: float, batch: int) -> Coverage:
    """Is signSGD's drift, which the risk curve takes linear in rho, linear at the largest rho that can occur?

    The root mean square of rho is at most ``sqrt(lam_max / sum lam)``, with the eigenvalues ``lam`` of
    ``diag(K)^(-1/4) K diag(K)^(-1/4)``, as all of the excess risk may sit in the leading mode.

    Parameters
    ----------
    top_share : ``lam_max / sum lam``; a power law of decay alpha has ``1 / zeta(2 alpha)``.
    batch : samples averaged before the sign; the drift saturates sooner for a larger batch.
    """
    rho = float(np.sqrt(top_share))
    linear = drift_gain(batch) * rho
    error = abs(float(expected_sign(rho, batch)) / linear - 1)
    described = f"the leading mode holds {top_share:.0%} of the variance"
    if error <= LARGEST_LINEARISATION_ERROR:
        return Coverage(True, f"{described}: signSGD's drift is linear within {error:.0%}")
    return Coverage(
        False,
        f"{described}, so that with batch={batch} the linear drift is off by up to {error:.0%} (limit "
        f"{LARGEST_LINEARISATION_ERROR:.0%}) and the risk of single runs fluctuates; use simulate() instead",
    )
