"""Attacks of foolbox (PGD, DeepFool) and of the Adversarial Robustness Toolbox (APGD, Square) on a torch model."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cameraready.methods.compress_robust.compressibility import Norm

INSTALL = "pip install 'cameraready[robustness]'"


def foolbox_attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    method: str,
    norm: Norm,
    eps: float | None,
    bounds: tuple[float, float],
    steps: int,
    seed: int,
) -> Tensor:
    """ "foolbox-pgd" (one restart, step eps / 5) or "deepfool" (least perturbation; clipped to eps where one is given).

    What comes back is foolbox's clipped answer where there is an eps, never its raw one, which may leave the ball.
    """
    try:
        import foolbox
    except ImportError as error:
        raise ImportError(f"{method} needs foolbox: {INSTALL}") from error
    attacks = {
        ("foolbox-pgd", "inf"): lambda: foolbox.attacks.LinfPGD(rel_stepsize=1 / 5, steps=steps, random_start=True),
        ("foolbox-pgd", "2"): lambda: foolbox.attacks.L2PGD(rel_stepsize=1 / 5, steps=steps, random_start=True),
        ("deepfool", "inf"): lambda: foolbox.attacks.LinfDeepFoolAttack(steps=max(steps, 50)),
        ("deepfool", "2"): lambda: foolbox.attacks.L2DeepFoolAttack(steps=max(steps, 50)),
    }
    wrapped = foolbox.PyTorchModel(model, bounds=bounds, device=x.device)
    inside = x.clamp(*bounds)
    with _seeded(seed):
        raw, clipped, _ = attacks[method, norm]()(wrapped, inside, y, epsilons=eps)
    return (raw if eps is None else clipped).detach()


def art_attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    method: str,
    norm: Norm,
    eps: float,
    bounds: tuple[float, float],
    steps: int,
    restarts: int,
    seed: int,
) -> Tensor:
    """ "apgd-ce", "apgd-dlr" or "square". The first step of APGD is 2 eps, as in AutoAttack."""
    try:
        from art.attacks.evasion import AutoProjectedGradientDescent, SquareAttack
        from art.estimators.classification import PyTorchClassifier
    except ImportError as error:
        raise ImportError(f"{method} needs the Adversarial Robustness Toolbox: {INSTALL}") from error
    with torch.no_grad():
        classes = model(x[:1]).shape[1]
    if method == "apgd-dlr" and classes < 3:
        raise ValueError(f"apgd-dlr compares three logits and the model has {classes}; use 'apgd-ce' and 'square'")
    images = _AsImages(model, x) if method == "square" else _Float32(model, x.dtype)
    start = images.fold(x) if method == "square" else x.float()
    estimator = PyTorchClassifier(
        model=images,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(start.shape[1:]),
        nb_classes=classes,
        clip_values=bounds,
        device_type="gpu" if x.is_cuda else "cpu",
    )
    order: Any = math.inf if norm == "inf" else 2
    common: dict[str, Any] = {"norm": order, "eps": float(eps), "max_iter": steps, "batch_size": 256, "verbose": False}
    if method == "square":
        attack: Any = SquareAttack(estimator, nb_restarts=restarts, **common)
    else:
        loss = {"apgd-ce": "cross_entropy", "apgd-dlr": "difference_logits_ratio"}[method]
        attack = AutoProjectedGradientDescent(
            estimator, eps_step=2.0 * eps, nb_random_init=restarts, loss_type=loss, **common
        )
    with _seeded(seed):
        found = attack.generate(start.cpu().numpy(), y.cpu().numpy())
    found = torch.from_numpy(found).to(x)
    return images.unfold(found) if method == "square" else found


class _Float32(nn.Module):
    """The model as ART sees it: float32 in and out, always in evaluation mode."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.to(self.dtype)).float()


class _AsImages(nn.Module):
    """Inputs that are no images, or none of Square's shape, as padded, square, one-channel images."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.model, self.shape, self.dtype = model, x.shape[1:], x.dtype
        self.size = self.shape.numel()
        height, width = self.shape[-2:] if x.ndim == 4 else (1, 1)
        # Square's first tile covers 0.8 of the area and must be smaller than the image.
        fits = round(math.sqrt(0.8 * height * width)) < min(height, width)
        self.side = 0 if fits else max(math.isqrt(self.size - 1) + 1, 5)

    def fold(self, x: Tensor) -> Tensor:
        if not self.side:
            return x.float()
        flat = x.float().flatten(1)
        filler = flat[:, :1].expand(-1, self.side**2 - self.size)
        return torch.cat([flat, filler], dim=1).reshape(-1, 1, self.side, self.side)

    def unfold(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, : self.size].reshape(-1, *self.shape) if self.side else x

    def forward(self, x: Tensor) -> Tensor:
        return self.model(self.unfold(x).to(self.dtype)).float()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The libraries draw from global generators; these are seeded, and put back as they were."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
