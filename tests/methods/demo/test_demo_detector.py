import copy
import pickle

import numpy as np
import pytest
import torch
from pyod.models.base import BaseDetector
from sklearn.base import clone
from torch_geometric.data import Data

from cameraready.methods.demo import DEMO
from cameraready.methods.demo.training import FANOUT


@pytest.fixture(scope="module")
def planted():
    """300 nodes in a ring with chords; kind one (0 to 29) and kind two (30 to 59) are shifted in different columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 8)).astype(np.float32)
    x[:30, 0] += 4
    x[30:60, 1] += 4
    edges = np.concatenate(
        [np.stack([np.arange(300), (np.arange(300) + 1) % 300]), rng.integers(0, 300, (2, 300))], axis=1
    )
    labels, val = np.full(300, -1), np.zeros(300, dtype=bool)
    labels[:20], labels[100:160] = 1, 0
    val[15:20] = val[145:160] = True
    return Data(x=torch.from_numpy(x), edge_index=torch.from_numpy(edges)), labels, val


@pytest.fixture(scope="module")
def fitted(planted):
    data, labels, val = planted
    return DEMO(epochs=50, contamination=0.2, random_state=0).fit(data, labels=labels, val_mask=val)


def permuted(data, labels, val, order):
    inverse = np.argsort(order)
    moved = Data(x=data.x[order], edge_index=torch.from_numpy(inverse)[data.edge_index])
    return moved, labels[order], val[order]


def test_it_keeps_pyods_contract(planted, fitted):
    data, labels, _ = planted
    assert isinstance(fitted, BaseDetector)
    assert fitted.decision_scores_.shape == (300,)
    assert fitted.labels_.shape == (300,)
    unlabelled = fitted.decision_scores_[labels == -1]
    assert (unlabelled > fitted.threshold_).mean() == pytest.approx(0.2, abs=1 / len(unlabelled))
    assert np.array_equal(fitted.decision_function(data), fitted.decision_scores_)
    assert np.array_equal(fitted.predict(data), fitted.labels_)
    for method in ("linear", "unify"):
        proba = fitted.predict_proba(data, method=method)
        assert proba.shape == (300, 2)
        assert np.allclose(proba.sum(axis=1), 1)
        assert proba.min() >= 0
    assert fitted.predict_confidence(data).shape == (300,)
    fresh = clone(fitted)
    assert fresh.get_params() == fitted.get_params()
    assert not hasattr(fresh, "decision_scores_")


def test_it_finds_both_kinds(fitted):
    """Chance is 0.5, with a standard deviation of 0.06 for the 30 of the unseen kind."""
    normal = fitted.decision_scores_[160:]
    for nodes, least in ((slice(20, 30), 0.95), (slice(30, 60), 0.7)):
        kind = fitted.decision_scores_[nodes]
        assert (kind[:, None] > normal).mean() > least


def test_seeds_repeat_and_leave_the_global_state_alone(planted, fitted):
    data, labels, val = planted
    before = torch.get_rng_state()
    again = DEMO(epochs=50, contamination=0.2, random_state=0).fit(data, labels=labels, val_mask=val)
    assert np.array_equal(again.decision_scores_, fitted.decision_scores_)
    assert torch.equal(torch.get_rng_state(), before)


def test_new_graphs_are_scored_and_numbering_does_not_matter(planted, fitted):
    data, labels, val = planted
    order = np.random.default_rng(1).permutation(300)
    moved, _, _ = permuted(data, labels, val, order)
    new = Data(x=data.x + 0.001, edge_index=data.edge_index)
    scores = fitted.decision_function(new)
    new_moved = Data(x=new.x[order], edge_index=moved.edge_index)
    np.testing.assert_allclose(fitted.decision_function(new_moved), scores[order], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="7 features, but the detector was fitted on 8"):
        fitted.decision_function(Data(x=data.x[:, :7], edge_index=data.edge_index))


def test_training_does_not_depend_on_the_numbering_of_nodes(planted):
    """Nothing is drawn by node here: no dropout, no mixtures, no augmented view."""
    order = np.random.default_rng(1).permutation(300)
    scores = []
    for data, labels, val in (planted, permuted(*planted, order)):
        detector = DEMO(epochs=20, dropout=0.0, mixup="none", memory_bank=False, random_state=0)
        scores.append(detector.fit(data, labels=labels, val_mask=val).decision_scores_)
    np.testing.assert_allclose(scores[1], scores[0][order], atol=1e-5 * np.ptp(scores[0]))


@pytest.mark.parametrize("setting", [{"mixup": "ppr"}, {"mixup": "vanilla"}, {"batch": "sampled"}])
def test_every_mode_separates_the_known_kind(planted, setting):
    data, labels, val = planted
    detector = DEMO(epochs=25, random_state=0, **setting).fit(data, labels=labels, val_mask=val)
    assert detector.decision_scores_[20:30].mean() > np.quantile(detector.decision_scores_[160:], 0.9)


def test_sampling_with_room_for_all_neighbours_is_the_full_batch(planted):
    """At most 25 neighbours and 512 nodes of each role: every step of the sampled mode holds the whole graph."""
    data, labels, val = planted
    setting = {"epochs": 15, "dropout": 0.0, "mixup": "none", "memory_bank": False, "random_state": 0}
    full, sampled = (
        DEMO(batch=batch, **setting).fit(data, labels=labels, val_mask=val) for batch in ("full", "sampled")
    )
    assert np.diff(full.graph_.adjacency.indptr).max() <= FANOUT
    np.testing.assert_allclose(sampled.decision_scores_, full.decision_scores_, atol=1e-4)
    for name, value in full.network_.state_dict().items():
        torch.testing.assert_close(sampled.network_.state_dict()[name], value, atol=1e-4, rtol=1e-3)


def test_columns_too_wide_for_a_network_are_named(planted):
    data, labels, _ = planted
    x = data.x.clone()
    x[:, 3] *= 1000
    with pytest.warns(UserWarning, match="column 3 of x has a standard deviation"):
        DEMO(epochs=1).fit(Data(x=x, edge_index=data.edge_index), labels=labels)


def test_a_fitted_detector_is_copied_and_pickled(planted, fitted):
    for copied in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        new = Data(x=planted[0].x + 0.01, edge_index=planted[0].edge_index)
        assert np.array_equal(copied.decision_function(new), fitted.decision_function(new))


def test_components_switch_off(planted):
    data, labels, val = planted
    off = DEMO(epochs=25, mixup="none", energy_weights=False, memory_bank=False, distance_head=False, random_state=0)
    off.fit(data, labels=labels, val_mask=val)
    assert (off.history_["mixup"] == 0).all()
    assert (off.history_["bank"] == 0).all()
    assert off._distances is None
    assert (off.pseudo_labels_ == -1).all()
    on = DEMO(epochs=30, random_state=0).fit(data, labels=labels, val_mask=val)
    assert on.history_["mixup"].gt(0).all()
    assert on.history_["bank"].iloc[-1] > 0
    assert (on.pseudo_labels_ == 0).any()
    assert (on.pseudo_labels_[labels >= 0] == -1).all()


def test_awkward_graphs_are_survived():
    rng = np.random.default_rng(0)
    x = np.zeros((60, 3), dtype=np.float32)
    x[:, 0] = 1  # a constant column, and columns of zeros but for one node
    x[0, 2] = 5
    labels = np.full(60, -1)
    labels[0], labels[10:20] = 1, 0
    data = Data(x=torch.from_numpy(x), edge_index=torch.tensor([[3, 3, 4], [3, 4, 3]]))  # most nodes are isolated
    with pytest.warns(UserWarning, match="only one node is labelled 1"):
        detector = DEMO(epochs=25, random_state=0).fit(data, labels=labels)
    assert np.isfinite(detector.decision_scores_).all()
    assert detector.decision_scores_.argmax() == 0
    data = Data(
        x=torch.from_numpy(rng.normal(size=(60, 3)).astype(np.float32)), edge_index=torch.zeros(2, 0, dtype=torch.long)
    )
    labels = (np.arange(60) < 9).astype(int)  # nobody is unlabelled, and there are no edges
    assert np.isfinite(DEMO(epochs=25, random_state=0).fit(data, labels=labels).decision_scores_).all()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.full(300, -1), "no node is labelled 1.*unsupervised"),
        (np.ones(300, dtype=int), "no node is labelled 0"),
        (np.full(300, 2), r"labels holds \[2\]"),
        (np.zeros(5), "5 values for 300 nodes"),
        (None, "no labels"),
    ],
)
def test_labels_that_do_not_do_are_refused(planted, labels, message):
    with pytest.raises(ValueError, match=message):
        DEMO().fit(planted[0], labels=labels)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"mixup": "cutmix"}, "mixup='cutmix'"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"lr": float("nan")}, "lr=nan"),
    ],
)
def test_settings_out_of_range_are_refused(planted, setting, message):
    with pytest.raises(ValueError, match=message):
        DEMO(**setting).fit(planted[0], labels=planted[1])


def test_contamination_and_validation_masks_are_checked(planted):
    data, labels, _ = planted
    for contamination in (0.0, 0.6):
        with pytest.raises(ValueError, match="contamination"):
            DEMO(contamination=contamination)
    with pytest.raises(ValueError, match="val_mask holds no labelled"):
        DEMO().fit(data, labels=labels, val_mask=np.arange(300) < 5)


def test_an_explanation_points_at_the_planted_column_and_names_the_kind(planted, fitted):
    known = fitted.explain(25)
    assert next(iter(known.features)) == 0
    assert known.neighbours[25] > 0
    found = [fitted.explain(node) for node in range(20, 60)]
    kinds = {part.node: part.kind for part in found if part.anomalous}
    assert "unseen" in {kinds.get(node) for node in range(30, 60)}
    assert "node 25" in str(known)
    with pytest.raises(ValueError, match="node=300"):
        fitted.explain(300)
