"""The scikit-learn estimators."""

import warnings

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from cameraready.methods.last_iterate import (
    EdgePenalty,
    NetworkLassoClassifier,
    NetworkLassoCV,
    NetworkLassoRegressor,
    Problem,
    solve_exactly,
)

QUICK = {"max_iter": 20_000, "random_state": 0}


@parametrize_with_checks([NetworkLassoRegressor(max_iter=20_000), NetworkLassoClassifier(max_iter=5000)])
def test_scikit_learn_accepts_the_estimators(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        NetworkLassoRegressor(),
        NetworkLassoClassifier(),
        NetworkLassoCV(NetworkLassoRegressor(max_iter=5000), cv=3, lams=[0.1]),
        NetworkLassoCV(NetworkLassoClassifier(max_iter=5000), cv=3, lams=[0.1]),
    ]
)
def test_scikit_learn_accepts_the_estimators_as_they_come(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def table():
    """Six shops on a chain, the first three of one kind; columns in wildly different units."""
    rng = np.random.default_rng(0)
    n = 480
    shop = rng.integers(6, size=n)
    X = rng.normal(size=(n, 3)) * [1.0, 1e4, 1e-3] + [0.0, 5e4, 1.0]
    coef = np.where(shop[:, None] < 3, [2.0, 1e-4, -300.0], [-1.0, 2e-4, 500.0])
    y = (X * coef).sum(axis=1) + np.where(shop < 3, 10.0, 20.0) + 0.3 * rng.normal(size=n)
    return X, y, shop


def standard(X):
    return (X - X.mean(axis=0)) / X.std(axis=0)


def test_without_ties_it_is_least_squares_in_every_task(table):
    X, y, shop = table
    model = NetworkLassoRegressor("chain", lam=0.0, polish=True, **QUICK).fit(X, y, task=shop)
    for k in range(6):
        alone = LinearRegression().fit(standard(X)[shop == k], y[shop == k])
        np.testing.assert_allclose(model.coef_[k] * X.std(axis=0), alone.coef_, atol=1e-6)
        np.testing.assert_allclose(model.predict(X[:5], np.full(5, k)), alone.predict(standard(X)[:5]), atol=1e-5)
    assert model.gap_ < 1e-8
    assert len(model.groups_) == 6


@pytest.mark.parametrize("p", [1, 2])
def test_with_strong_ties_it_is_least_squares_of_all_rows(table, p):
    X, y, shop = table
    model = NetworkLassoRegressor("chain", lam=1e3, p=p, polish=True, **QUICK).fit(X, y, task=shop)
    pooled = LinearRegression().fit(standard(X), y)
    np.testing.assert_allclose(model.coef_ * X.std(axis=0), np.tile(pooled.coef_, (6, 1)), atol=1e-6)
    np.testing.assert_allclose(model.predict(X, shop), pooled.predict(standard(X)), atol=1e-5)
    assert model.groups_ == [[0, 1, 2, 3, 4, 5]]


def test_intercepts_that_are_not_penalised_stay_free(table):
    X, y, shop = table
    model = NetworkLassoRegressor("chain", lam=1e3, penalise_intercept=False, polish=True, **QUICK).fit(X, y, task=shop)
    within = pd.DataFrame(standard(X)).groupby(shop).transform(lambda column: column - column.mean()).to_numpy()
    slopes = LinearRegression().fit(within, y - pd.Series(y).groupby(shop).transform("mean")).coef_
    np.testing.assert_allclose(model.coef_ * X.std(axis=0), np.tile(slopes, (6, 1)), atol=1e-5)
    assert np.ptp(model.predict(np.tile(X.mean(axis=0), (6, 1)), np.arange(6))) > 1


def test_polish_finds_the_optimum_and_the_planted_groups(table):
    X, y, shop = table
    model = NetworkLassoRegressor("chain", lam=0.05, polish=True, **QUICK).fit(X, y, task=shop)
    assert model.groups_ == [[0, 1, 2], [3, 4, 5]]
    assert 0 <= model.gap_ < 1e-6 * model.objective_
    assert model.history_["objective"].iloc[-1] <= model.history_["objective"].iloc[-2]
    # The same objective, computed from the user's coefficients in standardised units.
    center, spread = X.mean(axis=0), X.std(axis=0)
    W = np.column_stack([model.coef_ * spread, model.intercept_ + model.coef_ @ center])
    rows = np.column_stack([(X - center) / spread, np.ones(len(y))])
    chain = EdgePenalty([(k, k + 1) for k in range(5)], lam=0.05)
    problem = Problem(sparse.csr_array(rows), y, shop, chain)
    assert problem.objective(W) == pytest.approx(model.objective_, rel=1e-9)
    assert model.objective_ == pytest.approx(solve_exactly(problem).certificate.objective, rel=1e-6)


@pytest.mark.parametrize("solver", ["rip", "block_rip", "prox_sgd"])
def test_every_solver_comes_near_and_its_gap_says_how_near(table, solver):
    X, y, shop = table
    model = NetworkLassoRegressor("chain", lam=0.05, solver=solver, batch_size=4, **QUICK).fit(X, y, task=shop)
    best = NetworkLassoRegressor("chain", lam=0.05, polish=True, **QUICK).fit(X, y, task=shop)
    assert model.objective_ - best.objective_ <= model.gap_ < 0.2 * model.objective_
    assert model.score(X, y, task=shop) > 0.98


def test_sparse_rows_fit_as_dense_ones():
    rng = np.random.default_rng(0)
    X = sparse.random_array((300, 8), density=0.3, rng=rng, format="csr")
    task = rng.integers(3, size=300)
    y = X @ rng.normal(size=8) + 0.1 * rng.normal(size=300)
    settings = {"lam": 0.02, "standardize": False, "polish": True, **QUICK}
    dense = NetworkLassoRegressor("complete", **settings).fit(X.toarray(), y, task=task)
    fitted = NetworkLassoRegressor("complete", **settings).fit(X, y, task=task)
    np.testing.assert_allclose(fitted.coef_, dense.coef_, atol=1e-5)
    np.testing.assert_allclose(fitted.predict(X, task), fitted.predict(X.toarray(), task))
    wide = NetworkLassoRegressor("complete", lam=0.1, **QUICK).fit(
        sparse.random_array((50, 120), rng=rng), y[:50], task[:50]
    )
    assert np.isfinite(wide.coef_).all()


def test_classifier_without_ties_is_logistic_regression_in_every_task():
    rng = np.random.default_rng(0)
    X, ward = rng.normal(size=(600, 2)), rng.choice(["north", "south"], size=600)
    cured = np.where(rng.random(600) < 1 / (1 + np.exp(-X @ [1.0, -2.0])), "yes", "no")
    model = NetworkLassoClassifier("complete", lam=0.0, polish=True, **QUICK).fit(X, cured, task=ward)
    for place in ("north", "south"):
        alone = LogisticRegression(C=np.inf, tol=1e-10).fit(X[ward == place], cured[ward == place])
        theirs = alone.predict_proba(X[:20])
        np.testing.assert_allclose(model.predict_proba(X[:20], np.full(20, place)), theirs, atol=1e-4)
    assert set(model.predict(X, ward)) == {"yes", "no"}
    assert model.gap_ < 1e-8


def test_cross_validation_chooses_ties_where_tasks_are_alike():
    rng = np.random.default_rng(0)
    task, X = rng.integers(8, size=160), rng.normal(size=(160, 4))
    y = X @ [1.0, 2.0, 0.0, -1.0] + rng.normal(size=160)
    search = NetworkLassoCV(NetworkLassoRegressor("ring", max_iter=5000), lams=[0.0, 0.3], cv=3, random_state=0)
    search.fit(pd.DataFrame(X).assign(task=task)[[0, 1, 2, 3]].rename(columns=str), y, task=task)
    assert search.lam_ == 0.3
    assert search.cv_errors_.shape == (2, 3)
    assert search.predict(pd.DataFrame(X, columns=list("0123")), task).shape == (160,)
    with pytest.raises(ValueError, match="cv=1"):
        NetworkLassoCV(search.estimator, cv=1).fit(X, y, task=task)
    with pytest.raises(ValueError, match=r"lams=\[-1\]"):
        NetworkLassoCV(search.estimator, lams=[-1]).fit(X, y, task=task)


def test_task_column_and_labels_of_any_kind(table):
    X, y, shop = table
    names = np.array(list("abcdef"))[shop]
    frame = pd.DataFrame(X, columns=["price", "rent", "tax"]).assign(shop=names)
    graph = nx.path_graph(["a", "b", "c", "d", "e", "f"])
    graph.add_node("no rows")
    model = NetworkLassoRegressor(graph, lam=0.05, task_column="shop", **QUICK).fit(frame, y)
    same = NetworkLassoRegressor(graph, lam=0.05, **QUICK).fit(frame.drop(columns="shop"), y, task=names)
    np.testing.assert_array_equal(model.coef_, same.coef_)
    np.testing.assert_array_equal(model.predict(frame), same.predict(frame.drop(columns="shop"), task=names))
    assert list(model.tasks_) == ["a", "b", "c", "d", "e", "f", "no rows"]


def test_a_task_without_rows_takes_its_neighbours_model():
    rng = np.random.default_rng(0)
    X, task = rng.normal(size=(200, 2)), rng.choice([0, 1, 3], size=200)
    y = X @ [1.0, -1.0] + np.where(task == 3, 3.0, 0.0) + 0.1 * rng.normal(size=200)
    model = NetworkLassoRegressor([(0, 1), (1, 2), (3, 4)], lam=0.01, polish=True, **QUICK).fit(X, y, task=task)
    np.testing.assert_allclose(model.coef_[2], model.coef_[1], atol=1e-6)
    np.testing.assert_allclose(model.intercept_[4], model.intercept_[3], atol=1e-6)


def test_bad_input_is_refused_with_value_limit_and_way_out(table):
    X, y, shop = table
    model = NetworkLassoRegressor([(0, 1), (1, 2)], **QUICK)
    with pytest.raises(ValueError, match=r"3 labels that are not nodes of the graph \(3, 4, 5\)"):
        model.fit(X, y, task=shop)
    with pytest.raises(ValueError, match="the graph has 3 tasks; pass task="):
        model.fit(X, y)
    with pytest.raises(ValueError, match="graph=None ties none"):
        NetworkLassoRegressor().fit(X, y, task=shop)
    with pytest.raises(ValueError, match="task has shape"):
        model.fit(X, y, task=shop[:5])
    with pytest.raises(ValueError, match="task is missing in 1 rows"):
        model.fit(X, y, task=np.where(np.arange(len(y)) == 3, np.nan, shop))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(X > 7e4, np.nan, X), y, task=shop % 3)
    for change, error in (
        ({"lam": -1.0}, "lam"), ({"p": 3}, "'p'"), ({"max_iter": 0}, "max_iter"), ({"loss": "hinge"}, "loss='hinge'"),
        ({"batch_size": 10_000}, "batch_size=10000"), ({"task_column": "x"}, "task_column='x'"),
        ({"graph": "star"}, "graph='star'"),
    ):  # fmt: skip
        task = None if "task_column" in change else shop % 3
        with pytest.raises(ValueError, match=error):
            clone(model).set_params(**change).fit(X, y, task=task)
    for huge in ((X * 1e200, y), (X, y * 1e200)):
        with pytest.raises(ValueError, match="squares overflow"):
            model.fit(*huge, task=shop % 3)
    fitted = model.fit(X, y, task=shop % 3)
    with pytest.raises(ValueError, match="pass task="):
        fitted.predict(X)
    with pytest.raises(ValueError, match="not nodes"):
        fitted.predict(X, task=shop)


def test_an_interrupt_leaves_the_iterate_of_that_moment(table, monkeypatch):
    X, y, shop = table
    from cameraready.methods.last_iterate.problem import Problem

    objective, calls = Problem.objective, []

    def interrupted(self, W):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return objective(self, W)

    monkeypatch.setattr(Problem, "objective", interrupted)
    model = NetworkLassoRegressor("chain", lam=0.05, eta0=8.0, **QUICK)
    with pytest.warns(ConvergenceWarning, match="interrupted after 5000 steps"):
        model.fit(X, y, task=shop)
    assert not model.converged_
    assert model.n_iter_ == 5000
    assert model.score(X, y, task=shop) > 0.5


def test_tolerance_stops_early_or_warns(table):
    X, y, shop = table
    model = NetworkLassoRegressor("chain", lam=0.05, tol=0.5, schedule="anytime", max_iter=400_000, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y, task=shop)
    assert model.converged_
    assert model.n_iter_ < 400_000
    assert model.gap_ <= 0.5 * model.objective_
    with pytest.warns(ConvergenceWarning, match="above tol=1e-12"):
        assert not NetworkLassoRegressor("chain", lam=0.05, tol=1e-12, **QUICK).fit(X, y, task=shop).converged_


def test_rows_given_in_another_order_or_unit_give_the_same_model(table):
    X, y, shop = table
    settings = {"lam": 0.05, "polish": True, **QUICK}
    first = NetworkLassoRegressor("chain", **settings).fit(X, y, task=shop)
    scaled = NetworkLassoRegressor("chain", **settings).fit(X * [10.0, 0.1, 3.0] + 7, y, task=shop)
    np.testing.assert_allclose(scaled.coef_ * [10.0, 0.1, 3.0], first.coef_, rtol=1e-4)
    tripled = NetworkLassoRegressor("chain", **{**settings, "lam": 0.15}).fit(X, 3 * y, task=shop)
    np.testing.assert_allclose(tripled.coef_, 3 * first.coef_, rtol=1e-4)
