"""A scaling law fitted to measured training runs, and what it predicts beyond them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares, minimize
from scipy.stats import chi2

from cameraready.methods.signsgd_scaling.coverage import Coverage
from cameraready.methods.signsgd_scaling.exponents import Optimizer

COLUMNS = ("N", "d", "lr", "loss")
STARTS = 8
FEWEST_RUNS = 12
LARGEST_ERROR = 0.10  # root mean square error of log loss
ALPHA_RANGE, BETA_RANGE = (0.15, 3.0), (-0.4, 3.0)
LOG_CONSTANTS = (-25.0, 15.0)
CONSTANTS = ("irreducible", "approximation", "initial risk", "speed", "aligned features", "noise", "amplification")
# The power of the loss's unit in each of these constants.
UNIT_POWERS = {"sgd": (1, 1, 1, 0, 1, 1, 0), "signsgd": (1, 1, 1, 0, 1, 0.5, 0)}


@dataclass(frozen=True, eq=False)
class RunFit:
    """Loss as a function of steps, size and learning rate, fitted to runs.

    The terms of `exponents` (approximation, drift, aligned features, noise) with the powers that the theory gives for
    decays alpha and beta, and constants that are positive; the noise enters as in the closed-form floors.

    Attributes
    ----------
    alpha, beta : fitted decays; alpha_ci, beta_ci : their 95 % profile-likelihood intervals (infinite where the runs
        do not bound them).
    irreducible : E. constants : name of a term to its constant.
    error : root mean square error of the log loss on the runs.
    coverage : whether the law describes the runs (error at most 0.10). Outside, `predict` refuses.
    """

    optimizer: Optimizer
    alpha: float
    beta: float
    alpha_ci: tuple[float, float]
    beta_ci: tuple[float, float]
    irreducible: float
    constants: dict[str, float]
    error: float
    coverage: Coverage
    largest_compute: float
    _parameters: NDArray[np.float64] = field(repr=False)

    def predict(self, N: ArrayLike, d: ArrayLike, lr: ArrayLike) -> NDArray[np.float64]:
        """Expected loss after N steps of a model of size d with a constant learning rate; broadcasts.

        Raises
        ------
        NotCovered : the law does not describe the runs it was fitted to.
        """
        self.coverage.require()
        N, d, lr = (np.asarray(value, dtype=float) for value in (N, d, lr))
        if not (np.all(N >= 1) and np.all(d >= 1) and np.all(lr > 0) and np.isfinite(N * d * lr).all()):
            raise ValueError("N and d must be at least 1, lr positive, all finite")
        return np.asarray(np.exp(_log_loss(self._parameters, np.log(N), np.log(d), np.log(lr), self.optimizer)))

    def compute_optimal(self, f: float) -> pd.Series:
        """Model size, steps and learning rate with the least predicted loss at compute ``f = d N``.

        Returns
        -------
        Series: d, N, lr, loss, extrapolation (f over the largest compute among the runs).
        """
        self.coverage.require()
        if not 1 <= f < np.inf:
            raise ValueError(f"f={f}: compute d N is at least 1")

        def loss(point: NDArray[np.float64]) -> float:
            log_d = np.clip(point[0], 0.0, np.log(f))
            value = _log_loss(self._parameters, np.log(f) - log_d, log_d, point[1], self.optimizer)
            return float(value) + (point[0] - log_d) ** 2

        starts = [(share * np.log(f), lr) for share in (0.3, 0.5, 0.7) for lr in (-2.0, -5.0, -9.0)]
        best = min((minimize(loss, start, method="Nelder-Mead") for start in starts), key=lambda found: found.fun)
        d = max(1, round(float(np.exp(np.clip(best.x[0], 0, np.log(f))))))
        return pd.Series(
            {
                "d": d,
                "N": max(1, round(f / d)),
                "lr": float(np.exp(best.x[1])),
                "loss": float(np.exp(best.fun)),
                "extrapolation": f / self.largest_compute,
            }
        )

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {value:.3g}" for name, value in self.constants.items())
        alpha, beta = _with_interval(self.alpha, self.alpha_ci), _with_interval(self.beta, self.beta_ci)
        decays = f"alpha = {alpha}, beta = {beta}"
        return f"{self.optimizer}: {decays}, constants: {terms}; error {self.error:.1%}. {self.coverage}"


def _with_interval(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.2f}" + ("" if np.isnan(interval[0]) else f" [{interval[0]:.2f}, {interval[1]:.2f}]")


def fit_runs(
    runs: pd.DataFrame,
    *,
    optimizer: Optimizer = "signsgd",
    near_best: float = 2.0,
    intervals: bool = True,
    random_state: int = 0,
) -> RunFit:
    """Fit the risk's terms to measured losses, such as a CSV of training logs.

    Nonlinear least squares of the log loss with positive constants from several starts.

    Parameters
    ----------
    runs : columns N (steps), d (model size), lr (learning rate), loss; one row a measurement, several a run are
        welcome.
    optimizer : "sgd" or "signsgd"; for logs of Adam or Lion the sign law is the closest.
    near_best : runs with more than this multiple of the best loss at the same N and d are left out: the terms are
        those of runs near their best rate, and a transient at a poor rate would bend them. inf keeps all.
    intervals : whether to profile alpha and beta, which takes ten times as long as the fit; without, they are NaN.

    Raises
    ------
    ValueError : missing columns, values that are not positive, fewer than 12 rows, a single model size or length of
        run.
    """
    N, d, lr, loss = _checked(pd.DataFrame(runs), optimizer)
    if not near_best > 1:
        raise ValueError(f"near_best={near_best} must be above 1; 2 is usual")
    best_loss = pd.Series(loss).groupby([N, d]).transform("min").to_numpy()
    N, d, lr, loss = (value[loss <= near_best * best_loss] for value in (N, d, lr, loss))
    if len(loss) < FEWEST_RUNS:
        raise ValueError(
            f"{len(loss)} runs are within near_best={near_best} of the best at their N and d; at least {FEWEST_RUNS} "
            "are needed"
        )
    logs = np.log(N), np.log(d), np.log(lr)
    unit = float(np.mean(np.log(loss)))  # the search starts from, and is bounded to, constants of order one
    target = np.log(loss) - unit
    best = _fit(logs, target, optimizer, np.random.default_rng(random_state), STARTS)
    error = float(np.sqrt(np.mean(best.fun**2)))
    bounds = [_profile(i, best.x, logs, target, optimizer) if intervals else (np.nan, np.nan) for i in (0, 1)]
    best.x[2:] += unit * np.array(UNIT_POWERS[optimizer])
    unused = set() if optimizer == "sgd" else {"amplification"}
    if not (best.x[0] > 0.5 and best.x[1] > 0.5):
        unused.add("aligned features")
    constants = {name: float(np.exp(c)) for name, c in zip(CONSTANTS, best.x[2:], strict=True) if name not in unused}
    covered = error <= LARGEST_ERROR
    reason = f"the law describes the runs within {error:.1%}"
    if not covered:
        reason = (
            f"the law misses the runs by {error:.0%} (limit {LARGEST_ERROR:.0%}): they follow no sum of power "
            f"laws, have a "
            "schedule, or come from another optimiser"
        )
    return RunFit(
        optimizer,
        float(best.x[0]),
        float(best.x[1]),
        *bounds,
        constants["irreducible"],
        constants,
        error,
        Coverage(covered, reason),
        float(np.max(N * d)),
        best.x,
    )


def _checked(runs: pd.DataFrame, optimizer: str) -> list[NDArray[np.float64]]:
    if optimizer not in ("sgd", "signsgd"):
        raise ValueError(f"optimizer={optimizer!r}; choose 'sgd' or 'signsgd' (for Adam and Lion)")
    missing = [name for name in COLUMNS if name not in runs.columns]
    if missing:
        raise ValueError(f"runs lack the columns {', '.join(missing)}; they have {', '.join(map(str, runs.columns))}")
    if len(runs) < FEWEST_RUNS:
        raise ValueError(f"runs has {len(runs)} rows; at least {FEWEST_RUNS} are needed")
    values = [pd.to_numeric(runs[name], errors="coerce").to_numpy(float) for name in COLUMNS]
    for name, value in zip(COLUMNS, values, strict=True):
        bad = ~(np.isfinite(value) & (value > 0))
        if bad.any():
            raise ValueError(
                f"runs: column {name!r} is not a positive number in row {int(bad.argmax())} (counted from 0); "
                "drop diverged runs"
            )
    for name, value in zip(COLUMNS[:2], values[:2], strict=True):
        if len(np.unique(value)) < 3:
            raise ValueError(
                f"runs: column {name!r} has {len(np.unique(value))} different values; at least 3 show a power law"
            )
    return values


def _log_loss(theta: ArrayLike, log_N: ArrayLike, log_d: ArrayLike, log_lr: ArrayLike, optimizer: str) -> ArrayLike:
    """Log loss with the powers of `exponents`; theta = alpha, beta and the logarithms of `CONSTANTS`.

    The effective time enters as ``1 + time``, so that the loss starts at a finite value.
    """
    alpha, beta, floor, c_approximation, start, speed, c_aligned, c_noise, c_amplification = theta
    p = (2 * alpha + 2 * beta - 1) / (2 * alpha)
    q = max(1 - 1 / (2 * alpha), 1e-3)
    a = min(alpha, 0.5)
    parts = [floor + 0 * np.asarray(log_N), c_approximation - (2 * alpha - max(0.0, 1 - 2 * beta)) * log_d]
    if optimizer == "sgd":
        time = np.logaddexp(0, speed + log_lr + log_N)
        m = max(0.0, 2 - 1 / (2 * alpha))
        parts += [start - p * time, c_noise + log_lr - m * time + max(0.0, 1 - 4 * alpha) * log_d]
        aligned = c_aligned - log_d - q * time
    else:
        time = np.logaddexp(0, speed + log_lr + a * log_d + log_N)
        # From p = 2 on the signal is gone in finite time; a steep power stands for that.
        parts += [start - 2 * p / max(2 - p, 0.1) * time]
        aligned = c_aligned - log_d - 2 * q / (2 - q) * np.logaddexp(0, speed + log_lr + log_d + log_N)
    if alpha > 0.5 and beta > 0.5:
        parts.append(aligned)
    total = np.logaddexp.reduce(np.broadcast_arrays(*parts), axis=0)
    if optimizer == "sgd":  # the floor P_inf / (1 - amplification), see `sgd_floor`
        return total - np.log1p(-np.minimum(np.exp(c_amplification + np.asarray(log_lr)), 0.99))
    # signSGD's floor with what is left of the signal in the place of P_inf, see `sign_floor`
    half = np.exp(c_noise + log_lr + (1 - a) * log_d - total / 2)
    return total + 2 * np.log(half + np.sqrt(half**2 + 1))


def _fit(logs, target, optimizer, rng, starts, fixed=None, start=None):  # type: ignore[no-untyped-def]
    lower = np.array([ALPHA_RANGE[0], BETA_RANGE[0], *[LOG_CONSTANTS[0]] * 7])
    upper = np.array([ALPHA_RANGE[1], BETA_RANGE[1], *[LOG_CONSTANTS[1]] * 7])
    if fixed is not None:
        index, value = fixed
        lower[index], upper[index] = value - 1e-9, value + 1e-9

    def residuals(theta: NDArray[np.float64]) -> NDArray[np.float64]:
        # 2 alpha + 2 beta > 1: beyond that border the drift would grow with time
        beta = max(theta[1], 0.505 - theta[0])
        return np.asarray(_log_loss([theta[0], beta, *theta[2:]], *logs, optimizer)) - target

    best = None
    for number in range(starts):
        if start is not None and number == 0:
            first = start
        else:
            constants = [target.min() - rng.uniform(1, 4), rng.normal(), target.max(), *rng.normal(size=3), -3.0]
            first = np.array([rng.uniform(0.4, 1.6), rng.uniform(0.1, 1.4), *constants])
        found = least_squares(
            residuals, np.clip(first, lower + 1e-10, upper - 1e-10), bounds=(lower, upper), max_nfev=200
        )
        if best is None or found.cost < best.cost:
            best = found
    best.x[1] = max(best.x[1], 0.505 - best.x[0])
    return best


def _profile(index, theta, logs, target, optimizer):  # type: ignore[no-untyped-def]
    """95 % interval of one decay: where the profiled sum of squares exceeds its minimum by the chi-square bound."""
    n = len(target)
    low, high = (ALPHA_RANGE, BETA_RANGE)[index]
    last = {"theta": theta}

    def deviance(value: float) -> float:
        found = _fit(logs, target, optimizer, None, 1, fixed=(index, value), start=last["theta"])
        last["theta"] = found.x
        return float(n * np.log(found.cost / base) - chi2.ppf(0.95, 1))

    base = max(_fit(logs, target, optimizer, None, 1, start=theta).cost, 1e-300)
    ends = []
    for bound, sign in ((low, -1), (high, 1)):
        last["theta"] = theta
        step, inside, end = 0.02, theta[index], None
        while end is None:
            outside = theta[index] + sign * step
            if (outside - bound) * sign >= 0:
                end = sign * np.inf
            elif deviance(outside) > 0:
                for _ in range(5):
                    middle = (inside + outside) / 2
                    inside, outside = (inside, middle) if deviance(middle) > 0 else (middle, outside)
                end = (inside + outside) / 2
            else:
                inside, step = outside, 2 * step
        ends.append(float(end))
    return tuple(ends)
