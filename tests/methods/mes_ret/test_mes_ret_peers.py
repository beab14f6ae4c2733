import numpy as np
import pytest

pytest.importorskip("cma")
pytest.importorskip("ddmtolab")

from cameraready.methods.mes_ret import peers


def test_every_contestant_spends_the_same_budget():
    cases = peers.suite(3, 0, dims=(4,))
    for run in (
        peers.mes_ret(cases, 200, seed=0, popsize=10),
        peers.independent(cases, 200, seed=0, popsize=10),
        peers.independent(cases, 200, seed=0, popsize=10, diagonal=True),
        *(peers.many_task(name, cases, 200, seed=0, popsize=10) for name in ("MTES_KG", "MTEA_AD")),
    ):
        assert run.spent == run.evals.sum() == 600
        assert (run.residuals(0) < 1).all()


def test_evaluations_beyond_the_budget_do_not_count():
    counter = peers.Counter([peers.Case(peers.TaskSpec("a", 0, 1), lambda X: X[:, 0])], 3)
    counter(0, np.array([[0.5], [0.4]]))
    counter(0, np.array([[0.3], [0.1]]))
    assert (counter.spent, counter.best[0]) == (3, 0.3)


def test_all_suite_functions_are_least_at_their_optimum():
    cases = peers.suite(7, 1, dims=(2,))
    for case in cases:
        found = peers.mes_ret([case], 480, seed=0, popsize=12)
        assert found.best[0] >= 0
        assert found.residuals(0)[0] < 0.05
    assert [case.spec.name.split()[0] for case in cases] == [kind.lower() for kind in peers.KINDS]


def test_arms_are_those_of_ddmtolab():
    from ddmtolab.Problems.RWO.pkacp import PKACP

    X = np.random.default_rng(0).random((5, 20))
    theirs = PKACP._evaluate_pkacp(PKACP.__new__(PKACP), X, 0.7, 0.9, 20)
    assert peers._arm(0.7, 0.9)(X) == pytest.approx(theirs, rel=1e-12)
    assert peers._closest(1.0, 0.5) == pytest.approx(np.sqrt(0.5) - 0.5, abs=2e-2)  # too short: it points there
    assert peers._closest(1.0, 1.0) == 0


def test_the_engineering_problems_are_the_same_for_the_same_seed():
    X = np.random.default_rng(0).random((3, 20))
    a, b, c = (peers.engineering(4, seed)[0].function(X) for seed in (1, 1, 2))
    assert a.tolist() == b.tolist() != c.tolist()
    assert [case.spec.n for case in peers.engineering(4, 1)] == [20] * 4 + [5, 7, 5]
