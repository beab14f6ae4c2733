"""``patch_model``: run a transformers model's attention layers through WildCat, without touching its modules."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cameraready.methods.wildcat.attention import wildcat_attention
from cameraready.methods.wildcat.inputs import check_rank

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask
except ImportError as error:
    raise ImportError("patch_model needs transformers: pip install 'cameraready[attention]'") from error

NAME = "wildcat"
_OPTIONS: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()


class Patch:
    """A patched model; ``undo()`` or leaving the ``with`` block restores it."""

    def __init__(self, model: nn.Module, modules: Sequence[nn.Module], options: dict[str, Any]):
        self.model, self.modules = model, list(modules)
        self._before = model.config._attn_implementation
        for module in self.modules:
            _OPTIONS[module] = options
        model.set_attn_implementation(NAME)

    def undo(self) -> None:
        """Restore the attention implementation that the model had."""
        for module in self.modules:
            _OPTIONS.pop(module, None)
        self.model.set_attn_implementation(self._before)

    def __enter__(self) -> nn.Module:
        return self.model

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def patch_model(model: nn.Module, rank: int, layers: Sequence[int] | None = None, **options: Any) -> Patch:
    """Let a transformers model compute its self-attention by WildCat.

    Layers are compressed where that can pay: more than ``rank`` keys, no sliding window, no position bias. Decoding
    steps and everything else stay exact; use :class:`~cameraready.methods.wildcat.cache.WildCatCache` to decode.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any model whose attention goes through transformers' attention registry (encoders, decoders, vision models).
    rank : int
        Keys kept a head.
    layers : sequence of int, optional
        Which attention layers, in the order of ``model.modules()``; default all. Early layers are often the hardest.
    **options
        Further options of :func:`~cameraready.methods.wildcat.attention.wildcat_attention`, such as ``tol`` or ``tau``.

    Returns
    -------
    Patch
        Use as a context manager, or call ``undo()``.

    Raises
    ------
    TypeError
        If the model has no switchable attention.
    ValueError
        If ``layers`` names a layer that the model does not have.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    ...                     intermediate_size=64, max_position_embeddings=256)
    >>> model = BertModel(config).eval()
    >>> with patch_model(model, rank=64):
    ...     out = model(torch.randint(50, (1, 200)))
    >>> out.last_hidden_state.shape
    torch.Size([1, 200, 32])
    """
    check_rank(rank)
    if not hasattr(model, "set_attn_implementation"):
        raise TypeError(f"{type(model).__name__} has no set_attn_implementation; pass a transformers model")
    # Modules that dispatch through the registry say whether they are causal.
    modules = [module for module in model.modules() if hasattr(module, "is_causal")]
    if not modules:
        raise TypeError(f"{type(model).__name__} has no attention layer that uses transformers' attention registry")
    if layers is not None:
        wrong = [index for index in layers if not 0 <= index < len(modules)]
        if wrong:
            raise ValueError(f"layers={wrong} do not exist; the model has attention layers 0 to {len(modules) - 1}")
        modules = [modules[index] for index in layers]
    AttentionInterface.register(NAME, wildcat_forward)
    AttentionMaskInterface.register(NAME, padding_or_dense_mask)
    return Patch(model, modules, {"rank": rank, **options})


def padding_or_dense_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The 2-d padding mask (B, S) for plain causal or bidirectional attention (None without padding); SDPA's 4-d mask
    for anything else. A 4-d mask would cost the quadratic memory that the method is there to avoid."""
    plain = kwargs.get("mask_function") in (causal_mask_function, bidirectional_mask_function)
    if plain and not kwargs.get("use_vmap", False):
        mask = kwargs.get("attention_mask")
        if mask is not None:
            start = kwargs.get("kv_offset", 0)
            mask = mask[:, start : start + kwargs["kv_length"]].bool()
            if bool(mask.all()):
                mask = None
        return mask
    kwargs["allow_is_causal_skip"] = kwargs["allow_is_bidirectional_skip"] = False
    return sdpa_mask(*args, **kwargs)


def wildcat_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function of the registry: tensors (B, H, L, E) in, output (B, L, H, d_v) out."""
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    options = _OPTIONS.get(module)
    length, stored = query.shape[2], key.shape[2]
    window = kwargs.get("sliding_window")
    compressible = (
        options is not None
        and stored > options["rank"]
        and length > 1
        and (not causal or length == stored)
        and (attention_mask is None or attention_mask.dim() == 2)
        and (window is None or window >= stored)
        and kwargs.get("position_bias") is None
        and kwargs.get("softcap") is None
    )
    if not compressible:
        mask = dense_mask(attention_mask, length, stored, causal, query.device)
        return sdpa_attention_forward(
            module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=causal, **kwargs
        )
    mask = None if attention_mask is None else attention_mask[:, None, None, :stored]
    output = wildcat_attention(
        query, key, value, mask, dropout, causal, scaling, query.shape[1] != key.shape[1], **options
    )
    return output.transpose(1, 2).contiguous(), None


def dense_mask(mask: Tensor | None, length: int, stored: int, causal: bool, device: torch.device) -> Tensor | None:
    """What SDPA needs for an exact layer: None where its own flag suffices, else a 4-d boolean mask."""
    if mask is not None and mask.dim() == 4:
        return mask
    if mask is None and (length == 1 or not causal or length == stored):
        return None
    visible = torch.ones(length, stored, dtype=torch.bool, device=device)
    if causal:
        visible = visible.tril(stored - length)
    return visible[None, None] if mask is None else visible & mask[:, None, None, :stored]
