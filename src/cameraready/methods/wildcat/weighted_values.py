"""A tensor of values that any attention implementation can use although its keys are a weighted coreset.

Attention over a coreset is ``softmax(Q K_S^T) (W V) / softmax(Q K_S^T) (W 1)``: the ordinary attention of ``W V``,
divided by the ordinary attention of the weights. ``WeightedValues`` is ``W V`` with the weights as a companion of the
same shape; reshaping it reshapes both, and where attention consumes it the division happens. A model therefore needs no
patch to decode from a compressed cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cameraready.methods.wildcat.attend import SMALLEST_DENOMINATOR

Observer = Callable[[Tensor | None], None]

# What models do to values between the cache and the attention product (repeated key heads, layouts).
_SHAPE_OPERATIONS = {
    Tensor.__getitem__, Tensor.expand, Tensor.reshape, Tensor.view, Tensor.contiguous, Tensor.transpose, Tensor.permute,
    Tensor.unsqueeze, Tensor.squeeze, Tensor.flatten, Tensor.repeat, Tensor.repeat_interleave, Tensor.clone, Tensor.to,
    Tensor.float, torch.transpose, torch.permute, torch.reshape, torch.unsqueeze, torch.repeat_interleave,
}  # fmt: skip
_PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}


class WeightedValues(Tensor):
    """Values with companion weights (or None while the cache is still exact).

    Attributes
    ----------
    weights : Tensor of the same shape, or None
    low, high : Tensor (B, H, 1, d_v)
        Range of the original values, to which outputs are clamped.
    observer : callable
        Called with the queries after attention (None where only the attention matrix was seen).
    """

    weights: Tensor | None
    low: Tensor
    high: Tensor
    observer: Observer | None

    @staticmethod
    def wrap(
        values: Tensor, weights: Tensor | None, *, low: Tensor, high: Tensor, observer: Observer | None = None
    ) -> WeightedValues:
        """Attach companions to ``values`` (B, H, n, d_v); ``weights`` has shape (B, H, n)."""
        wrapped = values.as_subclass(WeightedValues)
        wrapped.weights = None if weights is None else weights.unsqueeze(-1).expand(values.shape)
        wrapped.low, wrapped.high, wrapped.observer = low, high, observer
        return wrapped

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func is F.scaled_dot_product_attention:
                return _attend(*args, **kwargs)
            if func in _PRODUCTS and not isinstance(args[0], WeightedValues):
                return _product(func, *args)
            source = next((x for x in args if isinstance(x, WeightedValues)), None)
            if func in _SHAPE_OPERATIONS and isinstance(source, WeightedValues):
                return source._reshaped(func, args, kwargs)
            result = func(*args, **kwargs)
            if source is not None and source.weights is not None and isinstance(result, Tensor):
                name = getattr(func, "__qualname__", repr(func))
                raise TypeError(
                    f"{name} was applied to the values of a compressed cache, which only sdpa and eager attention "
                    'understand; load the model with attn_implementation="sdpa"'
                )
            return result.as_subclass(Tensor) if isinstance(result, WeightedValues) else result

    def _reshaped(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> WeightedValues:
        result = func(*args, **kwargs).as_subclass(WeightedValues)
        result.weights = None if self.weights is None else func(self.weights, *args[1:], **kwargs)
        result.low, result.high, result.observer = self.low, self.high, self.observer
        return result


def _attend(
    query: Tensor, key: Tensor, value: WeightedValues, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    plain = value.as_subclass(Tensor)
    if value.weights is None:
        output = F.scaled_dot_product_attention(query, key, plain, attn_mask, *args, **kwargs)
    else:
        # Signed weights cancel: half precision would lose what remains.
        wide = torch.promote_types(query.dtype, torch.float32)
        mask = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.to(wide)

        def both(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
            columns = torch.cat([values.to(wide), weights[..., :1].to(wide)], -1)
            result = F.scaled_dot_product_attention(query.to(wide), key.to(wide), columns, mask, *args, **kwargs)
            return result[..., :-1], result[..., -1:]

        output = _divide(both, value, query.dtype)
    if value.observer is not None:
        value.observer(query)
    return output


def _product(func: Callable[..., Tensor], attention: Tensor, value: WeightedValues) -> Tensor:
    plain = value.as_subclass(Tensor)
    if value.weights is None:
        output = func(attention, plain)
    else:
        wide = torch.promote_types(attention.dtype, torch.float32)

        def both(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
            return func(attention.to(wide), values.to(wide)), func(attention.to(wide), weights[..., :1].to(wide))

        output = _divide(both, value, attention.dtype)
    if value.observer is not None:
        value.observer(None)
    return output


def _divide(
    attend: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], value: WeightedValues, dtype: torch.dtype
) -> Tensor:
    """Attention of ``W V`` over attention of ``w``; rows without a denominator use the positive weights only."""
    plain, weights = value.as_subclass(Tensor), value.weights
    assert weights is not None
    numerator, denominator = attend(plain, weights)
    vanished = denominator <= SMALLEST_DENOMINATOR
    output = numerator / torch.where(vanished, torch.ones_like(denominator), denominator)
    if bool(vanished.any()):
        positive = (weights > 0).to(weights.dtype)
        numerator, denominator = attend(plain * positive, weights * positive)
        output = torch.where(vanished, numerator / denominator.clamp_min(SMALLEST_DENOMINATOR), output)
    repeats = output.shape[1] // value.low.shape[1]
    low, high = (x.to(output.dtype).repeat_interleave(repeats, 1) for x in (value.low, value.high))
    return torch.minimum(torch.maximum(output, low), high).to(dtype)
