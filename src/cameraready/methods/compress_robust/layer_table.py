"""The table of a model's layers: how compressible each is, and what its operator norm is made of."""

from __future__ import annotations

import math

import pandas as pd
import torch
from torch import Tensor, nn

from cameraready.methods.compress_robust.compressibility import (
    TOLERANCE,
    Decomposition,
    as_matrix,
    curve,
    decompose,
    effective_rank,
    pq_index,
    row_norms,
    singular_values,
    stable_rank,
)
from cameraready.methods.compress_robust.layers import Layer, input_shapes, layers_of
from cameraready.methods.compress_robust.operator_norms import operator_norm

GRAM = 256  # above this many rows and columns the spectrum comes from the Gram matrix, to half the digits
NORM_TOL = 1e-3  # of a convolution's l_2 norm in the table


def layer_table(model: nn.Module, example: Tensor, *, eps: float = TOLERANCE) -> pd.DataFrame:
    """Compressibility and norms of every Linear and convolution.

    Parameters
    ----------
    model : any module; only its layers' weights and input sizes are used, so the whole need not be understood.
    example : inputs (n, ...), one is enough, to see each layer's input size.
    eps : the share that the kept entries may leave out.

    Returns
    -------
    DataFrame, one row a layer: name, kind, rows, parameters; zero_rows; k_rows (rows that hold 1 - eps of the sum of
    row l1 norms), k (singular values that hold all but eps of the Frobenius norm), eff_rank, stable_rank, pq_index;
    energy * concentration * spread (of sigma_1) and opnorm_2; the same with _inf (of the largest row l1 norm) and
    opnorm_inf. A convolution's opnorm_2 is that of the whole map, sigma_1 times ``conv_factor``. What a layer has no
    number for is NaN, with the reason in ``note``.

    Examples
    --------
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> layer_table(model, torch.zeros(1, 4))[["name", "rows", "parameters"]].values.tolist()
    [['0', 8, 32], ['2', 2, 16]]
    """
    shapes = input_shapes(model, example)
    rows = [_row(layer, shapes.get(layer.name), eps) for layer in layers_of(model)]
    if not rows:
        raise ValueError(f"{type(model).__name__} has no Linear and no convolution; there is nothing to analyse")
    return pd.DataFrame(rows)


def spectrum(weight: Tensor) -> Tensor:
    """Singular values of a layer's matrix, largest first."""
    matrix = as_matrix(weight)
    if min(matrix.shape) <= GRAM:
        return singular_values(matrix)
    gram = matrix @ matrix.mH if matrix.shape[0] <= matrix.shape[1] else matrix.mH @ matrix
    return torch.linalg.eigvalsh(gram).flip(0).clamp(min=0).sqrt()


def _row(layer: Layer, shape: tuple[int, ...] | None, eps: float) -> dict[str, object]:
    matrix = as_matrix(layer.weight.cpu())
    nu, sigma = row_norms(matrix, 1), spectrum(layer.weight.cpu())
    k_rows, k = curve(nu, q=1).k_at(eps), curve(sigma, q=2).k_at(eps)
    by_rows, by_spectrum = decompose(nu, norm="inf", k=k_rows), decompose(sigma, norm="2", k=k)
    norms, note = _operator_norms(layer, shape, by_rows, by_spectrum)
    sigma_1 = by_spectrum.norm
    return {
        "name": layer.name,
        "kind": type(layer.module).__name__,
        "rows": len(nu),
        "parameters": sum(p.numel() for p in layer.module.parameters() if p.ndim > 1) or layer.weight.numel(),
        "zero_rows": int((nu == 0).sum()),
        "k_rows": k_rows,
        "k": k,
        "eff_rank": effective_rank(sigma),
        "stable_rank": stable_rank(sigma),
        "pq_index": pq_index(nu),
        "energy": by_spectrum.energy,
        "concentration": by_spectrum.concentration,
        "spread": by_spectrum.spread,
        "conv_factor": norms[0] / sigma_1 if sigma_1 > 0 else 1.0,
        "opnorm_2": norms[0],
        "energy_inf": by_rows.energy,
        "concentration_inf": by_rows.concentration,
        "spread_inf": by_rows.spread,
        "opnorm_inf": norms[1],
        "note": note,
    }


def _operator_norms(
    layer: Layer, shape: tuple[int, ...] | None, by_rows: Decomposition, by_spectrum: Decomposition
) -> tuple[tuple[float, float], str]:
    if not layer.is_convolution:
        return (by_spectrum.norm, by_rows.norm), ""
    if layer.weight.is_complex():
        return (math.nan, math.nan), "complex convolution: no operator norm"
    if shape is None:
        return (math.nan, math.nan), "not reached by the example: its input size is unknown"
    if "quantized" in type(layer.module).__module__:
        return (math.nan, math.nan), "quantised convolution: no operator norm"
    return (operator_norm(layer.module, "2", shape, tol=NORM_TOL), operator_norm(layer.module, "inf", shape)), ""
