"""The paper's claims as experiments: digits, a 64-256-256-10 ReLU network, AdamW at 1e-3, 800 steps."""

from __future__ import annotations

from cameraready.evidence import Scale, agree, all_of, at_least, bar, claim, difference, line, scatter, trend

SPLIT = {"dataset": ["digits-labelled"], "n_train": [1200], "n_test": [597]}
LARGER = {"dataset": ["mnist-5k", "fashion-mnist"], "n_train": [4000], "n_test": [1000]}
NETWORK = {"width": [256], "steps": [800]}
LARGE_NETWORK = {"width": [2000], "steps": [3000]}
PAPER = {"dataset": ["fashion-mnist"], "n_train": [60_000], "n_test": [10_000], "width": [2000], "steps": [20_000]}
EPS = {"inf": [0.05], "2": [0.5]}
RANKS, NEURONS = [15, 5, 3], [64, 16, 8]  # after the network as it is
FIXED, FREE = "at fixed energy", "energy free"
LEVELS_CHART = "0: not compressed"
TRIO = "APGD-CE, APGD-DLR, Square (ART)"


@claim(
    "attacks-use-few-directions",
    says="The more compressed a network, the more of an attack's energy lies in its five most sensitive directions.",
    source="Claim 1; sensitive directions of compressible networks",
    factors={**SPLIT, **NETWORK},
    scales={
        "quick": Scale(seeds=5),
        "full": Scale(seeds=10, **LARGER, **LARGE_NETWORK),
        "paper": Scale(seeds=10, **PAPER),
    },
    holds=all_of(
        trend("attack_energy", "rank", over="compression", direction="increasing"),
        trend("attack_energy", "active neurons", over="compression", direction="increasing"),
        difference("attack_energy_at_most_compressed", "rank", to="not compressed", at_least=0.0),
        difference("attack_energy_at_most_compressed", "active neurons", to="not compressed", at_least=0.0),
    ),
    chart=[
        line(x="compression", y="attack_energy", title=f"Attack energy in the top 5 directions ({LEVELS_CHART})"),
        line(x="compression", y="value", facet="quantity", title=f"The same networks, l_2, eps 0.5 ({LEVELS_CHART})"),
    ],
    peers={"not compressed": "the same network, data and seed", "random directions": "5 / 64 = 0.08 of the energy"},
    timeout=3600,
)
def attacks_use_few_directions(trial, dataset, n_train, n_test, width, steps):
    from cameraready.methods.compress_robust import sensitive_directions
    from cameraready.methods.compress_robust.claim_inputs import images, network, record_levels, two_families
    from cameraready.methods.compress_robust.pgd import pgd
    from cameraready.methods.compress_robust.training import Recipe

    task = images(dataset, trial.rng, n_train, n_test)
    x, y = task[1]
    seed, recipe = trial.seed, Recipe(steps=steps)
    make = network(task, width)
    shares = {}
    for name, study in two_families(make, task, RANKS, NEURONS, seed=seed, eps={"2": [0.5]}, recipe=recipe).items():
        record_levels(trial, study.table, lambda _, name=name: name)
        for step, model in enumerate(study.models.values()):
            if model not in shares:  # the network as it is is in both families
                delta = pgd(model, x, y, norm="2", eps=0.5, restarts=1, seed=seed) - x
                moved = delta.flatten(1).norm(dim=1) > 0
                found = sensitive_directions(model, x[:256], rank=5, seed=seed)
                shares[model] = float(found.energy(delta[moved]).mean())
            trial.record(method=name, compression=step, attack_energy=shares[model])
        trial.record(method=name, attack_energy_at_most_compressed=shares[model])
    trial.record(method="not compressed", attack_energy_at_most_compressed=next(iter(shares.values())))


@claim(
    "norms-explain-the-loss",
    says="The loss that attacks add grows with the product of the layers' norms: l_inf with the l_inf norms as neurons "
    "become few, l_2 with the spectral norms as ranks fall.",
    source="Claim 2; robustness bound",
    factors={**SPLIT, **NETWORK},
    scales={
        "quick": Scale(seeds=5),
        "full": Scale(seeds=10, **LARGER, **LARGE_NETWORK),
        "paper": Scale(seeds=10, **PAPER),
    },
    # Thirteen networks a seed, 65 in all; one line a seed. Then the AIC of the other norm's line minus the own one's.
    holds=all_of(
        at_least("slope", "l_inf, all networks", 0.0),
        at_least("slope", "l_2, all networks", 0.0),
        at_least("aic_gain", "l_inf norms, few neurons", 0.0),
        at_least("aic_gain", "spectral norms, low rank", 0.0),
    ),
    chart=[
        scatter(x="ln_norm_product", y="ln_loss_added", facet="attack", title="ln loss added, over ln norm product"),
        line(x="compression", y="value", facet="quantity", title=f"The same networks, energy free ({LEVELS_CHART})"),
        bar(x="method", y="r_squared", title="Share of the variance explained, within a seed"),
    ],
    timeout=7200,
)
def norms_explain_the_loss(trial, dataset, n_train, n_test, width, steps):
    import numpy as np
    import pandas as pd

    from cameraready.methods.compress_robust.claim_inputs import (
        aic_gain,
        images,
        network,
        r_squared,
        record_levels,
        two_families,
    )
    from cameraready.methods.compress_robust.training import Recipe

    task = images(dataset, trial.rng, n_train, n_test)
    make, recipe = network(task, width), Recipe(steps=steps)
    ranks, neurons = [40, 25, 15, 8, 5, 3], [64, 48, 32, 24, 16, 8]
    tables = {}
    for name, study in two_families(make, task, ranks, neurons, seed=trial.seed, eps=EPS, recipe=recipe).items():
        record_levels(trial, study.table, lambda row, name=name: f"{name}, l_{row['norm']}")
        tables[name] = study.table.assign(log_gap=np.log(study.table["loss_gap"].clip(lower=1e-6)))
        for row in tables[name].itertuples():
            about = {"attack": f"l_{row.norm}", "ln_norm_product": row.log_product, "ln_loss_added": row.log_gap}
            trial.record(method=name, **about)
    # The uncompressed network is in both families.
    pooled = pd.concat([tables["rank"], tables["active neurons"].iloc[len(EPS) :]])
    for norm, part in pooled.groupby("norm"):
        product, gap = part["log_product"].to_numpy(), part["log_gap"].to_numpy()
        line_of = {"slope": np.polyfit(product, gap, 1)[0], "r_squared": r_squared(gap, product)}
        trial.record(method=f"l_{norm}, all networks", **line_of)
    for family, own, other, name in (
        ("active neurons", "inf", "2", "l_inf norms, few neurons"),
        ("rank", "2", "inf", "spectral norms, low rank"),
    ):
        by_norm = {norm: part.reset_index() for norm, part in tables[family].groupby("norm")}
        gap, product = by_norm[own]["log_gap"].to_numpy(), by_norm[own]["log_product"].to_numpy()
        gain = aic_gain(gap, product, by_norm[other]["log_product"].to_numpy())
        trial.record(method=name, aic_gain=gain, r_squared=r_squared(gap, product))


def _route(trial, task, knob, levels, energy, *, width, steps):
    """One study of both attacks, recorded under the attack and whether energy was held fixed."""
    from cameraready.methods.compress_robust import Recipe, sweep
    from cameraready.methods.compress_robust.claim_inputs import network, record_levels

    how = {"seeds": [trial.seed], "energy_control": energy == FIXED, "eps": EPS, "recipe": Recipe(steps=steps)}
    study = sweep(network(task, width), task, knob=knob, levels=levels, **how)
    record_levels(trial, study.table, lambda row: f"l_{row['norm']}, {energy}")


ROUTE_CHART = [
    line(x="compression", y="value", facet="quantity", title=f"By level ({LEVELS_CHART})"),
    line(
        x="compression", y="adversarial_accuracy", title=f"Adversarial accuracy, not relative to clean ({LEVELS_CHART})"
    ),
    line(x="compression", y="stable_rank", title="Mean stable rank of the hidden layers"),
]
ENERGY = {"energy": [FIXED]}  # the other scales also leave it free; few neurons and low rank are free in other claims
BOTH = {"energy": [FIXED, FREE]}
# At quick, claims 3 to 5 but for group lasso train half as long, for time: the test needs the five seeds.
ROUTE_SCALES = {
    "quick": Scale(seeds=5, steps=[400]),
    "full": Scale(seeds=10, **LARGER, **LARGE_NETWORK, **BOTH),
    "paper": Scale(seeds=10, **PAPER, **BOTH),
}


@claim(
    "compressed-by-group-lasso",
    says="Networks that group lasso makes compressible lose relative adversarial accuracy, at fixed energy.",
    source="Claim 3: explicit regularisation",
    factors={**SPLIT, **NETWORK, **ENERGY},
    scales={**ROUTE_SCALES, "quick": Scale(seeds=5)},
    holds=all_of(
        trend("relative_accuracy", f"l_inf, {FIXED}", over="compression", direction="decreasing"),
        trend("relative_accuracy", f"l_2, {FIXED}", over="compression", direction="decreasing"),
    ),
    chart=ROUTE_CHART,
    timeout=7200,
)
def compressed_by_group_lasso(trial, dataset, n_train, n_test, width, steps, energy):
    """At fixed energy the strengths cost as much clean accuracy as the prototype's: found so on seeds 100 and 101."""
    from cameraready.methods.compress_robust.claim_inputs import images

    task = images(dataset, trial.rng, n_train, n_test)
    levels = [0.0, 2e-2, 3e-2, 5e-2] if energy == FIXED else [0.0, 1e-3, 3e-3, 1e-2]
    _route(trial, task, "group_lasso", levels, energy, width=width, steps=steps)


@claim(
    "compressed-by-architecture",
    says="Networks of few neurons, and of low rank, lose relative adversarial accuracy, at fixed energy.",
    source="Claim 3: architectural bias",
    factors={**SPLIT, **NETWORK, **ENERGY},
    scales=ROUTE_SCALES,
    holds=all_of(
        *[
            trend("relative_accuracy", f"{family}: {norm}, {FIXED}", over="compression", direction="decreasing")
            for family in ("rank", "active neurons")
            for norm in ("l_inf", "l_2")
        ]
    ),
    chart=ROUTE_CHART,
    timeout=7200,
)
def compressed_by_architecture(trial, dataset, n_train, n_test, width, steps, energy):
    from cameraready.methods.compress_robust.claim_inputs import images, network, record_levels, two_families
    from cameraready.methods.compress_robust.training import Recipe

    task = images(dataset, trial.rng, n_train, n_test)
    how = {"seed": trial.seed, "eps": EPS, "energy_control": energy == FIXED, "recipe": Recipe(steps=steps)}
    for name, study in two_families(network(task, width), task, RANKS, NEURONS, **how).items():
        record_levels(trial, study.table, lambda row, head=name: f"{head}: l_{row['norm']}, {energy}")


@claim(
    "compressed-by-learning-rate",
    says="Networks that large learning rates make compressible lose relative adversarial accuracy, at fixed energy.",
    source="Claim 3: implicit dynamics",
    factors={**SPLIT, **NETWORK, **ENERGY},
    scales=ROUTE_SCALES,
    holds=all_of(
        trend("relative_accuracy", f"l_inf, {FIXED}", over="compression", direction="decreasing"),
        trend("relative_accuracy", f"l_2, {FIXED}", over="compression", direction="decreasing"),
    ),
    chart=ROUTE_CHART,
    timeout=7200,
)
def compressed_by_learning_rate(trial, dataset, n_train, n_test, width, steps, energy):
    """Not by weight decay: at fixed energy, decay and renormalisation cancel exactly."""
    from cameraready.methods.compress_robust.claim_inputs import images

    task = images(dataset, trial.rng, n_train, n_test)
    _route(trial, task, "lr", [1e-3, 3e-3, 1e-2, 3e-2], energy, width=width, steps=steps)


@claim(
    "persists-under-adversarial-training",
    says="Under PGD adversarial training, too, low rank and few neurons cost relative adversarial accuracy.",
    source="Claim 4: adversarial training",
    factors={**SPLIT, **NETWORK, "eps": [0.1]},
    scales={
        "quick": Scale(seeds=5),
        "full": Scale(seeds=10, **LARGER, **LARGE_NETWORK),
        "paper": Scale(seeds=10, eps=[8 / 255], **PAPER),
    },
    holds=all_of(
        trend("relative_accuracy", "rank", over="compression", direction="decreasing"),
        trend("relative_accuracy", "active neurons", over="compression", direction="decreasing"),
    ),
    chart=line(x="compression", y="value", facet="quantity", title=f"l_inf, eps 0.1, energy fixed ({LEVELS_CHART})"),
    timeout=7200,
    untestable_at={"quick": "PGD training of five seeds takes 45 s of a core; claim 4 is tested by transfer"},
)
def persists_under_adversarial_training(trial, dataset, n_train, n_test, width, steps, eps):
    from cameraready.methods.compress_robust.claim_inputs import images, network, record_levels, two_families
    from cameraready.methods.compress_robust.training import Recipe

    task = images(dataset, trial.rng, n_train, n_test)
    recipe = Recipe(steps=steps, adversarial_eps=eps, adversarial_steps=5)
    how = {"seed": trial.seed, "energy_control": True, "eps": {"inf": [eps]}, "recipe": recipe}
    for name, study in two_families(network(task, width), task, RANKS, NEURONS, **how).items():
        record_levels(trial, study.table, lambda _, name=name: name)


@claim(
    "persists-after-transfer",
    says="Bodies of low rank or few neurons, frozen and reused for other classes, cost relative adversarial accuracy.",
    source="Claim 4: transfer learning",
    factors={**SPLIT, **NETWORK, "head_steps": [100]},
    scales={
        "quick": Scale(seeds=5, steps=[400]),
        "full": Scale(seeds=10, **LARGER, **LARGE_NETWORK),
        "paper": Scale(seeds=10, **PAPER),
    },
    holds=all_of(
        trend("relative_accuracy", "rank", over="compression", direction="decreasing"),
        trend("relative_accuracy", "active neurons", over="compression", direction="decreasing"),
    ),
    chart=line(x="compression", y="value", facet="quantity", title=f"Classes 0-4 to 5-9, l_inf 0.05 ({LEVELS_CHART})"),
    timeout=7200,
)
def persists_after_transfer(trial, dataset, n_train, n_test, width, steps, head_steps):
    from cameraready.methods.compress_robust.claim_inputs import (
        classes,
        images,
        network,
        record_levels,
        two_families,
        with_new_head,
    )
    from cameraready.methods.compress_robust.training import Recipe

    task = images(dataset, trial.rng, n_train, n_test)
    before, after = classes(task, range(5)), classes(task, range(5, 10))
    families = two_families(
        network(before, width),
        before,
        RANKS,
        NEURONS,
        seed=trial.seed,
        eps={"inf": [0.05]},
        moved=lambda body: with_new_head(body, after, steps=head_steps, seed=trial.seed),
        test=after[1],
        energy_control=True,
        recipe=Recipe(steps=steps),
    )
    for name, study in families.items():
        record_levels(trial, study.table, lambda _, name=name: name)


@claim(
    "few-neurons-invite-universal-attacks",
    says="On images that all the networks get right, one universal perturbation fools narrow networks more.",
    source="Claim 5: universal adversarial perturbations",
    factors={**SPLIT, **NETWORK, "eps": [0.2]},
    scales={
        "quick": Scale(seeds=10, steps=[400]),  # many seeds, for the claim is noisy
        "full": Scale(seeds=20, **LARGER, **LARGE_NETWORK),
        "paper": Scale(seeds=20, eps=[8 / 255], **PAPER),
    },
    # Clean accuracy is matched exactly: accuracy under the perturbation is over the images that all networks get right.
    holds=trend("universal_accuracy", "active neurons", over="compression", direction="decreasing"),
    chart=[
        line(x="compression", y="universal_accuracy", title=f"Accuracy under the perturbation ({LEVELS_CHART})"),
        line(x="compression", y="value", facet="quantity", title=f"The same networks, l_inf 0.05 ({LEVELS_CHART})"),
    ],
    peers={"random signs": "noise of the same size, not crafted"},
    timeout=3600,
)
def few_neurons_invite_universal_attacks(trial, dataset, n_train, n_test, width, steps, eps):
    import torch

    from cameraready.methods.compress_robust import sweep
    from cameraready.methods.compress_robust.attacks import predictions
    from cameraready.methods.compress_robust.claim_inputs import images, network, record_levels
    from cameraready.methods.compress_robust.training import Recipe
    from cameraready.methods.compress_robust.universal import craft_universal, judge_universal

    task = images(dataset, trial.rng, n_train, n_test)
    (x, y), (x_test, y_test) = task
    study = sweep(
        network(task, width),
        task,
        knob="active_neurons",
        levels=[None, *NEURONS],
        seeds=[trial.seed],
        eps={"inf": [0.05]},
        recipe=Recipe(steps=steps),
    )
    record_levels(trial, study.table, lambda _: "active neurons")
    right = torch.stack([predictions(model, x_test) == y_test for model in study.models.values()]).all(dim=0)
    how = {"norm": "inf", "eps": eps, "bounds": (0.0, 1.0), "seed": trial.seed}
    for step, model in enumerate(study.models.values()):
        delta = craft_universal(model, x, y, steps=100, **how)
        judged = judge_universal(model, x_test[right], y_test[right], delta, crafted_on=len(x), **how)
        trial.record(method="active neurons", compression=step, universal_accuracy=judged.accuracy)
        trial.record(method="random signs", compression=step, universal_accuracy=judged.random)


@claim(
    "even-spread-restores-robustness",
    says="At the same number of neurons, SpreadControl raises adversarial accuracy in both norms.",
    source="Claim 6: per-layer targets and spread control",
    factors={**SPLIT, "width": [32], "steps": [800], "strength": [0.1]},
    scales={
        "quick": Scale(seeds=6),
        "full": Scale(seeds=20, **LARGER, width=[32, 128], steps=[3000], strength=[0.03, 0.1, 0.3]),
        "paper": Scale(seeds=20, **{**PAPER, "width": [128]}),
    },
    holds=all_of(
        difference("adversarial_accuracy_inf", "SpreadControl", to="plain", at_least=0.0),
        difference("adversarial_accuracy_2", "SpreadControl", to="plain", at_least=0.0),
    ),
    chart=[
        bar(x="method", y="value", facet="quantity", title="l_2, eps 0.5"),
        bar(x="method", y="adversarial_accuracy_inf", title="Adversarial accuracy, l_inf, eps 0.05"),
        bar(x="method", y="adversarial_accuracy_2", title="Adversarial accuracy, l_2, eps 0.5"),
    ],
    peers={"plain": "the same network, data, seed and number of parameters, without the penalty"},
    timeout=3600,
)
def even_spread_restores_robustness(trial, dataset, n_train, n_test, width, steps, strength):
    """The strength was chosen on seeds 100 and 101, which are not among the claim's."""
    from cameraready.methods.compress_robust import SpreadControl, sweep
    from cameraready.methods.compress_robust.claim_inputs import images, network
    from cameraready.methods.compress_robust.knobs import Knob
    from cameraready.methods.compress_robust.sweep import QUANTITIES
    from cameraready.methods.compress_robust.training import Recipe

    task = images(dataset, trial.rng, n_train, n_test)
    control = SpreadControl(1.0, k=width)
    study = sweep(
        network(task, width),
        task,
        knob=Knob("spread control", penalty=lambda weight: control.of(weight, width)),
        levels=[0.0, strength],
        seeds=[trial.seed],
        eps=EPS,
        recipe=Recipe(steps=steps),
    )
    for _, row in study.table.iterrows():
        name = "SpreadControl" if row["level"] else "plain"
        trial.record(method=name, **{f"adversarial_accuracy_{row['norm']}": row["adv"], "clean_accuracy": row["clean"]})
        for quantity, words in QUANTITIES.items():
            if row["norm"] == "2":
                trial.record(method=name, quantity=words, value=row[quantity])


@claim(
    "attacks-are-strong",
    says="The PGD of the studies is as strong as foolbox's at equal steps, and in 3 points of the AutoAttack trio.",
    source="Targets of this implementation",
    factors={**SPLIT, **NETWORK, "n_attacked": [100], "starts": [5], "queries": [200]},
    scales={
        "quick": Scale(seeds=3),
        "full": Scale(seeds=10, **LARGER, n_attacked=[1000], queries=[5000]),
        "paper": Scale(seeds=10, **PAPER, n_attacked=[1000], queries=[5000]),
    },
    holds=all_of(
        agree("accuracy", "PGD, 1 restart", to="PGD (foolbox)", within=0.01, each="attack"),
        difference("accuracy_of_a_few", "PGD, 5 restarts", to=TRIO, at_most=0.03, each="attack"),
    ),
    chart=[bar(x="method", y="accuracy", facet="attack"), bar(x="method", y="accuracy_of_a_few", facet="attack")],
    peers={
        "PGD (foolbox)": "LinfPGD / L2PGD, 20 steps of eps / 5, random start",
        TRIO: "100 steps each, then 200 queries (full: 5000), on what is left",
    },
    timeout=3600,
)
def attacks_are_strong(trial, dataset, n_train, n_test, width, steps, n_attacked, starts, queries):
    import torch

    from cameraready.methods.compress_robust import attack
    from cameraready.methods.compress_robust.claim_inputs import images, network
    from cameraready.methods.compress_robust.sweep import train
    from cameraready.methods.compress_robust.training import Recipe

    task = images(dataset, trial.rng, n_train, n_test)
    recipe = Recipe(steps=steps)
    trained = train(network(task, width), task[0], knob="group_lasso", levels=[None], seeds=[trial.seed], recipe=recipe)
    [model] = trained.values()
    x, y = task[1]
    few = torch.arange(n_attacked)
    for norm, [eps] in EPS.items():
        how = {"norm": norm, "eps": eps}
        for name, settings in {"PGD, 1 restart": {"restarts": 1}, "PGD (foolbox)": {"method": "foolbox-pgd"}}.items():
            # The mean over random starts, so that what is compared is the attacks and not their luck.
            found = [attack(model, x, y, seed=10 * trial.seed + i, **how, **settings).accuracy for i in range(starts)]
            trial.record(method=name, attack=f"l_{norm}", accuracy=sum(found) / starts)
        ours = attack(model, x[few], y[few], seed=trial.seed, **how)
        trial.record(method="PGD, 5 restarts", attack=f"l_{norm}", accuracy_of_a_few=ours.accuracy)
        left = few
        for part, n_steps in {"apgd-ce": 100, "apgd-dlr": 100, "square": queries}.items():
            if len(left):
                result = attack(model, x[left], y[left], method=part, steps=n_steps, seed=trial.seed, **how)
                left = left[~result.success]
        trial.record(method=TRIO, attack=f"l_{norm}", accuracy_of_a_few=len(left) / n_attacked)
