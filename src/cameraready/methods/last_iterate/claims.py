"""The paper's claims about last iterates, and the targets of this implementation, as experiments."""

from __future__ import annotations

from cameraready.evidence import Scale, all_of, at_least, at_most, bar, claim, difference, line, ratio, slope, trend

TABLES = ["elnino", "grunfeld", "diabetes"]
STEPS = {"tuned": 1.0, "3 x too large": 3.0, "3 x too small": 1 / 3}
LAST, AVERAGE, SUFFIX = "last iterate", "average", "suffix average"
RIP, FULL = "randomised incremental", "proximal SGD"


def _rates(trial, problem, solver, schedules, T_grid):
    """Gaps of last iterates and averages at every horizon; eta0 tuned once, at the longest, and mis-set by 3."""
    from dataclasses import replace

    from cameraready.methods.last_iterate import Settings, run, solve_exactly, tune_eta0

    best = solve_exactly(problem).certificate
    for schedule in schedules:
        base = Settings(solver, schedule, average_from=0.0)
        eta0 = tune_eta0(problem, max(T_grid), settings=base, seed=trial.seed)
        for step, factor in STEPS.items():
            settings = replace(base, eta0=factor * eta0)
            for T in T_grid:
                found = run(problem, T, settings=settings, seed=trial.seed)
                gap = problem.objective(found.W) - best.objective
                if gap < 50 * best.gap:  # so close that the reference would decide the slope
                    continue
                trial.record(
                    method=f"{LAST}, {step}", T=T, **{f"{schedule}_gap": gap, f"{schedule}_eta0": factor * eta0}
                )
                if step == "tuned":
                    gap = problem.objective(found.average) - best.objective
                    trial.record(method=f"{AVERAGE}, {step}", T=T, **{f"{schedule}_gap": gap})


def _slopes(schedules):
    conditions = [(f"{schedule}_gap", f"{LAST}, {step}") for schedule in schedules for step in STEPS]
    return all_of(*(slope(gap, method, x="T", at_most=-0.45, each="table") for gap, method in conditions))


def _gap_charts(schedules):
    return [
        line(x="T", y=f"{schedule}_gap", facet="table", log="xy", title=f"Gap by number of steps, {schedule} schedule")
        for schedule in schedules
    ]


@claim(
    "proximal-sgd-rate",
    says="The last iterate of proximal SGD closes its gap at least like T^(-1/2), with step sizes right or off by 3.",
    source="Claim 1: proximal SGD",
    factors={"table": TABLES, "largest_T": [2**16]},
    scales={
        "quick": Scale(seeds=4),
        "full": Scale(seeds=20, largest_T=[2**19]),
        "paper": Scale(seeds=50, largest_T=[2**21]),
    },
    holds=_slopes(["constant"]),
    chart=_gap_charts(["constant"]),
    peers={AVERAGE: "mean of all iterates of the same run"},
    timeout=7200,
)
def proximal_sgd_rate(trial, table, largest_T):
    """The prox of the whole penalty at every step; three tables with graphs, F* by ADMM with a certificate."""
    from cameraready.methods.last_iterate.claim_inputs import table_problem

    _rates(trial, table_problem(table), "prox_sgd", ["constant"], _horizons(largest_T))


@claim(
    "incremental-rate",
    says="Taking the prox of one random edge a step, the last iterate still closes its gap at least like T^(-1/2).",
    source="Claims 2 and 5: randomised incremental proximal method, graph-guided penalties",
    factors={"table": TABLES, "largest_T": [2**18]},
    scales={
        "quick": Scale(seeds=4),
        "full": Scale(seeds=20, largest_T=[2**19]),
        "paper": Scale(seeds=50, largest_T=[2**23]),
    },
    holds=_slopes(["constant", "linear", "anytime"]),
    chart=_gap_charts(["constant", "linear", "anytime"]),
    peers={AVERAGE: "mean of all iterates of the same run"},
    timeout=7200,
)
def incremental_rate(trial, table, largest_T):
    from cameraready.methods.last_iterate.claim_inputs import table_problem

    _rates(trial, table_problem(table), "rip", ["constant", "linear", "anytime"], _horizons(largest_T))


def _horizons(largest, smallest=2**12):
    """``largest``, a quarter of it, and so on, down to ``smallest``."""
    return [largest // 4**k for k in range(32) if largest // 4**k >= smallest][::-1]


@claim(
    "last-beats-average",
    says="With steps tuned for each, the last iterate is at least three times closer to the optimum than the average.",
    source="Extra claim: last against average",
    factors={"table": ["elnino"], "T": [2**19]},
    scales={
        "quick": Scale(seeds=5),
        "full": Scale(seeds=20, table=TABLES),
        "paper": Scale(seeds=50, table=TABLES, T=[2**21]),
    },
    holds=ratio("gap", LAST, to=AVERAGE, at_most=1 / 3, each="table"),
    chart=[
        bar(x="method", y="gap", facet="table", title="Gap at the end, steps tuned for each"),
        line(x="eta0", y="tuning_gap", facet="schedule", log="xy", title="Gap by step size"),
    ],
    peers={
        AVERAGE: "mean of all iterates; its own best schedule and eta0",
        SUFFIX: "mean of the second half of the iterates; its own best schedule and eta0 (in the charts, no condition)",
    },
    timeout=3600,
)
def last_beats_average(trial, table, T):
    """Schedule and eta0 of each contestant are the best of 2 x 5 in full runs with another seed."""
    from cameraready.methods.last_iterate import Settings, run, solve_exactly
    from cameraready.methods.last_iterate.claim_inputs import table_problem

    problem = table_problem(table)
    best = solve_exactly(problem).certificate.objective

    def gaps(schedule, eta0, seed):
        whole, half = (
            run(problem, T, settings=Settings("rip", schedule, eta0, average_from=share), seed=seed)
            for share in (0.0, 0.5)
        )
        points = {LAST: whole.W, AVERAGE: whole.average, SUFFIX: half.average}
        return {method: problem.objective(W) - best for method, W in points.items()}

    tried = {
        (schedule, eta0): gaps(schedule, eta0, 10_000 + trial.seed)
        for schedule in ("constant", "linear")
        for eta0 in (8.0, 32.0, 128.0, 512.0, 2048.0)
    }
    for method in (LAST, AVERAGE, SUFFIX):
        chosen = min(tried, key=lambda settings, method=method: tried[settings][method])
        trial.record(method=method, gap=gaps(*chosen, trial.seed)[method], chosen_eta0=chosen[1])
        for (schedule, eta0), found in tried.items():
            trial.record(method=method, eta0=eta0, schedule=schedule, tuning_gap=found[method])


@claim(
    "variance-need-not-be-bounded",
    says="Gradient noise grows like the square of the start's distance, yet the last iterate's rate stays T^(-1/2).",
    source="Claim 3: no bounded variance",
    factors={"distance": [1, 10, 100], "largest_T": [2**18], "n": [2000]},
    scales={"quick": Scale(seeds=5), "full": Scale(seeds=20), "paper": Scale(seeds=50, largest_T=[2**22])},
    holds=all_of(
        slope("noise_at_start", "start", x="distance", between=(1.5, 2.1)),
        trend("noise_at_start", "start", over="distance", direction="increasing"),
        slope("gap", LAST, x="T", at_most=-0.45, each="distance"),
    ),
    chart=[
        line(x="T", y="gap", color="distance", log="xy", title="Gap by number of steps"),
        line(x="distance", y="noise_at_start", log="xy", title="E ||grad f_i||^2 at the start"),
    ],
    timeout=3600,
)
def variance_need_not_be_bounded(trial, distance, largest_T, n):
    """Heavy-tailed rows (lognormal norms up to 5), four tasks on a ring; tuned once at the longest horizon."""
    import numpy as np

    from cameraready.methods.last_iterate import Settings, run, solve_exactly, tune_eta0
    from cameraready.methods.last_iterate.claim_inputs import heavy_tailed

    problem = heavy_tailed(trial.rng, n=n)
    exact = solve_exactly(problem)
    away = trial.rng.normal(size=exact.W.shape)
    start = exact.W + distance * away / np.linalg.norm(away)
    trial.record(method="start", noise_at_start=problem.noise(start))
    trial.record(method="optimum", noise=problem.noise(exact.W))
    grid = _horizons(largest_T)
    eta0 = tune_eta0(problem, max(grid), settings=Settings(), seed=trial.seed, start=start)
    for T in grid:
        found = run(problem, T, settings=Settings(eta0=eta0), seed=trial.seed, start=start)
        trial.record(method=LAST, T=T, gap=problem.objective(found.W) - exact.certificate.objective, eta0=eta0)


@claim(
    "rate-is-tight",
    says="On a fair coin's instance the last iterate is no faster than T^(-1/2): its rate cannot be improved.",
    source="Claim 4: lower bound",
    factors={"largest_T": [2**14], "walkers": [400]},
    scales={
        "quick": Scale(seeds=4),
        "full": Scale(seeds=20, largest_T=[2**18]),
        "paper": Scale(seeds=20, largest_T=[2**20], walkers=[2000]),
    },
    holds=slope("gap", LAST, x="T", between=(-0.55, -0.45)),
    chart=line(x="T", y="gap", log="xy", title="Mean gap of the walkers, constant steps"),
    timeout=3600,
)
def rate_is_tight(trial, largest_T, walkers):
    import numpy as np

    from cameraready.methods.last_iterate import Settings, run
    from cameraready.methods.last_iterate.claim_inputs import coin

    problem = coin()
    for T in _horizons(largest_T, 2**6):
        seeds = np.random.SeedSequence([trial.seed, T]).spawn(walkers)
        settings = Settings("rip", "constant", 1.0)
        gaps = [problem.objective(run(problem, T, settings=settings, seed=seed).W) for seed in seeds]
        trial.record(method=LAST, T=T, gap=np.mean(gaps))


@claim(
    "ties-improve-forecasts",
    says="Tied along the calendar, monthly models forecast sea temperatures better than separate or pooled ones.",
    source="Usefulness: elnino, the last ten years held out",
    factors={"test_from": [2001], "resamples": [2000]},
    scales={"quick": Scale(seeds=2), "full": Scale(seeds=10), "paper": Scale(seeds=20, resamples=[10_000])},
    # The upper end of a 95 % interval of the difference in squared error (years resampled, as errors of a year depend).
    holds=all_of(
        at_most("upper_end", "tied minus separate", 0.0),
        at_most("upper_end", "tied minus pooled", 0.0),
    ),
    chart=bar(x="method", y="squared_error", title="Mean squared error, held-out years"),
    peers={
        "separate": "sklearn RidgeCV in every month, alpha from 1e-3 to 1e3",
        "pooled": "one sklearn RidgeCV with monthly intercepts removed, alpha from 1e-3 to 1e3",
    },
    timeout=600,
)
def ties_improve_forecasts(trial, test_from, resamples):
    """The deviations are from the training years' means; lam by five-fold cross-validation there."""
    import numpy as np
    from sklearn.linear_model import RidgeCV

    from cameraready.methods.last_iterate import NetworkLassoCV, NetworkLassoRegressor
    from cameraready.methods.last_iterate.claim_inputs import sea_temperature

    sea = sea_temperature(means_until=test_from)
    train, test = sea.year < test_from, sea.year >= test_from
    alphas = np.logspace(-3, 3, 25)
    model = NetworkLassoRegressor("ring", max_iter=20_000, polish=True, certify=False)
    tied = NetworkLassoCV(model, cv=5, random_state=trial.seed).fit(
        sea.lags[train], sea.anomaly[train], task=sea.month[train]
    )
    forecasts = {"tied": tied.predict(sea.lags[test], task=sea.month[test])}
    pooled = RidgeCV(alphas).fit(sea.lags[train], sea.anomaly[train])
    forecasts["pooled"] = pooled.predict(sea.lags[test])
    forecasts["separate"] = np.empty(test.sum())
    for month in range(12):
        here, rows = train & (sea.month == month), sea.month[test] == month
        one = RidgeCV(alphas).fit(sea.lags[here], sea.anomaly[here])
        forecasts["separate"][rows] = one.predict(sea.lags[test][rows])
    errors = {name: (forecast - sea.anomaly[test]) ** 2 for name, forecast in forecasts.items()}
    for name, error in errors.items():
        trial.record(method=name, squared_error=error.mean(), lam=tied.lam_ if name == "tied" else 0.0)
    years = np.unique(sea.year[test])
    for name in ("separate", "pooled"):
        gain = np.array([(errors["tied"] - errors[name])[sea.year[test] == year].mean() for year in years])
        means = gain[trial.rng.integers(len(years), size=(resamples, len(years)))].mean(axis=1)
        trial.record(method=f"tied minus {name}", upper_end=np.quantile(means, 0.975), mean_difference=gain.mean())


@claim(
    "last-iterate-fuses",
    says="Last iterates fuse neighbours exactly; averages never do.",
    source="Extra claim: exact fusion",
    factors={"T": [2**14], "K": [30], "d": [5], "edges": [90], "n": [3000], "lam": [0.01]},
    scales={
        "quick": Scale(seeds=3),
        "full": Scale(seeds=20, T=[2**18]),
        "paper": Scale(seeds=20, T=[2**20], K=[200], edges=[800], n=[20_000]),
    },
    holds=all_of(
        difference("fused_edges", f"{FULL}, last", to=f"{FULL}, average", at_least=1.0),
        at_most("fused_edges", f"{FULL}, average", 0.0),
        difference("fused_edges", f"{RIP}, last", to=f"{RIP}, average", at_least=1.0),
        at_most("fused_edges", f"{RIP}, average", 0.0),
        at_least("right", f"{RIP}, last, polished", 0.95),
    ),
    chart=[
        bar(x="method", y="fused_edges", title="Edges whose two tasks share one model (within 1e-6)"),
        bar(x="method", y="close_edges", title="Edges whose two tasks are within 1e-3"),
    ],
    peers={"average": "mean of all iterates of the same run"},
    timeout=1800,
)
def last_iterate_fuses(trial, T, K, d, edges, n, lam):
    """Tasks in three planted groups; "right" is the share of edges fused, or not, as in the exact solution."""
    import numpy as np

    from cameraready.methods.last_iterate import Settings, run, solve_exactly, tune_eta0
    from cameraready.methods.last_iterate.claim_inputs import clustered
    from cameraready.methods.last_iterate.polish import fused_edges, polish

    problem = clustered(trial.rng, n=n, K=K, d=d, edges=edges, groups=3, lam=lam)
    truth = fused_edges(problem, solve_exactly(problem, tol=1e-12).W, tol=1e-5)
    trial.record(method="optimum", fused_edges=truth.sum())
    for name, solver in ((FULL, "prox_sgd"), (RIP, "rip")):
        settings = Settings(solver, average_from=0.0)
        eta0 = tune_eta0(problem, T, settings=settings, seed=trial.seed)
        found = run(problem, T, settings=Settings(solver, eta0=eta0, average_from=0.0), seed=trial.seed)
        points = {"last": found.W, "average": found.average}
        if solver == "rip":
            points["last, polished"] = polish(problem, found.W)
        for label, W in points.items():
            fused = fused_edges(problem, W)
            close = fused_edges(problem, W, tol=1e-3).sum()  # what the estimators' groups_ count
            right = np.mean(fused == truth)
            trial.record(method=f"{name}, {label}", fused_edges=fused.sum(), close_edges=close, right=right)


LARGE = {"n": [100_000], "K": [200], "edges": [800]}


def _race(trial, n, K, edges, names, loss="squared", *, memory=False):
    """Seconds until F is within 1 % of F*, on 20 features; every contestant starts from the rows."""
    import numpy as np

    from cameraready.methods.last_iterate import peers, solve_exactly
    from cameraready.methods.last_iterate.claim_inputs import clustered

    problem = clustered(trial.rng, n=n, K=K, d=20, edges=edges, groups=5, lam=0.002, loss=loss)
    contestants = {
        RIP: lambda problem, target: peers.rip(problem, target, seed=trial.seed),
        "Clarabel": peers.clarabel,
        "ADMM": peers.consensus_admm,
        "copt": peers.copt_primal_dual,
        "pyproximal": peers.pyproximal_primal_dual,
    }
    contestants = {name: contestants[name] for name in (RIP, *names)}
    small = clustered(np.random.default_rng(0), n=500, K=5, d=20, edges=6, groups=2, lam=0.002, loss=loss)
    for solve in contestants.values():  # compiles and imports
        solve(small, float("inf"))
    # Before anything else, whose freed memory they would use; the first horizon and tolerance show the peak.
    peaks = {
        name: {"peak_memory": trial.peak_memory(lambda solve=solve: solve(problem, float("inf")))} if memory else {}
        for name, solve in contestants.items()
    }
    best = solve_exactly(problem, tol=1e-5).certificate.objective
    jobs = {name: lambda solve=solve: solve(problem, 1.01 * best) for name, solve in contestants.items()}
    for name, timing in trial.alternate(jobs, repeats=2).items():
        error = problem.objective(timing.value) / best - 1
        trial.record(method=name, seconds=timing.seconds, relative_gap=error, **peaks[name])


@claim(
    "faster-than-a-conic-solver",
    says="To 1 % the incremental method needs a fifth of Clarabel's time and a tenth of its memory.",
    source="Target: speed and memory against Clarabel",
    factors=LARGE,
    scales={"quick": Scale(seeds=3), "full": Scale(seeds=10), "paper": Scale(seeds=10, n=[1_000_000])},
    holds=all_of(
        ratio("seconds", RIP, to="Clarabel", at_most=1 / 5),
        ratio("peak_memory", RIP, to="Clarabel", at_most=1 / 10),
    ),
    chart=[
        bar(x="method", y="seconds", log="y", title="Seconds to 1 % above the optimum"),
        bar(x="method", y="peak_memory", log="y", title="Peak memory above the data, bytes"),
    ],
    peers={"Clarabel": "cvxpy 1.9, Cholesky factors of per-task Gram matrices, tolerance 1e-3"},
    timeout=1800,
)
def faster_than_a_conic_solver(trial, n, K, edges):
    _race(trial, n, K, edges, ["Clarabel"], memory=True)


@claim(
    "faster-than-splitting-methods",
    says="To 1 % the incremental method needs at most half of ADMM's time, and no more than other splitting methods.",
    source="Target: speed against ADMM, copt and pyproximal",
    factors={"loss": ["squared", "logistic"], "n": [40_000], "K": [100], "edges": [374]},
    scales={
        "quick": Scale(seeds=3),
        "full": Scale(seeds=10, **LARGE),
        "paper": Scale(seeds=10, **{**LARGE, "n": [2_000_000]}),
    },
    holds=all_of(
        ratio("seconds", RIP, to="ADMM", at_most=1 / 2, each="loss"),
        ratio("seconds", RIP, to="copt", at_most=1.0, where={"loss": "squared"}),
        ratio("seconds", RIP, to="pyproximal", at_most=1.0, where={"loss": "squared"}),
    ),
    chart=bar(x="method", y="seconds", facet="loss", log="y", title="Seconds to 1 % above the optimum"),
    peers={
        "ADMM": "SnapVX's splitting on per-task Gram matrices, over-relaxed, adaptive penalty; logistic: Newton models",
        "copt": "minimize_primal_dual with line search on per-task Gram matrices; squared loss",
        "pyproximal": "PrimalDual with the exact prox of the loss, balanced steps; squared loss",
    },
    timeout=1800,
)
def faster_than_splitting_methods(trial, loss, n, K, edges):
    _race(trial, n, K, edges, ["ADMM", "copt", "pyproximal"] if loss == "squared" else ["ADMM"], loss)


@claim(
    "cost-of-a-step-is-constant",
    says="A step of the incremental method costs the same whatever the number of edges and rows.",
    source="Target: cost of an iteration",
    factors={"steps": [200_000], "largest_n": [256_000], "largest_edges": [12_800]},
    scales={
        "quick": Scale(seeds=3),
        "full": Scale(seeds=10, largest_n=[1_024_000]),
        "paper": Scale(seeds=10, largest_n=[4_096_000], largest_edges=[51_200]),
    },
    holds=all_of(
        slope("microseconds", "more edges", x="edges", at_most=0.05),
        slope("microseconds", "more rows", x="rows", at_most=0.05),
    ),
    chart=[
        line(x="edges", y="microseconds", log="x", title="Time of a step by number of edges"),
        line(x="rows", y="microseconds", log="x", title="Time of a step by number of rows"),
    ],
    timeout=1800,
)
def cost_of_a_step_is_constant(trial, steps, largest_n, largest_edges):
    """200 tasks, 20 features; edges from 200 and rows from 4,000, each four times the one before."""
    from cameraready.methods.last_iterate import Settings, run
    from cameraready.methods.last_iterate.claim_inputs import clustered

    def timed(problems):
        jobs = {
            size: lambda problem=problem: run(problem, steps, settings=Settings()) for size, problem in problems.items()
        }
        return {size: 1e6 * timing.seconds / steps for size, timing in trial.alternate(jobs, repeats=3).items()}

    def sizes(first, last):
        return [first * 4**k for k in range(20) if first * 4**k <= last]

    common = {"K": 200, "d": 20, "groups": 5, "lam": 0.002}
    run(clustered(trial.rng, n=100, edges=10, **common), 10, settings=Settings())  # compiles
    by_edges = {m: clustered(trial.rng, n=16_000, edges=m, **common) for m in sizes(200, largest_edges)}
    for edges, microseconds in timed(by_edges).items():
        trial.record(method="more edges", edges=edges, microseconds=microseconds)
    by_rows = {n: clustered(trial.rng, n=n, edges=800, **common) for n in sizes(4000, largest_n)}
    for rows, microseconds in timed(by_rows).items():
        trial.record(method="more rows", rows=rows, microseconds=microseconds)
