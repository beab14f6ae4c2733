from types import SimpleNamespace

import numpy as np
import pytest

from cameraready.methods.demo import DEMO, inject_anomalies, open_set_benchmark, open_set_split
from cameraready.methods.demo.claim_inputs import by_class, random_graph
from cameraready.methods.demo.claims import SUPERVISED, TRAINING_FREE, UNSUPERVISED
from cameraready.methods.demo.graph import Operator, mean_weights
from cameraready.methods.demo.open_set import fit_scores
from cameraready.methods.demo.peers import contestants, per_sample_influence


@pytest.fixture(scope="module")
def graph():
    return random_graph(400, degree=6, d=8, rng=np.random.default_rng(0))[0]


@pytest.fixture(scope="module")
def injected(graph):
    return inject_anomalies(graph, cliques=3, rng=np.random.default_rng(0))


def split_of(injected, known=1, **more):
    return open_set_split(injected.kind, [1, 2], known, n_anomaly=12, val=(0.05, 6), **more)


def test_a_split_labels_what_it_says_and_hides_the_rest(injected):
    split = split_of(injected, known=2, seed=3)
    train = ~split.val_mask
    kind = injected.kind
    assert (split.labels[train] == 1).sum() == 12
    assert (split.labels[split.val_mask] == 1).sum() == 6
    assert (split.labels[train] == 0).sum() == 17
    assert (split.labels[split.val_mask] == 0).sum() == 17
    assert (kind[split.labels == 1] == 2).all()
    assert (kind[split.labels == 0] == 0).all()
    assert np.array_equal(split.test, np.flatnonzero(split.labels == -1))
    assert np.array_equal(split.unseen, kind == 1)


def test_scores_are_judged_on_each_kind_apart(injected):
    split = split_of(injected)
    perfect = split.evaluate(split.anomaly.astype(float))
    assert set(perfect.values()) == {1.0}
    seen_only = split.evaluate((split.anomaly & ~split.unseen).astype(float))
    assert seen_only["auroc_seen"] == 1
    assert seen_only["auroc_unseen"] == 0.5


def test_bad_splits_are_refused(injected):
    with pytest.raises(ValueError, match="known=7"):
        open_set_split(injected.kind, [1, 2], 7)
    with pytest.raises(ValueError, match="50 \\+ 30 of 30 known anomalies"):
        open_set_split(injected.kind, [1, 2], 1)


def test_rare_classes_are_cut_down_and_one_of_them_is_known(graph):
    labels = np.repeat([0, 1, 2, 3], [250, 60, 80, 10])  # the last is too small to be one of the two
    raw = SimpleNamespace(adjacency=graph.adjacency, features=graph.x, labels=labels)
    for known in ("smallest class", "second smallest"):
        part, split = by_class(raw, known, seed=0)
        assert part.n == 400 - 40 - 60
        assert split.anomaly.sum() == 40
        assert split.unseen.sum() == 20
        assert (split.labels == 1).sum() == 15
        assert not (split.unseen & (split.labels == 1)).any()
    with pytest.raises(ValueError, match="1 classes have at least 50 nodes"):
        by_class(SimpleNamespace(adjacency=graph.adjacency, features=graph.x, labels=labels * 0), known, seed=0)


def test_injection_makes_cliques_and_takes_distant_features(graph, injected):
    structural, contextual = (np.flatnonzero(injected.kind == kind) for kind in (2, 1))
    assert len(structural) == len(contextual) == 30
    degrees = np.diff(injected.graph.adjacency.indptr) - np.diff(graph.adjacency.indptr)
    assert degrees[structural].min() >= 7
    assert (np.delete(degrees, structural) == 0).all()
    changed = np.flatnonzero((injected.graph.x != graph.x).any(axis=1))
    assert np.array_equal(changed, contextual)
    with pytest.raises(ValueError, match="at most a quarter"):
        inject_anomalies(graph, cliques=20, rng=np.random.default_rng(0))


def test_the_truth_about_test_nodes_touches_neither_training_nor_selection(injected):
    y = injected.kind.copy()
    split = split_of(injected)
    scores = fit_scores(DEMO(epochs=25), injected.graph, split, seed=0)
    poisoned = type(split)(split.labels, split.val_mask, split.test, ~split.anomaly, ~split.unseen)
    assert np.array_equal(fit_scores(DEMO(epochs=25), injected.graph, poisoned, seed=0), scores)
    assert poisoned.evaluate(scores) != split.evaluate(scores)
    assert np.array_equal(y, injected.kind)


def test_the_benchmark_has_a_row_a_detector_kind_and_seed(injected):
    peers = contestants(epochs=10)
    chosen = {name: peers[name] for name in (*SUPERVISED, *TRAINING_FREE, "IsolationForest")}
    table = open_set_benchmark(chosen, injected.graph, injected.kind, [1, 2], seeds=[0], n_anomaly=12, val=(0.05, 6))
    assert len(table) == 2 * len(chosen)
    assert table.notna().all(axis=None)
    assert table["auroc_all"].between(0, 1).all()
    # Contextual anomalies are far from their neighbours' features: what compares raw features must find them.
    row = table[(table.detector == "kNN ratio, raw") & (table.known == 1)]
    assert row["auroc_seen"].item() > 0.6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_the_unsupervised_peers_run(injected):
    peers = contestants(epochs=10)
    for name in UNSUPERVISED[1:]:
        assert np.isfinite(peers[name].fit(injected.graph).decision_scores_).all()


def test_per_sample_influence_has_a_value_a_training_node(graph):
    import torch

    from cameraready.methods.demo.network import Network, View

    x, operator = torch.from_numpy(graph.x), Operator(mean_weights(graph.adjacency))
    network = Network(8).eval()
    train, val = torch.arange(7), torch.arange(7, 12)
    found = per_sample_influence(network, View(x, operator @ x, operator), train, val, torch.ones(5))
    # More energy means a lower logit of the node; the validation loss on anomalies then tends to rise.
    assert found.shape == (7,)
    assert torch.isfinite(found).all()
