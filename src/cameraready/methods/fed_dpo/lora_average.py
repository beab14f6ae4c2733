"""Averaging LoRA adapters: by factors, which is not the average of what they do, or by their products."""

from __future__ import annotations

import torch
from torch import Tensor

from cameraready.methods.fed_dpo.objective import Objective


class Average:
    """theta itself: the server averages every parameter (for LoRA, the factors A and B separately)."""

    def encode(self, theta: Tensor) -> Tensor:
        return theta

    def decode(self, code: Tensor) -> Tensor:
        return code


class ProductAverage(Average):
    """Encodes every LoRA pair by its product B A, whose average is what the clients do on average.

    The average has a higher rank; `decode` keeps its best approximation of the adapters' rank, by SVD. A round without
    movement may so change A and B, but not B A.
    """

    def __init__(self, objective: Objective) -> None:
        self._shapes: list[tuple[slice, slice, torch.Size, torch.Size]] = []
        where, start = {}, 0
        for name, p in objective.parameters.items():
            where[name] = (slice(start, start + p.numel()), p.shape)
            start += p.numel()
        for name, (at, shape) in where.items():
            if "lora_A" in name:
                partner, other = where[name.replace("lora_A", "lora_B")]
                self._shapes.append((at, partner, shape, other))
        if not self._shapes:
            raise ValueError("lora_average='product' needs LoRA adapters; pass trainable='lora'")

    def encode(self, theta: Tensor) -> Tensor:
        products = [(theta[b].view(sb) @ theta[a].view(sa)).reshape(-1) for a, b, sa, sb in self._shapes]
        return torch.cat([theta, *products])

    def decode(self, code: Tensor) -> Tensor:
        size = len(code) - sum(sa[1] * sb[0] for _, _, sa, sb in self._shapes)
        theta, rest = code[:size].clone(), code[size:]
        for a, b, sa, sb in self._shapes:
            product, rest = rest[: sb[0] * sa[1]], rest[sb[0] * sa[1] :]
            U, S, Vh = torch.linalg.svd(product.view(sb[0], sa[1]), full_matrices=False)
            root = S[: sa[0]].sqrt()
            theta[b] = (U[:, : sa[0]] * root).reshape(-1)
            theta[a] = (root[:, None] * Vh[: sa[0]]).reshape(-1)
        return theta
