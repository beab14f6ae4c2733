"""``WildCatAttention``: the attention call as a module."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from cameraready.methods.wildcat.attention import wildcat_attention
from cameraready.methods.wildcat.inputs import check_rank
from cameraready.methods.wildcat.selection import Weighing


class WildCatAttention(nn.Module):
    """Scaled dot-product attention through a weighted coreset of keys; holds options and no parameters.

    Parameters
    ----------
    rank, tol, bins, weighing, tau, recentre_queries, fallback, scale, is_causal
        As for :func:`~cameraready.methods.wildcat.attention.wildcat_attention`.
    seed : int, optional
        Draw the same pivots at every call (for the same shapes); default: torch's global generator.

    Examples
    --------
    >>> attend = WildCatAttention(rank=64)
    >>> x = torch.randn(1, 4, 1024, 16)
    >>> attend(x, x, x).shape
    torch.Size([1, 4, 1024, 16])
    """

    def __init__(
        self,
        rank: int | Literal["auto"] = 128,
        *,
        tol: float | None = None,
        bins: int | Literal["auto"] = "auto",
        weighing: Weighing = "joint",
        tau: float | Literal["constant", "tuned"] = "constant",
        recentre_queries: bool = True,
        fallback: Literal["exact", "uniform"] | None = "exact",
        scale: float | None = None,
        is_causal: bool = False,
        seed: int | None = None,
    ):
        super().__init__()
        if rank != "auto":
            check_rank(rank)
        self.rank, self.tol, self.bins, self.tau, self.fallback = rank, tol, bins, tau, fallback
        self.weighing, self.recentre_queries = weighing, recentre_queries
        self.scale, self.is_causal, self.seed = scale, is_causal, seed

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, enable_gqa: bool = False
    ) -> Tensor:
        """Attention output (..., H, L, d_v) for query (..., H, L, E), key (..., H, S, E), value (..., H, S, d_v)."""
        generator = None
        if self.seed is not None:
            generator = torch.Generator(query.device).manual_seed(self.seed)
        return wildcat_attention(
            query, key, value, attn_mask, is_causal=self.is_causal, scale=self.scale, enable_gqa=enable_gqa,
            rank=self.rank, tol=self.tol, bins=self.bins, weighing=self.weighing, tau=self.tau,
            recentre_queries=self.recentre_queries, fallback=self.fallback, generator=generator,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"rank={self.rank}, tol={self.tol}, bins={self.bins}, tau={self.tau}, is_causal={self.is_causal}"
