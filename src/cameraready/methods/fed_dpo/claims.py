"""The paper's claims as experiments: on electricity customers' choices, and on a small language model."""

from __future__ import annotations

from cameraready.evidence import (
    Dataset,
    Scale,
    agree,
    all_of,
    at_least,
    at_most,
    bar,
    claim,
    difference,
    line,
    ratio,
    slope,
    trend,
)

MEASURED, PREDICTED, QUADRATIC = "measured", "predicted", "predicted, quadratic model"
CHOICES = Dataset("table", default="electricity")
SPLITS = ["IID", "by taste"]
GRAPHS = ["ring", "exponential", "path", "star", "complete"]
INCOMPLETE = GRAPHS[:-1]


@claim(
    "objective-is-characterised",
    says="Heterogeneity vanishes exactly for identical users, the mixture's optimum is not the mean of the users' "
    "optima, and no curvature exceeds L.",
    source="Claim 1: the induced global objective",
    factors={"choices": CHOICES, "split": [*SPLITS, "identical users"], "points": [1000]},
    scales={"quick": Scale(seeds=3), "full": Scale(seeds=20, points=[10_000])},
    holds=all_of(
        # "if and only if": what counts as zero for identical users has to be exceeded by others
        at_most("zeta2", MEASURED, 1e-20, where={"split": "identical users"}),
        at_least("zeta2", MEASURED, 1e-20, where={"split": SPLITS}, each="split"),
        at_most("distance", MEASURED, 1e-9, where={"split": "identical users"}),
        at_least("distance", MEASURED, 1e-9, where={"split": SPLITS}, each="split"),
        at_most("points_above_L", MEASURED, 0, each="split"),
    ),
    chart=[
        bar(x="split", y="distance", title="Mixture's optimum to the mean of the users' optima"),
        bar(x="split", y="zeta2", title="Heterogeneity at the optimum"),
    ],
)
def objective_is_characterised(trial, choices, split, points):
    """Curvatures at normal points about the optimum, of standard deviation 1 in logits of a typical pair."""
    import torch

    from cameraready.methods.fed_dpo import Objective, heterogeneity, smoothness
    from cameraready.methods.fed_dpo.claim_choices import people_clients, policy
    from cameraready.methods.fed_dpo.landscape import hessians, local_optima, optimum, weights_of

    clients = people_clients(choices, trial.rng, split="IID" if split == "identical users" else split)
    if split == "identical users":
        clients = clients[:1] * len(clients)
    # without the ridge the group of the most extreme taste is separable: its own optimum is at infinity
    objective = Objective(policy(clients), clients, ridge=0.01)
    star, p = optimum(objective), weights_of(objective)
    mean = p @ local_optima(objective)
    value = p @ (objective.losses(mean).loss - objective.losses(star).loss)
    L = smoothness(objective)
    largest = []
    for _ in range(points):
        theta = star + torch.from_numpy(trial.rng.normal(size=len(star)))
        largest.append(float((torch.linalg.eigvalsh(hessians(objective, theta))[:, -1] / L).max()))
    trial.record(
        method=MEASURED,
        zeta2=heterogeneity(objective).zeta2,
        distance=(mean - star).norm(),
        excess_loss=value,
        points_above_L=sum(x > 1 for x in largest),
        largest_curvature_over_L=max(largest),
    )


@claim(
    "drift-floor-is-predicted",
    says="Where K local steps end, and how fast, follows from derivatives at the optimum; SCAFFOLD ends there.",
    source="Claim 2: client drift, communication frequency and heterogeneity",
    factors={"choices": CHOICES, "sorted_by_taste": [0.0, 0.5, 1.0]},
    scales={"quick": Scale(seeds=5), "full": Scale(seeds=20, sorted_by_taste=[0.0, 0.25, 0.5, 0.75, 1.0])},
    holds=all_of(
        *(
            ratio(
                "floor",
                MEASURED,
                to=PREDICTED,
                between=(0.4, 2.5),
                where={"K": [2, 5, 10, 50], "sorted_by_taste": taste},
                each="K",
            )
            for taste in (0.0, 1.0)
        ),
        at_most("error", MEASURED, 1e-12, where={"K": 1}),
        trend("error", MEASURED, over="K", direction="increasing", each="sorted_by_taste"),
        trend("floor", MEASURED, over="sorted_by_taste", direction="increasing", where={"K": [2, 5, 10, 50]}, each="K"),
        trend("zeta2", MEASURED, over="sorted_by_taste", direction="increasing", where={"K": 2}),
        ratio("error", "SCAFFOLD", to=MEASURED, at_most=0.01, where={"K": [2, 5, 10, 50]}, each="K"),
        agree("rate", MEASURED, to=PREDICTED, within=0.05, where={"K": [1, 2, 5, 10]}, each="K"),
    ),
    chart=[
        line(x="K", y="floor", color="method", facet="sorted_by_taste", log="xy", title="f - f* at the end point"),
        line(x="K", y="offset", color="method", facet="sorted_by_taste", log="xy", title="Distance from theta*"),
        line(x="K", y="rate", color="method", facet="sorted_by_taste", log="x", title="Contraction a round"),
        line(x="K", y="error", color="method", facet="sorted_by_taste", log="xy", title="f - f* beside SCAFFOLD's"),
    ],
    peers={
        PREDICTED: "fedavg_fixed_point with third derivatives",
        QUADRATIC: "fedavg_fixed_point without: the formula of the quadratic local model",
        "SCAFFOLD": "the same step and local steps, 40 rounds",
    },
)
def drift_floor_is_predicted(trial, choices, sorted_by_taste):
    """Ten groups of customers, exact gradients, lr = 0.5 / L, until the moves are rounding errors."""
    from cameraready.methods.fed_dpo import FederatedDPO, Objective, fedavg_fixed_point
    from cameraready.methods.fed_dpo.claim_choices import gaps, people_clients, policy
    from cameraready.methods.fed_dpo.history import shrink_factor
    from cameraready.methods.fed_dpo.landscape import (
        hessians,
        heterogeneity,
        optimum,
        smoothness,
        third_derivatives,
        weights_of,
    )  # fmt: skip

    clients = people_clients(choices, trial.rng, split="by taste", sorted_share=sorted_by_taste)
    objective = Objective(policy(clients), clients)
    star, p = optimum(objective), weights_of(objective)
    H, g, third = hessians(objective, star), objective.losses(star).gradient, third_derivatives(objective, star)
    found = heterogeneity(objective)
    lr = 0.5 / float(smoothness(objective).max())
    for K, rounds in ((1, 150), (2, 90), (5, 50), (10, 30), (50, 15)):
        common = {"local_steps": K, "lr": lr, "evaluate_every": 0}
        run = FederatedDPO(policy(clients), clients, rounds=rounds, **common)
        rate = shrink_factor(run.fit().table["moved"].to_numpy())
        floor = gaps(objective, run.theta[None])[0]
        extra = {"rate": rate} if K <= 10 else {}
        if K > 1:
            extra |= {"floor": floor, "offset": (run.theta - star).norm()}
        # in `error`, rounding errors of the loss, which may be negative, count as 1e-16
        trial.record(
            method=MEASURED, K=K, error=max(1e-16, floor), zeta2=found.zeta2, **extra,
        )  # fmt: skip
        for name, bend in ((PREDICTED, third), (QUADRATIC, None)):
            end = fedavg_fixed_point(H, g, lr=lr, K=K, p=p, third=bend)
            ends = {"floor": end.floor, "offset": (end.offset**2).sum() ** 0.5} if K > 1 else {}
            trial.record(method=name, K=K, rate=end.rate, remainder=end.remainder, **ends)
        if K > 1:
            run = FederatedDPO(policy(clients), clients, rounds=40, algorithm="scaffold", **common)
            run.fit()
            trial.record(method="SCAFFOLD", K=K, error=max(1e-16, gaps(objective, run.theta[None])[0]))


@claim(
    "bounds-hold",
    says="With minibatches, the mean suboptimality of all iterates stays below the convergence bound.",
    source="Claim 2 and 3: rates in D, sigma, zeta, K, R and the gap",
    factors={"choices": CHOICES, "split": SPLITS, "batch_size": [16], "rounds": [40]},
    scales={"quick": Scale(seeds=3), "full": Scale(seeds=20, rounds=[400])},
    holds=all_of(
        ratio("suboptimality", "FedAvg", to="bound, FedAvg", at_most=1.0, where={"K": [1, 5, 20]}, each="K"),
        ratio("suboptimality", "gossip on a ring", to="bound, gossip", at_most=1.0),
    ),
    chart=line(x="K", y="suboptimality", color="method", facet="split", log="xy", title="Mean suboptimality"),
)
def bounds_hold(trial, choices, split, batch_size, rounds):
    """lr = 1 / (4 L); sigma^2 and zeta^2 are the largest seen at the iterates, where the theorem takes a supremum."""
    import networkx as nx
    import torch

    from cameraready.methods.fed_dpo import (
        DecentralizedDPO,
        FederatedDPO,
        Objective,
        dsgd_bound,
        fedavg_bound,
        metropolis,
        spectral_gap,
    )  # fmt: skip
    from cameraready.methods.fed_dpo.claim_choices import gaps, people_clients, policy
    from cameraready.methods.fed_dpo.landscape import noise, optimum, smoothness, weights_of

    clients = people_clients(choices, trial.rng, split=split)
    objective = Objective(policy(clients), clients)
    p, star, L = weights_of(objective), optimum(objective), float(smoothness(objective).max())
    lr, D = 1 / (4 * L), float((objective.theta_ref - star).norm())

    def worst(points):
        """The largest noise, and dissimilarity of the worst client, at some of the iterates."""
        sigma2 = zeta2 = 0.0
        for theta in points[:: max(1, len(points) // 20)]:
            gradients = objective.losses(theta).gradient
            zeta2 = max(zeta2, float(((gradients - p @ gradients) ** 2).sum(dim=1).max()))
            sigma2 = max(sigma2, float(noise(objective, theta, batch_size=batch_size).max()))
        return {"sigma2": sigma2, "zeta2": zeta2}

    common = {"lr": lr, "batch_size": batch_size, "seed": trial.seed, "evaluate_every": 0}
    for K in (1, 5, 20):
        run = FederatedDPO(policy(clients), clients, local_steps=K, rounds=rounds, **common)
        means: list[torch.Tensor] = []
        run.worker.watch = lambda thetas, means=means: means.append(p @ thetas)
        run.fit()
        bound = fedavg_bound(D=D, lr=lr, K=K, R=rounds, M=1 / float(p @ p), L=L, **worst(means))
        trial.record(method="FedAvg", K=K, suboptimality=gaps(objective, means).mean())
        trial.record(method="bound, FedAvg", K=K, suboptimality=bound)
    W = metropolis(nx.cycle_graph(len(clients)))
    run = DecentralizedDPO(policy(clients), clients, W, steps=1, **common)
    means = []
    for step in range(1, rounds + 1):
        means.append(run.thetas.mean(dim=0))
        run.steps = step
        run.fit()
    rho = 1 - spectral_gap(W)
    bound = dsgd_bound(D=D, lr=lr, T=rounds, n=len(clients), rho=rho, L=L, **worst(means))
    trial.record(method="gossip on a ring", K=1, suboptimality=gaps(objective, means).mean())
    trial.record(method="bound, gossip", K=1, suboptimality=bound)


@claim(
    "disagreement-is-predicted",
    says="On five graphs the nodes' disagreement is predicted within 15 %, and gradient tracking removes the floor.",
    source="Claim 3: spectral connectivity governs consensus",
    factors={"choices": CHOICES, "split": SPLITS},
    scales={"quick": Scale(seeds=3), "full": Scale(seeds=20)},
    holds=all_of(
        *(
            ratio(
                "disagreement",
                MEASURED,
                to=PREDICTED,
                between=(0.85, 1.15),
                where={"split": s, "graph": INCOMPLETE},
                each="graph",
            )
            for s in SPLITS
        ),
        at_most("disagreement", MEASURED, 1e-10, where={"graph": "complete"}),
        ratio("suboptimality", "tracking", to=MEASURED, at_most=0.01, where={"graph": INCOMPLETE}, each="graph"),
        at_most("contraction_error", "pure gossip", 1e-4, where={"graph": INCOMPLETE}, each="graph"),
    ),
    chart=[
        line(x="gap", y="disagreement", color="method", facet="split", log="x", title="RMS disagreement at the end"),
        line(
            x="gap",
            y="suboptimality",
            color="method",
            facet="split",
            log="xy",
            title="Mean over nodes of f - f* (complete graph: 0)",
        ),
    ],
    peers={
        PREDICTED: "dsgd_fixed_point with third derivatives",
        "tracking": "gradient tracking, 800 steps of the same size",
    },
)
def disagreement_is_predicted(trial, choices, split):
    """Ten groups of customers in order of taste along the graph's nodes, exact gradients, lr = 0.2 / L."""
    from cameraready.methods.fed_dpo.claim_choices import graph_runs

    graph_runs(trial, choices, split=split, tracking=True)


@claim(
    "gap-orders-graphs",
    says="The larger a graph's spectral gap, the smaller the suboptimality of its nodes, on five graphs.",
    source="Claim 3: spectral connectivity governs convergence",
    factors={"choices": CHOICES, "split": SPLITS},
    scales={"quick": Scale(seeds=3), "full": Scale(seeds=20)},
    # Spearman's correlation of suboptimality with the gap, minus the sign: 1 where the orders are opposite throughout
    holds=at_least("order_agreement", "five graphs", 1.0, each="split"),
    chart=line(
        x="gap",
        y="suboptimality",
        color="method",
        facet="split",
        log="xy",
        title="Mean over nodes of f - f* (complete graph: 0)",
    ),
)
def gap_orders_graphs(trial, choices, split):
    from cameraready.methods.fed_dpo.claim_choices import graph_runs

    graph_runs(trial, choices, split=split, tracking=False)


@claim(
    "fewer-rounds-on-a-language-model",
    says="On a language model four local steps replace four rounds, drift grows with K and starts as predicted, and "
    "one policy serves users whose tastes conflict worse, and those alike better than training alone.",
    source="Claim 4: alignment experiments",
    factors={"pairs": [400], "pretraining": [100]},
    scales={"quick": Scale(seeds=3), "full": Scale(seeds=10, pairs=[2000], pretraining=[2000])},
    holds=all_of(
        difference("held_out_loss", "alike, K=4, 10 rounds", to="alike, K=1, 10 rounds", at_most=0.0),
        difference("accuracy", "alike, K=4, 10 rounds", to="alike, K=1, 10 rounds", at_least=0.0),
        agree("held_out_loss", "alike, K=4, 10 rounds", to="alike, K=1, 40 rounds", within=0.01),
        slope("drift", "alike, by K", x="K", at_least=0.0),
        ratio(
            "drift",
            "first round, measured",
            to="first round, predicted",
            between=(0.4, 2.5),
            where={"K": [1, 4]},
            each="K",
        ),
        difference("held_out_loss", "conflicting, K=4, 10 rounds", to="alike, K=4, 10 rounds", at_least=0.0),
        difference("held_out_loss", "alike, K=4, 10 rounds", to="alike, alone", at_most=0.0),
    ),
    chart=[
        line(x="rounds", y="held_out_loss", color="curve", title="Held-out DPO loss by rounds of communication"),
        bar(x="method", y="accuracy", title="Held-out preference accuracy, mean of users"),
        line(x="K", y="drift", color="method", log="xy", title="Drift by local steps"),
    ],
    peers={
        "alike, alone": "each user trains for itself, 40 steps",
        "alike, one shot": "the average of those",
    },
    timeout=600,
)
def fewer_rounds_on_a_language_model(trial, pairs, pretraining):
    """An LSTM of 96 units on the interpreter's docstrings; beta 0.1, lr 0.5, batches of 16 pairs, 4 users."""
    from cameraready.methods.fed_dpo.claim_text import language_model_runs

    language_model_runs(trial, pairs=pairs, pretraining=pretraining)
