"""The wrapper among torch's optimizers, schedulers, checkpoints, scalers and compilers."""

import copy
import io
import math
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from pdt_regression import STEPS, X, Y, network, sgd, train, weights, wrap

TORCH_OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.05}),
    "momentum": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9, "nesterov": True}),
    "SGD foreach": (torch.optim.SGD, {"lr": 0.05, "foreach": True}),
    "SGD fused": (torch.optim.SGD, {"lr": 0.05, "fused": True}),
    "Adam": (torch.optim.Adam, {"lr": 1e-2}),
    "Adam foreach": (torch.optim.Adam, {"lr": 1e-2, "foreach": True}),
    "Adam fused": (torch.optim.Adam, {"lr": 1e-2, "fused": True}),
    "AMSGrad": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2}),
    "AdamW fused": (torch.optim.AdamW, {"lr": 1e-2, "fused": True}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 5e-3}),
    "RMSprop foreach": (torch.optim.RMSprop, {"lr": 5e-3, "foreach": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 5e-2}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 1.0}),
    "Adamax": (torch.optim.Adamax, {"lr": 1e-2}),
    "NAdam": (torch.optim.NAdam, {"lr": 1e-2}),
    "RAdam": (torch.optim.RAdam, {"lr": 1e-2}),
    "ASGD": (torch.optim.ASGD, {"lr": 0.05}),
    "Rprop": (torch.optim.Rprop, {"lr": 1e-3}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 1e-2}),
}


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_it_wraps_every_optimizer_of_torch(name):
    kind, options = TORCH_OPTIMIZERS[name]
    plain, net = network(), network()
    optimizer = wrap(kind(net.parameters(), **options))
    inner = kind(plain.parameters(), **options)
    train(net, optimizer, 5 * STEPS - 1)
    train(plain, inner, 5 * STEPS - 1)
    assert torch.equal(weights(net), weights(plain))  # nothing changes before the first jump
    train(net, optimizer, 4 * STEPS, first=5 * STEPS - 1)
    assert optimizer.last_report.n_jumps > 0
    assert weights(net).isfinite().all()
    assert len(optimizer.state) == len(inner.state)


@pytest.mark.parametrize("name", ["Lamb", "Lookahead"])
def test_it_wraps_the_optimizers_of_pytorch_optimizer(name):
    library = pytest.importorskip("pytorch_optimizer")
    net = network()
    if name == "Lamb":
        inner = library.Lamb(net.parameters(), lr=1e-2)
    else:
        inner = library.Lookahead(torch.optim.Adam(net.parameters(), lr=1e-2))
    optimizer = wrap(inner)
    train(net, optimizer, 9 * STEPS)
    assert optimizer.last_report.n_jumps > 0
    assert weights(net).isfinite().all()


def test_a_schedule_free_optimizer_may_be_evaluated_between_epochs():
    library = pytest.importorskip("pytorch_optimizer")
    net = network()
    optimizer = wrap(library.ScheduleFreeAdamW(net.parameters(), lr=1e-2), scheduler=None)
    optimizer.train()
    for epoch in range(7):
        train(net, optimizer, STEPS, first=epoch * STEPS)
        optimizer.eval()
        optimizer.train()
    assert optimizer.last_report.n_jumps == 3


SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_sets_the_learning_rates_as_without_the_wrapper(name):
    def rates(wrapped):
        net = network()
        optimizer = wrap(sgd(net)) if wrapped else sgd(net)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a scheduler that does not see the steps warns
            scheduler = SCHEDULERS[name](optimizer)
            seen = []
            for epoch in range(8):
                train(net, optimizer, STEPS, first=epoch * STEPS)
                scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
                seen.append([group["lr"] for group in optimizer.param_groups])
        return seen

    try:
        expected = rates(False)
    except UserWarning as error:  # torch's own fault, as with its SequentialLR
        pytest.skip(str(error))
    assert rates(True) == expected


def test_a_scheduler_may_be_given_the_inner_optimizer():
    net = network()
    inner = sgd(net)
    scheduler = lr_scheduler.ExponentialLR(inner, 0.5)
    optimizer = wrap(inner)
    train(net, optimizer, STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert isinstance(optimizer, torch.optim.Optimizer)


@pytest.mark.parametrize(
    "options", [{}, {"mode": "differential", "rank": 1, "scheduler": "adaptive"}, {"mask": "random"}]
)
@pytest.mark.parametrize("at", [7, 5 * STEPS, 6 * STEPS + 2])  # before the first jump, at it, under the guard
def test_a_resumed_run_is_bit_identical(options, at):
    def new():
        net = network()
        return net, wrap(torch.optim.Adam(net.parameters(), lr=1e-2), **options)

    net, optimizer = new()
    train(net, optimizer, 60)
    first, begun = new()
    train(first, begun, at)
    file = io.BytesIO()
    torch.save({"net": first.state_dict(), "optimizer": begun.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second, resumed = new()
    nn.init.zeros_(second[0].weight)
    second.load_state_dict(saved["net"])
    resumed.load_state_dict(saved["optimizer"])
    train(second, resumed, 60 - at, first=at)
    assert optimizer.last_report.n_jumps >= 3
    assert torch.equal(weights(net), weights(second))
    strip = lambda report: str(report).rpartition(";")[0]  # noqa: E731 (without the seconds)
    assert strip(optimizer.last_report) == strip(resumed.last_report)


def test_a_plain_optimizers_checkpoint_loads_and_snapshots_start_anew():
    net = network()
    plain = sgd(net)
    train(net, plain, 5)
    optimizer = wrap(sgd(net))
    train(net, optimizer, 6 * STEPS + 1)
    optimizer.load_state_dict(plain.state_dict())
    train(net, optimizer, STEPS)
    assert optimizer.last_report.outcome == "collecting snapshots (1 of 5)"


def test_a_checkpoint_of_another_mode_is_refused():
    net = network()
    optimizer = wrap(sgd(net), mode="differential")
    with pytest.raises(ValueError, match=r"mode='paper'.*mode='differential'"):
        optimizer.load_state_dict(wrap(sgd(net)).state_dict())


def test_a_checkpoint_cut_otherwise_into_blocks_loads(monkeypatch):
    net = network()
    optimizer = wrap(sgd(net))
    train(net, optimizer, 7 * STEPS)
    state = copy.deepcopy(optimizer.state_dict())
    other = network()
    other.load_state_dict(net.state_dict())
    train(net, optimizer, 2 * STEPS, first=28)
    monkeypatch.setattr("cameraready.methods.pdt.layout.SLICE", 20)
    resumed = wrap(sgd(other))
    resumed.load_state_dict(state)
    train(other, resumed, 2 * STEPS, first=28)
    assert torch.allclose(weights(net), weights(other), atol=1e-6)


def test_a_deep_copy_trains_on_alike():
    net = network()
    optimizer = wrap(sgd(net))
    lr_scheduler.ExponentialLR(optimizer, 0.9)
    train(net, optimizer, 6 * STEPS)
    twin, other = copy.deepcopy((net, optimizer))
    train(net, optimizer, 2 * STEPS)
    train(twin, other, 2 * STEPS)
    assert torch.equal(weights(net), weights(twin))


def test_a_wrapper_can_be_pickled():
    net = network()
    optimizer = wrap(sgd(net))
    train(net, optimizer, 6 * STEPS)
    twin = pickle.loads(pickle.dumps(optimizer))
    assert twin.predictor.counters == optimizer.predictor.counters
    assert torch.equal(twin.param_groups[0]["params"][0], net[0].weight)


def test_steps_that_a_grad_scaler_skips_do_not_count():
    net = network()
    optimizer = wrap(sgd(net, fused=True))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(3 * STEPS):
        optimizer.zero_grad()
        scaler.scale(nn.functional.mse_loss(net(X), Y)).backward()
        if step % 3 == 0:
            net[0].weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.predictor.counters.step == 2 * STEPS
    assert optimizer.last_report.epoch == 2


def test_a_compiled_model_jumps_as_the_plain_one():
    def run(compiled):
        net = network()
        optimizer = wrap(sgd(net))
        train(torch.compile(net, backend="eager") if compiled else net, optimizer, 8 * STEPS)
        return weights(net)

    assert torch.equal(run(True), run(False))


def test_a_closure_that_returns_the_loss_is_observed():
    def run(use_closure):
        net = network()
        optimizer = wrap(sgd(net))
        for step in range(9 * STEPS):
            batch = torch.randint(32, (8,), generator=torch.Generator().manual_seed(step))

            def closure(batch=batch):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(net(X[batch]), Y[batch])
                loss.backward()
                return loss

            if use_closure:
                assert optimizer.step(closure).item() > 0
            else:
                optimizer.observe(closure())
                optimizer.step()
        return weights(net), optimizer.horizon, optimizer.interval

    with_closure, without = run(True), run(False)
    assert torch.equal(with_closure[0], without[0])
    assert with_closure[1:] == without[1:]
