"""The stochastic methods: what they converge to, their averages, their draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

from cameraready.methods.last_iterate import (
    EdgePenalty,
    Problem,
    ProxSGD,
    Settings,
    certify,
    rate_study,
    run,
    solve_exactly,
    tune_eta0,
)
from cameraready.methods.last_iterate.kernels import edge_prox
from cameraready.methods.last_iterate.schedules import step_sizes
from cameraready.methods.last_iterate.solver import Sampler, _distinct, chunks

EDGES = [(0, 1, 1.0), (1, 2, 0.5), (2, 3, 2.0), (0, 3, 1.0), (1, 3, 0.3)]


def problem(loss="squared", p=2, lam=0.05, l2=0.0, seed=0, n=60, K=4):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(n, 2)), np.ones(n)])
    y = X @ [1.0, -0.5, 0.2] + rng.normal(size=n)
    y = y if loss == "squared" else np.sign(y)
    return Problem(sparse.csr_array(X), y, rng.integers(K, size=n), EdgePenalty(EDGES, lam, p), loss, l2, None, 2)


@pytest.mark.parametrize("solver", ["rip", "block_rip", "prox_sgd"])
@pytest.mark.parametrize("case", [("squared", 2, 0.0), ("squared", 1, 0.1), ("logistic", 2, 0.0)])
def test_last_iterate_reaches_the_optimum(solver, case):
    loss, p, l2 = case
    P = problem(loss, p, l2=l2)
    best = solve_exactly(P).certificate.objective
    T = 2**14 if solver == "prox_sgd" else 2**18
    gaps = [P.objective(run(P, T, settings=Settings(solver, eta0=16.0), seed=s).W) - best for s in range(2)]
    assert 0 <= np.mean(gaps) < (5e-3 if solver == "prox_sgd" else 2e-3)


@pytest.mark.parametrize("sampling", ["uniform", "lipschitz"])
@pytest.mark.parametrize("solver", ["rip", "block_rip"])
def test_an_expected_step_from_the_optimum_goes_nowhere_to_first_order(solver, sampling):
    """The mean over all rows and blocks, weighted by their probabilities: motion is of order h^2, not h."""
    P = problem(lam=0.003)  # nothing fuses, so that the penalty has a gradient at the optimum
    W = solve_exactly(P, tol=1e-13).W
    assert P.penalty.sizes(W).min() > 1e-2
    sampler = Sampler(P, Settings(solver, sampling=sampling), 0)
    blocks, n = sampler.blocks, len(P.y)
    chance = np.full(blocks.number, 1 / blocks.number) if blocks.probabilities is None else blocks.probabilities
    tau = P.penalty.strengths / blocks.inclusion

    def motion(h):
        mean = np.zeros_like(W)
        slopes = P.loss_gradients(P.margins(W))
        for i in range(n):
            x = P.X[[i]].toarray()[0]
            for b in range(blocks.number):
                V = W.copy()
                V[P.task[i]] -= h * sampler.scale[i] * slopes[i] * x
                for e in blocks.edges[blocks.start[b] : blocks.start[b + 1]]:
                    edge_prox(V, *P.penalty.graph.edges[e], h * tau[e], 2, 3)
                mean += chance[b] * (V - W) / (n * sampler.scale[i])
        return np.abs(mean).max()

    small, large = motion(1e-5), motion(1e-4)
    assert large < 1e-2 * 1e-4
    assert small < large / 50  # a first-order term would give 10


def test_lazy_averages_are_the_averages_of_all_iterates():
    P = problem(l2=0.1)
    for solver in ("rip", "block_rip", "prox_sgd"):
        for start in (0.0, 0.5):
            settings = Settings(solver, eta0=3.0, batch_size=3, average_from=start)
            seen = []
            run(P, 40, settings=settings, stops=np.arange(1, 41), at_stop=lambda k, W, s=seen: s.append(W.copy()))
            # Chunks of one step draw other numbers than one chunk; compare a run with the same chunks.
            found = run(P, 40, settings=settings, stops=np.arange(1, 41))
            np.testing.assert_allclose(found.average, np.mean(seen[int(start * 40) :], axis=0), atol=1e-12)


def test_torch_optimiser_reproduces_the_compiled_run_on_the_same_draws():
    for p, solver in ((2, "rip"), (1, "rip"), (2, "prox_sgd")):
        P = problem(p=p)
        T, settings = 300, Settings(solver, eta0=2.0)
        compiled = run(P, T, settings=settings, seed=5).W
        draws = Sampler(P, settings, 5).draw(T)
        L = float(P.smoothness.max())
        heads = torch.nn.Parameter(torch.zeros(P.shape, dtype=torch.float64))
        optimizer = ProxSGD([heads], lr=2.0 / (L * T**0.5), prox=P.penalty, incremental=solver == "rip", total_steps=T)
        assert 2 * 2.0 / T**0.5 <= 0.5  # below the limit 1/(2L), which the torch optimiser does not know
        X, y = torch.tensor(P.X.toarray()), torch.tensor(P.y)
        for k in range(T):
            i = int(draws.rows[k, 0])
            optimizer.zero_grad()
            (0.5 * (X[i] @ heads[P.task[i]] - y[i]) ** 2).backward()
            optimizer.step(edge=int(draws.blocks[k]) if solver == "rip" else None)
        # prox_sgd's prox is exact to 1e-4 of the penalty's own move; the draws are the same.
        tolerance = 1e-12 if solver == "rip" else 1e-6
        np.testing.assert_allclose(heads.detach().numpy(), compiled, atol=tolerance)


def test_torch_optimiser_soft_thresholds_and_resumes():
    w = torch.nn.Parameter(torch.tensor([[3.0, 4.0], [0.1, 0.0]]))
    optimizer = ProxSGD([w], lr=1.0, prox="group_l2", schedule="constant")
    optimizer.step()
    torch.testing.assert_close(w.data, torch.tensor([[2.4, 3.2], [0.0, 0.0]]))
    optimizer = ProxSGD([w], lr=1.0, prox="l1", strength=3.0, schedule="anytime")
    optimizer.step()
    torch.testing.assert_close(w.data, torch.tensor([[0.0, 0.2], [0.0, 0.0]]))
    other = ProxSGD([w], lr=1.0, prox="l1", schedule="anytime")
    other.load_state_dict(optimizer.state_dict())
    assert other.steps_taken == 1
    assert other.param_groups[0]["strength"] == 3.0
    for bad, error in (
        ({"prox": "l3"}, "prox='l3'"),
        ({"lr": 0.0}, "lr=0"),
        ({"total_steps": None}, "total_steps=None"),
    ):
        with pytest.raises(ValueError, match=error):
            ProxSGD([w], **{"lr": 1.0, "total_steps": 5, **bad})
    with pytest.raises(ValueError, match="no row for each"):
        ProxSGD([w], lr=1.0, prox=EdgePenalty([(0, 1), (1, 2)]), total_steps=5)
    short = ProxSGD([w], lr=1.0, total_steps=1)
    short.step()
    with pytest.raises(RuntimeError, match="total_steps=1"):
        short.step()


def test_steps_never_exceed_their_limit_and_sum_as_declared():
    for schedule in ("linear", "constant", "anytime"):
        assert step_sizes(schedule, 1e6, 2.0, 100).max() == 0.25
        whole = step_sizes(schedule, 1.5, 2.0, 1000)
        pieces = [step_sizes(schedule, 1.5, 2.0, 1000, first=f, count=c) for f, c in ((0, 300), (300, 700))]
        np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert step_sizes("linear", 1.0, 1.0, 10**6).sum() == pytest.approx(1e3, rel=1e-5)
    assert sum(count for _, count in chunks(50_000, np.array([7, 20_000]))) == 50_000


def test_batches_are_uniform_subsets_without_replacement():
    rng = np.random.default_rng(0)
    picks = _distinct(rng.integers(np.arange(4, 7), size=(60_000, 3)), 6)
    assert all(len(set(row)) == 3 for row in picks[:1000].tolist())
    # 20 subsets, expected 3000 each: a deviation of 5 standard errors has a chance of about 1e-5 in all.
    counts = np.unique(np.sort(picks, axis=1), axis=0, return_counts=True)[1]
    assert len(counts) == 20
    assert np.abs(counts - 3000).max() < 5 * np.sqrt(3000)


def test_the_same_seed_gives_the_same_run_and_others_do_not():
    P = problem()
    first, second, third = (run(P, 2000, settings=Settings(), seed=s).W for s in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - third).max() > 1e-6


def test_tuning_finds_a_step_within_a_factor_of_the_best():
    P = problem(n=400)
    best = solve_exactly(P).certificate.objective
    T = 2**16

    def gap(eta0):
        return np.mean([P.objective(run(P, T, settings=Settings(eta0=eta0), seed=s).W) - best for s in range(3)])

    tuned = gap(tune_eta0(P, T, settings=Settings(), seed=0))
    assert tuned < 4 * min(gap(2.0**k) for k in range(-1, 9))


def test_tuning_does_not_stay_at_the_first_step_where_short_pilots_get_nowhere():
    """200 labels for 20 columns a task: in the first tenth of the run larger steps only make the objective worse."""
    from cameraready.methods.last_iterate.claim_inputs import clustered

    P = clustered(np.random.default_rng(0), n=20_000, K=100, d=20, edges=374, groups=5, lam=0.002, loss="logistic")
    assert tune_eta0(P, 2**15, settings=Settings(), seed=0) > 4  # 0.4 with pilots of a tenth only


def test_gap_is_never_below_the_true_one():
    for seed in range(12):
        loss, p, l2 = ("squared", "logistic")[seed % 2], 1 + seed // 2 % 2, (0.0, 0.05)[seed // 4 % 2]
        P = problem(loss, p, lam=(0.003, 0.03, 0.3)[seed % 3], l2=l2, seed=seed, n=20)
        best = solve_exactly(P).certificate
        assert best.gap < 1e-7
        for steps, iterations in ((10, 5), (1000, 5), (100_000, 100)):
            W = run(P, steps, settings=Settings(eta0=8.0), seed=seed).W
            found = certify(P, W, max_iter=iterations)
            # `lower_bound` of the exact solution is below F*, its objective above: both ends are proven.
            assert found.gap >= P.objective(W) - best.objective - 1e-13
        assert found.gap < P.objective(W) - best.objective + 1e-3


def test_gap_holds_with_empty_tasks_more_columns_than_rows_and_no_ridge():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(12, 6))
    P = Problem(sparse.csr_array(X), rng.normal(size=12), rng.integers(3, size=12), EdgePenalty(EDGES, 0.1))
    exact = solve_exactly(P)
    assert 0 <= exact.certificate.gap < 1e-7
    cp = pytest.importorskip("cvxpy")
    V = cp.Variable(P.shape)
    fit = cp.sum_squares(cp.sum(cp.multiply(X, V[P.task]), axis=1) - P.y) / 24
    ties = cp.sum(cp.multiply(P.penalty.strengths, cp.norm(P.penalty.graph.incidence() @ V, 2, axis=1)))
    value = cp.Problem(cp.Minimize(fit + ties)).solve(solver="CLARABEL", tol_gap_abs=1e-11, tol_gap_rel=1e-11)
    assert exact.certificate.objective == pytest.approx(value, abs=1e-8)
    assert exact.certificate.lower_bound <= value + 1e-9


def test_sigma_star_and_gradients_are_those_of_the_sums():
    P = problem("logistic", l2=0.2)
    rng = np.random.default_rng(0)
    W, D = rng.normal(size=P.shape), rng.normal(size=P.shape)
    value, gradient = P.smooth(W)
    step = 1e-6
    numeric = (P.smooth(W + step * D)[0] - P.smooth(W - step * D)[0]) / (2 * step)
    assert (gradient * D).sum() == pytest.approx(numeric, rel=1e-7)
    single = []
    for i in range(len(P.y)):
        one = P.loss_gradients(P.margins(W))[i] * P.X[[i]].toarray()[0]
        one[:2] += P.ridge[P.task[i]] * W[P.task[i], :2]
        single.append(one @ one)
    assert P.noise(W) == pytest.approx(np.mean(single))
    assert P.objective(W) == pytest.approx(value + P.penalty.value(W))


def test_rate_study_finds_the_rate_and_prints_it():
    P = problem(n=300)
    report = rate_study(P, {"rip": Settings(eta0=8.0)}, [2**k for k in range(9, 15)], range(4))
    last = report.slopes.query("iterate == 'last'").iloc[0]
    assert last["low"] <= last["slope"] <= last["high"] < -0.45
    assert "rip" in str(report)
    assert "F* =" in str(report)
    with pytest.raises(ValueError, match="at least two horizons"):
        rate_study(P, {"rip": Settings()}, [100], range(2))


def test_bad_settings_are_refused_by_name():
    P = problem()
    for change, error in (
        ({"solver": "adam"}, "solver='adam'"),
        ({"schedule": "cosine"}, "schedule='cosine'"),
        ({"eta0": -1.0}, "eta0=-1.0"),
        ({"batch_size": 61}, "batch_size=61"),
        ({"sampling": "best"}, "sampling='best'"),
    ):
        with pytest.raises(ValueError, match=error):
            run(P, 10, settings=replace(Settings(), **change))
    with pytest.raises(ValueError, match="T=0"):
        run(P, 0, settings=Settings())
    with pytest.raises(ValueError, match="loss='hinge'"):
        replace(P, loss="hinge")
    for change, error in (
        ({"task": P.task + 2}, "task holds 2 to 5"),
        ({"task": P.task - 1}, "task holds -1"),
        ({"y": np.full(60, np.nan)}, "NaN"),
        ({"X": 1e200 * P.X}, "too large"),
        ({"loss": "logistic"}, "takes -1 and 1"),
        ({"width": 4}, "width=4"),
    ):
        with pytest.raises(ValueError, match=error):
            replace(P, **change)


def test_problems_too_wide_for_gram_matrices_say_so_and_still_fit():
    rng = np.random.default_rng(0)
    X = sparse.random_array((200, 3000), density=0.01, rng=rng, format="csr")
    P = Problem(X, rng.normal(size=200), rng.integers(4, size=200), EdgePenalty(EDGES, 0.01))
    with pytest.raises(MemoryError, match=r"K D\^2"):
        solve_exactly(P)
    found = run(P, 20_000, settings=Settings(eta0=8.0))
    certificate = certify(P, found.W)
    assert certificate.lower_bound == 0.0
    assert certificate.gap == P.objective(found.W) < P.objective(np.zeros(P.shape))


def test_generated_and_real_problems_of_the_claims_are_what_they_say():
    from cameraready.methods.last_iterate.claim_inputs import coin, heavy_tailed, sea_temperature, table_problem

    pytest.importorskip("statsmodels")
    shapes = {"elnino": (726, 12, 7), "grunfeld": (220, 11, 3), "diabetes": (442, 8, 9)}
    for name, (n, K, D) in shapes.items():
        P = table_problem(name)
        assert (len(P.y), *P.shape) == (n, K, D)
        assert (P.rows_of_task > 0).all()
    sea = sea_temperature(means_until=2001)
    assert sea.year.min() == 1950
    assert sea.year.max() == 2010
    np.testing.assert_array_equal(sea.lags[6:, 5], sea.anomaly[:-6])
    assert abs(sea.anomaly[(sea.year < 2001) & (sea.month == 7)].mean()) < 1e-12
    assert coin().objective(np.array([[3.0], [1.0]])) == pytest.approx(0.3)
    # One step from 0 moves u by +-h = 1/(L sqrt(T)), then u - v shrinks by 2 * 0.15 h.
    W = run(coin(), 1, settings=Settings("rip", "constant", 0.25)).W
    assert abs(W[0, 0] - W[1, 0]) == pytest.approx(0.7 * 0.25)
    assert np.sqrt(heavy_tailed(np.random.default_rng(0)).smoothness.max()) == pytest.approx(5.0)
