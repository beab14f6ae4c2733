"""Exponents against the published table and against a second solution; phase map, allocation, schedule, torch."""

import time

import numpy as np
import pytest
import torch

from cameraready.methods.signsgd_scaling import PLRF, WSD, WSDLR, NotCovered, ScalingLaw, SignSGD
from cameraready.methods.signsgd_scaling import law as law_module
from cameraready.methods.signsgd_scaling.exponents import solve, terms
from cameraready.methods.signsgd_scaling.simulation import advance


def published(alpha, beta):
    """SGD's exponents of Paquette et al. (2024), phase by phase: slope of the risk and of the model size."""
    a, b, total = alpha, beta, 2 * alpha + 2 * beta - 1
    if b < 0.5 < a:
        return total / (2 * a + 1), 1 / (2 * a + 1)  # Ia
    if b < 0.5:
        return a + b - 0.5, 0.5  # Ib
    if a < 0.25:
        return a * total / (a * (3 - 2 * b) + 2 * b - 1), total / (2 * (a * (3 - 2 * b) + 2 * b - 1))  # Ic
    if a < 1 - np.sqrt(0.5):
        return (1 - 2 * a) * total / (2 * (2 * b - a - 2 * a * b)), (b - a) / (2 * b - a - 2 * a * b)  # IVb
    if a < 0.5:
        return a, 0.5  # IVa
    if b < a:
        return total / (2 * (a + b)), b / (a + b)  # II
    return (4 * a - 1) / (4 * a), 0.5  # III


@pytest.mark.parametrize(
    ("alpha", "beta"),
    [
        (1, 0.3),
        (1.5, 0.3),
        (0.7, 0.3),
        (0.4, 0.3),
        (0.2, 0.6),
        (0.27, 0.6),
        (0.27, 0.9),
        (0.4, 0.8),
        (1, 0.8),
        (2, 1.2),
        (1, 1.2),
        (0.6, 0.9),
    ],
)
def test_sgd_at_the_largest_rate_has_the_published_exponents(alpha, beta):
    law = ScalingLaw(alpha, beta, "sgd", rate="largest")
    assert (law.slope, law.size_exponent) == pytest.approx(published(alpha, beta), abs=1e-6)


@pytest.mark.parametrize(("alpha", "beta"), [(1, 0.3), (1, 0.8), (1, 1.2), (0.6, 0.9)])
def test_for_fast_features_the_largest_rate_is_the_best(alpha, beta):
    assert ScalingLaw(alpha, beta, "sgd").slope == pytest.approx(published(alpha, beta)[0], abs=1e-6)


def test_a_tuned_rate_beats_the_published_exponent_only_where_features_decay_slowly():
    assert ScalingLaw(0.4, 0.8, "sgd").slope > published(0.4, 0.8)[0] + 0.01


@pytest.mark.parametrize(
    ("alpha", "beta", "slope"),
    [
        # solved by hand from the terms: approximation = drift = noise, and drift = aligned features = noise
        (0.7, 0.3, 1 / 2.4),
        (1, 1.2, 17 / 22),
        (0.6, 0.7, 8 / 13),
        (0.6, 0.9, 2 / 3),
    ],
)
def test_signsgd_exponents_are_those_solved_by_hand(alpha, beta, slope):
    assert ScalingLaw(alpha, beta).slope == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "signsgd"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.7), (0.6, 0.9), (1.2, 0.4), (0.2, 1.5)])
def test_no_point_of_a_fine_grid_beats_the_linear_program(optimizer, alpha, beta):
    law = ScalingLaw(alpha, beta, optimizer)
    x, y = np.meshgrid(np.linspace(0, 1, 401), np.linspace(0, 2, 801))
    slope = np.full(x.shape, np.inf)
    for term in terms(alpha, beta, optimizer):
        value = term.c0 + term.cx * x + term.cy * y
        slope = np.minimum(slope, value) if term.bounds_slope else np.where(value >= -1e-12, slope, -np.inf)
    assert law.slope - 0.02 < slope.max() <= law.slope + 1e-9


def by_hand(alpha, beta, optimizer, x, y):
    """Minus the log_f of every term of the risk at d = f^x, N = f^(1 - x), lr = f^-y."""
    N, p, q, a = 1 - x, (2 * alpha + 2 * beta - 1) / (2 * alpha), 1 - 1 / (2 * alpha), min(alpha, 0.5)
    found = {"approximation": x * min(2 * alpha, 2 * alpha + 2 * beta - 1)}
    if optimizer == "sgd":
        # gamma (gamma N)^-(2 - 1/(2 alpha)); below alpha = 1/4 a sum that grows with d takes the place of the power
        slowest = (2 - 1 / (2 * alpha)) * (N - y) if alpha > 0.25 else (4 * alpha - 1) * x
        found |= {"drift": p * (N - y), "noise": y + slowest, "stability": y - max(0, 1 - 2 * alpha) * x}
        aligned = x + q * (N - y)
    else:
        time = N - y + a * x
        found |= {"drift": 2 * p / (2 - p) * time} if p < 2 else {"drift in finite time": time}
        found |= {"noise": 2 * y - 2 * (1 - a) * x}
        aligned = x + 2 * q / (2 - q) * (N - y + x)
    return found | ({"aligned features": aligned} if alpha > 0.5 and beta > 0.5 else {})


@pytest.mark.parametrize("optimizer", ["sgd", "signsgd"])
@pytest.mark.parametrize(
    ("alpha", "beta"),
    [(0.2, 0.6), (0.249, 0.9), (0.4, 1.4), (0.498, 0.9), (0.502, 0.7), (0.7, 0.498), (0.7, 0.502), (1, 1.2)],
)
def test_every_term_is_the_power_that_the_theory_gives(alpha, beta, optimizer):
    for x, y in np.random.default_rng(0).random((3, 2)):
        found = {term.name: term.c0 + term.cx * x + term.cy * y for term in terms(alpha, beta, optimizer)}
        assert found == pytest.approx(by_hand(alpha, beta, optimizer, x, y), abs=1e-12)


def test_active_terms_name_the_phase():
    law = ScalingLaw(1.0, 1.2)
    assert law.active_terms == ("drift", "aligned features", "noise")
    assert law.phase == "drift + aligned features + noise"


def test_a_block_of_programs_equals_one_by_one():
    problems = [terms(a, b, o) for a, b in [(0.7, 0.3), (1, 1.2), (0.2, 0.9)] for o in ("sgd", "signsgd")]
    for together, problem in zip(solve(problems), problems, strict=True):
        assert together[:3] == pytest.approx(solve([problem])[0][:3], abs=1e-6)


def test_the_phase_map_marks_where_signsgd_is_steeper_and_is_quick():
    start = time.perf_counter()
    phases = ScalingLaw.phase_map(np.linspace(0.1, 2, 60), np.linspace(0.1, 2, 60))
    assert time.perf_counter() - start < 20
    regions = phases.region.value_counts()
    assert regions["signSGD steeper"] > 500
    at = phases.table.assign(region=phases.region).set_index(["alpha", "beta"])
    near = min(at.index, key=lambda point: abs(point[0] - 0.6) + abs(point[1] - 0.9))
    assert at.loc[near, "region"] == "signSGD steeper"
    drawing = phases.chart(point=(0.6, 0.9)).to_dict()
    assert len(drawing["layer"]) == 3


def test_allocation_is_near_the_best_of_a_direct_search():
    law = ScalingLaw(0.7, 0.3, "sgd")
    found = law.allocate(2e5)
    assert found.d * found.N == pytest.approx(2e5, rel=0.01)
    assert "measured slope" in found.basis

    def risk(d):
        """Mean over six sketches with the best of ten rates."""
        models = [PLRF(0.7, 0.3, d, seed=seed) for seed in range(6)]
        steps = round(2e5 / d)
        risks = [
            [m.predict_risk("sgd", lr=lr, steps=steps, record=[steps])["risk_mean"].iloc[0] for m in models]
            for lr in models[0].rate_grid("sgd", 10)
        ]
        return np.min(np.mean(risks, axis=1))

    best = min(risk(d) for d in (100, 200, 400))
    assert risk(found.d) < 1.1 * best
    assert found.risk == pytest.approx(best, rel=0.15)


def test_where_the_constants_cannot_be_measured_the_law_says_so(monkeypatch):
    monkeypatch.setattr(law_module, "CALIBRATION_SIZES", (200, 240, 280))
    with pytest.raises(NotCovered, match="exponents hold"):
        ScalingLaw(1.5, 0.3, "sgd").allocate(1e6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ScalingLaw(0.2, 0.2), r"= 0\.8 must exceed 1"),
        (lambda: ScalingLaw.phase_map([np.inf, 0.1], [0.2]), "no point of the grid"),
        (lambda: WSDLR(SignSGD([torch.nn.Parameter(torch.ones(1))], lr=1), 2.5), r"total=2\.5"),
        (lambda: ScalingLaw(0.7, 0.3, "adam"), "adam"),
        (lambda: ScalingLaw(0.7, 0.3, "signsgd", rate="largest"), "stable at every"),
        (lambda: ScalingLaw(0.7, 0.3).allocate(10), "flops=10"),
        (lambda: SignSGD([torch.nn.Parameter(torch.ones(1))], lr=-1), "lr=-1"),
        (lambda: SignSGD([torch.nn.Parameter(torch.ones(1))], lr=1, momentum=1), "momentum=1"),
        (lambda: WSDLR(SignSGD([torch.nn.Parameter(torch.ones(1))], lr=1), 0), "total=0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("shape", ["linear", "cosine", "1-sqrt", "exponential"])
def test_the_schedule_warms_up_stays_and_decays(shape):
    rates = WSD(warmup=0.1, decay=0.2, shape=shape).multipliers(1000)
    np.testing.assert_allclose(rates[:100], np.arange(1, 101) / 100)
    assert (rates[100:801] == 1).all()
    assert (np.diff(rates[800:]) < 0).all()
    halfway = {"linear": 0.5, "cosine": 0.5, "1-sqrt": 1 - np.sqrt(0.5), "exponential": np.sqrt(1e-3)}[shape]
    assert rates[900] == pytest.approx(halfway, rel=1e-9)
    assert 0 < rates[-1] < 0.01


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_torch_signsgd_with_its_schedule_equals_the_simulator_step_for_step(momentum):
    rng = np.random.default_rng(0)
    d, steps, peak = 7, 60, 0.05
    features = rng.standard_normal((steps, d)).astype(np.float32)
    noise = rng.standard_normal(steps)
    delta = rng.standard_normal(d)
    weight = torch.nn.Parameter(torch.tensor(delta.copy()))
    optimizer = SignSGD([weight], lr=peak, momentum=momentum)
    scheduler = WSDLR(optimizer, steps, warmup=0.1, decay=0.3)
    rates = peak * WSD(warmup=0.1, decay=0.3).multipliers(steps)
    first, second = np.zeros(d), np.zeros(d)
    for step in range(steps):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rates[step], rel=1e-12)
        optimizer.zero_grad()
        residual = torch.tensor(features[step].astype(float)) @ weight + noise[step]
        (residual**2 / 2).backward()
        optimizer.step()
        scheduler.step()
        part = slice(step, step + 1)
        advance(delta, first, second, features[part], noise[part], rates[part], 1, 1, momentum, 0.0, 0.0, 1e-8, step)
        np.testing.assert_allclose(weight.detach().numpy(), delta, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "kind"), [("sgd", 0), ("adam", 2)])
def test_the_simulators_steps_equal_torchs(name, kind):
    rng = np.random.default_rng(1)
    d, steps, lr = 5, 40, 0.03
    features = rng.standard_normal((2 * steps, d)).astype(np.float32)
    noise = rng.standard_normal(2 * steps)
    delta = rng.standard_normal(d)
    weight = torch.nn.Parameter(torch.tensor(delta.copy()))
    peers = {"sgd": torch.optim.SGD([weight], lr=lr, momentum=0.8), "adam": torch.optim.Adam([weight], lr=lr)}
    optimizer = peers[name]
    for step in range(steps):
        rows = slice(2 * step, 2 * step + 2)
        optimizer.zero_grad()
        residual = torch.tensor(features[rows].astype(float)) @ weight + torch.tensor(noise[rows])
        ((residual**2).mean() / 2).backward()
        optimizer.step()
    first, second = np.zeros(d), np.zeros(d)
    advance(delta, first, second, features, noise, np.full(steps, lr), kind, 2, 0.8, 0.9, 0.999, 1e-8, 0)
    np.testing.assert_allclose(weight.detach().numpy(), delta, rtol=1e-9)


def test_weight_decay_is_decoupled_and_a_closure_is_called():
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = SignSGD([weight], lr=0.1, weight_decay=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(4.0)
    assert weight.item() == pytest.approx(2.0 * 0.95 - 0.1)


def test_slopes_are_measured_where_the_best_size_is_inside_the_range():
    from cameraready.methods.signsgd_scaling.claim_inputs import envelopes

    variants = {"SGD": ("sgd", "constant"), "signSGD": ("signsgd", "constant")}
    models = [[PLRF(1.0, 1.2, d, seed=seed) for seed in range(6)] for d in (8, 16, 32, 64, 96)]
    slopes, best = envelopes(models, variants, 1e2, 1e5)
    assert all(table["interior"].sum() >= 5 for table in best.values())
    low, high = best["SGD"]["compute"].iloc[[0, -1]]
    assert (low, high) == tuple(best["signSGD"]["compute"].iloc[[0, -1]])
    assert np.log10(high / low) == pytest.approx(1.2)
    assert high < 1e5  # there the best size is beyond the largest
    assert all(-1 < slope < -0.4 for slope in slopes.values())


def test_a_law_just_inside_its_border_is_there():
    assert ScalingLaw(0.25, 0.252).slope > 0
    assert str(ScalingLaw(1e-9, 1.0).slope) == "0.0"


def test_a_checkpoint_of_the_schedule_is_read_without_trusting_a_class(tmp_path):
    def training():
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = SignSGD([weight], lr=0.1, momentum=0.9)
        return weight, optimizer, WSDLR(optimizer, 10, warmup=0.2, decay=0.5, shape="cosine")

    def train(weight, optimizer, schedule, steps):
        for _ in range(steps):
            weight.grad = weight.detach() - 0.3
            optimizer.step()
            schedule.step()

    weight, optimizer, schedule = training()
    train(weight, optimizer, schedule, 4)
    torch.save([weight.data, optimizer.state_dict(), schedule.state_dict()], tmp_path / "checkpoint.pt")
    again, loaded_optimizer, loaded_schedule = training()
    data, optimizer_state, schedule_state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    again.data = data
    loaded_optimizer.load_state_dict(optimizer_state)
    loaded_schedule.load_state_dict(schedule_state)
    for run in ((weight, optimizer, schedule), (again, loaded_optimizer, loaded_schedule)):
        train(*run, 6)
    torch.testing.assert_close(again, weight, rtol=0, atol=0)
