"""Which of an optimizer's parameters are predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from cameraready.methods.pdt.layout import Layout, address, is_dense, lay_out


class PredictedParameters:
    """Real numbers that train, with dense gradients, and that ``wanted`` accepts; tied ones count once."""

    def __init__(self, optimizer: Optimizer, wanted: Callable[[Tensor], bool] | None) -> None:
        self.optimizer, self.wanted = optimizer, wanted
        self._sparse: set[Tensor] = set()
        self._key: list[Any] = []
        self._layout: Layout | None = None

    def layout(self) -> Layout:
        """As it was as long as nothing has changed, else made anew.

        Raises
        ------
        ValueError : no parameter is left.
        """
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self._sparse.update(p for p in parameters if p.grad is not None and p.grad.is_sparse)
        # As long as this stays equal, so do the blocks; they keep the memory alive, so no address is used again.
        key = [(id(p), p.requires_grad, p in self._sparse, address(p)) for p in parameters]
        if key == self._key and self._layout is not None:
            return self._layout
        chosen = {id(p): p for p in parameters if self._is_predicted(p)}
        if not chosen:
            raise ValueError(
                "no parameter is left to predict: each is frozen, has sparse gradients, is not of real numbers, or was "
                "left out by param_filter"
            )
        self._key, self._layout = key, lay_out(list(chosen.values()))
        return self._layout

    def _is_predicted(self, p: Tensor) -> bool:
        fits = p.requires_grad and p.is_floating_point() and p.numel() > 0 and p not in self._sparse and is_dense(p)
        return fits and (self.wanted is None or self.wanted(p))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_layout": None}  # a copy's blocks must be views of the copy's parameters
