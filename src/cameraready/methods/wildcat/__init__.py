"""WildCat: near-linear softmax attention and KV-cache compression through a small weighted coreset of keys."""

from typing import Any

from cameraready.methods.wildcat.attention import WildCatInfo, wildcat_attention
from cameraready.methods.wildcat.bounds import Guarantee, guaranteed_rank
from cameraready.methods.wildcat.coreset import CompressedKV, compress_kv, weighted_attention
from cameraready.methods.wildcat.module import WildCatAttention

__all__ = [
    "CompressedKV",
    "Guarantee",
    "WildCatAttention",
    "WildCatCache",
    "WildCatInfo",
    "compress_kv",
    "guaranteed_rank",
    "patch_model",
    "weighted_attention",
    "wildcat_attention",
]


def __getattr__(name: str) -> Any:
    # These two need transformers, which attention itself does not.
    if name == "WildCatCache":
        from cameraready.methods.wildcat.cache import WildCatCache

        return WildCatCache
    if name == "patch_model":
        from cameraready.methods.wildcat.patch import patch_model

        return patch_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
