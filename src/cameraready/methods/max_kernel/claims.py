"""The paper's claims, and the targets of this implementation, as experiments."""

from __future__ import annotations

from functools import partial

from cameraready.evidence import (
    Dataset,
    Scale,
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

MAX, NYSTROM = "MaxKernel", "MaxKernel without variance correction"
AVERAGE, RAW, BASE = "orbit average, normalised", "orbit average, raw", "Matern-5/2"
CANONICAL, AUGMENT, RANDOM, CMA = "canonical form", "data augmentation", "random search", "CMA-ES (pycma)"
METHODS = {
    MAX: "max",
    NYSTROM: "max nystrom",
    AVERAGE: "average",
    RAW: "raw average",
    BASE: "base",
    CANONICAL: "canonical",
    AUGMENT: "augment",
    RANDOM: "random",
    CMA: "cma-es",
}
CONTESTANTS = {
    "kernels": (MAX, NYSTROM, AVERAGE, RAW, BASE, RANDOM, CMA),
    "peers": (MAX, AVERAGE, RAW, BASE, CANONICAL, RANDOM, CMA),
    "all": tuple(METHODS),
    "pair": (MAX, AVERAGE),
}
SAME = "same loop, priors, initial designs, acquisition optimiser and budget"
LISTED = "above 2000 elements, the largest part of the group that it can list"
PEERS = {
    NYSTROM: "the paper's kernel as published",
    AVERAGE: f"k / sqrt(k(x,x) k(x',x')) of the orbit average; {SAME}; {LISTED}",
    RAW: f"1/|G| sum_g k_b(x, g x'); {SAME}; {LISTED}",
    BASE: f"one lengthscale, no symmetry; {SAME}",
    CANONICAL: f"Matern-5/2 between orbit representatives; {SAME}",
    AUGMENT: f"Matern-5/2 on all images of the data, at most 500 rows; {SAME}; {LISTED}",
    RANDOM: "Sobol designs",
    CMA: "default population, step 0.3 of the box, from the best initial design",
}
QUICK_LOOP = {"acq": "logei", "optimizer": "candidates", "refit_every": 5, "hyper": "own"}
FULL_LOOP = {"acq": "logei", "optimizer": "lbfgs", "refit_every": 1}
PAPER_LOOP = {"acq": "ucb", "optimizer": "lbfgs", "refit_every": 1, "hyper": "base", "contestants": "all"}
SYNTHETIC = [f"{name} {dim}" for name in ("Ackley", "Griewank", "Rastrigin", "radial") for dim in (2, 3, 4, 6)]
CLUSTERS = [f"Lennard-Jones {n} in 3-D" for n in (4, 5, 6, 7)]


@claim(
    "synthetic-regret",
    says="On invariant benchmark functions the max kernel has lower regret than averaging kernels and the base kernel.",
    source="Abstract; synthetic experiments",
    factors={
        "problem": ["Ackley 3", "template match 6"],
        "n_init": [5],
        "n_iter": [20],
        "contestants": ["kernels"],
        **QUICK_LOOP,
    },
    scales={
        "quick": Scale(seeds=6),
        "full": Scale(
            seeds=10,
            problem=[*SYNTHETIC, "template match 6"],
            n_iter=60,
            contestants="all",
            **(FULL_LOOP | {"acq": "ucb"}),
        ),
        "paper": Scale(seeds=20, problem=SYNTHETIC, n_iter=100, **PAPER_LOOP),
    },
    holds=all_of(*(difference("log10_simple_regret", MAX, to=peer, at_most=0.0) for peer in (AVERAGE, RAW, BASE))),
    chart=[
        bar(x="method", y="log10_simple_regret", facet="problem"),
        bar(x="method", y="regret_a_step", facet="problem"),
    ],
    peers=PEERS,
    timeout=14_400,
)
def synthetic_regret(trial, problem, n_init, n_iter, contestants, acq, optimizer, refit_every, hyper):
    from cameraready.methods.max_kernel.problems import make

    loop = {"acq": acq, "optimizer": optimizer, "refit_every": refit_every, "hyper": hyper}
    traces = _runs(trial, make(problem, seed=trial.seed), contestants, n_init=n_init, n_iter=n_iter, **loop)
    for method, trace in traces.items():
        trial.record(
            method=method,
            log10_simple_regret=_log10(trace.simple_regret[-1]),
            regret_a_step=trace.cumulative_regret[-1] / n_iter,
            fit_seconds_a_step=_mean(trace.fit_s),
            acquisition_seconds_a_step=_mean(trace.acq_s),
        )


@claim(
    "real-task-reward",
    says="On wireless network design and particle packing the max kernel collects more reward than averaging kernels "
    "and the base kernel.",
    source="Abstract; real-world experiments",
    factors={
        "problem": ["access points 4", "Lennard-Jones 3 in 2-D"],
        "n_init": [8],
        "n_iter": [20],
        "contestants": ["peers"],
        **QUICK_LOOP,
    },
    scales={
        "quick": Scale(seeds=6),
        "full": Scale(seeds=20, problem=["access points 4", *CLUSTERS], n_iter=50, contestants="all", **FULL_LOOP),
        "paper": Scale(seeds=20, problem=["access points 4", *CLUSTERS], n_iter=100, **PAPER_LOOP),
    },
    holds=all_of(*(difference("reward_a_step", MAX, to=peer, at_least=0.0) for peer in (AVERAGE, RAW, BASE))),
    chart=[bar(x="method", y="reward_a_step", facet="problem"), bar(x="method", y="best_reward", facet="problem")],
    peers=PEERS,
    timeout=14_400,
)
def real_task_reward(trial, problem, n_init, n_iter, contestants, acq, optimizer, refit_every, hyper):
    """Rewards in standard deviations above the mean of 4096 Sobol designs, a scale that no contestant sets."""
    import torch

    from cameraready.methods.max_kernel.problems import make

    task = make(problem, seed=trial.seed)
    loop = {"acq": acq, "optimizer": optimizer, "refit_every": refit_every, "hyper": hyper}
    traces = _runs(trial, task, contestants, n_init=n_init, n_iter=n_iter, **loop)
    low, high = task.bounds
    sobol = torch.quasirandom.SobolEngine(task.group.dim, scramble=True, seed=trial.seed).draw(4096).double()
    usual = task(low + (high - low) * sobol)
    for method, trace in traces.items():
        rewards = (trace.values - float(usual.mean())) / float(usual.std())
        trial.record(
            method=method,
            reward_a_step=rewards[n_init:].mean(),
            best_reward=rewards.max(),
            best_value=trace.values.max(),
            fit_seconds_a_step=_mean(trace.fit_s),
            acquisition_seconds_a_step=_mean(trace.acq_s),
        )


@claim(
    "prediction-on-table",
    says="On a table of designs with a symmetry, the max kernel predicts held-out values better than the averaging "
    "kernel and the base kernel.",
    source="Motivation of the method; a check on your own data",
    factors={
        "dataset": Dataset("table", default="access-points"),
        "group": ["BlockPermutations 4 2"],
        "rows": [40],
    },
    scales={
        "quick": Scale(seeds=10),
        "full": Scale(seeds=20, rows=[20, 40, 80, 160]),
        "paper": Scale(seeds=50, rows=[20, 40, 80, 160]),
    },
    holds=all_of(*(difference("log_density", MAX, to=peer, at_least=0.0) for peer in (AVERAGE, BASE))),
    chart=[bar(x="method", y="log_density", facet="rows"), bar(x="method", y="rmse", facet="rows")],
    peers={name: PEERS[name] for name in (AVERAGE, RAW, BASE, CANONICAL)},
)
def prediction_on_table(trial, dataset, group, rows):
    """Log predictive density and root mean squared error of held-out rows, in standard deviations of y.

    For a table of your own: ``--on FILE --set "group=BlockPermutations 3 2"``, any class of relabellings and its sizes.
    """
    import torch

    from cameraready.methods import max_kernel
    from cameraready.methods.max_kernel.contest import predict_held_out

    if dataset.y is None:
        raise ValueError("the table has no target column; name it y or target")
    name, *sizes = group.split()
    if not hasattr(max_kernel, name):
        raise ValueError(f"no group is called {name!r}; pass --set 'group=BlockPermutations 4 2' or another class")
    symmetry = getattr(max_kernel, name)(*map(int, sizes))
    if dataset.X.shape[1] != symmetry.dim:
        raise ValueError(
            f"the table has {dataset.X.shape[1]} columns beside y and {group} acts on {symmetry.dim}; "
            "pass --set 'group=...' with sizes that match"
        )
    X, y = (torch.as_tensor(part.to_numpy(dtype=float, copy=True)) for part in (dataset.X, dataset.y))
    symmetry.check_points(X)
    if len(X) < rows + 2:
        raise ValueError(
            f"the table has {len(X)} rows, rows={rows} are for training; pass --set rows={len(X) * 2 // 3}"
        )
    order = torch.as_tensor(trial.rng.permutation(len(X)))
    for method in (MAX, AVERAGE, RAW, BASE, CANONICAL):
        score = predict_held_out(X, y, symmetry, METHODS[method], train=order[:rows], test=order[rows : rows + 200])
        trial.record(method=method, log_density=score.log_density, rmse=score.rmse)


@claim(
    "advantage-grows-with-the-group",
    says="The larger the group, the larger the advantage of the max kernel over the normalised orbit average.",
    source="Experiments against |G|",
    factors={"order": [2, 8, 48, 384], "n_init": [5], "n_iter": [40], **(QUICK_LOOP | {"refit_every": 1})},
    scales={"quick": Scale(seeds=2), "full": Scale(seeds=10), "paper": Scale(seeds=20, n_iter=100, acq="ucb")},
    holds=trend("decades_below_average", MAX, over="order", direction="increasing"),
    chart=line(x="order", y="log10_simple_regret", log="x"),
    peers={AVERAGE: PEERS[AVERAGE]},
    timeout=3600,
    untestable_at={"quick": "the regret gap needs ten seeds at four group orders, about 15 minutes"},
)
def advantage_grows(trial, order, n_init, n_iter, acq, optimizer, refit_every, hyper):
    """One function, Ackley in 4-D; the models are told of a growing part of its symmetries."""
    from cameraready.methods.max_kernel.problems import make
    from cameraready.methods.max_kernel.symmetries import known_part

    task = make("Ackley 4", seed=trial.seed)
    loop = {"acq": acq, "optimizer": optimizer, "refit_every": refit_every, "hyper": hyper}
    traces = _runs(trial, task, "pair", n_init=n_init, n_iter=n_iter, group=known_part(order), **loop)
    regret = {method: _log10(trace.simple_regret[-1]) for method, trace in traces.items()}
    for method, value in regret.items():
        trial.record(method=method, log10_simple_regret=value, decades_below_average=regret[AVERAGE] - value)


@claim(
    "kernel-cost",
    says="A max kernel matrix takes no longer than an orbit-averaged one by the same enumeration, and no more memory.",
    source="No increase of computational complexity",
    factors={"n": [200], "particles": [4]},
    scales={"quick": Scale(seeds=5), "full": Scale(seeds=20), "paper": Scale(seeds=20, particles=[4, 5, 6])},
    holds=all_of(
        ratio("seconds", MAX, to=AVERAGE, at_most=1.3),
        at_most("matrices_above_average", MAX, 1.0),
    ),
    chart=bar(x="method", y="seconds"),
    peers={AVERAGE: "enumeration of the group, one sum", RAW: "enumeration of the group, one sum"},
)
def kernel_cost(trial, n, particles):
    """One projected matrix, from the designs to K_+, against the average over the same list of group elements."""
    import torch

    from cameraready.methods.max_kernel import BlockPermutations, FromOrbit, MaxKernel, OrbitAverageKernel
    from cameraready.methods.max_kernel.model import matern

    closed = BlockPermutations(particles, 2)
    group = FromOrbit(closed.orbit, int(closed.order), dim=closed.dim)  # a plain list: no closed form to exploit
    X = torch.as_tensor(trial.rng.random((n, closed.dim)))
    base = matern(closed.dim)
    kernels = {
        MAX: lambda: MaxKernel(base, group),
        AVERAGE: lambda: OrbitAverageKernel(base, group),
        RAW: lambda: OrbitAverageKernel(base, group, normalize=False),
    }

    def build(method, rows):
        with torch.no_grad():
            return kernels[method]().double().train()(X[:rows]).to_dense()

    for method in kernels:  # what is imported or compiled on first use; too small to leave free memory behind
        build(method, 3)
    memory = {method: trial.peak_memory(partial(build, method, n)) for method in kernels}
    timings = trial.alternate({method: partial(build, method, n) for method in kernels}, repeats=9)
    for method, timing in timings.items():
        trial.record(
            method=method,
            seconds=timing.seconds,
            peak_bytes=memory[method],
            matrices_above_average=(memory[method] - memory[AVERAGE]) / (8 * n**2),
        )


@claim(
    "closed-form-speed",
    says="At 384 and more group elements a closed-form orbit distance is at least five times faster than enumeration.",
    source="Target of this implementation",
    factors={
        "group": [
            "SignedPermutations 4",
            "Permutations 6",
            "CyclicShifts 384",
            "BlockPermutations 6",
            "BlockPermutations 7",
        ],
        "n": [50],
    },
    scales={"quick": Scale(seeds=3), "full": Scale(seeds=10, n=200), "paper": Scale(seeds=10, n=400)},
    holds=ratio("seconds", "closed form", to="enumeration", at_most=0.2, each="group"),
    chart=bar(x="group", y="seconds"),
    peers={"enumeration": "one matrix product in cache-sized blocks, then the winner's distance"},
)
def closed_form_speed(trial, group, n):
    import torch

    from cameraready.methods import max_kernel
    from cameraready.methods.max_kernel.enumeration import CHUNK_BYTES, sq_distance_by_enumeration

    name, size = group.split()
    sizes = (int(size), 2) if name == "BlockPermutations" else (int(size),)
    symmetry = getattr(max_kernel, name)(*sizes)
    X = torch.as_tensor(trial.rng.random((n, symmetry.dim)))
    centred = X - symmetry.center
    order = int(symmetry.order)
    contestants = {
        "closed form": lambda: symmetry.sq_orbit_distance(X, X),
        "enumeration": lambda: sq_distance_by_enumeration(
            centred, centred, symmetry._orbit, order, chunk_bytes=CHUNK_BYTES
        ),
    }
    repeats = 3 if order * symmetry.dim > 20_000 else 9  # milliseconds are timed more often than tenths of seconds
    timings = trial.alternate(contestants, repeats=repeats)
    gap = (timings["closed form"].value - timings["enumeration"].value).abs().max()
    for method, timing in timings.items():
        trial.record(method=method, seconds=timing.seconds, order=order, largest_difference=gap)


@claim(
    "step-scaling",
    says="The time of an optimisation step grows no faster than n^3, and linearly in |G|.",
    source="No increase of computational complexity",
    factors={"sizes": ["50 100 200 400"], "orders": ["6 24 48 384"]},
    scales={"quick": Scale(seeds=3), "full": Scale(seeds=10), "paper": Scale(seeds=20)},
    holds=all_of(
        slope("seconds", MAX, x="n", at_most=3.0, where={"sweep": "data"}),
        slope("seconds", MAX, x="order", at_most=1.0, where={"sweep": "group"}),
    ),
    chart=[line(x="n", y="seconds", log="xy"), line(x="order", y="seconds", log="xy")],
    peers={AVERAGE: "the same step"},
)
def step_scaling(trial, sizes, orders):
    """A step: a gradient of the marginal likelihood, then the posterior of 100 candidates."""
    import torch

    from cameraready.methods.max_kernel.contest import step_of
    from cameraready.methods.max_kernel.symmetries import listed_group

    sizes, orders = ([int(word) for word in words.split()] for words in (sizes, orders))
    for sweep, pairs in (("data", [(n, 24) for n in sizes]), ("group", [(100, order) for order in orders])):
        for n, order in pairs:
            X, candidates = (torch.as_tensor(trial.rng.random(shape)) for shape in ((n, 4), (100, 1, 4)))
            group = listed_group(order)  # matrices, so that the step enumerates them
            step = {method: step_of(X, candidates, group, METHODS[method]) for method in (MAX, AVERAGE)}
            for function in step.values():
                function()
            for method, timing in trial.alternate(step, repeats=2).items():
                trial.record(method=method, sweep=sweep, n=n, order=order, seconds=timing.seconds)


@claim(
    "projected-kernel-is-valid",
    says="The raw max kernel is indefinite in general; the projected, extended kernel is positive semi-definite, "
    "invariant, the nearest such matrix on the data, and equal to the max kernel where that is valid already.",
    source="Projection and Nystrom extension",
    factors={
        "group": [
            "CyclicShifts",
            "BlockPermutations",
            "PointCloudRotations",
            "particles and turns",
            "SignedPermutations",
            "Permutations",
        ],
        "n": [60],
    },
    scales={"quick": Scale(seeds=3), "full": Scale(seeds=50), "paper": Scale(seeds=50, n=[60, 200])},
    holds=all_of(
        at_least("raw_is_indefinite", MAX, 1.0, where={"kind": "indefinite"}),
        at_least("min_eigenvalue", MAX, -1e-8, each="group"),
        at_most("invariance_defect", MAX, 1e-10, each="group"),
        at_least("nearer_than_random_psd", MAX, 1.0, each="group"),
        at_most("deviation_from_raw", MAX, 1e-8, where={"kind": "definite"}),
    ),
    chart=bar(x="group", y="raw_min_eigenvalue"),
)
def projected_kernel_is_valid(trial, group, n):
    import torch

    from cameraready.methods.max_kernel import MaxKernel, psd_projection
    from cameraready.methods.max_kernel.model import matern
    from cameraready.methods.max_kernel.symmetries import definite_or_not

    symmetry, kind = definite_or_not(group)
    base = matern(symmetry.dim)
    base.lengthscale = 1.0 if kind == "indefinite" else 0.3
    kernel = MaxKernel(base, symmetry).double()
    D, new = (torch.as_tensor(trial.rng.random((rows, symmetry.dim))) for rows in (n, 10))
    images = symmetry.random_images(new, 4, seed=trial.seed)
    with torch.no_grad():
        raw = kernel.k_max(D, D)
        projected = psd_projection(raw)
        kernel.eval().set_landmarks(D)
        together = torch.cat([D, new, images.flatten(0, 1)])
        K = kernel(together).to_dense()
        moved = (kernel(images.transpose(0, 1), together).to_dense() - kernel(new, together).to_dense()).abs().max()
        distance = torch.linalg.matrix_norm(raw - projected)
        rivals = []
        for _ in range(100):
            noise = torch.as_tensor(trial.rng.normal(scale=0.05, size=(n, n)))
            rivals.append(torch.linalg.matrix_norm(raw - psd_projection(raw + noise)) >= distance)
        least = torch.linalg.eigvalsh(raw).min()
        trial.record(
            method=MAX,
            kind=kind,
            raw_min_eigenvalue=least,
            raw_is_indefinite=float(least < -1e-6),
            min_eigenvalue=torch.linalg.eigvalsh(0.5 * (K + K.T)).min(),
            invariance_defect=moved,
            nearer_than_random_psd=sum(map(float, rivals)) / len(rivals),
            deviation_from_raw=(projected - raw).abs().max(),
        )


def _runs(trial, task, contestants, **settings):
    """One optimisation trace a contestant."""
    from cameraready.methods.max_kernel.contest import run_contest

    methods = {name: METHODS[name] for name in CONTESTANTS[contestants]}
    return run_contest(task, methods, seed=trial.seed, **settings)


def _log10(regret):
    import math

    return math.log10(max(float(regret), 1e-12))


def _mean(seconds):
    return float(seconds.mean()) if len(seconds) else 0.0
