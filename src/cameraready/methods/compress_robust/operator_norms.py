"""Operator norms of layers: l_inf exact, l_2 by Lanczos, and l_2 bounds from above that certificates may rest on.

A convolution's operator norm is that of the whole linear map on images of the real input size, not that of its kernel.
Lanczos, like every power method, approaches the norm from below; a certificate needs a number from above, which
`norm_bound` takes from the Fourier transform of the kernel.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, svds
from torch import Tensor, nn
from torch.nn import functional

from cameraready.coverage import NotCovered
from cameraready.methods.compress_robust.compressibility import Norm, as_matrix, row_norms, singular_values
from cameraready.methods.compress_robust.layers import as_convolution, linear_part, weight_of

DENSE = 512  # up to this many inputs or outputs the matrix is written out
ABOVE = 1 + 1e-9  # margin over a float64 singular value, for rounding


def operator_norm(
    module: nn.Module, p: Norm, input_shape: tuple[int, ...] | None = None, *, tol: float = 1e-6, seed: int = 0
) -> float:
    """||W||_p->p of a Linear, a convolution, or a `LowRank`, without its bias.

    Parameters
    ----------
    p : "inf" (exact; from above where a padding mode other than zeros folds the image onto itself) or "2".
    input_shape : a convolution's input without the batch, (channels, *size).
    tol : relative accuracy of a convolution's l_2 norm. Below 1e-5 the arithmetic is double.
    seed : of the start vector.

    Raises
    ------
    ValueError : a module without a weight, a missing or wrong input_shape, another p.

    Examples
    --------
    >>> from torch import nn
    >>> layer = nn.Linear(2, 2)
    >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, -4.0], [0.0, 1.0]]))
    >>> operator_norm(layer, "inf")
    7.0
    """
    weight = _weight(module, p)
    if weight.ndim == 2:
        matrix = as_matrix(weight)
        return float(row_norms(matrix, 1).max() if p == "inf" else singular_values(matrix)[0])
    shape = _checked_shape(module, weight, input_shape)
    if p == "inf":
        return _convolution_inf(module, weight, shape)
    real = torch.float64 if tol < 1e-5 else torch.float32
    return _lanczos(module, shape, real, tol, seed)


def norm_bound(module: nn.Module, p: Norm, input_shape: tuple[int, ...] | None = None) -> float:
    """A number that ||W||_p->p cannot exceed; for a Linear, and for l_inf, the norm itself.

    A small convolution is written out as a matrix. Otherwise, for l_2: padding embeds the image in a larger one, and
    stride s reads it as s^d images of 1/s the size; both are isometries. What is left is part of a circular
    convolution, whose singular values are those of the kernel's Fourier transform at each frequency. So the largest
    of these is a bound from above, tight for large images.

    Raises
    ------
    NotCovered : a padding mode other than zeros or circular.
    ValueError : as `operator_norm`.
    """
    weight = _weight(module, p)
    if weight.ndim == 2 or p == "inf":
        return operator_norm(module, p, input_shape) * ABOVE
    shape = _checked_shape(module, weight, input_shape)
    with torch.no_grad():
        outputs = linear_part(module, torch.zeros(1, *shape)).numel()
    if min(outputs, math.prod(shape)) <= DENSE:
        return _lanczos(module, shape, torch.float64, 1e-6, 0) * ABOVE
    conv = as_convolution(module)
    if conv.padding_mode != "zeros":
        raise NotCovered(f"an l_2 bound for padding mode {conv.padding_mode!r}")
    size = [n + sum(pad) for n, pad in zip(shape[1:], _paddings(conv, weight), strict=True)]
    per_group = len(weight) // conv.groups
    return max(
        _fourier_norm(weight[g * per_group : (g + 1) * per_group], size, conv.stride, conv.dilation)
        for g in range(conv.groups)
    )


def channel_norm(function: nn.Module, size: tuple[int, ...], p: Norm) -> float:
    """Exact norm of a linear map that treats each channel alike (pooling), from its matrix on one channel of ``size``.

    Raises
    ------
    NotCovered : the matrix would be too large.
    """
    n = math.prod(size)
    with torch.no_grad():
        rows = function(torch.zeros(1, 1, *size, dtype=torch.float64)).numel()
        if rows * n > 2**24:
            raise NotCovered(f"a pooling layer from {n} to {rows} pixels; name its constant in `constants`")
        matrix = function(torch.eye(n, dtype=torch.float64).reshape(n, 1, *size)).reshape(n, rows).T
    if p == "inf":
        return float(row_norms(matrix, 1).max())
    gram = matrix @ matrix.T if rows <= n else matrix.T @ matrix
    return float(torch.linalg.eigvalsh(gram)[-1].clamp(min=0).sqrt()) * ABOVE


def _weight(module: nn.Module, p: Norm) -> Tensor:
    if p not in ("inf", "2"):
        raise ValueError(f"p={p!r}; choose 'inf' or '2'")
    weight = weight_of(module)
    if weight is None:
        raise ValueError(f"{type(module).__name__} has no weight matrix; pass a Linear, a convolution or a LowRank")
    if not torch.isfinite(weight).all():
        raise ValueError(f"{int((~torch.isfinite(weight)).sum())} weights of {type(module).__name__} are not finite")
    return weight


def _checked_shape(module: nn.Module, weight: Tensor, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    conv = as_convolution(module)
    needed = (weight.shape[1] * conv.groups, *["size"] * (weight.ndim - 2))
    if shape is None:
        raise ValueError(f"a convolution's norm depends on its input size; pass input_shape={needed}")
    shape = tuple(shape)
    if len(shape) != len(needed) or shape[0] != needed[0] or min(shape) < 1:
        raise ValueError(f"input_shape={shape}; this layer takes {needed}, without the batch")
    return shape


def _convolution_inf(module: nn.Module, weight: Tensor, shape: tuple[int, ...]) -> float:
    """The largest row sum of |W|, which is |W| applied to the image of ones: borders and small images included."""
    conv = as_convolution(module)
    x = torch.ones(1, *shape, dtype=torch.float64)
    padding: object = conv.padding
    if conv.padding_mode != "zeros":
        x, padding = functional.pad(x, conv._reversed_padding_repeated_twice, mode=conv.padding_mode), 0
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[weight.ndim - 3]
    return float(function(x, weight.abs().double(), None, conv.stride, padding, conv.dilation, conv.groups).max())


def _lanczos(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, tol: float, seed: int) -> float:
    x = torch.zeros(1, *shape, dtype=dtype, requires_grad=True)
    y = linear_part(module, x)
    n, m = x.numel(), y.numel()

    def forward(v: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return (
                linear_part(module, torch.from_numpy(np.ascontiguousarray(v)).to(dtype).reshape(x.shape))
                .numpy()
                .ravel()
            )

    def adjoint(u: np.ndarray) -> np.ndarray:
        u = torch.from_numpy(np.ascontiguousarray(u)).to(dtype).reshape(y.shape)
        return torch.autograd.grad(y, x, u, retain_graph=True)[0].numpy().ravel()

    numpy_dtype = np.float64 if dtype == torch.float64 else np.float32
    if min(n, m) <= DENSE:
        rows = [adjoint(e) for e in np.eye(m)] if m <= n else [forward(e) for e in np.eye(n)]
        return float(np.linalg.norm(np.asarray(rows, dtype=np.float64), 2))
    operator = LinearOperator((m, n), matvec=forward, rmatvec=adjoint, dtype=numpy_dtype)
    # Converged to tol in the eigenvalue of A^T A is tol / 2 in the singular value; a flat spectrum needs a long basis.
    start = np.random.default_rng(seed).normal(size=min(n, m)).astype(numpy_dtype)
    return float(svds(operator, k=1, ncv=24, tol=tol, v0=start, return_singular_vectors=False, maxiter=2000)[-1])


def _paddings(conv: nn.Module, weight: Tensor) -> list[tuple[int, int]]:
    kernel = weight.shape[2:]
    if conv.padding == "valid":
        return [(0, 0)] * len(kernel)
    if conv.padding == "same":
        totals = [d * (k - 1) for d, k in zip(conv.dilation, kernel, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]
    return [(pad, pad) for pad in conv.padding]


def _fourier_norm(weight: Tensor, size: list[int], stride: tuple[int, ...], dilation: tuple[int, ...]) -> float:
    """Largest singular value over all frequencies of the kernel (out, in, *kernel), padded image ``size``."""
    weight = weight.double().cpu()
    dims = range(len(size))
    spread = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    kernel = weight.new_zeros(*weight.shape[:2], *[math.ceil(n / s) * s for n, s in zip(spread, stride, strict=True)])
    kernel[(..., *[slice(0, n, d) for n, d in zip(spread, dilation, strict=True)])] = weight
    # (out, in, n_1, n_2) -> (out, in * s_1 * s_2, n_1 / s_1, n_2 / s_2): one channel for each phase of the stride.
    for i in dims:
        kernel = kernel.unflatten(2 + 2 * i, (-1, stride[i]))
    blocks, phases = [2 + 2 * i for i in dims], [3 + 2 * i for i in dims]
    kernel = kernel.permute(0, 1, *phases, *blocks).flatten(1, 1 + len(size))
    torus = [max(math.ceil(n / s), k) for n, s, k in zip(size, stride, kernel.shape[2:], strict=True)]
    if math.prod(kernel.shape[2:]) == 1:  # no overlap between patches: one matrix says it all
        return float(singular_values(kernel.flatten(1))[0]) * ABOVE
    frequencies = torch.fft.rfftn(kernel, s=torus, dim=tuple(2 + i for i in dims)).flatten(2).permute(2, 0, 1)
    best = 0.0
    for part in frequencies.split(max(1, 2**22 // kernel[..., 0].numel())):
        gram = part @ part.mH if part.shape[1] <= part.shape[2] else part.mH @ part
        best = max(best, float(torch.linalg.eigvalsh(gram)[:, -1].max()))
    return math.sqrt(max(best, 0.0)) * ABOVE
