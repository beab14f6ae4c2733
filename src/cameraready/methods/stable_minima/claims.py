"""The paper's claims as experiments on networks trained by full-batch gradient descent, and checks of the meters."""

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
    scatter,
    slope,
    trend,
)

CURVLINOPS = "curvlinops + scipy eigsh"


@claim(
    "stability-inequality",
    says="Sharpness and loss bound the data-weighted path norm, and training ends below the edge of stability.",
    source="Claim 1: lambda_max <= 2 / eta controls a weighted path norm",
    factors={"n": [128], "width": [256], "steps": [4000], "random_nets": [30]},
    scales={
        "quick": Scale(seeds=5),
        "full": Scale(seeds=10, width=[1024], random_nets=[200]),
        "paper": Scale(seeds=20, n=[1024], width=[4096], steps=[100_000], random_nets=[500]),
    },
    # 20 steps of each of 10 runs and 30 random networks: 230 pairs a seed. Six geometries at learning rate 0.3, and the
    # ball of alpha 3 and the sphere at 0.05 and 0.6 too. Stable: lambda_max <= 1.05 times 2 / eta at the last step.
    holds=all_of(at_most("violations", "all pairs", 0.0), at_least("share_stable", "end of training", 0.9)),
    chart=[
        scatter(x="bound", y="pathnorm_g", log="xy", title="Weighted path norm against its stability bound"),
        line(x="step", y="share_of_edge", color="method", title="lambda_max as a share of 2 / eta, learning rate 0.3"),
        line(x="lr", y="final_pathnorm_g", color="method", log="xy", title="Learning rate sweep: weighted path norm"),
        line(x="lr", y="final_excess", color="method", log="x", title="Learning rate sweep: excess risk"),
    ],
    timeout=7200,
)
def stability_inequality(trial, n, width, steps, random_nets):
    import numpy as np

    from cameraready.methods.stable_minima.problems import GEOMETRIES, problem, train
    from cameraready.methods.stable_minima.regressor import stability
    from cameraready.methods.stable_minima.two_layer import TwoLayer

    runs = [(name, 0.3) for name in GEOMETRIES]
    runs += [(name, lr) for name in ("ball, alpha 3", "sphere") for lr in (0.05, 0.6)]
    readings, stable = [], []
    for name, lr in runs:
        X, y, X_test, f_test = problem(name, n, trial.seed)
        seen = []
        net = train(X, y, trial.seed, lr=lr, width=width, steps=steps, seen=seen)
        readings += [reading for _, reading in seen]
        end = stability(net, X, y, lr=lr)
        stable.append(end.stable)
        for step, reading in (*seen[::4], (steps, end)):
            trial.record(method=name, bound=reading.bound_rhs, pathnorm_g=reading.pathnorm_g)
            if lr == 0.3:
                trial.record(method=name, step=step, share_of_edge=reading.lambda_max / reading.edge)
        if name in ("ball, alpha 3", "sphere"):
            excess = np.mean((net.predict(X_test) - f_test) ** 2)
            trial.record(method=name, lr=lr, final_pathnorm_g=end.pathnorm_g, final_excess=excess)
    for _ in range(random_nets):
        X, y, *_ = problem(trial.rng.choice(GEOMETRIES), n, trial.seed)
        net = TwoLayer.random(5, width=int(trial.rng.integers(1, width)), rng=trial.rng)
        scales = 10 ** trial.rng.uniform(-1, 1, size=4)
        net = TwoLayer(net.W * scales[0], net.b * scales[1], net.v * scales[2], float(scales[3]))
        reading = stability(net, X, y, lr=0.3)
        readings.append(reading)
        trial.record(method="random networks", bound=reading.bound_rhs, pathnorm_g=reading.pathnorm_g)
    violations = sum(reading.pathnorm_g > reading.bound_rhs * (1 + 1e-9) for reading in readings)
    trial.record(method="all pairs", violations=violations, pairs=len(readings))
    trial.record(method="end of training", share_stable=np.mean(stable))


@claim(
    "intrinsic-dimension",
    says="The excess risk on a mixture of balls grows with the balls' dimension m, not with the ambient dimension d.",
    source="Claim 2: bounds adapt to the intrinsic dimension",
    factors={"n": [128], "width": [256], "steps": [4000]},
    scales={
        "quick": Scale(seeds=5),
        "full": Scale(seeds=10, n=[64, 128, 256, 512, 1024]),
        "paper": Scale(seeds=20, n=[64, 128, 256, 512, 1024], width=[4096], steps=[100_000]),
    },
    holds=all_of(
        trend("excess", "m-dimensional balls in R^20", over="m", direction="increasing"),
        slope("excess", "2-dimensional balls in R^d", x="d", at_most=0.15),
    ),
    chart=[
        line(x="m", y="excess", color="method", title="Excess risk by the balls' dimension"),
        line(x="d", y="excess", color="method", log="xy", title="Excess risk by the ambient dimension, m = 2"),
    ],
    timeout=7200,
)
def intrinsic_dimension(trial, n, width, steps):
    """Two balls; the target is ReLU(z1) - z2 / 2 in each ball's own coordinates z, which are the same in every d."""
    import numpy as np

    from cameraready.methods.stable_minima.problems import balls_problem, train

    def excess(m, d):
        X, y, X_test, f_test = balls_problem(n, m, d, trial.seed)
        net = train(X, y, trial.seed, width=width, steps=steps)
        mse = np.mean((net.predict(X) - y) ** 2)
        return {"excess": np.mean((net.predict(X_test) - f_test) ** 2), "train_mse": mse}

    for m in (1, 3, 4, 5):
        trial.record(method="m-dimensional balls in R^20", m=m, **excess(m, 20))
    for d in (5, 10, 20, 40):
        found = excess(2, d)
        trial.record(method="2-dimensional balls in R^d", d=d, **found)
        if d == 20:
            trial.record(method="m-dimensional balls in R^20", m=2, **found)


@claim(
    "mass-near-the-sphere-memorises",
    says="The nearer the mass is to the unit sphere, the better noise is fitted and the larger is the excess risk.",
    source="Claim 3: a spectrum of rates, deteriorating as mass concentrates",
    factors={"alpha": [3.0, 1.0, 0.3, 0.0], "n": [128], "width": [256], "steps": [4000]},
    scales={
        "quick": Scale(seeds=10),
        "full": Scale(seeds=20, alpha=[10.0, 3.0, 1.0, 0.3, 0.1, 0.0], width=[1024]),
        "paper": Scale(seeds=20, alpha=[10.0, 3.0, 1.0, 0.3, 0.1, 0.0], n=[1024], width=[4096], steps=[100_000]),
    },
    holds=all_of(
        trend("train_mse", "gradient descent", over="alpha", direction="increasing"),
        trend("excess", "gradient descent", over="alpha", direction="decreasing"),
    ),
    chart=[
        line(x="alpha", y="train_mse", title="Training error by radial exponent (noise variance 0.25)"),
        line(x="alpha", y="excess", title="Excess risk by radial exponent (0: sphere)"),
    ],
    timeout=7200,
)
def mass_near_the_sphere_memorises(trial, alpha, n, width, steps):
    from cameraready.methods.stable_minima.problems import radial_problem, train

    X, y, X_test, f_test = radial_problem(alpha, n, trial.seed)
    net = train(X, y, trial.seed, width=width, steps=steps)
    excess, mse = ((net.predict(X_test) - f_test) ** 2).mean(), ((net.predict(X) - y) ** 2).mean()
    trial.record(method="gradient descent", excess=excess, train_mse=mse)


@claim(
    "rates-are-ordered",
    says="The excess risk falls the faster with n, the less mass is near the sphere, as the predicted exponents say.",
    source="Claim 3: rates in n",
    factors={"sizes": ["64 128 256"], "width": [256], "steps": [4000]},
    scales={
        "quick": Scale(seeds=5),
        "full": Scale(seeds=10, sizes=["64 128 256 512 1024"], width=[1024]),
        "paper": Scale(seeds=20, sizes=["64 128 256 512 1024 2048 4096"], width=[4096], steps=[100_000]),
    },
    holds=trend("exponent", "measured", over="alpha", direction="increasing"),
    chart=[
        line(x="n", y="excess", color="method", log="xy", title="Excess risk by number of points"),
        line(x="alpha", y="exponent", color="method", title="Exponents of n: measured and the bound's"),
    ],
    timeout=7200,
)
def rates_are_ordered(trial, sizes, width, steps):
    import numpy as np

    from cameraready.methods.stable_minima import predicted_rate
    from cameraready.methods.stable_minima.problems import RADIAL, radial_problem, train

    numbers = [int(part) for part in sizes.split()]
    for name, alpha in RADIAL.items():
        found = []
        for n in numbers:
            X, y, X_test, f_test = radial_problem(alpha, n, trial.seed)
            net = train(X, y, trial.seed, width=width, steps=steps)
            found.append(np.mean((net.predict(X_test) - f_test) ** 2))
            trial.record(method=name, n=n, excess=found[-1])
        trial.record(method="measured", alpha=alpha, exponent=-np.polyfit(np.log(numbers), np.log(found), 1)[0])
        rate = predicted_rate("radial", d=5, alpha=alpha)
        trial.record(method="bound (upper limit of the gap)", alpha=alpha, exponent=rate.exponent if rate else 0.0)


@claim(
    "shatterability-predicts-memorising",
    says="The shatterability of a data set ranks how much label noise gradient descent memorises on it.",
    source="Claim 4: data that are hard to shatter are not memorised",
    factors={"dataset": Dataset("embeddings", default="digits"), "n": [128], "width": [256], "steps": [4000]},
    scales={
        "quick": Scale(seeds=5),
        "full": Scale(seeds=10, n=[128, 512], width=[1024]),
        "paper": Scale(seeds=20, n=[128, 1024], width=[4096], steps=[100_000]),
    },
    # The raw score: sets of different dimension are compared, each calibrated score has its own dimension's scale.
    holds=at_least("spearman", "shatterability", 0.6),
    chart=[
        scatter(x="raw_score", y="memorised", color="kind", title="Share of the noise memorised by shatterability"),
        bar(x="method", y="spearman", title="Rank correlation with the share of noise that is memorised"),
    ],
    peers={
        "TwoNN dimension": "skdim.id.TwoNN, no settings",
        "dimension / n": "components that hold 95 % of the variance, over n",
        "calibrated shatterability": "between ball and sphere of the same n and dimension; for comparison, no rule",
    },
    timeout=7200,
)
def shatterability_predicts_memorising(trial, dataset, n, width, steps):
    """Six geometries in R^5, and n rows each of real sets: standardised, in the unit ball, 95 % components.

    Target ReLU(p1) - p2 / 2 of the first two coordinates. With ``--on FILE`` the user's rows take the place of digits.
    """
    import numpy as np
    from scipy.stats import spearmanr

    from cameraready import data
    from cameraready.methods.stable_minima import problems, shatterability

    clouds = {name: problems.problem(name, n, trial.seed)[0] for name in problems.GEOMETRIES}
    kinds = dict.fromkeys(clouds, "segments, discs") | dict.fromkeys(problems.RADIAL, "balls and sphere")
    clouds["digits, or your file"] = problems.in_unit_ball(dataset, n, trial.seed)
    for name in ("breast-cancer", "diabetes", "wine"):
        clouds[name] = problems.in_unit_ball(data.load(name).X.to_numpy(), n, trial.seed)
    clouds["photograph patches"] = problems.in_unit_ball(data.load("grey-patches"), n, trial.seed)
    measured = {"shatterability": [], "TwoNN dimension": [], "dimension / n": [], "calibrated shatterability": []}
    memorised = []
    for name, X in clouds.items():
        y = problems.target(X) + problems.NOISE * np.random.default_rng([trial.seed, 2]).normal(size=len(X))
        net = problems.train(X, y, trial.seed, width=width, steps=steps)
        memorised.append(1 - np.mean((net.predict(X) - y) ** 2) / problems.NOISE**2)
        found = shatterability(X, 1024)
        measured["shatterability"].append(found.raw)
        measured["TwoNN dimension"].append(found.intrinsic_dim)
        measured["dimension / n"].append(found.dim / found.n)
        measured["calibrated shatterability"].append(found.score or found.raw)
        kind = name if "digits" in name else kinds.get(name, "other real data")
        trial.record(method="a data set", data=name, kind=kind, raw_score=found.raw, memorised=memorised[-1])
    for method, scores in measured.items():
        trial.record(method=method, spearman=spearmanr(scores, memorised).statistic)


@claim(
    "real-data-resist-noise",
    says="On images less label noise is memorised than on their projections to a sphere, or on a Gaussian of equal "
    "covariance.",
    source="Claim 5: real images behave as low-dimensional data",
    factors={"dataset": Dataset("embeddings", default="digits"), "n": [256], "width": [256], "steps": [2000]},
    scales={
        "quick": Scale(seeds=5),
        "full": Scale(seeds=10, n=[1024], width=[1024], steps=[4000]),
        "paper": Scale(seeds=20, n=[1024], width=[4096], steps=[100_000]),
    },
    holds=all_of(
        difference("memorised", "the data", to="on the sphere", at_most=0.0),
        difference("memorised", "the data", to="Gaussian of equal covariance", at_most=0.0),
    ),
    chart=[
        bar(x="method", y="memorised", title="Share of the noise in a fifth of the targets that is fitted"),
        bar(x="method", y="excess", title="Excess risk"),
    ],
    timeout=7200,
)
def real_data_resist_noise(trial, dataset, n, width, steps):
    """A fifth of the targets ReLU(p1) - p2 / 2 is replaced by a Gaussian of the same variance; mean squared norm 1."""
    import numpy as np

    from cameraready.methods.stable_minima.problems import components, target, train

    rows = np.asarray(dataset, dtype=float)
    rng = np.random.default_rng([trial.seed, 5])
    rows = rows[rng.permutation(len(rows))[: 2 * n]]
    half = len(rows) // 2
    Z = components(rows)
    clouds = {
        "the data": Z,
        "on the sphere": Z / np.maximum(np.linalg.norm(Z, axis=1, keepdims=True), 1e-12),
        "Gaussian of equal covariance": rng.normal(size=Z.shape) * Z.std(axis=0),
    }
    noisy = rng.permutation(half) < half // 5
    noise = rng.normal(size=half)
    for name, X in clouds.items():
        X = X / np.sqrt((X**2).sum(axis=1).mean())
        clean = target(X / X.std(axis=0)[:2].max())
        clean = (clean - clean.mean()) / clean.std()
        y = np.where(noisy, noise, clean[:half])
        net = train(X[:half], y, trial.seed, width=width, steps=steps)
        left = net.predict(X[:half]) - y
        # 0: predictions ignore the noise; 1: they reproduce it.
        fitted = 1 - np.mean(left[noisy] ** 2) / np.mean((clean[:half] - y)[noisy] ** 2)
        excess = np.mean((net.predict(X[half:]) - clean[half:]) ** 2)
        trial.record(method=name, memorised=fitted, excess=excess)


@claim(
    "bound-ranks-the-gap",
    says="Over geometries and learning rates the plug-in bound ranks the true gaps better than norms and sharpness do.",
    source="Comparison with other predictors",
    factors={"n": [128], "width": [128], "steps": [2000]},
    scales={
        "quick": Scale(seeds=5),
        "full": Scale(seeds=10, n=[512], width=[512], steps=[4000]),
        "paper": Scale(seeds=20, n=[1024], width=[4096], steps=[100_000]),
    },
    # Six geometries at two learning rates: 12 runs a seed, 60 in all.
    holds=all_of(
        *(
            difference("kendall_tau", "plug-in bound", to=peer, at_least=0.0)
            for peer in ("path norm", "spectral norms", "margin bound", "lambda_max")
        )
    ),
    chart=[
        bar(x="method", y="kendall_tau", title="Kendall's tau with the true gap"),
        scatter(x="gap", y="bound_over_trivial", color="data", title="Plug-in bound over 4 B^2 (vacuous above 1)"),
    ],
    peers={
        "path norm": "sum |v| |(w, b)|, unweighted",
        "spectral norms": "product of the layers' spectral norms and the radius",
        "margin bound": "spectral complexity with (2, 1) norms at margin 1",
        "lambda_max": "of the Hessian",
        "weighted path norm": "sum a_k g_k alone; for comparison, no rule",
        "shatterability": "of the data, raw; for comparison, no rule",
    },
    timeout=7200,
)
def bound_ranks_the_gap(trial, n, width, steps):
    import numpy as np
    from scipy.stats import kendalltau

    from cameraready.methods.stable_minima import generalisation_bound, shatterability
    from cameraready.methods.stable_minima.peers import complexity_measures
    from cameraready.methods.stable_minima.problems import GEOMETRIES, NOISE, problem, train
    from cameraready.methods.stable_minima.regressor import stability

    scores, gaps = {}, []
    for name in GEOMETRIES:
        X, y, X_test, f_test = problem(name, n, trial.seed)
        y_test = f_test + NOISE * np.random.default_rng([trial.seed, 3]).normal(size=len(X_test))
        raw = shatterability(X, 512).raw
        for lr in (0.1, 0.5):
            net = train(X, y, trial.seed, lr=lr, width=width, steps=steps)
            found = stability(net, X, y, lr=lr)
            bound = generalisation_bound(found, X_test[:256], float(np.abs(y).max()), n_directions=256)
            gaps.append(np.mean((net.predict(X_test) - y_test) ** 2) - 2 * found.loss)
            row = complexity_measures(net, X) | {"plug-in bound": bound.value, "lambda_max": found.lambda_max}
            row |= {"weighted path norm": found.pathnorm_g, "shatterability": raw}
            for method, score in row.items():
                scores.setdefault(method, []).append(score)
            trial.record(method="a run", data=name, gap=gaps[-1], bound_over_trivial=bound.value / bound.trivial)
    for method, values in scores.items():
        trial.record(method=method, kendall_tau=kendalltau(values, gaps).statistic)


@claim(
    "sharpness-is-exact-and-cheap",
    says="lambda_max is that of curvlinops to one in a thousand, in its time; monitoring an eighth of the batch every "
    "100 steps adds at most 5 % to training.",
    source="Targets of this implementation",
    factors={"tolerance": [1e-4]},
    scales={"quick": Scale(seeds=5), "full": Scale(seeds=10), "paper": Scale(seeds=20)},
    holds=all_of(
        agree("value", "sharpness", to=CURVLINOPS, within=1e-3, relative=True),
        ratio("seconds", "sharpness", to=CURVLINOPS, at_most=1.2),
        ratio("seconds", "one reading of the monitor", to="100 training steps", at_most=0.05),
    ),
    chart=bar(x="method", y="seconds", title="Seconds on a perceptron on digits"),
    peers={CURVLINOPS: "HessianLinearOperator and eigsh, which='LA', the same tolerance and kind of start"},
)
def sharpness_is_exact_and_cheap(trial, tolerance):
    """Sharpness: 9,000 parameters, 512 digits. Monitor: 300,000 parameters, batches of 512, readings on 64 of them."""
    from cameraready.methods.stable_minima import StabilityMonitor, sharpness
    from cameraready.methods.stable_minima.peers import curvlinops_lambda_max
    from cameraready.methods.stable_minima.problems import digits_classifier

    model, loss_fn, batch, _ = digits_classifier(trial.seed)
    meters = {
        "sharpness": lambda: sharpness(model, loss_fn, [batch], tolerance=tolerance).lambda_max,
        CURVLINOPS: lambda: curvlinops_lambda_max(model, loss_fn, [batch], tolerance=tolerance),
    }
    for meter in meters.values():
        meter()
    for method, timing in trial.alternate(meters, repeats=2).items():
        trial.record(method=method, seconds=timing.seconds, value=timing.value)
    wide, loss_fn, (X, y), optimizer = digits_classifier(trial.seed, width=512)
    monitor = StabilityMonitor(loss_fn, (X[:64], y[:64]))
    monitor.measure(wide, optimizer)

    def steps():
        for _ in range(10):
            optimizer.zero_grad()
            loss_fn(wide(X), y).backward()
            optimizer.step()

    runs = {"one reading of the monitor": lambda: monitor.measure(wide, optimizer), "100 training steps": steps}
    for method, timing in trial.alternate(runs, repeats=7).items():
        trial.record(method=method, seconds=timing.seconds * (10 if "100" in method else 1))
