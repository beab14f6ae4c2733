import numpy as np
import pytest
import torch
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from cameraready.methods.lapace import TabularSpace, peers
from lapace_applicants import score


@pytest.fixture(scope="module")
def network(people):
    """A differentiable black box."""
    space = TabularSpace.infer(people)
    classifier = MLPClassifier((16,), max_iter=150, learning_rate_init=0.01, random_state=0)
    model = make_pipeline(FunctionTransformer(space.fit(people).encode), classifier)
    return model.fit(people, (score(people)[:, 1] > 0.5).astype(int))


def options_of(peer, rows, n_options=3):
    found = peer.explain(rows, target=1, n_options=n_options)
    assert len(found) == len(rows)
    for explanation in found:
        assert len(explanation.options) <= n_options
        if len(explanation.options):
            assert (peer.background_.box(explanation.option_codes).argmax(axis=1) == 1).all()
    return found


def test_the_nearest_neighbour_is_the_nearest_training_row_of_the_class(people, declined):
    peer = peers.NearestNeighbourCE(score, TabularSpace.infer(people)).fit(people)
    space, background = peer.background_.space, peer.background_
    accepted = background.encoded[background.labels == 1]
    for explanation in options_of(peer, declined):
        far = space.distances(space.scale(explanation.start[None]), accepted)[0]
        near = space.distances(space.scale(explanation.start[None]), space.scale(explanation.option_codes))[0]
        np.testing.assert_allclose(near, np.sort(far)[:3], atol=1e-12)


def test_face_takes_the_shortest_way_through_the_graph(people, declined):
    """With k as large as the data the graph is complete, and by the triangle inequality no way is a short cut."""
    complete = peers.FACE(score, TabularSpace.infer(people))
    complete.k = len(people)
    nearest = peers.NearestNeighbourCE(score, TabularSpace.infer(people)).fit(people)
    pairs = zip(options_of(complete.fit(people), declined), options_of(nearest, declined), strict=True)
    for a, b in pairs:
        np.testing.assert_array_equal(a.option_codes, b.option_codes)


def test_face_only_goes_through_neighbours(people, declined):
    peer = peers.FACE(score, TabularSpace.infer(people)).fit(people)
    rows = {tuple(row) for row in peer.background_.codes}
    found = [tuple(row) for explanation in options_of(peer, declined) for row in explanation.option_codes]
    assert found
    assert set(found) <= rows


def test_growing_spheres_stop_near_and_change_few_columns(people, declined):
    peer = peers.GrowingSpheres(score, TabularSpace.infer(people)).fit(people)
    nearest = peers.NearestNeighbourCE(score, TabularSpace.infer(people)).fit(people)
    found, real = options_of(peer, declined), options_of(nearest, declined)
    assert all(len(explanation.options) for explanation in found)
    assert np.mean([len(c) for e in found for c in e.changes]) < np.mean([len(c) for e in real for c in e.changes])
    for explanation in found:  # sparse: putting any changed column back loses the class
        for row in explanation.option_codes:
            for i in np.flatnonzero(row != explanation.start):
                back = row.copy()
                back[i] = explanation.start[i]
                if peer.background_.box(back[None])[0, 1] > 0.5:
                    assert np.abs(row - explanation.start).astype(bool).sum() > 1  # an order of trials was used up
                    break


def test_the_torch_network_is_the_classifier(people, network):
    x = network[0].transform(people)
    scores = peers.torch_network(network[-1])(torch.as_tensor(x))
    np.testing.assert_allclose(scores.softmax(-1).detach().numpy(), network.predict_proba(people), atol=1e-10)


@pytest.mark.parametrize("kind", [peers.WachterCE, peers.ReviseCE])
def test_gradient_searches_reach_the_class(people, network, kind):
    rows = people[network.predict(people) == 0].head(10)
    peer = kind(network, TabularSpace.infer(people), network=peers.torch_network(network[-1])).fit(people)
    found = options_of(peer, rows)
    assert np.mean([explanation.status == "ok" for explanation in found]) >= 0.9


def test_wachter_stays_nearer_than_revise(people, network):
    """One searches in data space for the distance, the other among what its autoencoder can draw."""
    rows = people[network.predict(people) == 0].head(10)
    far = {}
    for kind in (peers.WachterCE, peers.ReviseCE):
        peer = kind(network, TabularSpace.infer(people), network=peers.torch_network(network[-1])).fit(people)
        space = peer.background_.space
        sets = [e for e in options_of(peer, rows) if e.status == "ok"]
        far[kind] = np.mean(
            [space.distance(space.scale(e.option_codes[:1]), space.scale(e.start[None]))[0] for e in sets]
        )
    assert far[peers.WachterCE] < far[peers.ReviseCE]


@pytest.mark.parametrize(
    "method", ["random", *(pytest.param(m, marks=pytest.mark.slow) for m in ("genetic", "kdtree"))]
)
def test_dice_finds_rows_of_the_class_in_the_users_types(people, declined, method):
    pytest.importorskip("dice_ml")
    peer = peers.DiceAdapter(score, TabularSpace.infer(people), method=method).fit(people)
    found = options_of(peer, declined.head(2))
    assert all(explanation.status == "ok" for explanation in found)
    assert (found[0].options.dtypes.drop("age") == people.dtypes.drop("age")).all()
