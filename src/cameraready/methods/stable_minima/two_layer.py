"""The two-layer ReLU network f(x) = sum_k v_k ReLU(w_k.x - b_k) + c on arrays: gradient descent and its sharpness.

The gradients and Hessian products of L = 1/(2n) sum (f(x_i) - y_i)^2 are closed forms, five matrix products a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from cameraready.methods.stable_minima.relu_block import ReluBlock

Floats = NDArray[np.float64]
CHUNK = 500  # steps between looks at which neurons are dead


@dataclass(frozen=True)
class TwoLayer:
    """Weights ``W`` (width, d), thresholds ``b`` (width,), output weights ``v`` (width,) and output bias ``c``."""

    W: Floats
    b: Floats
    v: Floats
    c: float

    @classmethod
    def random(cls, d: int, *, width: int, rng: np.random.Generator) -> TwoLayer:
        """Uniform in +-1/sqrt(fan in), as `torch.nn.Linear` starts; the output bias is 0."""
        first, second = 1 / np.sqrt(d), 1 / np.sqrt(width)
        return cls(
            W=rng.uniform(-first, first, size=(width, d)),
            b=rng.uniform(-first, first, size=width),
            v=rng.uniform(-second, second, size=width),
            c=0.0,
        )

    def predict(self, X: Floats) -> Floats:
        """f(x) of each row of X (n, d)."""
        return np.maximum(X @ self.W.T - self.b, 0.0) @ self.v + self.c

    def block(self, X: Floats) -> ReluBlock:
        """The same network as a block with the inputs X (n, d)."""
        return ReluBlock(self.W, self.b, self.v[None], np.array([self.c]), X, has_b=True, has_c=True, whole=True)


def gradient_descent(
    net: TwoLayer,
    X: Floats,
    y: Floats,
    *,
    lr: float,
    steps: int,
    every: int = 0,
    observe: Callable[[int, TwoLayer], None] | None = None,
) -> TwoLayer:
    """``steps`` of full-batch gradient descent on the loss with the factor 1/2, in float64.

    Parameters
    ----------
    X, y : (n, d) and (n,).
    lr : learning rate eta; the edge of stability is lambda_max = 2 / eta.
    every, observe : ``observe(step, net)`` is called at step 0, every, 2 every, ...

    Raises
    ------
    FloatingPointError : the loss grew beyond 10^6 times its start; the learning rate is too large.
    """
    # Gradients of W lie in the span of the rows of X: the descent runs in an orthonormal basis of it.
    axes = np.linalg.svd(X, full_matrices=False)[2][: np.linalg.matrix_rank(X)]
    if len(axes) == X.shape[1]:
        axes = np.eye(len(axes))
    A = np.column_stack([X @ axes.T, -np.ones(len(X))])  # the threshold is the weight of a constant input -1
    P, v, c = np.column_stack([net.W @ axes.T, net.b]), net.v.copy(), float(net.c)
    outside = net.W - net.W @ axes.T @ axes

    def weights() -> TwoLayer:
        return TwoLayer(P[:, :-1] @ axes + outside, P[:, -1].copy(), v.copy(), float(c))

    limit, step = 1e6 * (1.0 + float(y @ y) / len(y)), 0
    while step < steps:
        if observe is not None and every and step % every == 0:
            observe(step, weights())
        size = min(CHUNK, steps - step, every - step % every if every else CHUNK)
        alive = (A @ P.T > 0).any(axis=0)  # the others have no gradient, now and later
        P[alive], v[alive], c, square = _descend(A, y, P[alive], v[alive], c, lr=lr, steps=size)
        step += size
        if not square < limit:
            raise FloatingPointError(f"gradient descent with lr={lr:g} diverged before step {step}; pass a smaller lr")
    return weights()


def _descend(
    A: Floats, y: Floats, P: Floats, v: Floats, c: float, *, lr: float, steps: int
) -> tuple[Floats, Floats, float, float]:
    """``steps`` of gradient descent on all of the weights; also the mean squared residual before the last."""
    n, width = len(A), len(v)
    Z, H, M = (np.empty((n, width)) for _ in range(3))
    with np.errstate(over="ignore", invalid="ignore"):  # the caller reports divergence
        for _ in range(steps):
            np.matmul(A, P.T, out=Z)
            np.greater(Z, 0.0, out=M)
            np.multiply(Z, M, out=H)
            r = H @ v + c - y
            square = float(r @ r) / n
            r /= n
            gradient_P = v[:, None] * (M.T @ (r[:, None] * A))
            v -= lr * (H.T @ r)
            P -= lr * gradient_P
            c -= lr * r.sum()
    return P, v, c, square


def hessian(net: TwoLayer, X: Floats, y: Floats) -> LinearOperator:
    """Hessian of the loss with the factor 1/2, on vectors (rows of (w_k, b_k), then v, then c), off the kinks."""
    n, width = len(X), len(net.v)
    A = np.column_stack([X, -np.ones(n)])
    P = np.column_stack([net.W, net.b])
    Z = A @ P.T
    M, H = (Z > 0).astype(float), np.maximum(Z, 0.0)
    r = (H @ net.v + net.c - y) / n
    pull = M.T @ (r[:, None] * A)  # the gradient of <r, f> in P, divided by v
    size = P.size + width + 1

    def product(flat: Floats) -> Floats:
        flat = flat.reshape(-1)
        dP, dv, dc = flat[: P.size].reshape(P.shape), flat[P.size : -1], flat[-1]
        dZ = M * (A @ dP.T)
        df = (dZ @ net.v + H @ dv + dc) / n
        outP = net.v[:, None] * (M.T @ (df[:, None] * A)) + dv[:, None] * pull
        return np.concatenate([outP.reshape(-1), H.T @ df + dZ.T @ r, [df.sum()]])

    return LinearOperator((size, size), matvec=product, dtype=np.float64)


def largest_eigenvalue(operator: LinearOperator, *, tolerance: float = 1e-6) -> float:
    """The largest (not the largest absolute) eigenvalue, by Lanczos from a fixed start."""
    start = np.random.default_rng(0).normal(size=operator.shape[0])
    return float(eigsh(operator, k=1, which="LA", tol=tolerance, v0=start, return_eigenvectors=False)[0])
