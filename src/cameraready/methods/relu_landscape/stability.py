"""Linear stability of the drift of the order parameters: which minima attract one-pass SGD."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from cameraready.coverage import NotCovered
from cameraready.methods.relu_landscape.order_parameters import check_feasible, drift

PARALLEL = 1e-10  # of 1 - |cos|


def drift_spectrum(Q: ArrayLike, R: ArrayLike, T: ArrayLike) -> NDArray[np.complex128]:
    """Eigenvalues of the Jacobian of the drift in (Q, R), by automatic differentiation, largest real part first.

    There are K (K + 1) / 2 + K M of them. At a critical point they are those of minus the Hessian in the teachers' span
    (motions of R) and minus all sums of two eigenvalues of A (motions of Q alone): the point attracts the dynamics
    exactly when it is a minimum in every dimension.

    Raises
    ------
    NotCovered : a student of norm 0, or two parallel neurons, where the drift has no derivative in (Q, R): its terms in
        sin t have infinite slope. Global minima are such points.
    """
    Q, R, T = check_feasible(Q, R, T)
    K, M = R.shape
    norms, lengths = np.sqrt(np.diag(Q)), np.sqrt(np.diag(T))
    if (norms == 0).any():
        raise NotCovered("a student of norm 0: the drift has no derivative")
    cosines = np.hstack([Q / np.outer(norms, norms) - 2 * np.eye(K), R / np.outer(norms, lengths)])
    own = np.hstack([np.eye(K, dtype=bool), np.zeros((K, M), dtype=bool)])
    if (np.abs(cosines[~own]) > 1 - PARALLEL).any():
        raise NotCovered("two neurons are parallel: the drift has no derivative in (Q, R)")
    rows, columns = torch.triu_indices(K, K)
    teacher = torch.as_tensor(T)

    def field(y: torch.Tensor) -> torch.Tensor:
        upper = torch.zeros(K, K, dtype=torch.float64).index_put((rows, columns), y[: len(rows)])
        full = upper + torch.triu(upper, 1).T
        dQ, dR = drift(full, y[len(rows) :].reshape(K, M), teacher)
        return torch.cat([dQ[rows, columns], dR.reshape(-1)])

    y = torch.cat([torch.as_tensor(Q)[rows, columns], torch.as_tensor(R).reshape(-1)])
    values = np.linalg.eigvals(torch.func.jacrev(field)(y).numpy())
    return values[np.argsort(-values.real)]
