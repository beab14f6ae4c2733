"""Attention inputs of real objects for the claims: photographs, a sentence encoder, and a generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class AttentionInput:
    """Tensors (1, H, n, E) with the logit scale and a bias (1, H, n) or None."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    bias: Tensor | None = None


def denoising_input(
    rng: np.random.Generator, rows: np.ndarray, n: int, *, bandwidth: float = 1.0, noise: float = 0.1
) -> tuple[AttentionInput, np.ndarray]:
    """Non-local means as attention over at most ``n`` of the rows (N, D), made noisy, and the clean rows.

    ``q = k = row / h``, bias ``-|k|^2 / 2``, value the noisy row: the Gaussian kernel of width ``h``, which is
    ``bandwidth`` times the typical distance ``sqrt(2 D) sigma`` of two noisy copies of a row. ``sigma`` is ``noise``
    times the range of the data; rows are scaled to a range of 1.
    """
    rows = np.asarray(rows, dtype=np.float64)
    if len(rows) < 100 or not np.isfinite(rows).all() or not np.ptp(rows) > 0:
        raise ValueError(f"rows {rows.shape} must be finite, not all equal, and at least 100; drop the others")
    kept = np.sort(rng.choice(len(rows), min(n, len(rows)), replace=False))  # in order: neighbours stay neighbours
    clean = (rows[kept] - rows[kept].mean(0)) / np.ptp(rows)
    noisy = torch.from_numpy((clean + rng.normal(0, noise, clean.shape)).astype(np.float32))[None, None]
    key = noisy / (bandwidth * noise * math.sqrt(2 * rows.shape[1]))
    return AttentionInput(key, key, noisy, 1.0, -key.square().sum(-1) / 2), clean


def photograph_input(rng: np.random.Generator, n: int) -> AttentionInput:
    """Non-local means over 7 x 7 patches of the sample photographs, noise 0.1, bandwidth 1; value the centre pixel."""
    from cameraready import data

    # The largest even grid that still has n patches: neighbours stay neighbours.
    patches = data.load("grey-patches", stride=max(1, int(math.sqrt(2 * 427 * 640 / n))))[:n]
    key = torch.from_numpy((patches + rng.normal(0, 0.1, patches.shape)).astype(np.float32))[None, None]
    return AttentionInput(key, key, key[..., 24:25].contiguous(), 1.0, -key.square().sum(-1) / 2)


def manifold_input(rng: np.random.Generator, n: int, *, heads: int = 4, head_dim: int = 64) -> AttentionInput:
    """Queries and keys near a 6-dimensional plane, with noise; coordinates of unit variance; independent values."""
    plane = rng.normal(size=(heads, 6, head_dim)) / np.sqrt(6)

    def near_plane() -> Tensor:
        x = rng.normal(size=(1, heads, n, 6)) @ plane + 0.1 * rng.normal(size=(1, heads, n, head_dim))
        return torch.from_numpy(x.astype(np.float32))

    value = torch.from_numpy(rng.normal(size=(1, heads, n, head_dim)).astype(np.float32))
    return AttentionInput(near_plane(), near_plane(), value, head_dim**-0.5)


def smooth_values_input(rng: np.random.Generator, n: int, *, head_dim: int = 64) -> AttentionInput:
    """Queries and keys near a curved 6-dimensional manifold, with noise; values a smooth function of the keys' places
    on it, so that nearby keys agree and may be averaged."""
    frequencies = rng.normal(size=(6, 32))
    to_keys, to_values = rng.normal(size=(2, 32, head_dim)) / np.sqrt(16)

    def places() -> np.ndarray:
        return np.sin(rng.uniform(-1, 1, (n, 6)) @ frequencies)

    def noisy(x: np.ndarray) -> Tensor:
        return torch.from_numpy((x + 0.1 * rng.normal(size=x.shape)).astype(np.float32))[None, None]

    at = places()
    value = torch.from_numpy((at @ to_values).astype(np.float32))[None, None]
    return AttentionInput(noisy(places() @ to_keys), noisy(at @ to_keys), value, head_dim**-0.5)


def ball_input(rng: np.random.Generator, n: int, *, width: int = 8) -> AttentionInput:
    """Bounded inputs in double precision: queries and keys uniform in a ball with ``scale Rq Rk = 2``."""
    scale = width**-0.5

    def ball() -> Tensor:
        x = rng.normal(size=(1, 1, n, width))
        x *= rng.uniform(size=(1, 1, n, 1)) ** (1 / width) / np.linalg.norm(x, axis=-1, keepdims=True)
        return torch.from_numpy(x * math.sqrt(2 / scale))

    return AttentionInput(ball(), ball(), torch.from_numpy(rng.uniform(-1, 1, (1, 1, n, width))), scale)


def attention_input(rng: np.random.Generator, name: str, n: int) -> AttentionInput:
    """The input of this name, one head."""
    makers: dict[str, Callable[[], AttentionInput]] = {
        "photographs": lambda: photograph_input(rng, n),
        "manifold": lambda: manifold_input(rng, n, heads=1),
        "smooth values": lambda: smooth_values_input(rng, n),
        "isotropic": lambda: gaussian_input(rng, n, heads=1),
    }
    return makers[name]()


def gaussian_input(rng: np.random.Generator, n: int, *, heads: int = 4, head_dim: int = 64) -> AttentionInput:
    """Isotropic Gaussian queries, keys and values: no structure to exploit, the worst case."""
    query, key, value = (
        torch.from_numpy(rng.normal(size=(1, heads, n, head_dim)).astype(np.float32)) for _ in range(3)
    )
    return AttentionInput(query, key, value, head_dim**-0.5)


def load_minilm() -> tuple[Any, Any]:
    """The packaged sentence encoder and its tokenizer."""
    from transformers import AutoModel, AutoTokenizer

    from cameraready import data

    folder = data.load("minilm")
    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def text_windows(tokenizer: Any, rng: np.random.Generator, count: int, *, length: int = 512) -> Tensor:
    """Token windows (count, length) at random places of the packaged English text."""
    from cameraready import data

    text = data.load("english-text")
    windows = []
    for start in rng.integers(0, len(text) - 8 * length, count):
        ids = tokenizer(text[start : start + 8 * length], truncation=True, max_length=length, return_tensors="pt")
        windows.append(ids.input_ids)
    return torch.cat(windows)


def minilm_inputs(rng: np.random.Generator, *, length: int = 512) -> list[AttentionInput]:
    """What the six attention layers of MiniLM receive for one window of ``length`` tokens."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    seen: list[AttentionInput] = []

    def capture(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(AttentionInput(query, key, value, query.shape[-1] ** -0.5))
        return sdpa_attention_forward(module, query, key, value, *args, **kwargs)

    model, tokenizer = load_minilm()
    AttentionInterface.register("wildcat-capture", capture)
    model.set_attn_implementation("wildcat-capture")
    with torch.no_grad():
        model(text_windows(tokenizer, rng, 1, length=length))
    return seen
