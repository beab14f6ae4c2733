"""``WildCatCache``: a transformers cache that shrinks its keys and values to a weighted coreset."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from cameraready.methods.wildcat.coreset import compress_kv
from cameraready.methods.wildcat.inputs import check_rank
from cameraready.methods.wildcat.weighted_values import WeightedValues

try:
    from transformers.cache_utils import DynamicCache, DynamicLayer
except ImportError as error:
    raise ImportError("WildCatCache needs transformers: pip install 'cameraready[attention]'") from error


class WildCatCache(DynamicCache):
    """KV cache for ``model.generate`` that keeps ``sink + rank + window`` entries of the prompt in every layer.

    The prompt is attended to exactly; afterwards the tokens between the first ``sink`` and the last ``window`` are
    compressed to ``rank`` weighted keys a head, and decoding attends to these. New tokens are appended exactly; when
    more than ``max_tail`` have gathered, they are compressed in turn. Rotary keys are compressed as cached (rotated),
    grouped-query models per key head, and layers with a sliding window are left alone.

    Parameters
    ----------
    config : PretrainedConfig
        The model's ``config``.
    rank : int, default 256
        Weighted keys a head.
    sink, window : int, default 32
        First and last prompt tokens kept exactly.
    max_tail : int, optional
        Exact new tokens before the next compression; default ``rank``.
    bins : int or "auto", default "auto"
        See :func:`~cameraready.methods.wildcat.coreset.compress_kv`.
    attention_mask : Tensor (B, n), optional
        The prompt's mask, needed when a batch is left-padded.
    seed : int, default 0
        Seed of the pivots.

    Notes
    -----
    Works with attention implementations "sdpa" (which also shows the cache the prompt's queries) and "eager".
    ``get_seq_length`` counts the tokens seen, not those stored, so positions stay right.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    ...                      num_attention_heads=4, num_key_value_heads=2)
    >>> model = LlamaForCausalLM(config).eval()
    >>> cache = WildCatCache(config, rank=16, sink=4, window=8)
    >>> _ = model(torch.randint(64, (1, 200)), past_key_values=cache)
    >>> cache.get_seq_length(), cache.layers[0].keys.shape[-2]
    (200, 28)
    """

    def __init__(
        self,
        config: Any,
        *,
        rank: int = 256,
        sink: int = 32,
        window: int = 32,
        max_tail: int | None = None,
        bins: int | Literal["auto"] = "auto",
        attention_mask: Tensor | None = None,
        seed: int = 0,
    ):
        check_rank(rank)
        max_tail = rank if max_tail is None else max_tail
        for name, value, least in (("sink", sink, 0), ("window", window, 1), ("max_tail", max_tail, 1)):
            if value < least:
                raise ValueError(f"{name}={value} is too small; pass at least {least}")
        padding = None if attention_mask is None else _left_padding(attention_mask)
        super().__init__(config=config)
        options = {"rank": rank, "sink": sink, "window": window, "max_tail": max_tail, "bins": bins}
        self.layers = [
            WildCatLayer(**options, padding=padding, seed=seed + index) if type(layer) is DynamicLayer else layer
            for index, layer in enumerate(self.layers)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes stored in all layers."""
        tensors = (x for layer in self.layers for x in (layer.keys, layer.values, getattr(layer, "weights", None)))
        return sum(x.numel() * x.element_size() for x in tensors if x is not None)


class WildCatLayer(DynamicLayer):
    """One layer: entries in the order coreset, sink, exact tail; ``weights`` (B, H, stored) is None while exact."""

    is_croppable = False

    def __init__(
        self,
        rank: int,
        sink: int,
        window: int,
        max_tail: int,
        bins: int | Literal["auto"],
        padding: Tensor | None = None,
        seed: int = 0,
    ):
        super().__init__()
        self.rank, self.sink, self.window, self.max_tail, self.bins = rank, sink, window, max_tail, bins
        self.padding, self.seed = padding, seed
        self._forget()

    def _forget(self) -> None:
        self.cumulative_length, self.coreset = 0, 0
        self.weights: Tensor | None = None
        self.query_norm: Tensor | None = None
        self.query_mean: Tensor | None = None
        self.low: Tensor | None = None
        self.high: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append new states and return everything that is stored."""
        super().update(key_states, value_states)
        low, high = value_states.amin(-2, keepdim=True), value_states.amax(-2, keepdim=True)
        self.low = low if self.low is None else torch.minimum(self.low, low)
        self.high = high if self.high is None else torch.maximum(self.high, high)
        if self.weights is not None:
            fresh = self.weights.new_ones(*key_states.shape[:-1])
            self.weights = torch.cat([self.weights, fresh], -1)
        self.cumulative_length += key_states.shape[-2]
        values = WeightedValues.wrap(
            self.values, self.weights, low=self.low, high=self.high, observer=self._after_attention
        )
        return self.keys, values

    def _after_attention(self, query: Tensor | None) -> None:
        """Note how large queries get, and compress once the exact tail has grown long enough."""
        batch, heads, stored, _ = self.keys.shape
        if query is not None:
            seen = query.detach().float().reshape(batch, heads, -1, query.shape[-1])
            if self.query_mean is None:
                self.query_mean = seen.mean(2)
            norm = torch.linalg.vector_norm(seen - self.query_mean.unsqueeze(2), dim=-1).amax(-1)
            self.query_norm = norm if self.query_norm is None else torch.maximum(self.query_norm, norm)
        tail = stored - self.coreset - self.sink
        limit = self.window + (self.max_tail if self.coreset else self.rank)
        if tail > limit:
            self._compress()

    @torch.no_grad()
    def _compress(self) -> None:
        keys, values, n = self.keys, self.values, self.keys.shape[-2]
        weights = torch.ones(keys.shape[:-1], device=keys.device) if self.weights is None else self.weights
        cut = n - self.window
        position = torch.arange(n, device=keys.device)
        if self.coreset:
            sink = position[self.coreset : self.coreset + self.sink].expand(keys.shape[0], -1)
            middle = torch.cat([position[: self.coreset], position[self.coreset + self.sink : cut]])
            sink_valid, mask = torch.ones_like(sink, dtype=torch.bool), None
        else:
            sink, sink_valid, middle, mask = self._first_layout(position, cut)
        shape = keys.shape[:2]
        generator = torch.Generator(keys.device).manual_seed(self.seed)
        small = compress_kv(
            keys[:, :, middle],
            values[:, :, middle],
            self.rank,
            query_norm=self.query_norm,
            query_mean=self.query_mean,
            bins=self.bins,
            weights=weights[:, :, middle],
            key_mask=None if mask is None else mask[:, None].expand(*shape, -1),
            generator=generator,
        )
        core_keys, core_values, core_weights = _fill_up(
            small.keys + small.key_mean, small.values, small.weights, self.rank
        )
        pick = sink[:, None].expand(*shape, -1)
        sink_weights = torch.gather(weights, 2, pick) * sink_valid[:, None]
        sink_keys = torch.gather(keys, 2, pick.unsqueeze(-1).expand(-1, -1, -1, keys.shape[-1]))
        sink_values = torch.gather(values, 2, pick.unsqueeze(-1).expand(-1, -1, -1, values.shape[-1]))
        sink_values = sink_values * sink_valid[:, None, :, None]
        self.keys = torch.cat([core_keys.to(keys.dtype), sink_keys, keys[:, :, cut:]], 2)
        self.values = torch.cat([core_values.to(values.dtype), sink_values, values[:, :, cut:]], 2)
        self.weights = torch.cat([core_weights, sink_weights, weights[:, :, cut:]], 2)
        self.coreset = self.rank

    def _first_layout(self, position: Tensor, cut: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Sink places (B, sink), which of them are real, middle places, and the middle's mask (B, len) or None.

        transformers hides the first ``stored - real`` entries of a left-padded row. What a row really has must stand at
        the right end, so a sink that is not full is right-aligned, and empty coreset slots come first.
        """
        batch = self.keys.shape[0]
        if self.padding is None or not bool(self.padding.any()):
            sink = position[: self.sink].expand(batch, -1)
            return sink, torch.ones_like(sink, dtype=torch.bool), position[self.sink : cut], None
        if self.padding.shape[0] != batch:
            raise ValueError(
                f"attention_mask had {self.padding.shape[0]} rows, but the batch has {batch}; pass this batch's mask"
            )
        padding = self.padding.to(position.device).unsqueeze(1)
        sink = padding.clamp(max=cut - self.sink) + position[: self.sink]
        return sink, sink >= padding, position[:cut], position[:cut] >= padding + self.sink

    def get_seq_length(self) -> int:
        """Tokens seen so far (not entries stored)."""
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Stored entries stand for the last positions: all of them lie before the next query."""
        stored = self.keys.shape[-2] if self.is_initialized and self.keys.numel() else 0
        return stored + query_length, self.cumulative_length - stored

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last tokens; only those not compressed yet can be dropped."""
        removed = abs(tokens_to_remove)
        if removed == 0 or not self.is_initialized:
            return
        exact = self.keys.shape[-2] - self.coreset - (self.sink if self.coreset else 0)
        if removed > exact:
            raise ValueError(f"cannot remove {removed} tokens: only the last {exact} are still stored one by one")
        self.keys, self.values = self.keys[..., :-removed, :], self.values[..., :-removed, :]
        if self.weights is not None:
            self.weights = self.weights[..., :-removed]
        self.cumulative_length -= removed

    def reset(self) -> None:
        """Forget everything."""
        self.keys = self.values = None
        self.is_initialized = False
        self._forget()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow the beams of beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch."""
        self._map_batch(lambda x: x.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch."""
        self._map_batch(lambda x: x[indices.to(x.device)])

    def _map_batch(self, change: Any) -> None:
        if not self.is_initialized:
            return
        for name in ("keys", "values", "weights", "query_norm", "query_mean", "low", "high", "padding"):
            if getattr(self, name) is not None:
                setattr(self, name, change(getattr(self, name)))


def _fill_up(keys: Tensor, values: Tensor, weights: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Exactly ``rank`` slots, empty ones (weight 0, a repeated key) first: layers must store equally many."""
    order = (weights != 0).to(torch.int8).argsort(stable=True, dim=-1)
    keys = torch.gather(keys, 2, order.unsqueeze(-1).expand(keys.shape))
    values = torch.gather(values, 2, order.unsqueeze(-1).expand(values.shape))
    weights = torch.gather(weights, 2, order)
    missing = rank - keys.shape[2]
    if missing > 0:
        keys = torch.cat([keys[:, :, -1:].expand(-1, -1, missing, -1), keys], 2)
        values = torch.cat([torch.zeros_like(values[:, :, :1]).expand(-1, -1, missing, -1), values], 2)
        weights = torch.cat([weights.new_zeros(*weights.shape[:2], missing), weights], 2)
    return keys, values, weights


def _left_padding(attention_mask: Tensor) -> Tensor:
    """Number of padded tokens at the left of every row, (B,)."""
    mask = attention_mask.bool()
    padding = (~mask).sum(-1)
    if mask.dim() == 2:
        expected = torch.arange(mask.shape[1], device=mask.device) >= padding[:, None]
        if bool((mask == expected).all()):
            return padding
    raise ValueError("attention_mask must be (batch, length) with padding on the left only; set padding_side='left'")
