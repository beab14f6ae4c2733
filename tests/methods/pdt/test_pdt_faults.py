"""What changes under the wrapper, what goes wrong in training, and what is refused."""

import math

import pytest
import torch
from torch import nn

from pdt_regression import STEPS, X, network, sgd, train, weights, wrap


def test_param_groups_keep_their_own_rates_and_frozen_ones_stay():
    net = network()
    net[0].bias.requires_grad_(False)
    before = net[0].bias.clone()
    groups = [{"params": net[0].parameters(), "lr": 0.2}, {"params": net[2].parameters()}]
    optimizer = wrap(torch.optim.SGD(groups, lr=0.05))
    train(net, optimizer, 8 * STEPS)
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.05]
    assert torch.equal(net[0].bias, before)
    assert len(optimizer.last_report.accepted_per_tensor) in (0, 3)
    net[0].bias.requires_grad_(True)
    with pytest.warns(UserWarning, match="the set of predicted parameters has changed"):
        train(net, optimizer, 1)


def test_a_group_added_later_clears_the_snapshots_with_a_warning():
    net, extra = network(), nn.Linear(2, 2)
    optimizer = wrap(sgd(net))
    train(net, optimizer, 6 * STEPS + 2)
    optimizer.add_param_group({"params": extra.parameters()})
    with pytest.warns(UserWarning, match="set of predicted parameters has changed"):
        train(net, optimizer, 2)
    train(net, optimizer, 6 * STEPS)
    assert optimizer.last_report.n_parameters == sum(p.numel() for m in (net, extra) for p in m.parameters())


def test_only_what_the_filter_wants_is_predicted():
    net = network()
    optimizer = wrap(sgd(net), param_filter=lambda parameter: parameter.ndim > 1)
    train(net, optimizer, 5 * STEPS)
    assert optimizer.last_report.jumped
    assert len(optimizer.last_report.accepted_per_tensor) == 2


def test_replaced_weights_are_noticed_at_the_next_epoch():
    net = network()
    optimizer = wrap(sgd(net))
    train(net, optimizer, 6 * STEPS)
    net.load_state_dict(network(5).state_dict())
    with pytest.warns(UserWarning, match="weights were replaced"):
        train(net, optimizer, STEPS)
    assert optimizer.last_report.outcome == "collecting snapshots (1 of 5)"


def test_a_loss_that_is_not_a_number_clears_the_snapshots():
    net = network()
    optimizer = wrap(sgd(net), guard_steps=0)
    train(net, optimizer, 7 * STEPS - 1)
    jumps = optimizer.predictor.counters.jumps
    optimizer.observe(math.nan)
    train(net, optimizer, 1)
    assert "snapshots cleared: the epoch's mean loss is nan" in str(optimizer.last_report)
    assert optimizer.last_report.n_jumps == jumps


def test_sparse_gradients_are_left_out():
    torch.manual_seed(0)
    table, head = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 1)
    optimizer = wrap(torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1))
    for _ in range(7 * STEPS):
        optimizer.zero_grad()
        loss = head(table(torch.randint(20, (8,)))).square().mean()
        loss.backward()
        optimizer.observe(loss)
        optimizer.step()
    assert optimizer.last_report.n_parameters == 5
    assert optimizer.last_report.n_jumps > 0


def test_half_precision_and_oddly_laid_out_parameters_jump_too():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).to(memory_format=torch.channels_last)
    net = net.bfloat16()
    optimizer = wrap(torch.optim.SGD(net.parameters(), lr=0.1))
    x = torch.randn(8, 3, 8, 8).bfloat16()
    for _ in range(7 * STEPS):
        optimizer.zero_grad()
        loss = (net(x).float() - 1).square().mean()
        loss.backward()
        optimizer.observe(loss)
        optimizer.step()
    assert optimizer.last_report.n_jumps > 0
    assert all(p.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("mode", ["paper", "differential"])
def test_memory_is_that_of_history_plus_one_copies(mode):
    net = nn.Linear(300, 1000)
    optimizer = wrap(torch.optim.SGD(net.parameters(), lr=0.1), mode=mode)
    half = wrap(torch.optim.SGD(net.parameters(), lr=0.1), mode=mode, snapshot_dtype=torch.bfloat16)
    for wrapped, copies in ((optimizer, 6), (half, 4)):
        for step in range(6 * STEPS):
            wrapped.zero_grad()
            loss = (net(torch.randn(4, 300, generator=torch.Generator().manual_seed(step))) - 1).square().mean()
            loss.backward()
            wrapped.observe(loss)
            wrapped.step()
        assert wrapped.last_report.n_jumps > 0
        assert wrapped.last_report.extra_bytes <= copies * 4 * 301_000


def test_bfloat16_snapshots_change_little():
    def run(dtype):
        net = network()
        train(net, wrap(sgd(net), snapshot_dtype=dtype, rank=1, scheduler=None), 5 * STEPS)
        return weights(net)

    start = network()
    train(start, sgd(start), 5 * STEPS)
    exact, rounded = run(None) - weights(start), run(torch.bfloat16) - weights(start)
    assert exact.norm() > 0
    assert torch.nn.functional.cosine_similarity(exact, rounded, dim=0) > 0.95


def test_the_guard_takes_back_a_jump_that_hurts():
    net = network()
    optimizer = wrap(sgd(net), guard_steps=2, scheduler="adaptive")
    train(net, optimizer, 6 * STEPS)
    saved = torch.cat([block.clone() for block in optimizer.predictor.guard.saved])
    horizon, interval = optimizer.horizon, optimizer.interval
    optimizer.observe(100.0)
    train(net, optimizer, 1, observe=False)
    assert optimizer.predictor.counters.restored == 0
    optimizer.observe(math.inf)
    inner = optimizer.state[net[0].weight]["momentum_buffer"]
    inner[0, 0] = math.nan
    optimizer.zero_grad()
    optimizer.step()
    assert optimizer.predictor.counters.restored == 1
    assert torch.equal(weights(net), saved)
    assert (optimizer.horizon, optimizer.interval) == (max(2, horizon - 2), interval + 1)
    assert inner.isfinite().all()
    train(net, optimizer, 3 * STEPS)  # the epoch starts again, and training goes on
    assert optimizer.last_report.epoch == 9
    assert weights(net).isfinite().all()


def test_without_losses_it_says_that_nothing_guards():
    net = network()
    optimizer = wrap(sgd(net))
    with pytest.warns(UserWarning, match="has seen no loss"):
        train(net, optimizer, 5 * STEPS, observe=False)
    assert optimizer.predictor.guard.saved is None


def test_a_learning_rate_of_zero_moves_nothing():
    net = network()
    before = weights(net)
    for mode in ("paper", "differential"):
        optimizer = wrap(sgd(net, lr=0.0, momentum=0), mode=mode)
        train(net, optimizer, 8 * STEPS)
        assert torch.equal(weights(net), before)
        assert optimizer.last_report.outcome.startswith("skipped: the weights do not move")
        assert (optimizer.last_report.n_skipped, optimizer.last_report.n_jumps) == (4, 0)


def test_callbacks_hear_of_every_jump():
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = wrap(sgd(net), interval=2, scheduler=None)
    heard = []

    @optimizer.on_prediction
    def refresh(report):
        heard.append(report)
        torch.optim.swa_utils.update_bn([X], net)

    train(net, optimizer, 9 * STEPS)
    assert [report.epoch for report in heard] == [5, 7, 9]
    hidden = net[0](X)
    assert torch.allclose(net[1].running_mean, hidden.mean(0), atol=1e-5)  # after a jump, that of the new weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"snapshot_every": 0}, "snapshot_every=0 is below 1"),
        ({"horizon": 0}, "horizon=0 is below 1"),
        ({"history": 2}, "history=2 is below 3"),
        ({"interval": 0}, "interval=0"),
        ({"start": -1}, "start=-1"),
        ({"rank": 5}, "rank=5 is not between 1 and the 4 that history=5"),
        ({"rank": 0}, "rank=0"),
        ({"rank": 1.2}, "rank=1.2"),
        ({"mode": "fast"}, "mode='fast'; choose one of 'paper'"),
        ({"mask": "all"}, "mask='all'"),
        ({"scheduler": "cosine"}, "scheduler='cosine'"),
        ({"rho_max": 0.0}, "rho_max=0.0"),
        ({"guard_steps": -1}, "guard_steps=-1"),
        ({"snapshot_dtype": torch.int8}, "snapshot_dtype=torch.int8"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        wrap(sgd(network()), **options)


@pytest.mark.parametrize("options", [{"horizon": 2.5}, {"snapshot_every": True}, {"param_filter": 3}])
def test_settings_of_the_wrong_type_are_refused(options):
    with pytest.raises(TypeError, match=next(iter(options))):
        wrap(sgd(network()), **options)


def test_what_cannot_be_wrapped_is_refused():
    net = network()
    with pytest.raises(ValueError, match="LBFGS evaluates the loss several times"):
        wrap(torch.optim.LBFGS(net.parameters()))
    with pytest.raises(ValueError, match="wrapped already"):
        wrap(wrap(sgd(net)))
    with pytest.raises(TypeError, match="wraps a torch optimizer, got Sequential"):
        wrap(net)
    with pytest.raises(ValueError, match="no parameter is left to predict"):
        train(net, wrap(sgd(net), param_filter=lambda _: False), 1)
    with pytest.raises(ValueError, match="one number"):
        wrap(sgd(net)).observe(torch.ones(3))
