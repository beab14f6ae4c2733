"""A small language model trained on the standard library's source, and its perplexity from compressed caches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cameraready.methods.wildcat import peers
from cameraready.methods.wildcat.cache import WildCatCache

CONTINUATION = 256


def trained_model(rng: np.random.Generator, tokens: Tensor, *, minutes: float, context: int) -> Any:
    """A byte-level Llama of 4.5 million parameters, trained for ``minutes`` on windows of ``tokens``."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256, hidden_size=256, intermediate_size=704, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2 * context, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    end = time.monotonic() + 60 * minutes
    start = time.monotonic()
    while time.monotonic() < end:
        done = (time.monotonic() - start) / (end - start)
        # Short windows first: most of what a small model learns is local, and they are cheap.
        length = context if done > 0.5 else max(128, context // 8)
        batch = windows(rng, tokens, max(1, 2048 // length), length)
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * done))
        loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    return model.eval()


def windows(rng: np.random.Generator, tokens: Tensor, count: int, length: int) -> Tensor:
    """Random windows (count, length) of a token stream."""
    return torch.stack([tokens[start : start + length] for start in rng.integers(0, len(tokens) - length, count)])


def perplexities(
    rng: np.random.Generator, *, budgets: tuple[float, ...], minutes: float, context: int, prompts: int = 8
) -> Iterator[tuple[str, float, float]]:
    """(method, budget, perplexity) of 256 tokens after a prompt whose cache was cut to ``budget`` of its entries.

    All methods see the prompt exactly, store equally many entries a head, and read the same continuation.
    """
    from cameraready import data

    text = data.load("python-source").encode("utf-8", "replace")
    tokens = torch.from_numpy(np.frombuffer(text, dtype=np.uint8).astype(np.int64))
    cut = int(0.9 * len(tokens))
    model = trained_model(rng, tokens[:cut], minutes=minutes, context=context)
    held_out = windows(rng, tokens[cut:], prompts, context)
    prompt, rest = held_out[:, :-CONTINUATION], held_out[:, -CONTINUATION:]
    yield "full cache", 1.0, perplexity(model, prompt, rest, lambda *_: None, context)
    for budget in budgets:
        kept = max(64, round(budget * prompt.shape[1]))
        evictions: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "SnapKV": lambda key, query, kept=kept: peers.snapkv_indices(key, query, kept),
            "StreamingLLM": lambda key, query, kept=kept: peers.streaming_indices(key, kept),
            "Knorm": lambda key, query, kept=kept: peers.knorm_indices(key, kept),
        }
        for name, choose in evictions.items():
            yield name, budget, perplexity(model, prompt, rest, choose, context)
        cache = WildCatCache(model.config, rank=kept - 36, sink=4, window=32, max_tail=context, bins=1)
        yield "WildCat", budget, continuation_perplexity(model, prompt, rest, cache)


@torch.no_grad()
def continuation_perplexity(model: Any, prompt: Tensor, rest: Tensor, cache: Any) -> float:
    """Perplexity of ``rest`` read through the cache that the prompt left."""
    model(prompt[:, :-1], past_key_values=cache)
    return read(model, prompt, rest, cache)


@torch.no_grad()
def perplexity(
    model: Any, prompt: Tensor, rest: Tensor, choose: Callable[[Tensor, Tensor], Tensor | None], context: int
) -> float:
    """The same for a method that evicts: ``choose(keys, queries)`` gives the kept places of each layer, or None."""
    from transformers import AttentionInterface, DynamicCache
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    seen: list[Tensor] = []

    def capture(module: Any, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(query)
        return sdpa_attention_forward(module, query, *args, **kwargs)

    AttentionInterface.register("wildcat-capture", capture)
    cache = DynamicCache(config=model.config)
    model.set_attn_implementation("wildcat-capture")
    model(prompt[:, :-1], past_key_values=cache)
    model.set_attn_implementation("sdpa")
    for layer, query in zip(cache.layers, seen, strict=True):
        index = choose(layer.keys, query)
        if index is not None:
            layer.keys, layer.values = (
                x.gather(2, index.unsqueeze(-1).expand(-1, -1, -1, x.shape[-1])) for x in (layer.keys, layer.values)
            )
    return read(model, prompt, rest, cache)


def read(model: Any, prompt: Tensor, rest: Tensor, cache: Any) -> float:
    """Perplexity of ``rest`` after a cache of ``prompt[:, :-1]``, at the true positions."""
    ask = torch.cat([prompt[:, -1:], rest[:, :-1]], 1)
    position = torch.arange(prompt.shape[1] - 1, prompt.shape[1] - 1 + ask.shape[1]).expand(len(ask), -1)
    logits = model(ask, past_key_values=cache, position_ids=position).logits
    return math.exp(float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rest.flatten())))
