"""Search, certificates, families."""

import numpy as np
import pytest

from cameraready.methods.relu_landscape import Landscape, NotCovered, split_neuron
from cameraready.methods.relu_landscape.families import exchangeable_teachers, same_class
from cameraready.methods.relu_landscape.interval_proof import prove_critical_point
from cameraready.methods.relu_landscape.order_parameters import Stats


@pytest.fixture(scope="module")
def eight():
    land = Landscape(8, K=8)
    return land, land.find_minima(60, seed=0)


def test_the_spurious_minimum_of_eight_teachers_is_proved(eight):
    land, table = eight
    spurious = table.points[1]
    assert spurious.certificate.status == "certified minimum"
    proof = spurious.certificate.proof
    assert proof.radius <= 1e-10
    assert 0.02134 < proof.inside.lower <= spurious.certificate.lambda_min_in_span <= proof.inside.upper < 0.02135
    assert 0.211 < proof.outside.lower <= spurious.certificate.lambda_min_orthogonal <= proof.outside.upper < 0.212
    assert spurious.loss == pytest.approx(0.0215080, abs=1e-7)
    assert np.unique(np.diag(spurious.Q).round(4)) == pytest.approx([0.6121, 1.0589], abs=1e-4)
    assert spurious.family.name == "1 defect"
    assert spurious.family.distinct_r == 5
    assert np.linalg.norm(land.grad(spurious.W)) < 1e-13


def test_a_minimum_found_in_few_dimensions_is_one_in_many(eight):
    land, table = eight
    spurious = table.points[1]
    W = np.pad(spurious.W, ((0, 0), (0, 12)))
    assert land.loss(W) == pytest.approx(spurious.loss, abs=1e-14)
    assert np.linalg.eigvalsh(land.hessian(W))[0] == pytest.approx(spurious.certificate.lambda_min, abs=1e-10)


def test_the_global_minimum_is_the_teacher_itself(eight):
    land, table = eight
    best = table.points[0]
    assert best.family.name == "global"
    assert best.certificate.status == "certified minimum"
    assert np.allclose(best.W @ best.W.T, np.eye(8), atol=1e-9)
    assert best.count + table.spurious_count() == 60
    low, high = table.spurious_interval()
    assert low < table.spurious_fraction() < high
    assert {"loss", "count", "family", "lambda_min", "status"} <= set(table.frame.columns)
    assert land.certify(best.W).loss == 0


def test_splitting_a_neuron_of_the_spurious_minimum_makes_a_proved_saddle(eight):
    _, table = eight
    larger = Landscape(8, K=9)
    W = split_neuron(table.points[1].W, 0, share=0.5)
    assert np.linalg.norm(larger.grad(W)) < 1e-13
    certificate = larger.certify(W)
    assert certificate.status == "certified saddle"
    assert certificate.lambda_min < -0.15
    assert certificate.lambda_min == pytest.approx(np.linalg.eigvalsh(larger.hessian(np.pad(W, ((0, 0), (0, 9)))))[0])


def test_global_minima_of_surplus_students_are_degenerate():
    table = Landscape(3, K=4).find_minima(5, seed=0)
    assert [point.certificate.status for point in table] == ["degenerate minimum"]
    assert table.spurious_fraction() == 0


def test_a_proof_fails_away_from_a_critical_point():
    land = Landscape(4, K=3)
    W = np.random.default_rng(0).normal(size=(3, 4))
    assert prove_critical_point(W, land.problem.in_span().V, land.problem.in_span().hess(W)) is None


def test_a_proof_fails_when_a_constant_is_off_by_one_percent(eight, monkeypatch):
    from cameraready.methods.relu_landscape import interval_proof

    land, table = eight
    W, span = table.points[1].W, land.problem.in_span()
    exact = interval_proof._two_pi
    monkeypatch.setattr(interval_proof, "_two_pi", lambda: exact() * 1.01)
    assert prove_critical_point(W, span.V, span.hess(W)) is None


def test_numbers_of_students_and_teachers_do_not_matter_for_the_class(eight):
    land, table = eight
    point = table.points[1]
    rng = np.random.default_rng(0)
    students, teachers = rng.permutation(8), rng.permutation(8)
    Q, R = point.Q[np.ix_(students, students)], point.R[np.ix_(students, teachers)]
    a, b = Stats(point.Q, point.R, land.T), Stats(Q, R, land.T)
    assert same_class(a, b, (point.loss, point.loss))
    changed = Stats(Q, R + 1e-3 * rng.normal(size=R.shape), land.T)
    assert not same_class(a, changed, (point.loss, point.loss))


def test_teachers_are_exchangeable_only_where_the_gram_matrix_says_so():
    T = np.diag([1.0, 1.0, 2.0])
    assert [group.tolist() for group in exchangeable_teachers(T)] == [[0, 1], [2]]


def test_a_teacher_scaled_by_a_hundred_has_the_same_minima():
    small, large = (Landscape(s * np.eye(6), K=6).find_minima(30, seed=4).frame for s in (1, 100))
    assert small["count"].tolist() == large["count"].tolist()
    np.testing.assert_allclose(large["loss"], 1e4 * small["loss"], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(large["lambda_min"], small["lambda_min"], rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_family_of_a_minimum_does_not_depend_on_the_unit_of_its_weights(eight, scale):
    _, table = eight
    point = table.points[1]
    land = Landscape(scale * np.eye(8), K=8)
    assert land.classify(scale**2 * point.Q, scale**2 * point.R) == point.family


def test_one_start_that_comes_to_no_end_does_not_lose_the_others():
    land = Landscape(2, K=2)
    stray = np.array([[1.0, 0.3], [0.0, 1.0]])
    table = land.tabulate([np.eye(2), stray])
    assert sorted(table["status"]) == ["certified minimum", "not converged"]
    assert not table.points[1].is_minimum
    assert table.spurious_count() == 1


def test_hard_teachers_are_searched_to_the_end():
    # Newton stalls beside kinks: many teachers in a plane, and norms that span four decades.
    rng = np.random.default_rng(6)
    for V in (rng.normal(size=(9, 2)), rng.normal(size=(6, 10)) * np.geomspace(1e-4, 1, 6)[:, None]):
        table = Landscape(V, K=len(V)).find_minima(8, seed=0, max_unknowns=0)
        assert all(point.certificate.gradient_norm < 1e-8 for point in table)


def test_a_failing_eigenvalue_solver_of_lapack_does_not_end_the_search(monkeypatch):
    # numpy's divide and conquer did not converge at M = 16, K = 17 on a finite Hessian.
    def fails(matrix):
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    expected = Landscape(3, K=3).find_minima(3, seed=0, max_unknowns=0)
    monkeypatch.setattr("cameraready.methods.relu_landscape.search.np.linalg.eigh", fails)
    found = Landscape(3, K=3).find_minima(3, seed=0, max_unknowns=0)
    np.testing.assert_allclose(found["loss"], expected["loss"], atol=1e-12)


@pytest.mark.slow
def test_the_starts_do_not_depend_on_the_number_of_processes():
    land = Landscape(3, K=3)
    assert land.find_minima(6, seed=1, n_jobs=2)["count"].tolist() == land.find_minima(6, seed=1)["count"].tolist()


def test_the_gram_matrix_alone_describes_the_landscape():
    V = np.random.default_rng(0).normal(size=(3, 5))
    by_rows, by_gram = (
        Landscape(V, K=2).find_minima(8, seed=0),
        Landscape.from_gram(V @ V.T, K=2).find_minima(8, seed=0),
    )
    np.testing.assert_allclose(by_rows.points[0].loss, by_gram.points[0].loss, atol=1e-10)


def test_structured_starts_find_minima_too():
    table = Landscape(8, K=8).find_minima(12, seed=0, init="structured")
    assert all(point.certificate.gradient_norm < 1e-10 for point in table)


def test_more_teachers_than_students_have_no_known_least_loss():
    table = Landscape(3, K=2).find_minima(4, seed=0)
    assert table.points[0].certificate.status == "certified minimum"
    with pytest.raises(NotCovered, match="K < M"):
        table.spurious_fraction()


def test_more_teachers_than_dimensions_duplicates_and_parallel_students_are_survived():
    V = np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.8]])
    table = Landscape(V, K=3).find_minima(6, seed=0)
    assert table.points[0].loss < 1e-12
    twins = np.array([[1.0, 0.0], [2.0, 0.0], [0.1, 1.0]])
    assert np.isfinite(Landscape(V, K=3).hessian(twins)).all()


def test_a_neuron_of_norm_zero_is_reported_as_nonsmooth():
    land = Landscape(2, K=3)
    certificate = land.certify(np.vstack([np.eye(2), np.zeros(2)]))
    assert certificate.status == "nonsmooth"
    assert "no direction of growth descends" in certificate.reason
    alone = Landscape(1, K=1).certify(np.zeros((1, 1)))
    assert "growing it descends" in alone.reason
    assert "(steepest slope -0.5)" in alone.reason  # -h(e, v) at e = v


@pytest.mark.slow
@pytest.mark.parametrize(
    ("M", "losses"),
    [(4, []), (6, []), (8, [0.02151]), (10, [0.0187]), (12, [0.0165, 0.0316])],
)
def test_the_table_of_spurious_minima_of_orthonormal_teachers(M, losses):
    found = Landscape(M, K=M).find_minima(60, seed=0).frame["loss"].to_numpy()
    for loss in losses:
        assert np.abs(found - loss).min() < 6e-5
    if M == 4:
        assert len(found) == 1
