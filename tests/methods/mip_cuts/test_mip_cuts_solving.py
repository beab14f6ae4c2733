import logging
import math
import subprocess
import sys

import numpy as np
import pytest
from pyscipopt import Model, quicksum

from cameraready.methods.mip_cuts import Budget, Policy, attach, cauctions, facility, indset, lotsizing, setcover, solve
from cameraready.methods.mip_cuts.control import Decision, SeparationControl, include
from cameraready.methods.mip_cuts.families import FamilySwitches
from cameraready.methods.mip_cuts.selector import GateSelector, RandomSelector


def policy(*, opened=True, stop=0.0, seed=0):
    """Random weights with fixed gates."""
    weights = dict(Policy.initial(seed=seed).weights)
    weights["open_2.b"] = weights["open_2.b"] + (50 if opened else -50)
    weights["stop.b"] = weights["stop.b"] + np.float32(stop)
    return Policy(weights)


def optimum(model):
    model.optimize()
    assert model.getStatus() == "optimal"
    return model.getObjVal()


def random_mip(seed):
    """Small, mixed, with equations, bounded, always feasible."""
    rng = np.random.default_rng(seed)
    model = Model()
    model.hideOutput()
    n = int(rng.integers(8, 20))
    kinds = rng.choice(["B", "I", "C"], size=n)
    x = [model.addVar(vtype=str(k), ub=1 if k == "B" else 9, obj=float(rng.integers(-9, 10))) for k in kinds]
    point = [int(rng.integers(0, 2)) for _ in range(n)]
    for _ in range(int(rng.integers(4, 12))):
        row = rng.integers(-6, 13, size=n) * (rng.random(n) < 0.5)
        model.addCons(
            quicksum(int(a) * v for a, v in zip(row, x, strict=True)) <= int(row @ point + rng.integers(0, 5))
        )
    return model


def test_the_optimum_is_that_of_scip_on_thirty_random_programmes():
    separated = 0
    for seed in range(30):
        model = random_mip(seed)
        selector = attach(model, policy=policy(seed=seed, stop=3 if seed % 2 else -3), seed=seed)
        assert optimum(model) == pytest.approx(optimum(random_mip(seed)), abs=1e-6)
        assert selector.report().errors == 0
        separated += selector.report().rounds > 0
    assert separated > 5


@pytest.mark.parametrize("opened", [True, False])
def test_the_optimum_of_each_family_is_kept(opened):
    for make in (
        lambda: setcover(60, 120, density=0.08, seed=1), lambda: cauctions(30, 80, seed=1), lambda: indset(60, seed=1),
        lambda: facility(8, 4, seed=1), lambda: lotsizing(2, 6, seed=1),
    ):  # fmt: skip
        model = make()
        attach(model, policy=policy(opened=opened))
        assert optimum(model) == pytest.approx(optimum(make()), rel=1e-6)


@pytest.fixture(scope="module")
def lot_optimum():
    return optimum(lotsizing(3, 8, seed=0))


def test_closing_all_families_before_the_first_round_ends_separation():
    model = lotsizing(3, 8, seed=0)
    selector = attach(model, policy=policy(opened=False), safety=False)
    optimum(model)
    report = selector.report()
    assert (report.rounds, report.candidates, report.opened, report.reason) == (0, 0, (), "never started")


def test_a_stop_takes_this_rounds_cuts_and_ends_separation():
    model = lotsizing(3, 8, seed=0)
    selector = attach(model, policy=policy(stop=50), safety=False)
    optimum(model)
    report = selector.report()
    assert (report.rounds, report.stopped_at, report.reason) == (1, 1, "policy")
    assert 0 < report.taken < report.candidates


@pytest.mark.parametrize(("budget", "reason"), [(Budget(rounds=3), "rounds"), (Budget(cuts=5), "cuts")])
def test_budgets_end_separation(budget, reason):
    model = lotsizing(3, 8, seed=0)
    selector = attach(model, policy=policy(stop=-50), budget=budget, safety=False)
    optimum(model)
    assert selector.report().reason == reason
    assert selector.report().rounds <= 3
    assert budget.cuts is None or selector.report().taken <= budget.cuts


def test_the_safety_net_solves_what_needs_cuts():
    without = solve(lotsizing(6, 12, seed=1), policy=policy(opened=False), safety=False, time_limit=3, clock="work")
    saved = solve(lotsizing(6, 12, seed=1), policy=policy(opened=False), time_limit=3, clock="work")
    assert not without.success
    assert saved.success
    assert "reopened" in saved.report


@pytest.mark.parametrize("budget", [Budget(rounds=0), Budget(rounds=1), Budget(cuts=5)])
def test_the_safety_net_does_not_spend_what_the_budget_has_not(budget):
    model = lotsizing(6, 12, seed=1)
    model.setParam("limits/nodes", 700)
    control = attach(model, policy=policy(), budget=budget)
    model.hideOutput()
    model.optimize()
    assert model.getNTotalNodes() >= 700
    assert control.report().reopened == ()
    assert control.report().rounds <= (budget.rounds if budget.rounds is not None else 2)


def test_a_limit_of_work_ends_a_solve_at_the_same_iteration_each_time():
    first, second = (solve(lotsizing(6, 12, seed=1), selector="off", time_limit=0.5, clock="work") for _ in range(2))
    assert (first.status, first.work) == ("userinterrupt", second.work)
    assert first.lp_iterations == second.lp_iterations > 2_000


def test_separation_ends_with_the_root():
    model = lotsizing(4, 12, seed=2)
    control = include(model, Everything())
    optimum(model)
    assert model.getNTotalNodes() > 1
    assert control.report().reason == "root"


def test_a_second_solve_separates_as_the_first_one_did():
    model = lotsizing(3, 8, seed=0)
    selector = attach(model, policy=policy(stop=50), safety=False)
    for _ in range(2):
        optimum(model)
        assert selector.report().rounds == 1
        model.freeTransform()


def test_a_process_with_the_selector_and_torch_ends_in_peace():
    program = (
        "import torch\n"
        "from cameraready.methods.mip_cuts import attach, lotsizing\n"
        "model = lotsizing(3, 8, seed=0)\n"
        "selector = attach(model)\n"
        "model.optimize()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.needs_data
@pytest.mark.parametrize("name", ["gesa2", "sp150x300d"])
def test_the_safety_net_solves_models_that_time_out_without_cuts(name):
    from cameraready import data
    from cameraready.data import MissingData

    try:
        path = data.load(f"mip:{name}")
    except MissingData as error:
        pytest.skip(str(error))
    record = solve(path, policy=policy(opened=False), time_limit=30)
    assert record.success
    assert record.counts["reopened"]


def test_switches_restore_the_users_frequencies():
    model = Model()
    model.setParam("separating/gomory/freq", 7)
    before = {name: value for name, value in model.getParams().items() if "freq" in name}
    switches = FamilySwitches(model)
    switches.close()
    assert model.getParam("separating/gomory/freq") == model.getParam("constraints/knapsack/sepafreq") == -1
    switches.open()
    assert {name: value for name, value in model.getParams().items() if "freq" in name} == before


class Failing(SeparationControl):
    def decide(self, cuts, overall):
        raise RuntimeError("no")


class Everything(SeparationControl):
    def decide(self, cuts, overall):
        return Decision(cuts[:, 0], 1.0, False)


class Wild(SeparationControl):
    """Scores that are not numbers, more cuts than allowed."""

    def decide(self, cuts, overall):
        return Decision(np.full(len(cuts), np.nan), 5.0, False, diverse=False)


def test_a_failing_selector_leaves_the_choice_to_scip(caplog, lot_optimum):
    model = lotsizing(3, 8, seed=0)
    control = include(model, Failing())
    with caplog.at_level(logging.WARNING):
        assert optimum(model) == pytest.approx(lot_optimum)
    assert control.report().errors > 1
    assert len(caplog.records) == 1
    assert "RuntimeError: no" in caplog.text


@pytest.mark.parametrize("control", [Wild(), GateSelector(), RandomSelector(share=0.0), RandomSelector(share=1.0)])
def test_any_decision_is_survived(control, lot_optimum):
    model = lotsizing(3, 8, seed=0)
    include(model, control)
    assert optimum(model) == pytest.approx(lot_optimum)
    assert control.report().errors == 0


def test_the_gate_takes_thirty_per_cent_of_two_rounds():
    model = lotsizing(3, 8, seed=0)
    control = include(model, GateSelector())
    optimum(model)
    report = control.report()
    assert report.rounds == 2
    assert report.taken <= np.ceil(0.3 * report.candidates) + 1


@pytest.mark.parametrize(("bound", "status"), [((">=", 3), "infeasible"), (None, "unbounded")])
def test_infeasible_and_unbounded_models_end_as_such(bound, status):
    model = Model()
    model.hideOutput()
    x = model.addVar(vtype="I", lb=0, ub=2 if bound else None, obj=-1.0)
    y = model.addVar(vtype="I", lb=0, ub=None, obj=-1.0)
    model.addCons(x - y >= 3) if bound else model.addCons(x - y <= 3)
    attach(model, policy=policy())
    model.optimize()
    assert model.getStatus() in (status, "inforunbd")


def test_bad_input_is_refused():
    nonlinear = Model()
    nonlinear.hideOutput()
    z = nonlinear.addVar(ub=2.0)
    nonlinear.addCons(z * z <= 2)
    with pytest.raises(ValueError, match="allow=True"):
        attach(nonlinear, policy=policy())
    with pytest.warns(UserWarning, match="not trained on nonlinear"):
        attach(nonlinear, policy=policy(), allow=True)
    model = setcover(20, 40, density=0.1)
    with pytest.raises(ValueError, match=r"memory_mb=0\.1"):
        attach(model, policy=policy(), budget=Budget(memory_mb=0.1))
    attach(model, policy=policy())
    with pytest.raises(ValueError, match="already has the cut selector"):
        attach(model, policy=policy())
    model.optimize()
    with pytest.raises(ValueError, match="already being solved"):
        attach(model, policy=policy())
    with pytest.raises(TypeError, match=r"pyscipopt\.Model, got int"):
        attach(3, policy=policy())
    with pytest.raises(ValueError, match="negative"):
        Budget(rounds=-1)
    for wrong, message in (
        ({"threads": 2}, "threads=2"), ({"selector": "best"}, "selector='best'"), ({"time_limit": 0}, "time_limit=0"),
        ({"policy": "nowhere"}, "neither a file"), ({"memory_mb": 0.01}, "model takes already"),
        ({"share": 2}, "share=2"), ({"seed": -1}, "seed=-1"), ({"time_limit": math.inf}, "time_limit=inf"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            solve(setcover(20, 40, density=0.1), **({"policy": policy()} | wrong))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        solve("nowhere.mps")
    with pytest.raises(TypeError, match="int"):
        solve(3)
    with pytest.raises(ValueError, match="density"):
        setcover(10, 20, density=0)
    with pytest.raises(ValueError, match="rows=0"):
        setcover(0, 20)


def test_all_contestants_find_one_optimum_and_count_their_memory(tmp_path):
    path = tmp_path / "cover.mps"
    setcover(40, 80, density=0.1, seed=1).writeProblem(str(path), verbose=False)
    records = [solve(path, selector=name, policy=policy(), time_limit=20, seed=1) for name in (
        "rl", "default", "off", "fast", "gate", "random", "nogomory", "highs")]  # fmt: skip
    assert len({round(record.objective, 6) for record in records}) == 1
    for record in records:
        assert record.success
        assert 0 <= record.rss_delta_mb < record.rss_peak_mb < 300
    assert all(record.scip_peak_mb > 0 for record in records[:-1])


def test_the_solving_process_does_not_import_torch():
    program = "import sys, cameraready.methods.mip_cuts.worker; print('torch' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_file_that_is_no_model_is_refused(tmp_path):
    path = tmp_path / "broken.mps"
    path.write_text("this is no model")
    with pytest.raises(ValueError, match=r"cannot read broken\.mps"):
        solve(path, selector="default")


def test_a_crash_of_the_solving_process_is_a_record(monkeypatch):
    from cameraready.methods.mip_cuts import solving

    start = solving.start_worker

    def start_and_crash():
        process, connection = start()
        process.kill()
        return process, connection

    monkeypatch.setattr(solving, "start_worker", start_and_crash)
    record = solve(setcover(20, 40, density=0.1), selector="default")
    assert (record.status, record.signal) == ("crashed", 9)
    assert "SIGKILL" in str(record)
