"""How sharp the loss is where a model stands, against the edge of stability of its optimiser."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh, lobpcg
from torch import Tensor, nn

from cameraready.coverage import NotCovered
from cameraready.methods.stable_minima.curvature import Curvature, Kind, check_model, evaluating, read_batches
from cameraready.methods.stable_minima.thresholds import adam_scale, stability_threshold

Floats = NDArray[np.float64]
AT_THE_EDGE = 0.1  # of the threshold
DENSE = 40  # parameters up to which the matrix is formed


@dataclass(frozen=True)
class Sharpness:
    """What `sharpness` measured.

    Attributes
    ----------
    values : the k largest eigenvalues, largest first; of the mean loss over the batches that were read.
    se : standard error of each as an estimate for the whole loader; 0 where all of it was read, NaN for one batch of
        several.
    threshold : lambda_max at which the optimiser becomes unstable, or why there is none.
    status : "below", "at" (within 10 %) or "above" the threshold, or why nothing can be said.
    interval : (low, high); they differ where the eigensolver did not converge. lambda_max is at least low, and some
        eigenvalue lies between low and high.
    loss : mean loss over the batches.
    n_examples, n_batches, all_batches : what was read, and how many batches there are (-1: the loader does not say).
    vector : the eigenvector of values[0], over all trainable parameters.
    """

    values: Floats
    se: Floats
    threshold: float | NotCovered
    status: str | NotCovered
    kind: Kind
    interval: tuple[float, float]
    loss: float
    n_examples: int
    n_batches: int
    all_batches: int
    vector: Floats

    @property
    def lambda_max(self) -> float:
        return float(self.values[0])

    def __str__(self) -> str:
        name = {"hessian": "Hessian", "gauss_newton": "Gauss-Newton matrix", "adam": "preconditioned Hessian (Adam)"}
        read = "all" if self.n_batches == self.all_batches else f"{self.n_batches} of {self.all_batches}"
        read = f"{self.n_batches}" if self.all_batches < 0 else read
        values = ", ".join(
            f"{value:.4g}" + (f" +- {error:.2g}" if error > 0 else "")
            for value, error in zip(self.values, self.se, strict=True)
        )
        lines = [f"lambda_max of the {name[self.kind]}: {values}   ({read} batches, {self.n_examples} examples)"]
        if self.interval[0] < self.interval[1]:
            lines.append(
                f"Lanczos did not converge: lambda_max is at least {self.interval[0]:.4g}, "
                f"probably at most {self.interval[1]:.4g}"
            )
        if self.threshold:
            lines.append(f"{self.status} the edge of stability at {self.threshold:.4g} (of full-batch steps)")
        else:
            lines.append(f"edge of stability {self.threshold}")
        return "\n".join(lines)


def sharpness(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    loader: Iterable[Any],
    *,
    k: int = 1,
    kind: Kind = "hessian",
    optimizer: torch.optim.Optimizer | None = None,
    lr: float | None = None,
    batches: int | None = 8,
    tolerance: float = 1e-4,
    max_products: int = 500,
    start: Floats | None = None,
) -> Sharpness:
    """The largest eigenvalues of the loss's curvature, by Lanczos on products with it.

    Power iteration would find the largest *absolute* eigenvalue, early in training often a negative one. The
    model is measured in evaluation mode and left as it was.

    Parameters
    ----------
    model : any torch model; parameters that require a gradient count.
    loss_fn : ``loss_fn(model(x), y)``, the mean over the batch.
    loader : yields (x, y), as a DataLoader does; or one pair (X, y) of tensors or arrays, all the data.
    k : number of eigenvalues.
    kind : "hessian"; "gauss_newton", without the residuals' part; "adam", D^-1/2 H D^-1/2 with Adam's own D.
    optimizer : gives the learning rate and momentum of the threshold; needed, after a step, for "adam".
    lr : learning rate of plain gradient descent, where there is no optimizer.
    batches : how many to read; None reads all. A part of the data overestimates the whole's lambda_max.
    tolerance : relative accuracy of the eigenvalues.
    max_products : Lanczos restarts end after about so many products with the curvature.
    start : where Lanczos starts, for instance the ``vector`` of an earlier measurement: that saves most products.

    Raises
    ------
    ValueError, TypeError : a loss that is not a scalar mean, weights that are not finite, nothing to train, no data.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> X, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
    >>> found = sharpness(model, torch.nn.MSELoss(), (X, y), lr=0.1)  # the Hessian is X'X: eigenvalues 1 and 4
    >>> round(found.lambda_max, 4), found.status, found.threshold
    (4.0, 'below', 20.0)
    """
    check_model(model, loss_fn)
    if kind not in ("hessian", "gauss_newton", "adam"):
        raise ValueError(f"kind={kind!r}; choose 'hessian', 'gauss_newton' or 'adam'")
    if batches is not None and batches < 1:
        raise ValueError(f"batches={batches}; read at least 1, or None for all")
    scale = adam_scale(model, optimizer) if kind == "adam" else None
    read, n_examples, total = read_batches(loader, batches)
    with evaluating(model):
        curvature = Curvature(model, loss_fn, read, kind=kind, scale=scale)
        if not isinstance(k, int) or not 1 <= k <= curvature.size:
            raise ValueError(f"k={k}; it must be a whole number from 1 to the {curvature.size} trainable parameters")
        loss = _checked_loss(curvature)
        warm = start is not None and start.shape == (curvature.size,) and bool(np.any(start))
        first = start if warm else np.random.default_rng(0).normal(size=curvature.size)
        space = max(2 * k + 1, 3 if warm else 20)
        values, vectors, residual = _largest(
            curvature, k, start=first, space=space, tolerance=tolerance, max_products=max_products
        )
        errors = _standard_errors(curvature, vectors, total)
    threshold = stability_threshold(kind, optimizer, lr)
    return Sharpness(
        values=values,
        se=errors,
        threshold=threshold,
        status=_status(values[0], threshold),
        kind=kind,
        interval=(float(values[0]), float(values[0] + residual)),
        loss=loss,
        n_examples=n_examples,
        n_batches=len(read),
        all_batches=total,
        vector=vectors[:, 0],
    )


def _checked_loss(curvature: Curvature) -> float:
    """The mean loss over the batches, refused where it is not a finite scalar."""
    with torch.no_grad():
        losses = [curvature.loss(batch) for batch in curvature.batches]
    for loss in losses:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"loss_fn returned {shape}; the meter needs a scalar mean loss")
        if not bool(torch.isfinite(loss)):
            raise ValueError(f"the loss of a batch is {float(loss)}; did training diverge?")
    return float(curvature.weights @ [float(loss) for loss in losses])


def _largest(
    curvature: Curvature, k: int, *, start: Floats, space: int, tolerance: float, max_products: int
) -> tuple[Floats, Floats, float]:
    """Eigenvalues, eigenvectors (columns), and by how much the first may still be off."""
    size = curvature.size
    if size <= max(DENSE, 2 * k + 1):
        matrix = np.column_stack([curvature(column) for column in np.eye(size)])
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        return values[::-1][:k].copy(), vectors[:, ::-1][:, :k].copy(), 0.0
    operator = LinearOperator((size, size), matvec=curvature, dtype=np.float64)
    try:
        restarts = max(1, max_products // (space - k))
        values, vectors = eigsh(operator, k=k, which="LA", v0=start, ncv=space, maxiter=restarts, tol=tolerance)
    except ArpackNoConvergence:
        return _unconverged(operator, k, start)
    except ArpackError:
        if np.any(operator @ start):
            raise
        return np.zeros(k), np.linalg.qr(np.column_stack([start, np.eye(size, k - 1)]))[0], 0.0  # nothing is curved
    order = np.argsort(values)[::-1]
    return values[order], vectors[:, order], 0.0


def _unconverged(operator: LinearOperator, k: int, start: Floats) -> tuple[Floats, Floats, float]:
    """Rayleigh quotients bound lambda_max from below; an eigenvalue lies within the residual of them."""
    block = np.random.default_rng(0).normal(size=(len(start), k))
    block[:, 0] = start
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it tells that it did not converge, as does our interval
        values, vectors = lobpcg(operator, block, largest=True, maxiter=20, tol=1e-12, verbosityLevel=0)
    order = np.argsort(values)[::-1]
    values, vectors = values[order], vectors[:, order]
    residual = float(np.linalg.norm(operator @ vectors[:, 0] - values[0] * vectors[:, 0]))
    return values, vectors, residual


def _standard_errors(curvature: Curvature, vectors: Floats, total: int) -> Floats:
    """Of lambda as an estimate for all batches: to first order lambda is the mean of v' H_b v over the batches."""
    count = len(curvature.batches)
    if count == total:
        return np.zeros(vectors.shape[1])
    if count == 1:
        return np.full(vectors.shape[1], np.nan)
    quotients = np.array(
        [[vector @ curvature.of_batch(index, vector) for vector in vectors.T] for index in range(count)]
    )
    unread = 1 - count / total if total > 0 else 1.0
    return quotients.std(axis=0, ddof=1) * np.sqrt(unread / count)


def _status(value: float, threshold: float | NotCovered) -> str | NotCovered:
    if isinstance(threshold, NotCovered):
        return threshold
    if abs(value - threshold) < AT_THE_EDGE * threshold:
        return "at"
    return "below" if value < threshold else "above"
