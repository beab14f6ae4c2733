"""The two modes, step by step, against references written flat and slow from the equations."""

import pytest
import torch
from torch import nn

from cameraready.methods.pdt import PredictiveDifferential, believable
from cameraready.methods.pdt.horizon import HorizonScheduler
from cameraready.methods.pdt.layout import lay_out

STEPS = 4  # an epoch
DATA = torch.Generator().manual_seed(7)
X = torch.randn(32, 6, generator=DATA, dtype=torch.float64)
Y = torch.sin(X @ torch.randn(6, 2, generator=DATA, dtype=torch.float64))


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def train_epoch(net, optimizer, epoch, observe=None):
    losses = []
    order = torch.randperm(32, generator=torch.Generator().manual_seed(epoch))
    for batch in order.chunk(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(X[batch]), Y[batch])
        loss.backward()
        if observe:
            observe(loss)
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def vector(net):
    return nn.utils.parameters_to_vector(net.parameters()).detach().clone()


def flat_fit(columns, rank):
    x, y = torch.stack(columns[:-1], 1), torch.stack(columns[1:], 1)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    if rank == "ght":
        beta = x.shape[1] / x.shape[0]
        omega = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
        rank = max(1, int((s > omega * s.median()).sum()))
    u, s, vh = u[:, :rank], s[:rank], vh[:rank]
    return u, u.T @ y @ vh.T / s


def paper_reference(epochs, *, history=5, horizon=5, interval=1, lr=0.1):
    """Steps a to e of the paper, as they are written."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.5)
    starts, losses, path, last = [], [], [], None
    for epoch in range(1, epochs + 1):
        starts = [*starts, vector(net)][-history:]
        losses.append(train_epoch(net, optimizer, epoch))
        w0, w1 = starts[-1], vector(net)
        if epoch >= 5 and len(starts) == history and (last is None or epoch - last >= interval):
            u, operator = flat_fit(starts, "ght")
            p = u @ (torch.linalg.matrix_power(operator, horizon) @ (u.T @ w0) - u.T @ w0)
            d = w1 - w0
            mask = (p.sign() == d.sign()) & (p.abs() >= d.abs()) & (p.abs() <= (horizon + 1) * d.abs())
            nn.utils.vector_to_parameters(torch.where(mask, w0 + p, w1), net.parameters())
            last = epoch
        if len(losses) > 2 and losses[-1] > losses[-2]:
            if losses[-1] > losses[-3]:
                if horizon > 4:
                    horizon -= 2
                elif horizon == 4:
                    horizon, interval = 3, interval + 1
                else:
                    interval += 2
            elif horizon > 3:
                horizon -= 1
            else:
                interval += 1
        path.append(vector(net))
    return path, horizon, interval


def test_paper_mode_is_the_papers_algorithm():
    expected, horizon, interval = paper_reference(25)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    wrapped = PredictiveDifferential(optimizer, snapshot_every=STEPS, guard_steps=0)
    for epoch, weights in enumerate(expected, 1):
        train_epoch(net, wrapped, epoch, wrapped.observe)
        assert torch.allclose(vector(net), weights, rtol=1e-5, atol=1e-8), f"epoch {epoch}"
    assert (wrapped.horizon, wrapped.interval) == (horizon, interval)
    assert wrapped.last_report.n_jumps > 5
    assert interval > 1  # the scheduler was put to the test too


def test_differential_mode_adds_the_clamped_sum_of_forecast_moves():
    history, horizon, rank = 4, 3, 2
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    moves, expected = [], []
    for epoch in range(1, 13):
        start = vector(net)
        train_epoch(net, optimizer, epoch)
        d = vector(net) - start
        moves = [*moves, d][-history:]
        if epoch >= 5:
            u, operator = flat_fit(moves, rank)
            rho = torch.linalg.eigvals(operator).abs().max()
            operator = operator / max(1.0, float(rho) / 0.9)
            state, p = u.T @ d, 0
            for _ in range(horizon):
                state = operator @ state
                p = p + u @ state
            mask = (p.sign() == d.sign()) & (p.abs() <= (horizon + 1) * d.abs())
            nn.utils.vector_to_parameters(vector(net) + mask * p, net.parameters())
        expected.append(vector(net))
    net = network()
    wrapped = PredictiveDifferential(
        torch.optim.SGD(net.parameters(), lr=0.1),
        snapshot_every=STEPS,
        mode="differential",
        history=history,
        horizon=horizon,
        rank=rank,
        rho_max=0.9,
        scheduler=None,
        guard_steps=0,
    )
    for epoch, weights in enumerate(expected, 1):
        train_epoch(net, wrapped, epoch)
        assert torch.allclose(vector(net), weights, rtol=1e-5, atol=1e-8), f"epoch {epoch}"
    assert wrapped.last_report.n_jumps == 8


def test_many_blocks_give_the_same_jump_as_one(monkeypatch):
    def run():
        net = network()
        wrapped = PredictiveDifferential(torch.optim.SGD(net.parameters(), lr=0.1), snapshot_every=STEPS)
        for epoch in range(1, 9):
            train_epoch(net, wrapped, epoch, wrapped.observe)
        return vector(net), wrapped.last_report

    whole, report = run()
    for module in ("layout", "inner_products"):
        monkeypatch.setattr(f"cameraready.methods.pdt.{module}.SLICE", 7)
    cut, other = run()
    assert torch.allclose(whole, cut, rtol=1e-9)
    assert report.accepted_per_tensor == other.accepted_per_tensor
    assert len(report.accepted_per_tensor) == 4


def test_a_jump_is_at_most_the_horizon_times_what_training_did():
    net = network()
    wrapped = PredictiveDifferential(
        torch.optim.SGD(net.parameters(), lr=0.1), snapshot_every=STEPS, horizon=4, scheduler=None, guard_steps=0
    )
    for epoch in range(1, 12):
        start = vector(net)
        ends = []
        handle = wrapped.optimizer.register_step_post_hook(lambda *_, ends=ends: ends.append(vector(net)))
        train_epoch(net, wrapped, epoch)
        handle.remove()
        assert ((vector(net) - ends[-1]).abs() <= 4 * (ends[-1] - start).abs() + 1e-12).all()


def test_masks_keep_what_they_say():
    generator = torch.Generator().manual_seed(0)
    p, d = torch.randn(2, 1000, generator=generator)
    signs = believable(p, d, criterion="consistency", horizon=2)
    sizes = believable(p, d, criterion="bounds", horizon=2)
    assert torch.equal(signs, p * d > 0)
    assert torch.equal(sizes, (p.abs() >= d.abs()) & (p.abs() <= 3 * d.abs()))
    assert torch.equal(believable(p, d, criterion="both", horizon=2), signs & sizes)
    assert believable(p, d, criterion="none", horizon=2).all()
    drawn = believable(p, d, criterion="random", horizon=2, generator=generator)
    assert drawn.sum() == (signs & sizes).sum()
    assert not torch.equal(drawn, signs & sizes)
    free = believable(p, d, criterion="both", horizon=2, must_exceed=False)
    assert torch.equal(free, signs & (p.abs() <= 3 * d.abs()))


def test_what_is_not_a_number_is_not_believed():
    p, d = torch.tensor([torch.nan, torch.inf, 1.0]), torch.ones(3)
    assert believable(p, d, horizon=2).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("start", "losses", "expected"),
    [
        ((5, 1), [1.0, 0.9, 0.8], (5, 1)),  # falls
        ((5, 1), [1.0, 0.5, 0.7], (4, 1)),  # above the last only
        ((3, 1), [1.0, 0.5, 0.7], (3, 2)),
        ((6, 1), [1.0, 0.5, 1.1], (4, 1)),  # above the last two
        ((4, 1), [1.0, 0.5, 1.1], (3, 2)),
        ((3, 1), [1.0, 0.5, 1.1], (3, 3)),
        ((5, 1), [1.0, 1.1], (5, 1)),  # there is no loss before the last
    ],
)
def test_the_papers_scheduler_reacts_as_its_table_says(start, losses, expected):
    scheduler = HorizonScheduler("paper", horizon=start[0], interval=start[1])
    for loss in losses:
        scheduler.observe(loss)
    assert (scheduler.horizon, scheduler.interval) == expected


def test_the_adaptive_scheduler_recovers_after_three_clean_predictions():
    scheduler = HorizonScheduler("adaptive", horizon=5, interval=1)
    scheduler.predicted()
    scheduler.punish()
    assert (scheduler.horizon, scheduler.interval) == (3, 2)
    seen = []
    for _ in range(12):
        scheduler.observe(1.0)
        scheduler.predicted()
        seen.append((scheduler.horizon, scheduler.interval))
    assert seen[2:4] == [(3, 2), (4, 2)]
    assert seen[-1] == (5, 1)


def test_the_random_mask_follows_the_seed():
    def run(seed):
        net = network()
        wrapped = PredictiveDifferential(
            torch.optim.SGD(net.parameters(), lr=0.1), snapshot_every=STEPS, mask="random", seed=seed, guard_steps=0
        )
        for epoch in range(1, 7):
            train_epoch(net, wrapped, epoch, wrapped.observe)
        return vector(net)

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


def test_accepted_coordinates_are_counted_by_tensor():
    block = lay_out([torch.zeros(3, 2), torch.zeros(1), torch.zeros(4)]).blocks[0]
    chosen = torch.tensor([1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1], dtype=torch.bool)
    assert block.count(chosen).tolist() == [3, 1, 1]
    assert lay_out([torch.zeros(11)]).blocks[0].count(chosen).tolist() == [5]
