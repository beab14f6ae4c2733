"""`qkmeans_plusplus`: what it returns, from which data, at which cost."""

import warnings

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.cluster import kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin_min

from cameraready.methods.qkmeans import qkmeans_plusplus
from cameraready.methods.qkmeans.envelope import Envelope, best_refresh_size
from cameraready.methods.qkmeans.greedy import ReferenceSample
from cameraready.methods.qkmeans.points import Centers, Points, Threads

ENGINES = [
    {"engine": "exact", "greedy": False},
    {"engine": "exact", "greedy": True},
    {"engine": "ann", "greedy": False},
    {"engine": "ann", "greedy": True},
]


def curved(n=4000, dim=3, ambient=12, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    sphere = rng.normal(size=(n, dim + 1))
    sphere /= np.linalg.norm(sphere, axis=1, keepdims=True)
    return (sphere @ rng.normal(size=(dim + 1, ambient))).astype(dtype)


def cost(X, centers):
    return ((X[:, None] - centers[None]) ** 2).sum(-1).min(1).sum()


@pytest.mark.parametrize("options", ENGINES)
def test_centers_are_distinct_rows_of_the_data(options):
    X = curved()
    centers, indices = qkmeans_plusplus(X, 300, random_state=0, **options)
    assert centers.shape == (300, 12)
    assert len(set(indices)) == 300
    np.testing.assert_array_equal(centers, X[indices])


@pytest.mark.parametrize("options", ENGINES)
def test_same_random_state_gives_the_same_seeds_on_any_number_of_threads(options):
    X = curved(dtype=np.float32)
    one, two, four = (qkmeans_plusplus(X, 300, random_state=7, n_threads=t, **options)[1] for t in (1, 2, 4))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, four)
    assert not np.array_equal(one, qkmeans_plusplus(X, 300, random_state=8, **options)[1])


def test_seeding_cost_is_that_of_scikit_learn():
    # Same law: the means of 40 runs differ by less than 4 standard errors (false alarms: 1 in 10,000).
    X = curved(2000)
    ours = [cost(X, qkmeans_plusplus(X, 40, random_state=s, greedy=False)[0]) for s in range(40)]
    theirs = [cost(X, kmeans_plusplus(X, 40, random_state=s, n_local_trials=1)[0]) for s in range(40)]
    error = np.hypot(np.std(ours), np.std(theirs)) / np.sqrt(40)
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * error


def test_greedy_seeds_cost_less():
    X = curved(10_000)  # more rows than the reference sample of 8192
    plain = np.mean([cost(X, qkmeans_plusplus(X, 60, random_state=s, greedy=False)[0]) for s in range(5)])
    greedy = np.mean([cost(X, qkmeans_plusplus(X, 60, random_state=s, greedy=True)[0]) for s in range(5)])
    assert greedy < 0.95 * plain


def test_distances_hardly_grow_with_the_number_of_rows():
    small, large = (
        qkmeans_plusplus(curved(n), 200, random_state=0, greedy=False, return_stats=True)[2].distances
        for n in (20_000, 200_000)
    )
    after_pass = [d["nearest"] + d["scan"] for d in (small, large)]
    assert after_pass[1] < 2 * after_pass[0]
    assert small["pass"] == 20_000


def test_hash_index_saves_distances_at_little_cost():
    X = curved(20_000)
    exact, ann = (
        qkmeans_plusplus(X, 1500, engine=e, greedy=False, refresh="off", random_state=0, return_stats=True)
        for e in ("exact", "ann")
    )
    assert (exact[2].engine, ann[2].engine) == ("exact", "ann")
    assert ann[2].distances["nearest"] < exact[2].distances["nearest"] / 5
    costs = [(pairwise_distances_argmin_min(X, centers)[1] ** 2).sum() for centers, _, _ in (exact, ann)]
    assert costs[1] < 1.1 * costs[0]


def test_rho_of_one_is_the_exact_engine():
    X = curved()
    exact = qkmeans_plusplus(X, 100, engine="exact", greedy=False, random_state=0)[1]
    np.testing.assert_array_equal(qkmeans_plusplus(X, 100, engine="ann", rho=1, greedy=False, random_state=0)[1], exact)


@pytest.mark.parametrize("refresh", ["auto", "off", (8, 64)])
def test_refresh_setting_is_obeyed(refresh):
    _, _, stats = qkmeans_plusplus(curved(), 500, refresh=refresh, greedy=False, random_state=0, return_stats=True)
    if refresh == "auto":
        assert len(stats.refresh_sizes) > 0
    else:
        assert stats.refresh_sizes == (() if refresh == "off" else refresh)


def test_refreshes_keep_large_k_below_the_work_of_k_means_plusplus():
    _, _, stats = qkmeans_plusplus(curved(8000), 4000, greedy=False, random_state=0, return_stats=True)
    assert stats.distances_computed < 8000 * 4000


def test_best_refresh_size_minimises_the_predicted_work():
    n, k, eps = 100_000, 5_000, 0.2
    m0 = best_refresh_size(n, k, eps)
    sizes = np.arange(1, 1000)
    assert abs(m0 - sizes[np.argmin(n * sizes + k ** (2 + eps) * sizes**-eps / (2 + eps))]) <= 1


def test_every_row_may_be_a_center():
    X = np.random.default_rng(0).normal(size=(150, 3))
    for options in ENGINES:
        assert sorted(qkmeans_plusplus(X, 150, random_state=0, **options)[1]) == list(range(150))


def test_one_cluster_is_one_row():
    assert qkmeans_plusplus(curved(50), 1, random_state=0)[0].shape == (1, 12)


@pytest.mark.parametrize("options", ENGINES)
def test_duplicates_are_chosen_once_each_then_repeated_with_a_warning(options):
    distinct = curved(20, dtype=np.float32) + 1000
    X = np.repeat(distinct, 30, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        centers, _ = qkmeans_plusplus(X, 20, random_state=0, **options)
    assert len(np.unique(centers, axis=0)) == 20
    with pytest.warns(ConvergenceWarning, match="only 20 distinct rows"):
        centers, indices = qkmeans_plusplus(X, 33, random_state=0, **options)
    assert len(indices) == 33
    assert len(np.unique(centers, axis=0)) == 20


def test_identical_rows_and_constant_columns_survive():
    with pytest.warns(ConvergenceWarning, match="only 1 distinct"):
        qkmeans_plusplus(np.ones((10, 3)), 2, random_state=0)
    X = np.hstack([curved(200), np.full((200, 2), 5.0)])
    assert len(set(qkmeans_plusplus(X, 50, random_state=0)[1])) == 50


def test_rows_of_zero_weight_are_never_chosen():
    X, weights = curved(500), np.ones(500)
    weights[::2] = 0
    for options in ENGINES:
        assert (qkmeans_plusplus(X, 100, sample_weight=weights, random_state=0, **options)[1] % 2 == 1).all()


def test_one_giant_outlier_costs_one_refresh_and_not_the_seeding():
    X = curved(4000, dtype=np.float32)
    X[17] = 1e6
    _, indices, stats = qkmeans_plusplus(X, 200, greedy=False, random_state=0, return_stats=True)
    assert 17 in indices
    assert len(set(indices)) == 200
    assert stats.distances_computed < 4000 * 200


def test_capped_distances_choose_outliers_less_often():
    X = np.vstack([curved(1000), 100 * np.random.default_rng(1).normal(size=(10, 12))])
    full = qkmeans_plusplus(X, 12, greedy=False, random_state=0)[1]
    capped = qkmeans_plusplus(X, 12, greedy=False, outlier_quantile=0.9, random_state=0)[1]
    assert (capped >= 1000).sum() < (full >= 1000).sum()


def test_the_reference_sample_estimates_the_potential_without_bias():
    # The mean of 60 estimates, within 4 of their standard errors (false alarms: 1 in 10,000).
    X, weights = curved(20_000, dim=2, ambient=4), np.tile([0.0, 1.0, 3.0], 7000)[:20_000]
    rng = np.random.default_rng(0)
    with Threads(1) as threads:
        points = Points(X, threads)
        centers = Centers(1, points)
        centers.append(points.rows(np.array([1])), np.array([1]))
        envelope = Envelope(points.distances_to(centers.rows[0]), weights, None)
        samples = [ReferenceSample(points, envelope, centers, 100, rng) for _ in range(60)]
    target = X[7]
    estimates = [s.importance @ ((s.rows + points.shift - target) ** 2).sum(1) for s in samples]
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - weights @ ((X - target) ** 2).sum(1)) < 4 * error


def test_greedy_candidates_are_compared_by_capped_distances():
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(size=(3000, 8)), 100 * rng.normal(size=(20, 8))])
    chosen = [qkmeans_plusplus(X, 30, greedy=True, outlier_quantile=0.9, random_state=s)[1] for s in range(5)]
    assert np.mean([(indices >= 3000).sum() for indices in chosen]) < 1


@pytest.mark.parametrize("options", ENGINES)
def test_a_cap_survives_data_of_mostly_one_row(options):
    X = np.vstack([np.zeros((1000, 12)), curved(40)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        centers, _ = qkmeans_plusplus(X, 20, outlier_quantile=0.9, random_state=0, **options)
    assert len(np.unique(centers, axis=0)) == 20


@pytest.mark.parametrize("options", ENGINES)
@pytest.mark.parametrize(("dtype", "scale"), [(np.float32, 1e25), (np.float64, 1e200)])
def test_distances_beyond_the_precision_are_refused_before_they_loop_forever(options, dtype, scale):
    with pytest.raises(ValueError, match=f"which {np.dtype(dtype)} cannot compute with; scale X down"):
        qkmeans_plusplus(scale * curved(500, dtype=dtype), 20, random_state=0, **options)


def test_a_row_on_which_the_hash_index_is_silent_is_compared_with_all_centers(monkeypatch):
    # An index that finds nothing: the search must then be the exact one.
    from cameraready.methods.qkmeans.lsh import LSHIndex

    monkeypatch.setattr(LSHIndex, "nearest", lambda self, rows, *_: (np.full(len(rows), np.inf), 0))
    X = np.repeat(curved(60), 5, axis=0)
    centers, _ = qkmeans_plusplus(X, 50, engine="ann", rho=0.1, greedy=False, refresh="off", random_state=0)
    assert len(np.unique(centers, axis=0)) == 50


def test_memory_map_fortran_order_and_float16_give_the_seeds_of_the_array(tmp_path):
    X = curved(1000, dtype=np.float16)
    expected = qkmeans_plusplus(X.astype(np.float32), 50, random_state=0)[1]
    np.save(tmp_path / "X.npy", X.astype(np.float32))
    for same in (np.load(tmp_path / "X.npy", mmap_mode="r"), np.asfortranarray(X.astype(np.float32)), X):
        np.testing.assert_array_equal(qkmeans_plusplus(same, 50, random_state=0)[1], expected)


@pytest.mark.parametrize("options", ENGINES)
def test_sparse_rows_give_the_seeds_of_the_dense_ones(options):
    X = curved(2000) * (np.random.default_rng(3).random((2000, 12)) < 0.3)
    indices = qkmeans_plusplus(X, 100, random_state=0, **options)[1]
    centers, from_sparse = qkmeans_plusplus(sparse.csr_matrix(X), 100, random_state=0, **options)
    np.testing.assert_array_equal(from_sparse, indices)
    np.testing.assert_array_equal(centers, X[indices])


@pytest.mark.parametrize("options", ENGINES)
def test_a_tensor_gives_the_seeds_of_the_array(options):
    X = curved(2000)
    centers, indices = qkmeans_plusplus(torch.from_numpy(X), 100, random_state=0, **options)
    assert isinstance(centers, torch.Tensor)
    # The shift differs (torch's median is the lower one of two) and with it the projections' cells: exact engines only.
    if options["engine"] == "exact":
        np.testing.assert_array_equal(indices, qkmeans_plusplus(X, 100, random_state=0, **options)[1])
    assert len(set(indices.tolist())) == 100


def test_projection_samples_rows_of_the_original_data():
    X = curved(500, ambient=800)
    for projection in ("jl", 100):
        centers, indices = qkmeans_plusplus(X, 30, projection=projection, random_state=0)
        np.testing.assert_array_equal(centers, X[indices])


def test_far_from_the_origin_float32_distances_keep_their_digits():
    X = (curved(1000) + 3000).astype(np.float32)
    with Threads(1) as threads:
        points = Points(X, threads)
        centers = Centers(20, points)
        centers.append(points.rows(np.arange(20)), np.arange(20))
        found, nearest = points.nearest(np.arange(1000), centers, 0)
    exact = ((X[:, None].astype(float) - X[None, :20]) ** 2).sum(-1)
    np.testing.assert_allclose(found, exact.min(1), rtol=1e-3, atol=1e-9)
    np.testing.assert_array_equal(nearest[20:], exact.argmin(1)[20:])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n_clusters": 41}, ValueError, "n_clusters=41 is larger than the 40 samples"),
        ({"n_clusters": 0}, ValueError, "n_clusters=0 is less than 1"),
        ({"n_clusters": 2.5}, TypeError, "n_clusters=2.5 is not an integer"),
        ({"X": np.full((40, 2), np.nan)}, ValueError, "NaN"),
        ({"X": np.full((40, 2), np.inf)}, ValueError, "infinity"),
        ({"X": np.array([["a"]] * 40)}, ValueError, "could not convert string"),
        ({"X": torch.full((40, 2), torch.nan)}, ValueError, "finite"),
        ({"X": torch.zeros((40, 2), dtype=torch.complex64)}, ValueError, "real"),
        ({"X": torch.eye(40).to_sparse()}, ValueError, "dense"),
        ({"sample_weight": -np.ones(40)}, ValueError, "negative"),
        ({"sample_weight": np.zeros(40)}, ValueError, "zero for all"),
        ({"sample_weight": np.ones(39)}, ValueError, "one weight for each of the 40"),
        ({"rho": 0}, ValueError, "rho=0 is not in"),
        ({"rho": 1.1}, ValueError, "rho=1.1 is not in"),
        ({"engine": "gpu"}, ValueError, "engine='gpu'"),
        ({"greedy": "yes"}, ValueError, "greedy='yes'"),
        ({"refresh": "never"}, ValueError, "refresh='never'"),
        ({"refresh": 5}, TypeError, "refresh=5 is not"),
        ({"projection": 3}, ValueError, "projection=3 is larger than the 2 features"),
        ({"projection": "pca"}, ValueError, "projection='pca'"),
        ({"outlier_quantile": 2}, ValueError, "outlier_quantile=2"),
        ({"outlier_quantile": "99"}, ValueError, "outlier_quantile='99'"),
        ({"n_threads": 0}, ValueError, "n_threads=0"),
    ],
)
def test_bad_input_is_refused_by_name(change, error, message):
    arguments = {"X": np.random.default_rng(0).normal(size=(40, 2)), "n_clusters": 3} | change
    with pytest.raises(error, match=message):
        qkmeans_plusplus(arguments.pop("X"), arguments.pop("n_clusters"), **arguments)
