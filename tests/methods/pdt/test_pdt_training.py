"""What is measured: savings, paired runs, the peers."""

import pytest
import torch
from torch import nn

from cameraready.methods.pdt import Task, fit_dmd, train_pair
from cameraready.methods.pdt.claim_contests import Setup, predicting, tuned_rate
from cameraready.methods.pdt.peers import LinearExtrapolation, averaged, flat_forecast
from cameraready.methods.pdt.training import Epoch, saving


def run(losses, seconds=1.0):
    return [Epoch(train_loss=loss, accuracy=0.5, seconds=seconds) for loss in losses]


def test_saving_is_counted_to_the_baselines_least_loss():
    baseline = run([4.0, 3.0, 1.0, 2.0, 1.5])  # 3 epochs to its least loss, not 5
    found = saving(baseline, run([4.0, 0.9, 5.0, 5.0, 5.0], seconds=1.2))
    assert found.epochs == pytest.approx(1 / 3)
    assert found.time == pytest.approx(1 - 1.2 * 2 / 3)
    assert found.clock == pytest.approx(1 - 2.4 / 3)
    assert found.reached


def test_a_loss_that_is_never_reached_saves_nothing_and_stays_in_the_mean():
    found = saving(run([2.0, 1.0]), run([2.0, 1.1]))
    assert (found.epochs, found.time, found.clock, found.reached) == (0.0, 0.0, 0.0, False)


def test_a_run_that_needs_longer_saves_less_than_nothing():
    assert saving(run([2.0, 1.0, 1.0, 1.0]), run([2.0, 2.0, 2.0, 1.0])).epochs == pytest.approx(-1.0)


@pytest.fixture
def task():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 5, generator=generator)
    y = (x[:, 0] > 0).long()
    return Task(train=(x[:60], y[:60]), test=(x[60:], y[60:]), batch_size=16)


def test_paired_runs_are_the_same_until_the_first_jump(task):
    result = train_pair(
        lambda: nn.Linear(5, 2), lambda p: torch.optim.SGD(p, lr=0.1), task, epochs=8, seeds=(3, 4), pdt={"start": 6}
    )
    table = result.epochs.pivot(index=["seed", "epoch"], columns="method", values="train_loss")
    early = table[table.index.get_level_values("epoch") < 6]
    late = table[table.index.get_level_values("epoch") >= 6]
    assert (early["baseline"] == early["PDT"]).all()
    assert (late["baseline"] != late["PDT"]).any()
    assert table.loc[3, "baseline"].iloc[0] != table.loc[4, "baseline"].iloc[0]
    assert len(result.savings) == 2
    assert "2 seeds" in str(result)


def test_paired_runs_follow_a_learning_rate_schedule(task):
    def rates(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.0 if epoch else 1.0)

    result = train_pair(
        lambda: nn.Linear(5, 2), lambda p: torch.optim.SGD(p, lr=0.1), task, epochs=3, seeds=(0,), make_scheduler=rates
    )
    losses = result.epochs.query("method == 'baseline'").train_loss.to_numpy()
    assert losses[1] == losses[2]


def test_what_cannot_be_measured_is_refused(task):
    with pytest.raises(ValueError, match="60 inputs and 30 targets"):
        Task(train=(task.train[0], task.test[1]), test=task.test)
    with pytest.raises(ValueError, match="batch_size=0"):
        Task(train=task.train, test=task.test, batch_size=0)
    with pytest.raises(ValueError, match="epochs=0"):
        train_pair(lambda: nn.Linear(5, 2), lambda p: torch.optim.SGD(p, lr=0.1), task, epochs=0)


def test_linear_extrapolation_moves_every_coordinate_by_the_horizon(task):
    torch.manual_seed(0)
    net = nn.Linear(5, 2)
    optimizer = LinearExtrapolation(torch.optim.SGD(net.parameters(), lr=0.1), snapshot_every=1, scheduler=None)
    plain = nn.Linear(5, 2)
    for _ in range(5):
        before = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
        plain.load_state_dict(net.state_dict())
        for model in (net, plain):
            model.zero_grad()
            nn.functional.cross_entropy(model(task.train[0]), task.train[1]).backward()
        optimizer.observe(1.0)
        optimizer.step()
        torch.optim.SGD(plain.parameters(), lr=0.1).step()
    d = nn.utils.parameters_to_vector(plain.parameters()) - before
    assert optimizer.last_report.accepted == 1.0
    assert torch.allclose(nn.utils.parameters_to_vector(net.parameters()), before + 6 * d, atol=1e-6)


def test_the_flat_peer_makes_the_same_forecast():
    generator = torch.Generator().manual_seed(0)
    state, drift = torch.randn(2, 5000, generator=generator)
    snapshots = [[state + 0.1 * drift * 0.8**k + 0.01 * torch.randn(5000, generator=generator)] for k in range(5)]
    flat = flat_forecast(snapshots, rank=2, steps=5)[0]
    assert torch.allclose(flat, fit_dmd(snapshots, rank=2).predict(5)[0], atol=1e-4)


def test_inner_products_keep_digits_that_a_flat_svd_in_single_precision_loses():
    generator = torch.Generator().manual_seed(0)
    state, drift = torch.randn(2, 500_000, generator=generator)
    noise = torch.randn(5, 500_000, generator=generator)
    snapshots = [[state + 0.01 * drift * 0.8**k + 0.001 * noise[k]] for k in range(5)]
    exact = flat_forecast([[s[0].double()] for s in snapshots], rank=2, steps=5)[0]

    def error(forecast):
        return float((forecast.double() - exact).norm() / (0.01 * drift).norm())

    ours = error(fit_dmd(snapshots, rank=2).predict(5)[0])
    assert ours < 1e-4
    assert error(flat_forecast(snapshots, rank=2, steps=5)[0]) > 10 * ours


def test_averaged_weights_lag_behind():
    net = nn.Linear(1, 1, bias=False)
    average = averaged(net, steps_per_epoch=4)
    for value in (0.0, 1.0):
        net.weight.data.fill_(value)
        average.update_parameters(net)
    assert average.module.weight.item() == pytest.approx(0.25)


@pytest.mark.parametrize("setup", ["MLP, SGD", "CNN, Adam", "transformer, RMSprop", "MLP, momentum"])
def test_every_setup_of_the_claims_trains(setup):
    contest = Setup(setup, seed=0, epochs=2, schedule="cosine")
    runs = contest.run({"alone": (1, None), "PDT": (1, predicting())})
    assert [epoch.train_loss for epoch in runs["alone"]] == [epoch.train_loss for epoch in runs["PDT"]]
    assert runs["alone"][1].train_loss < runs["alone"][0].train_loss


def test_the_tuned_rate_is_that_of_the_least_loss_on_the_selection_seeds(monkeypatch):
    contests = "cameraready.methods.pdt.claim_contests"
    monkeypatch.setattr(f"{contests}.GRID", (1, 8, 512))
    monkeypatch.setattr(f"{contests}.SELECTION_SEEDS", (1000,))
    assert tuned_rate(Setup("MLP, SGD", seed=0, epochs=3)) == 8
    monkeypatch.setattr(f"{contests}.GRID", ())
    assert tuned_rate(Setup("MLP, SGD", seed=0, epochs=40)) == 16  # from the table
