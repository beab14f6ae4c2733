"""Other fast attentions, as small references: queries, keys and values (m, n, E), one size parameter, one generator.

Each answers ``softmax(scale Q K^T + bias) V`` approximately. Settings are those its authors recommend; where a method
estimates sampling probabilities or centres, that work is part of its call and so of its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Peer = Callable[[Tensor, Tensor, Tensor, float, Tensor | None, int, torch.Generator], Tensor]


def exact(query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """torch's fused attention. A bias becomes one more coordinate, ``[q, 1] . [k, bias / scale]``: the fused kernel is
    faster so than with a mask."""
    if bias is not None:
        bias = bias - bias.amax(-1, keepdim=True)
        query = torch.cat([query, torch.ones_like(query[..., :1])], -1)
        key = torch.cat([key, (bias / scale).clamp_min(-1e9).unsqueeze(-1)], -1)
    if query.shape[-1] != value.shape[-1]:  # equal widths, or torch leaves its fused kernel
        width = max(query.shape[-1], value.shape[-1])
        query, key, padded = (F.pad(x, (0, width - x.shape[-1])) for x in (query, key, value))
        answer = F.scaled_dot_product_attention(query[None], key[None], padded[None], scale=scale)[0]
        return answer[..., : value.shape[-1]]
    return F.scaled_dot_product_attention(query[None], key[None], value[None], scale=scale)[0]


def _rows(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def _subset(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    bias: Tensor | None,
    index: Tensor,
    log_weight: Tensor | None,
) -> Tensor:
    chosen = None if bias is None else bias.gather(1, index)
    if log_weight is not None:
        chosen = log_weight if chosen is None else chosen + log_weight
    return exact(query, _rows(key, index), _rows(value, index), scale, chosen)


def uniform(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, size: int, generator: torch.Generator
) -> Tensor:
    """Keys drawn without replacement; their equal weights ``n / size`` cancel."""
    index = torch.rand(key.shape[:2], generator=generator).argsort(-1)[:, :size]
    return _subset(query, key, value, scale, bias, index, None)


def leverage(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, size: int, generator: torch.Generator
) -> Tensor:
    """Ridge leverage scores of the Gaussian-normalised key kernel, from ``size`` uniform landmarks; weights
    ``1 / (size p)``."""
    m, n, _ = key.shape
    x = (key - key.mean(1, keepdim=True)) * math.sqrt(scale)
    landmarks = _rows(x, torch.rand(m, n, generator=generator).argsort(-1)[:, :size])
    kernel = torch.exp(-torch.cdist(landmarks, x).square() / 2)
    core = torch.exp(-torch.cdist(landmarks, landmarks).square() / 2)
    ridge = n / size * 1e-1
    inner = kernel @ kernel.transpose(1, 2) + ridge * core
    # Landmarks are nearly dependent: without this much jitter, single precision has no Cholesky factor.
    jitter = 1e-5 * torch.diagonal(inner, dim1=1, dim2=2).amax(-1)
    inner = inner + jitter[:, None, None] * torch.eye(size)
    whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), kernel, upper=False)
    odds = whitened.square().sum(1).clamp_min(1e-12)
    odds = odds / odds.sum(-1, keepdim=True)
    index = torch.multinomial(odds, size, replacement=True, generator=generator)
    return _subset(query, key, value, scale, bias, index, -odds.gather(1, index).log())


def kmeans_keys(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, size: int, generator: torch.Generator
) -> Tensor:
    """``size`` centres of 5 Lloyd iterations; each stands for its keys with their count and mean value."""
    m, n, width = key.shape
    centres = _rows(key, torch.rand(m, n, generator=generator).argsort(-1)[:, :size])
    weight = torch.ones(m, n) if bias is None else (bias - bias.amax(-1, keepdim=True)).exp()
    columns = torch.cat([key, value, torch.ones(m, n, 1)], -1)
    for _ in range(5):
        half = centres.square().sum(-1) / 2
        nearest = torch.baddbmm(-half.unsqueeze(1), key, centres.transpose(1, 2)).argmax(-1)
        sums = torch.zeros(m, size, columns.shape[-1]).scatter_add_(
            1, nearest.unsqueeze(-1).expand(-1, -1, columns.shape[-1]), columns
        )
        count = sums[..., -1:]
        centres = torch.where(count > 0, sums[..., :width] / count.clamp_min(1), centres)
    count = sums[..., -1:]
    mean = sums[..., width:-1] / count.clamp_min(1)
    log_count = count.squeeze(-1).log()
    if bias is not None:
        log_count = torch.zeros(m, size).scatter_add_(1, nearest, weight).log()
    return exact(query, centres, mean, scale, log_count)


def performer(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, size: int, generator: torch.Generator
) -> Tensor:
    """FAVOR+: positive random features with orthogonal directions (Choromanski et al., 2021)."""
    width = query.shape[-1]
    blocks = []
    for start in range(0, size, width):
        gaussian = torch.randn(width, width, generator=generator)
        orthogonal = torch.linalg.qr(gaussian).Q.T[: size - start]
        norms = torch.randn(len(orthogonal), width, generator=generator).norm(dim=1, keepdim=True)
        blocks.append(orthogonal * norms)
    directions = torch.cat(blocks)

    def log_features(x: Tensor) -> Tensor:
        x = x * math.sqrt(scale)
        return x @ directions.T - x.square().sum(-1, keepdim=True) / 2

    at_query, at_key = log_features(query), log_features(key)
    if bias is not None:
        at_key = at_key + bias.unsqueeze(-1)
    at_query = (at_query - at_query.amax(-1, keepdim=True)).exp() + 1e-6
    at_key = (at_key - at_key.amax((1, 2), keepdim=True)).exp() + 1e-6
    return (at_query @ (at_key.transpose(1, 2) @ value)) / (at_query @ at_key.sum(1).unsqueeze(-1))


def nystromformer(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, size: int, generator: torch.Generator
) -> Tensor:
    """Segment-mean landmarks and 6 iterations of the pseudo-inverse (Xiong et al., 2021)."""
    m, n, width = key.shape
    length = n // size
    query_marks = query[:, : length * size].reshape(m, size, length, width).mean(2)
    key_marks = key[:, : length * size].reshape(m, size, length, width).mean(2)
    left = torch.softmax(scale * query @ key_marks.transpose(1, 2), -1)
    core = torch.softmax(scale * query_marks @ key_marks.transpose(1, 2), -1)
    right = exact(query_marks, key, value, scale, bias)
    inverse = core.transpose(1, 2) / (core.abs().sum(-1).amax() * core.abs().sum(-2).amax())
    identity = torch.eye(size)
    for _ in range(6):
        product = core @ inverse
        inverse = 0.25 * inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product)))
    return left @ (inverse @ right)


def kdeformer(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, size: int, generator: torch.Generator
) -> Tensor:
    """KDEformer-style: keys drawn by their share of the attention mass (estimated on 64 queries) times the value norm,
    mixed with uniform odds; weights ``1 / (size p)`` (after Zandieh et al., 2023, without their hashing)."""
    m, n, _ = key.shape
    probe = _rows(query, torch.rand(m, query.shape[1], generator=generator).argsort(-1)[:, :64])
    logits = scale * probe @ key.transpose(1, 2)
    if bias is not None:
        logits = logits + bias.unsqueeze(1)
    mass = torch.softmax(logits, -1).square().mean(1).sqrt() * (value.norm(dim=-1) + value.norm(dim=-1).mean())
    odds = 0.5 * mass / mass.sum(-1, keepdim=True) + 0.5 / n
    index = torch.multinomial(odds, size, replacement=True, generator=generator)
    return _subset(query, key, value, scale, bias, index, -odds.gather(1, index).log())


def thinformer(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, size: int, generator: torch.Generator
) -> Tensor:
    """Thinformer-style: kernel halving, repeated until ``size`` keys are left (after Carrell et al., 2025).

    In blocks of 256 keys, neighbours are paired and a self-balancing walk drops one of each pair, under the kernel
    ``exp(scale <k, k'>) (<v, v'> + 1)``; the keys that stay have equal weights.
    """
    m, n, _ = key.shape
    x = (key - key.mean(1, keepdim=True)) * math.sqrt(scale)
    x = x / x.norm(dim=-1).amax().clamp_min(1e-12) * min(3.0, float(x.norm(dim=-1).amax()))  # bounded, as in the paper
    index = torch.arange(n).expand(m, n)
    while index.shape[1] >= 2 * size:
        block = min(256, index.shape[1])
        count = index.shape[1] // block
        index = index[:, : count * block].reshape(m * count, block)
        owner = torch.arange(m).repeat_interleave(count).unsqueeze(-1)
        points, extra = x[owner, index], value[owner, index]
        kernel = torch.exp(points @ points.transpose(1, 2)) * (extra @ extra.transpose(1, 2) + 1)
        if bias is not None:
            weight = (bias[owner, index] - bias.amax()).exp()
            kernel = kernel * weight.unsqueeze(1) * weight.unsqueeze(2)
        difference = kernel[:, 0::2] - kernel[:, 1::2]
        gram = difference[:, :, 0::2] - difference[:, :, 1::2]
        signs = torch.zeros(m * count, block // 2)
        luck = torch.rand(m * count, block // 2, generator=generator)
        reach = torch.diagonal(gram, dim1=1, dim2=2).clamp_min(0).cumsum(-1).sqrt() + 1e-12
        for step in range(block // 2):
            lean = (gram[:, step] * signs).sum(-1) / (reach[:, step] * gram[:, step, step].clamp_min(1e-12).sqrt())
            signs[:, step] = torch.where(luck[:, step] < 0.5 * (1 - lean.clamp(-1, 1)), 1.0, -1.0)
        index = torch.where(signs > 0, index[:, 0::2], index[:, 1::2]).reshape(m, -1)
    return _subset(query, key, value, scale, bias, index, None)


PEERS: dict[str, Peer] = {
    "uniform keys": uniform,
    "leverage scores": leverage,
    "k-means keys": kmeans_keys,
    "Performer": performer,
    "Nystromformer": nystromformer,
    "KDEformer-style": kdeformer,
    "Thinformer-style": thinformer,
}


def streaming_indices(key: Tensor, budget: int, *, sink: int = 4) -> Tensor:
    """StreamingLLM: the first ``sink`` and the last tokens, (B, H, budget)."""
    n = key.shape[2]
    index = torch.cat([torch.arange(sink), torch.arange(n - budget + sink, n)])
    return index.expand(*key.shape[:2], -1)


def snapkv_indices(key: Tensor, query: Tensor, budget: int, *, window: int = 32, pool: int = 7) -> Tensor:
    """SnapKV: the window and the keys that its queries attend to most, after average pooling; (B, Hk, budget).

    ``query`` (B, Hq, n, E) is the prompt's; grouped queries vote together.
    """
    batch, heads, n, width = key.shape
    votes = query[:, :, -window:].reshape(batch, heads, -1, width) @ key[:, :, : n - window].transpose(-1, -2)
    mass = torch.softmax(votes * width**-0.5, -1).sum(2)
    mass = F.avg_pool1d(mass, pool, 1, pool // 2)
    best = mass.topk(budget - window, -1).indices.sort(-1).values
    return torch.cat([best, torch.arange(n - window, n).expand(batch, heads, -1)], -1)


def knorm_indices(key: Tensor, budget: int) -> Tensor:
    """Knorm: the keys of smallest norm, (B, H, budget)."""
    return key.norm(dim=-1).topk(budget, -1, largest=False).indices.sort(-1).values
