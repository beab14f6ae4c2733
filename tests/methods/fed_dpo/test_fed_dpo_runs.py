"""The two algorithms: what they equal, what they survive, what they refuse."""

import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from fed_dpo_clients import log_linear_clients

from cameraready.methods.fed_dpo import (
    DecentralizedDPO,
    FederatedDPO,
    LogLinearPairs,
    LogLinearPolicy,
    Objective,
    PreferenceClient,
    metropolis,
    optimum,
)
from cameraready.methods.fed_dpo.graphs import without
from cameraready.methods.fed_dpo.landscape import weights_of


def federated(clients=None, **more):
    settings = {"local_steps": 3, "lr": 0.4, "rounds": 8, **more}
    return FederatedDPO(LogLinearPolicy(3), clients or log_linear_clients(4), **settings)


def gossip(clients=None, graph=None, **more):
    settings = {"lr": 0.3, "steps": 12, **more}
    return DecentralizedDPO(
        LogLinearPolicy(3), clients or log_linear_clients(4), graph or nx.cycle_graph(4), **settings
    )


def test_one_local_step_of_all_is_centralised_gradient_descent():
    clients = log_linear_clients(4)
    pooled = [PreferenceClient(LogLinearPairs(torch.cat([c.data.D for c in clients])), beta=1.0)]
    many, one = (federated(them, local_steps=1, rounds=50) for them in (clients, pooled))
    many.fit(), one.fit()
    assert (many.theta - one.theta).abs().max() < 1e-10
    theta = torch.zeros(3, dtype=torch.float64)
    for _ in range(50):
        margins = pooled[0].data.D @ theta
        theta = theta + 0.4 * (torch.sigmoid(-margins)[:, None] * pooled[0].data.D).mean(dim=0)
    assert (one.theta - theta).abs().max() < 1e-10


def test_two_nodes_that_average_do_what_the_server_does():
    clients = [
        PreferenceClient(c.data, weight=w, beta=1.0) for c, w in zip(log_linear_clients(2), (0.5, 0.5), strict=True)
    ]
    fed, peers = federated(clients), gossip(clients, [[0.5, 0.5], [0.5, 0.5]], lr=0.4, steps=24, gossip_every=3)
    fed.fit(), peers.fit()
    assert (peers.thetas - fed.theta).abs().max() < 1e-12


@pytest.mark.parametrize("given", [[0.7, 0.1, 0.1, 0.1], [None] * 4])
def test_tracking_and_scaffold_end_at_the_optimum_of_the_weighted_losses(given):
    clients = [PreferenceClient(c.data, weight=w, beta=1.0) for c, w in zip(log_linear_clients(4), given, strict=True)]
    star = optimum(Objective(LogLinearPolicy(3), clients))
    tracked = gossip(clients, lr=0.2, steps=1500, algorithm="tracking", evaluate_every=0)
    corrected = federated(clients, local_steps=5, rounds=200, algorithm="scaffold", evaluate_every=0)
    plain = federated(clients, local_steps=5, rounds=200, evaluate_every=0)
    for run in (tracked, corrected, plain):
        run.fit()
    assert (tracked.thetas - star).abs().max() < 1e-6
    assert (corrected.theta - star).abs().max() < 1e-9
    assert (plain.theta - star).abs().max() > 1e-3


def test_fedprox_drifts_less():
    plain, held = federated().fit(), federated(algorithm="fedprox", mu=1.0).fit()
    assert (held.table["drift"] < plain.table["drift"]).all()


def test_server_momentum_of_zero_is_the_average():
    plain = federated()
    stepped = federated(server_opt=lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    plain.fit(), stepped.fit()
    assert torch.allclose(plain.theta, stepped.theta, atol=1e-14)


def test_batches_depend_on_seed_round_and_client_alone():
    first, again, other = (federated(batch_size=8, seed=s, participation=0.5) for s in (1, 1, 2))
    for run in (first, again, other):
        run.fit()
    assert torch.equal(first.theta, again.theta)
    assert not torch.allclose(first.theta, other.theta)


def test_a_client_that_returns_nan_is_left_out_and_the_others_weigh_more():
    clients = log_linear_clients(4)
    run = federated(clients, evaluate_every=0)
    break_client(run, 1)
    table = run.fit().table
    assert table["excluded"].tolist() == [[1]] * 8
    rest = federated([clients[i] for i in (0, 2, 3)], evaluate_every=0)
    rest.fit()
    assert torch.allclose(run.theta, rest.theta, atol=1e-12)
    seen = federated(clients)
    break_client(seen, 1)
    assert seen.fit().table["loss"].notna().all()  # of the other three


def break_client(run, i):
    run.objective.D[i] = float("nan")
    run.objective._by_feature[i] = float("nan")


@pytest.mark.parametrize("algorithm", ["dsgd", "tracking"])
def test_a_node_with_nan_does_not_spread_it(algorithm):
    clients = log_linear_clients(4)
    run = gossip(clients, algorithm=algorithm, steps=1500, lr=0.2, evaluate_every=100)
    break_client(run, 1)
    table = run.fit().table
    assert table["excluded"].tolist() == [[1]] * 1500
    assert bool(run.thetas.isfinite().all())
    assert table["loss"].iloc[-1] < 0.69
    if algorithm == "tracking":  # node 1 passes on what the others say
        star = optimum(Objective(LogLinearPolicy(3), [clients[i] for i in (0, 2, 3)]))
        assert (run.thetas - star).abs().max() < 1e-6


def test_node_i_of_a_graph_is_client_i_in_whatever_order_its_edges_were_given():
    W = metropolis(nx.Graph([(3, 1), (1, 0), (0, 2)]))
    assert (W > 0).tolist() == [[1, 1, 1, 0], [1, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]


def test_arrays_are_copied_and_data_frames_taken():
    D = np.ones((2, 3))
    pairs = LogLinearPairs(D)
    D[:] = 7
    assert pairs.D.max() == 1
    assert len(LogLinearPairs(pd.DataFrame(D))) == 2
    assert len(LogLinearPairs(np.broadcast_to(np.ones(3), (4, 3)))) == 4  # read-only


def test_clients_that_drop_out_are_reported_and_a_round_of_nobody_changes_nothing():
    run = federated(available=lambda round, client: round != 2 and client != 3)
    table = run.fit().table
    assert table["away"][1] == [3]
    assert table["away"][2] == [0, 1, 2, 3]
    assert table["moved"][2] == 0
    assert table["moved"][3] > 0


def test_a_node_that_is_away_keeps_its_parameters_and_mixing_stays_doubly_stochastic():
    W = without(metropolis(nx.star_graph(4)), [1, 2])
    assert np.allclose(W.sum(axis=0), 1)
    assert np.allclose(W.sum(axis=1), 1)
    assert W[1, 1] == W[2, 2] == 1
    run = gossip(steps=1, available=lambda step, node: node != 2)
    run.fit()
    assert torch.equal(run.thetas[2], torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_resumed_run_is_the_same(algorithm):
    def make(rounds):
        return federated(
            rounds=rounds, algorithm=algorithm, batch_size=8, participation=0.5,
            server_opt=lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.5),
        )  # fmt: skip

    whole, half, rest = make(8), make(4), make(8)
    history = whole.fit()
    half.fit()
    rest.load_state_dict(half.state_dict())
    resumed = rest.fit()
    assert torch.equal(rest.theta, whole.theta)
    assert resumed.table["loss"].tolist() == history.table["loss"].tolist()


def test_a_run_resumes_from_the_reference_only():
    run = federated()
    run.fit()
    moved = FederatedDPO(run.model, log_linear_clients(4), local_steps=3, lr=0.4, rounds=9)
    with pytest.raises(ValueError, match="not the reference policy"):
        moved.load_state_dict(run.state_dict())


def test_gossip_resumes():
    whole, half, rest = (gossip(steps=n, algorithm="tracking", batch_size=8) for n in (12, 5, 12))
    whole.fit(), half.fit()
    rest.load_state_dict(half.state_dict())
    rest.fit()
    assert torch.equal(rest.thetas, whole.thetas)


def test_time_varying_graphs_agree_though_none_is_connected():
    pair = [nx.Graph(edges) for edges in ([(0, 1), (2, 3)], [(0, 3), (1, 2)])]
    run = gossip(graph=pair, steps=600, lr=0.05, evaluate_every=0)
    assert run.fit().table["drift"].iloc[-1] < 1e-2
    star = optimum(run.objective)
    assert (run.thetas.mean(dim=0) - star).norm() < 0.1


def test_personal_adapters_fit_their_users_better_and_a_strong_ridge_keeps_them():
    run = federated(rounds=100, evaluate_every=0)
    run.fit()
    shared = run.objective.losses(run.theta).loss
    assert (run.objective.losses(run.personalize(steps=50, lr=0.3, ridge=0.01)).loss < shared).all()
    kept = run.personalize(steps=50, lr=1e-4, ridge=1e3)
    assert (kept - run.theta).abs().max() < 1e-3


def test_separable_pairs_warn_and_a_ridge_bounds_theta():
    clients = [PreferenceClient(LogLinearPairs([[1.0, 0.2, 0.0], [0.5, -0.1, 0.3]]), beta=1.0) for _ in range(2)]
    with pytest.warns(UserWarning, match="ranked right"):
        federated(clients, rounds=50).fit()
    with pytest.raises(ValueError, match="ridge"):
        optimum(Objective(LogLinearPolicy(3), clients))
    with pytest.raises(ValueError, match="ridge"):  # one feature: the Hessian is never singular
        optimum(Objective(LogLinearPolicy(1), [PreferenceClient(LogLinearPairs([[1.0], [2.0]]))]))
    ours = Objective(LogLinearPolicy(3), clients, ridge=0.1)
    assert (weights_of(ours) @ ours.losses(optimum(ours)).gradient).norm() < 1e-9


def test_prints_read_well():
    run = federated()
    text = str(run.predict())
    assert text.startswith("FedAvg, 3 local steps: zeta^2")
    assert "not covered: bound, since lr=" in text or "bound" in text
    history = run.fit()
    assert str(history).startswith("8 rounds, loss 0.")
    assert list(history.compare().index) == ["rate", "floor", "spread", "first_drift", "bound"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local_steps": 0}, "local_steps=0"),
        ({"local_steps": 2.0}, "local_steps=2.0"),
        ({"lr": "0.1"}, "lr='0.1'"),
        ({"participation": "all"}, "participation='all'"),
        ({"trainable": "lora"}, "is for language models"),
        ({"seed": -1}, "seed=-1"),
        ({"lr": np.inf}, "lr=inf"),
        ({"ridge": np.nan}, "ridge=nan"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"rounds": 0}, "rounds=0"),
        ({"participation": 1.5}, "participation=1.5"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"algorithm": "fedsgd"}, "algorithm='fedsgd'"),
        ({"lora_average": "product"}, "needs LoRA adapters"),
        ({"kind": "hinge"}, "kind='hinge'"),
        ({"label_smoothing": 0.5}, "label_smoothing=0.5"),
        ({"ridge": -1.0}, "ridge=-1.0"),
        ({"trainable": lambda name, p: False}, "no parameter is trainable"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        federated(**settings)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.Graph([(0, 1), (2, 3)]), r"2 pieces, \[0, 1\]; \[2, 3\]"),
        (nx.cycle_graph(5), "5 nodes and there are 4 clients"),
        (np.eye(4)[:, [1, 2, 3, 0]], "differs from its transpose"),
        (np.full((4, 4), 0.3), "rows sum to 1"),
        (np.eye(4) * 2 - 0.25, "below 0"),
        (np.ones((4, 3)), "square"),
        (nx.DiGraph([(0, 1)]), "directed"),
        ([], "no graph"),
    ],
)
def test_bad_graphs_are_refused(graph, message):
    with pytest.raises(ValueError, match=message):
        DecentralizedDPO(LogLinearPolicy(3), log_linear_clients(4), graph, lr=0.1, steps=1)


def test_what_is_no_graph_or_optimizer_is_refused():
    with pytest.raises(TypeError, match="graph='ring'"):
        gossip(graph="ring")
    with pytest.raises(TypeError, match="server_opt='adam'"):
        federated(server_opt="adam")


def test_clients_may_be_a_generator_and_graphs_may_have_parallel_edges():
    clients = log_linear_clients(4)
    run = DecentralizedDPO(
        LogLinearPolicy(3), iter(clients), nx.MultiGraph([(0, 1), (0, 1), (1, 2), (2, 3)]), lr=0.1, steps=1
    )
    assert np.array_equal(run.mixing[0], metropolis(nx.path_graph(4)))


def test_bad_clients_are_refused():
    broken = LogLinearPolicy(3)
    broken.theta.data[1] = float("nan")
    with pytest.raises(ValueError, match="parameters that are not finite"):
        FederatedDPO(broken, log_linear_clients(2), local_steps=1, lr=0.1, rounds=1)
    with pytest.raises(ValueError, match="at least one pair"):
        LogLinearPairs(np.zeros((0, 3)))
    with pytest.raises(ValueError, match="same in every pair"):
        LogLinearPairs(np.zeros((5, 3)))
    with pytest.raises(ValueError, match="1 rows"):
        LogLinearPairs([[1.0, np.inf]])
    with pytest.raises(ValueError, match=r"sum to 1\.5"):
        federated([PreferenceClient(c.data, weight=0.5) for c in log_linear_clients(3)])
    with pytest.raises(ValueError, match=r"clients \[1\] have no weight"):
        federated([PreferenceClient(c.data, weight=w) for c, w in zip(log_linear_clients(2), (0.5, None), strict=True)])
    with pytest.raises(ValueError, match="no clients"):
        FederatedDPO(LogLinearPolicy(3), [], local_steps=1, lr=0.1, rounds=1)
    with pytest.raises(ValueError, match=r"have \[4\] features"):
        federated(log_linear_clients(2, d=4))
    with pytest.raises(TypeError, match="has a ndarray"):
        federated([np.ones((2, 3))])
    with pytest.raises(ValueError, match="beta=0"):
        PreferenceClient(LogLinearPairs([[1.0]]), beta=0)
    with pytest.raises(ValueError, match="gossip_every=2"):
        gossip(algorithm="tracking", gossip_every=2)
