"""Attention inputs of real objects for the claims: photographs, a sentence encoder, and a generator."""

from __future__ import annotations

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


def noisy_patches(rng: np.random.Generator, n: int, *, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Grey 7 x 7 patches (n, 49) of the scikit-learn photographs with noise, and their clean centre pixels (n,)."""
    from cameraready import data

    # The largest even grid that still has n patches: neighbours stay neighbours.
    stride = max(1, int(np.sqrt(2 * 427 * 640 / n)))
    patches = data.load("photo-patches", size=7, stride=stride)
    grey = patches.reshape(len(patches), 49, 3).mean(-1)[:n].astype(np.float32)
    return grey + rng.normal(0, noise, grey.shape).astype(np.float32), grey[:, 24]


def denoising_input(rng: np.random.Generator, n: int, bandwidth: float) -> tuple[AttentionInput, np.ndarray]:
    """Non-local means as attention: ``q = k = patch / bandwidth``, bias ``-|k|^2 / 2``, value the centre pixel."""
    noisy, clean = noisy_patches(rng, n)
    key = torch.from_numpy(noisy / bandwidth)[None, None]
    value = torch.from_numpy(noisy[:, 24:25])[None, None]
    return AttentionInput(key, key, value, 1.0, -key.square().sum(-1) / 2), clean


def manifold_input(rng: np.random.Generator, n: int, *, heads: int = 4, head_dim: int = 64) -> AttentionInput:
    """Queries and keys near a 6-dimensional plane, with noise; coordinates of unit variance; independent values."""
    plane = rng.normal(size=(heads, 6, head_dim)) / np.sqrt(6)

    def near_plane() -> Tensor:
        x = rng.normal(size=(1, heads, n, 6)) @ plane + 0.1 * rng.normal(size=(1, heads, n, head_dim))
        return torch.from_numpy(x.astype(np.float32))

    value = torch.from_numpy(rng.normal(size=(1, heads, n, head_dim)).astype(np.float32))
    return AttentionInput(near_plane(), near_plane(), value, head_dim**-0.5)


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
