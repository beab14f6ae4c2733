"""The audit: compressibility, attacks, certificates and checks of one model on one data set."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from cameraready.coverage import NotCovered
from cameraready.methods.compress_robust.attack_table import attack_table
from cameraready.methods.compress_robust.attacks import AUTOATTACK, logits_of
from cameraready.methods.compress_robust.audit_report import AuditReport
from cameraready.methods.compress_robust.certificates import certified_accuracy, certified_radius
from cameraready.methods.compress_robust.inputs import (
    analysed_copy,
    check_bounds,
    check_differentiable,
    check_examples,
    check_norm_and_eps,
    collect,
)
from cameraready.methods.compress_robust.layer_table import layer_table
from cameraready.methods.compress_robust.layers import layers_of, uncovered
from cameraready.methods.compress_robust.lipschitz import lipschitz_bound
from cameraready.methods.compress_robust.masking import masking_checks
from cameraready.methods.compress_robust.sensitive import sensitive_directions
from cameraready.methods.compress_robust.universal import universal_perturbation

EPS: Mapping[str, Sequence[float]] = {"inf": (2 / 255, 8 / 255), "2": (0.25, 0.5)}
CURVE_POINTS = 40
FEW = 200  # examples below which the intervals are too wide to compare models by


@torch.enable_grad()
def audit(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    *,
    eps: Mapping[str, Sequence[float]] = EPS,
    bounds: tuple[float, float] = (0.0, 1.0),
    attacks: Literal["fast", "strong"] = "fast",
    limit: int = 1000,
    constants: Mapping[str, float] | None = None,
    device: str | torch.device | None = None,
    force_eval: bool = False,
    seed: int = 0,
) -> AuditReport:
    """Audit any torch classifier for structured compressibility and its adversarial robustness.

    Parameters
    ----------
    model : inputs to logits (n, classes), in evaluation mode, with its normalisation inside.
    loader : (inputs, labels) batches, such as a DataLoader.
    eps : norm ("inf", "2") to radii, in units of the input.
    bounds : range of valid inputs.
    attacks : "fast": PGD, 20 steps, 5 restarts. "strong": also APGD-CE, APGD-DLR and Square, and the worst of all four.
    limit : examples used, the loader's first.
    constants : Lipschitz constants of submodules for the certificate, by name (see `lipschitz_bound`).
    device : by default where the model's parameters are.
    force_eval : audit a model that is in training mode as if ``eval()`` had been called; the mode is put back.

    Raises
    ------
    TypeError, ValueError : what `check_examples` refuses; no radius, an unknown norm, eps below 0.

    Examples
    --------
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    >>> x = torch.rand(20, 4)
    >>> report = audit(model, [(x, model(x).argmax(dim=1))], eps={"inf": [0.01]})
    >>> report.robustness[["norm", "eps", "attack", "clean"]].values.tolist(), report.not_covered
    ([['inf', 0.01, 'pgd', 1.0]], {})
    """
    radii = _checked_radii(eps)
    if attacks not in ("fast", "strong"):
        raise ValueError(f"attacks={attacks!r}; choose 'fast' or 'strong'")
    if limit < 1:
        raise ValueError(f"limit={limit}; at least one example is needed")
    bounds = check_bounds(bounds)
    layers_of(model)  # a TypeError for what is no module
    parameter = next(model.parameters(), None)
    device = device or ("cpu" if parameter is None else parameter.device)
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"device={str(device)!r}: {error}; pass one that this machine has, such as 'cpu'") from error
    x, y = collect(loader, limit=limit, device=device)
    with _evaluated(model, force_eval):
        subject = analysed_copy(model, device)
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        check_examples(subject, x, y, bounds=bounds)
        return _audit(subject, x, y.long(), radii, bounds, attacks, constants, seed, _warnings(model, x, bounds))


def _audit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: Mapping[str, list[float]],
    bounds: tuple[float, float],
    attacks: str,
    constants: Mapping[str, float] | None,
    seed: int,
    warnings: list[str],
) -> AuditReport:
    methods = ("pgd", *AUTOATTACK) if attacks == "strong" else ("pgd",)
    try:
        check_differentiable(model, x, y)
    except ValueError as error:
        warnings.append(
            f"{error}. Only Square was run, which is weaker than a gradient attack where there is a gradient."
        )
        methods = ("square",)
    classes = logits_of(model, x[:1]).shape[1]
    methods = tuple(m for m in methods if m != "apgd-dlr" or classes > 2)
    lipschitz, refused, curves, proved = {}, {}, [], {}
    for p in eps:
        try:
            lipschitz[p] = lipschitz_bound(model, x, p, constants=constants)
            proved[p] = certified_radius(model, x, y, p=p, bound=lipschitz[p])
            curves += _curve(p, proved[p], eps[p])
        except NotCovered as error:
            lipschitz.pop(p, None)
            refused[p] = error.reason
    robustness, worst = attack_table(
        model, x, y, eps=eps, bounds=bounds, methods=methods, lipschitz=lipschitz, seed=seed
    )
    if float(robustness["clean"].iloc[0]) < 0.5:
        warnings.append("Clean accuracy is below 50 %: compare models by `relative`, not by accuracy under attack.")
    uap, sensitive, energy, checks = [], None, math.nan, ()
    gradient = methods != ("square",)
    if gradient and len(x) > 1:
        for p in eps:
            made = universal_perturbation(
                model, [(x, y)], norm=p, eps=eps[p][-1], bounds=bounds, limit=len(x), seed=seed
            )
            names = ("norm", "eps", "clean", "accuracy", "random")
            uap.append({name: getattr(made, name) for name in names})
    if gradient:
        sensitive = sensitive_directions(model, x[:256], rank=min(5, x[0].numel()), seed=seed)
        norm = "2" if "2" in eps else "inf"
        delta = worst[norm] - x
        moved = delta.flatten(1).abs().amax(dim=1) > 0
        energy = float(sensitive.energy(delta[moved]).mean()) if moved.any() else math.nan
        adv = robustness[(robustness["norm"] == norm) & (robustness["attack"] == "pgd")]["adv"].iloc[-1]
        checks = masking_checks(
            model,
            x,
            y,
            norm=norm,
            eps=eps[norm][-1],
            bounds=bounds,
            attacked=float(adv),
            black_box="square" in methods,
            seed=seed,
        )
        warnings += [f"Masking check failed, {check.name}: {check.detail}." for check in checks if not check.passed]
    table = layer_table(model, x)
    return AuditReport(
        layers=table,
        robustness=robustness,
        certified=pd.DataFrame(curves, columns=["norm", "eps", "accuracy"]),
        not_covered=refused,
        bounds=lipschitz,
        uap=pd.DataFrame(uap, columns=["norm", "eps", "clean", "accuracy", "random"]),
        sensitive=sensitive,
        attack_energy=energy,
        masking=checks,
        warnings=tuple(warnings),
        n=len(x),
        model=f"{type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters",
        attacks=attacks,
    )


def _curve(p: str, radii: Tensor, eps: list[float]) -> list[dict[str, object]]:
    top = 1.05 * float(radii[radii.isfinite()].amax()) if radii.isfinite().any() and radii.any() else eps[-1]
    grid = sorted({*np.linspace(0, top, CURVE_POINTS).tolist(), *eps})
    return [{"norm": p, "eps": e, "accuracy": certified_accuracy(radii, e)} for e in grid]


def _warnings(model: nn.Module, x: Tensor, bounds: tuple[float, float]) -> list[str]:
    found = []
    low, high = bounds
    if float(x.max() - x.min()) < 0.2 * (high - low):
        seen = (
            f"The inputs span {float(x.min()):.3g} to {float(x.max()):.3g}, a small part of bounds=({low:g}, {high:g})"
        )
        found.append(f"{seen}: check that eps is in the units of the inputs.")
    if len(x) < FEW:
        found.append(f"Only {len(x)} examples: the intervals are wide.")
    if names := uncovered(model):
        found.append(f"{len(names)} weight matrices belong to no layer in the table: {', '.join(names[:5])}.")
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()):
        found.append("The weights are in half precision; a float32 copy was audited.")
    if any("quantized" in type(m).__module__ for m in model.modules()):
        found.append("Quantised layers are analysed with their dequantised weights.")
    return found


def _checked_radii(eps: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    if not isinstance(eps, Mapping) or not eps:
        raise ValueError(f"eps={eps!r}; pass a dict of norm to radii, such as {{'inf': [8/255]}}")
    if any(isinstance(values, (int, float)) for values in eps.values()):
        raise ValueError(f"eps={dict(eps)}; pass a list of radii a norm, such as {{'inf': [8/255]}}")
    radii = {p: sorted(float(e) for e in values) for p, values in eps.items()}
    for p, values in radii.items():
        if not values:
            raise ValueError(f"eps[{p!r}] is empty; pass at least one radius")
        for value in values:
            check_norm_and_eps(p, value)
    return radii


@contextmanager
def _evaluated(model: nn.Module, force: bool):
    """The model in evaluation mode if forced, every submodule's own mode put back after."""
    if not force:
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
