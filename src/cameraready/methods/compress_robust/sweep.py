"""Controlled studies: train a network at several levels of compression and measure what it does to robustness."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import altair as alt
import pandas as pd
import torch
from torch import Tensor, nn

from cameraready.methods.compress_robust.inputs import check_bounds, check_examples, check_norm_and_eps
from cameraready.methods.compress_robust.knobs import KNOBS, Knob, zero_rows
from cameraready.methods.compress_robust.measure import measure
from cameraready.methods.compress_robust.training import Recipe, Stack, fit

Data = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
Key = tuple[float | None, int]  # level and seed
FINE_TUNE = 0.25  # of the recipe's steps, after pruning
QUANTITIES = {
    "relative": "adversarial accuracy / clean accuracy",
    "clean": "clean accuracy",
    "log_energy": "ln energy, all layers",
    "log_concentration": "ln concentration, all layers",
}


@dataclass(frozen=True)
class Sweep:
    """A study's measurements and models.

    Attributes
    ----------
    table : one row a model, norm and eps: knob, level, seed, energy_control, norm, eps, clean, adv, relative, loss_gap;
        log_product, log_energy, log_concentration, log_spread (natural logarithms of that norm's factors, summed over
        the layers); means over the hidden layers of stable_rank and of kept (rows, or singular values, that hold nine
        tenths).
    models : (level, seed) to the trained model, in evaluation mode.
    """

    knob: str
    table: pd.DataFrame
    models: Mapping[Key, nn.Module]

    def summary(self) -> pd.DataFrame:
        """Means over the seeds."""
        keys = ["norm", "eps", "level"]
        numbers = ["clean", "adv", "relative", "loss_gap", "log_product", "log_energy", "log_concentration", "kept"]
        return self.table.groupby(keys, sort=False, dropna=False)[numbers].mean().reset_index()

    def chart(self) -> alt.Chart:
        """Robustness and clean accuracy beside energy and concentration, over the levels; one line an attack."""
        order = [str(level) for level in self.table["level"].unique()]
        long = self.table.assign(level=self.table["level"].astype(str)).melt(
            ["level", "seed", "norm", "eps"], list(QUANTITIES), "quantity", "value"
        )
        long["attack"] = [f"l_{norm}, eps {eps:.3g}" for norm, eps in zip(long["norm"], long["eps"], strict=True)]
        pictures = [
            alt.Chart(long[long["quantity"] == quantity], title=title, width=260, height=180)
            .mark_line(point=True)
            .encode(
                x=alt.X("level:N", sort=order, title=self.knob),
                y=alt.Y("mean(value):Q", title=None, scale=alt.Scale(zero=False)),
                color=alt.Color("attack:N", title=None),
            )
            for quantity, title in QUANTITIES.items()
        ]
        return alt.vconcat(alt.hconcat(*pictures[:2]), alt.hconcat(*pictures[2:]))

    def __str__(self) -> str:
        return f"{self.knob}\n{self.summary().to_string(index=False, float_format=lambda v: f'{v:.3f}')}"


def sweep(
    make_model: Callable[[], nn.Module],
    data: Data,
    *,
    knob: str | Knob,
    levels: Sequence[float | None],
    seeds: Sequence[int],
    energy_control: bool = False,
    eps: Mapping[str, Sequence[float]] | None = None,
    recipe: Recipe | None = None,
    restarts: int = 1,
) -> Sweep:
    """Train at every level and seed, attack with PGD (20 steps), and take the layers apart.

    Parameters
    ----------
    make_model : a fresh network from the global torch generator, which is seeded before each call.
    data : ((x, y), (x_test, y_test)); inputs inside ``recipe.bounds``.
    knob : "group_lasso", "nuclear_norm" (level: strength), "rank", "active_neurons" (level: number kept), "prune_rows"
        (share or number of rows kept, then fine-tuned), "svd" (rank kept), "weight_decay", "lr" (level: the setting),
        or a `Knob` of your own.
    levels : from the least compressed to the most; None is the network as it is.
    seeds : of initial weights and order of examples; all levels of a seed share both.
    energy_control : put every layer's Frobenius norm back to that of the uncompressed network's initial weights after
        each step, so that concentration is varied at fixed energy.
    eps : norm to radii; by default l_inf 0.05 and l_2 0.5.
    recipe : see `Recipe`.
    restarts : of PGD.

    Raises
    ------
    ValueError : an unknown knob, no levels or seeds, data that `attack` would refuse.

    Examples
    --------
    >>> x = torch.rand(64, 4)
    >>> y = (x[:, 0] > x[:, 1]).long()
    >>> def net():
    ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> study = sweep(net, ((x, y), (x, y)), knob="active_neurons", levels=[8, 2], seeds=[0], recipe=Recipe(steps=20))
    >>> study.table[["level", "norm"]].values.tolist()
    [[8, 'inf'], [8, '2'], [2, 'inf'], [2, '2']]
    """
    knob = _resolve(knob)
    levels, seeds = list(levels), list(seeds)
    if not levels or not seeds or len(set(levels)) != len(levels) or len(set(seeds)) != len(seeds):
        raise ValueError(f"levels={levels}, seeds={seeds}; pass at least one of each, none twice")
    recipe = recipe or Recipe()
    check_bounds(recipe.bounds)
    eps = {"inf": [0.05], "2": [0.5]} if eps is None else eps
    for norm, radii in eps.items():
        for radius in radii:
            check_norm_and_eps(norm, radius)
    (x, y), (x_test, y_test) = data
    if any(level is not None and not 0 <= level < math.inf for level in levels):
        raise ValueError(f"levels={levels}; a level is None or a finite number of at least 0")
    for inputs, labels in data:
        check_examples(make_model().to(inputs.device).eval(), inputs, labels, bounds=recipe.bounds)
    models = train(
        make_model, (x, y), knob=knob, levels=levels, seeds=seeds, energy_control=energy_control, recipe=recipe
    )
    rows = []
    for (level, seed), model in models.items():
        head = {"knob": knob.name, "level": level, "seed": seed, "energy_control": energy_control}
        measured = measure(model, x_test, y_test, eps=eps, bounds=recipe.bounds, restarts=restarts, seed=seed)
        rows += [{**head, **row} for row in measured]
    return Sweep(knob.name, pd.DataFrame(rows), models)


def train(
    make_model: Callable[[], nn.Module],
    examples: tuple[Tensor, Tensor],
    *,
    knob: str | Knob,
    levels: Sequence[float | None],
    seeds: Sequence[int],
    energy_control: bool = False,
    recipe: Recipe | None = None,
) -> dict[Key, nn.Module]:
    """The models of a `sweep`, (level, seed) to model, in evaluation mode; those of one shape are trained at once."""
    knob, recipe = _resolve(knob), recipe or Recipe()
    x, y = examples[0], examples[1].long()
    fresh: dict[Key, nn.Module] = {}
    initial: dict[Key, dict[str, Tensor]] = {}
    for level in levels:
        for seed in seeds:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                dense = make_model().to(x.device)
            initial[level, seed] = {name: norm[0] for name, norm in Stack([dense]).norms().items()}
            built = knob.build and level is not None
            fresh[level, seed] = knob.build(dense, level, levels) if built else dense
    groups: dict[object, list[Key]] = {}
    for key, model in fresh.items():
        groups.setdefault(tuple((name, tuple(p.shape)) for name, p in model.state_dict().items()), []).append(key)
    trained: dict[Key, nn.Module] = {}
    for keys in groups.values():
        energies = _stacked([initial[key] for key in keys]) if energy_control else None
        trained.update(_train_group(fresh, keys, x, y, knob, recipe, energies))
    return {key: trained[key] for key in fresh}


def _train_group(
    fresh: dict[Key, nn.Module],
    keys: list[Key],
    x: Tensor,
    y: Tensor,
    knob: Knob,
    recipe: Recipe,
    energies: dict[str, Tensor] | None,
) -> dict[Key, nn.Module]:
    levels, seeds = [level for level, _ in keys], [seed for _, seed in keys]
    numbers = torch.tensor([0.0 if level is None else float(level) for level in levels], device=x.device)
    settings: dict[str, object] = {}
    if knob.sets:
        chosen = [getattr(recipe, knob.sets) if level is None else float(level) for level in levels]
        settings[{"lr": "rates", "weight_decay": "decays"}[knob.sets]] = chosen
    if knob.penalty is not None:
        settings |= {"penalty": knob.penalty, "strengths": numbers}
    if knob.masks is not None:
        settings["masks"] = _stacked([knob.masks(fresh[key], math.inf if key[0] is None else key[0]) for key in keys])
    stack = fit(Stack([fresh[key] for key in keys]), x, y, recipe=recipe, seeds=seeds, energies=energies, **settings)
    models = stack.unstack()
    if knob.finish is not None:
        models = [
            model if key[0] is None else knob.finish(model, key[0]) for model, key in zip(models, keys, strict=True)
        ]
    if knob.fine_tunes:
        more = replace(recipe, steps=max(1, int(FINE_TUNE * recipe.steps)))
        masks = _stacked([zero_rows(model) for model in models])
        models = fit(Stack(models), x, y, recipe=more, seeds=seeds, energies=energies, masks=masks).unstack()
    return dict(zip(keys, models, strict=True))


def _stacked(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The same named values of several models, with the leading dimension of a stack."""
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def _resolve(knob: str | Knob) -> Knob:
    if isinstance(knob, Knob):
        return knob
    if knob not in KNOBS:
        raise ValueError(f"knob={knob!r}; choose one of {', '.join(KNOBS)}, or pass a Knob")
    return KNOBS[knob]
