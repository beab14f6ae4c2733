"""The Flower adapter; it needs an environment of its own: `make test-flower`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fed_dpo_clients import log_linear_clients

from cameraready.methods.fed_dpo import FederatedDPO, LogLinearPolicy, flower_app
from cameraready.methods.fed_dpo.flower import simulate


def test_without_flower_the_way_to_get_it_is_named():
    try:
        import flwr  # noqa: F401
    except ImportError:
        run = FederatedDPO(LogLinearPolicy(3), log_linear_clients(2), local_steps=1, lr=0.1, rounds=1)
        with pytest.raises(ImportError, match="cameraready\\[flower\\]"):
            flower_app(run)
    else:
        pytest.skip("Flower is installed")


def settings(**more):
    return {"local_steps": 3, "lr": 0.5, "rounds": 3, "batch_size": 8, "seed": 1, **more}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_the_simulation_gives_the_rounds_of_one_process(algorithm):
    pytest.importorskip("flwr")
    clients = log_linear_clients(4)
    here = FederatedDPO(LogLinearPolicy(3), clients, **settings(algorithm=algorithm, participation=0.7))
    there = FederatedDPO(
        LogLinearPolicy(3), clients, **settings(algorithm=algorithm, participation=0.7), engine="flower"
    )
    expected, found = here.fit().table, there.fit().table
    for column in ("loss", "drift", "zeta2", "bytes"):
        assert found[column].tolist() == pytest.approx(expected[column].tolist(), abs=1e-9), column
    assert (here.theta - there.theta).abs().max() < 1e-9


@pytest.mark.slow
def test_flowers_own_fedavg_drives_the_same_client():
    pytest.importorskip("flwr")
    from flwr.serverapp.strategy import FedAvg

    clients = log_linear_clients(4)
    for rounds in (1, 2):
        here = FederatedDPO(LogLinearPolicy(3), clients, **settings(rounds=rounds))
        there = FederatedDPO(LogLinearPolicy(3), clients, **settings(rounds=rounds))
        here.fit()
        # it samples a share of the nodes that it sees at once: ask for all four
        simulate(there, strategy=FedAvg(fraction_evaluate=0.0, min_train_nodes=4, min_available_nodes=4))
        assert (here.theta - there.theta).abs().max() < 1e-6


@pytest.mark.slow
def test_a_client_that_fails_in_flower_is_left_out():
    pytest.importorskip("flwr")
    clients = log_linear_clients(4)
    run = FederatedDPO(LogLinearPolicy(3), clients, **settings(rounds=2), engine="flower")
    run.objective.D[2] = float("nan")  # as a broken device
    run.objective._by_feature[2] = float("nan")
    table = run.fit().table
    assert table["excluded"].tolist() == [[2], [2]]
    assert bool(run.theta.isfinite().all())
