"""Linear regression on Gaussian features: simulate one-pass training, or predict its risk."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh, qr

from cameraready.coverage import NotCovered
from cameraready.methods.signsgd_scaling import noise_floor
from cameraready.methods.signsgd_scaling.coverage import Coverage, linearisation
from cameraready.methods.signsgd_scaling.risk_curve import risk_curve
from cameraready.methods.signsgd_scaling.schedule import WSD
from cameraready.methods.signsgd_scaling.sign_statistics import drift_gain, sign_covariance
from cameraready.methods.signsgd_scaling.simulation import BETAS, OPTIMIZERS, simulate_risk

RELATIVE_ZERO = 1e-18  # eigenvalues below this share of the largest count as zero
Schedule = WSD | Literal["constant"]


class Modes(NamedTuple):
    """Eigenvalues of an optimiser's drift, the weights ``y_i^2`` at step 0, and the noise ``n_i``; each of shape
    (d,).
    """

    eigenvalues: NDArray[np.float64]
    weights: NDArray[np.float64]
    noise: NDArray[np.float64]


class GaussianRegression:
    """Least squares on features ``u ~ N(0, K)`` with target ``u^T theta* + sqrt(P_inf) xi``, trained from zero.

    Parameters
    ----------
    K : covariance of the features, (d, d), symmetric, positive semi-definite, positive diagonal.
    theta_star : the best coefficients, (d,).
    P_inf : the risk they leave.

    Raises
    ------
    ValueError : shapes that do not match, values that are not finite, a covariance that is none.

    Examples
    --------
    >>> problem = GaussianRegression(np.eye(50), np.full(50, 0.1), 0.01)
    >>> round(problem.noise_floor(1e-3), 4)
    0.0148
    """

    def __init__(self, K: ArrayLike, theta_star: ArrayLike, P_inf: float) -> None:
        K = np.asarray(K, dtype=float)
        theta_star = np.array(theta_star, dtype=float)  # a copy: what was computed from it is kept
        if K.ndim != 2 or not K.size or K.shape[0] != K.shape[1] or theta_star.shape != K.shape[:1]:
            raise ValueError(f"K {K.shape} and theta_star {theta_star.shape} do not match; they are (d, d) and (d,)")
        if not (np.isfinite(K).all() and np.isfinite(theta_star).all() and 0 <= P_inf < np.inf):
            raise ValueError(f"K, theta_star and P_inf={P_inf} must be finite, and P_inf at least 0")
        if not np.allclose(K, K.T, rtol=1e-8, atol=1e-12 * np.abs(K).max()) or np.diag(K).min() <= 0:
            raise ValueError(
                "K is no covariance: it must be symmetric with a positive diagonal; drop constant features"
            )
        eigenvalues, vectors = eigh((K + K.T) / 2)
        if eigenvalues[0] < -1e-8 * eigenvalues[-1]:
            raise ValueError(
                f"K is no covariance: its smallest eigenvalue is {eigenvalues[0]:.3g}; it must be at least 0"
            )
        root = qr(np.sqrt(np.clip(eigenvalues, 0, None))[:, None] * vectors.T, mode="r")[0]
        self._set(root, theta_star, float(P_inf))

    def _set(self, root: NDArray[np.float64], theta_star: NDArray[np.float64], P_inf: float) -> None:
        self.root = np.triu(root)
        self.K = self.root.T @ self.root
        self.theta_star = theta_star
        self.P_inf = P_inf
        self.d = len(theta_star)

    @classmethod
    def from_data(cls, X: ArrayLike, y: ArrayLike) -> GaussianRegression:
        """The regression with the second moments of rows ``X`` (n, d) and target ``y`` (n,); n > d is needed."""
        X, y = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
        if X.ndim != 2 or y.shape != X.shape[:1]:
            raise ValueError(f"X {X.shape} and y {y.shape} do not match; they are (n, d) and (n,)")
        if not (np.isfinite(X).all() and np.isfinite(y).all()):
            raise ValueError("X or y holds values that are not finite; drop or impute them")
        n, d = X.shape
        if n <= d:
            raise ValueError(
                f"X has {n} rows and {d} columns; more rows than columns are needed, or take fewer columns"
            )
        covariance = X.T @ X / n
        theta, _, _, _ = np.linalg.lstsq(X, y, rcond=None)
        return cls(covariance, theta, float(np.sum((y - X @ theta) ** 2) / (n - d)))

    @property
    def initial_risk(self) -> float:
        """The risk of all-zero coefficients."""
        return self.P_inf + float(np.sum((self.root @ self.theta_star) ** 2))

    @cached_property
    def total_scale(self) -> float:
        """``S = sum_i sqrt(K_ii)``, which sets signSGD's noise."""
        return float(np.sqrt(np.diag(self.K)).sum())

    @cached_property
    def sgd_modes(self) -> Modes:
        eigenvalues, vectors = _spectrum(self.K)
        return Modes(eigenvalues, (vectors.T @ self.theta_star) ** 2, np.zeros(self.d))

    @cached_property
    def sign_modes(self) -> Modes:
        quarter = np.diag(self.K) ** 0.25
        eigenvalues, vectors = _spectrum(self.K / np.outer(quarter, quarter))
        turned = quarter[:, None] * vectors
        noise = np.einsum("ij,ij->j", turned, sign_covariance(self.K) @ turned)
        return Modes(eigenvalues, (turned.T @ self.theta_star) ** 2, noise)

    def coverage(self, optimizer: str = "signsgd", *, batch: int = 1) -> Coverage:
        """Whether `predict_risk` and `noise_floor` hold for this problem, and why."""
        check_whole(batch=batch)
        if optimizer == "sgd":
            return Coverage(True, "SGD's risk recursion is exact for Gaussian features")
        if optimizer != "signsgd":
            return Coverage(False, f"no risk formula is known for optimizer={optimizer!r}; use simulate() instead")
        eigenvalues = self.sign_modes.eigenvalues
        return linearisation(float(eigenvalues.max() / eigenvalues.sum()), batch)

    def simulate(
        self,
        optimizer: str = "signsgd",
        *,
        lr: float,
        steps: int,
        schedule: Schedule = "constant",
        batch: int = 1,
        seeds: int = 8,
        seed: int = 0,
        momentum: float = 0.0,
        betas: tuple[float, float] | None = None,
        record: int | ArrayLike = 40,
    ) -> pd.DataFrame:
        """Train ``seeds`` times on fresh samples, in d dimensions, and measure the exact population risk.

        Parameters
        ----------
        optimizer : "sgd", "signsgd", "adam" or "lion".
        lr : peak learning rate.
        steps : number of steps; each draws ``batch`` fresh samples.
        schedule : "constant" or a `WSD`.
        momentum : of SGD (as torch) and signSGD (average of gradients before the sign); 0 by default.
        betas : of Adam (0.9, 0.999) and Lion (0.9, 0.99).
        seeds, seed : number of runs; the first seed. A run's stream depends on its own seed alone.
        record : how many log-spaced steps to report, or the steps themselves.

        Returns
        -------
        DataFrame: step, risk_mean, risk_se (standard error of the mean over the runs; NaN for one run). A run that
        diverges has risk inf, and ``attrs["diverged"]`` then names SGD's stability limit.
        """
        steps, where = self._check(optimizer, lr, steps, batch, record)
        check_whole(seeds=seeds)
        if betas is not None and not (np.shape(betas) == (2,) and all(0 <= beta < 1 for beta in betas)):
            raise ValueError(f"betas={betas}; pass two numbers in [0, 1), such as (0.9, 0.99)")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum} is not in [0, 1); 0.9 is usual")
        risks = simulate_risk(
            self.root,
            -self.theta_star,
            self.P_inf,
            rates=_rates(lr, steps, schedule),
            optimizer=optimizer,
            batch=batch,
            momentum=momentum,
            betas=betas or BETAS.get(optimizer, (0.0, 0.0)),
            generators=[np.random.default_rng([seed + run, 0x516E]) for run in range(seeds)],
            record=where,
        )
        with np.errstate(invalid="ignore"):
            error = risks.std(axis=0, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.full(len(where), np.nan)
        return self._curve(optimizer, batch, where, risks.mean(axis=0), error)

    def predict_risk(
        self,
        optimizer: str = "signsgd",
        *,
        lr: float,
        steps: int,
        schedule: Schedule = "constant",
        batch: int = 1,
        record: int | ArrayLike = 40,
    ) -> pd.DataFrame:
        """The expected risk, without a simulation: what `simulate` averages to, in milliseconds.

        Parameters are those of `simulate`; the optimiser is "sgd" or "signsgd". ``risk_se`` is 0.

        Raises
        ------
        NotCovered : signSGD on a problem with a dominant direction (see `coverage`), or another optimiser.
        """
        steps, where = self._check(optimizer, lr, steps, batch, record)
        self.coverage(optimizer, batch=batch).require()
        risks = self.mode_recursion(optimizer, lr=lr, steps=steps, schedule=schedule, batch=batch, record=where)
        return self._curve(optimizer, batch, where, risks, np.zeros(len(where)))

    def mode_recursion(
        self, optimizer: str, *, lr: float, steps: int, schedule: Schedule, batch: int, record: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The recursion under `predict_risk` as plain mathematics: no check whether it describes this problem."""
        modes = self.sgd_modes if optimizer == "sgd" else self.sign_modes
        return risk_curve(
            *modes,
            self.P_inf,
            sign_gain=None if optimizer == "sgd" else drift_gain(batch),
            batch=batch,
            rates=_rates(lr, steps, schedule),
            record=record,
        )

    def noise_floor(self, lr: float, *, optimizer: str = "signsgd", batch: int = 1) -> float:
        """The risk that a constant rate ends at (see `sign_floor`, `sgd_floor`); inf where SGD diverges.

        Raises
        ------
        NotCovered : as `predict_risk`.
        """
        self._check(optimizer, lr, 1, batch, 1)
        self.coverage(optimizer, batch=batch).require()
        if optimizer == "sgd":
            return noise_floor.sgd_floor(lr, self.sgd_modes.eigenvalues, self.P_inf, batch)
        return noise_floor.sign_floor(lr, self.total_scale, self.P_inf, drift_gain(batch))

    def lr_for_loss(self, target: float, *, optimizer: str = "signsgd", batch: int = 1) -> float:
        """The constant learning rate whose noise floor is ``target``, which must exceed P_inf.

        Raises
        ------
        ValueError : a target at or below P_inf, which no rate reaches.
        NotCovered : as `predict_risk`.
        """
        self._check(optimizer, 1.0, 1, batch, 1)
        self.coverage(optimizer, batch=batch).require()
        if not self.P_inf < target < np.inf:
            raise ValueError(
                f"target={target} is not above the irreducible risk P_inf={self.P_inf:.6g}; raise the target, "
                "or take a larger model"
            )
        if optimizer == "sgd":
            return noise_floor.sgd_rate(target, self.sgd_modes.eigenvalues, self.P_inf, batch)
        return noise_floor.sign_rate(target, self.total_scale, self.P_inf, drift_gain(batch))

    def stability_limit(self, *, batch: int = 1) -> float:
        """SGD's largest stable learning rate; signSGD has none, as its steps are bounded."""
        check_whole(batch=batch)
        return noise_floor.sgd_stability_limit(self.sgd_modes.eigenvalues, batch)

    def rate_grid(self, optimizer: str, count: int) -> NDArray[np.float64]:
        """Learning rates from far too small to about the largest sensible, log-spaced; shape (count,)."""
        if optimizer == "sgd":
            return self.stability_limit() * np.geomspace(1e-3, 0.9, count)
        return np.sqrt(self.initial_risk) / self.total_scale * np.geomspace(1e-3, 1.0, count)

    def _curve(
        self, optimizer: str, batch: int, step: NDArray[np.int64], mean: NDArray[np.float64], error: NDArray[np.float64]
    ) -> pd.DataFrame:
        curve = pd.DataFrame({"step": step, "risk_mean": mean, "risk_se": error})
        if np.isinf(mean).any():
            limit = f"; SGD is stable below lr={self.stability_limit(batch=batch):.4g}" if optimizer == "sgd" else ""
            curve.attrs["diverged"] = f"the risk diverged before step {step[np.isinf(mean)][0]}{limit}"
        return curve

    def _check(
        self, optimizer: str, lr: float, steps: int, batch: int, record: int | ArrayLike
    ) -> tuple[int, NDArray[np.int64]]:
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer={optimizer!r} is unknown; choose one of {', '.join(OPTIMIZERS)}")
        if not 0 < lr < np.inf:
            raise ValueError(f"lr={lr} must be positive and finite")
        check_whole(steps=steps, batch=batch)
        if np.ndim(record) == 0:
            check_whole(record=record)
            where = np.unique(np.geomspace(1, steps, int(record)).round()) if record > 1 else np.array([steps])
        else:
            where = np.unique(record)
        if not where.size or not (where[0] >= 0 and where[-1] <= steps and np.all(where == np.floor(where))):
            raise ValueError(
                f"record asks for steps {where.tolist()}; they must be whole numbers between 0 and steps={steps}"
            )
        return int(steps), where.astype(np.int64)


def check_whole(**values: float) -> None:
    """Refuse what is no whole number from 1 on."""
    for name, value in values.items():
        if not 1 <= value < np.inf or value != int(value):
            raise ValueError(f"{name}={value}; it must be a whole number of at least 1")


def _spectrum(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    eigenvalues, vectors = eigh(matrix)
    eigenvalues = np.where(eigenvalues > RELATIVE_ZERO * eigenvalues[-1], eigenvalues, 0.0)
    return eigenvalues, vectors


def _rates(lr: float, steps: int, schedule: Schedule) -> NDArray[np.float64]:
    if isinstance(schedule, WSD):
        return lr * schedule.multipliers(steps)
    if schedule != "constant":
        raise ValueError(f"schedule={schedule!r}; pass 'constant' or a WSD, such as WSD(decay=0.2)")
    return np.full(steps, lr)


__all__ = ["GaussianRegression", "Modes", "NotCovered", "Schedule"]
