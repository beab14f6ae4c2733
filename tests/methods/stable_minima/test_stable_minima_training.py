"""Closed-form gradient descent, the regressor, the monitor, and what the user must not do."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from cameraready.methods.stable_minima import StabilityMonitor, TwoLayerReLURegressor, relu_report, sharpness
from cameraready.methods.stable_minima.peers import complexity_measures
from cameraready.methods.stable_minima.two_layer import TwoLayer, gradient_descent, hessian, largest_eigenvalue


def as_torch(net):
    model = nn.Sequential(nn.Linear(net.W.shape[1], len(net.v)), nn.ReLU(), nn.Linear(len(net.v), 1)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(net.W))
        model[0].bias.copy_(torch.tensor(-net.b))
        model[2].weight.copy_(torch.tensor(net.v)[None])
        model[2].bias.fill_(net.c)
    return model


def problem(n=40, d=3, width=12):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) / np.sqrt(d)
    return X, X[:, 0] ** 2 + 0.1 * rng.normal(size=n), TwoLayer.random(d, width=width, rng=rng)


def test_gradient_descent_is_torchs():
    X, y, start = problem()
    model, target = as_torch(start), torch.tensor(y)[:, None]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15)  # MSELoss is twice the loss with the factor 1/2
    for _ in range(60):
        optimizer.zero_grad()
        nn.MSELoss()(model(torch.tensor(X)), target).backward()
        optimizer.step()
    seen = []
    net = gradient_descent(start, X, y, lr=0.3, steps=60, every=20, observe=lambda step, _: seen.append(step))
    np.testing.assert_allclose(net.predict(X), model(torch.tensor(X)).detach().numpy()[:, 0], rtol=1e-9)
    np.testing.assert_allclose(net.W, model[0].weight.detach().numpy(), rtol=1e-9)
    assert seen == [0, 20, 40]


def test_dead_neurons_and_directions_outside_the_data_keep_their_weights():
    X, y, _ = problem(n=6)
    frame = np.linalg.qr(np.random.default_rng(1).normal(size=(20, 3)))[0]
    start = TwoLayer.random(20, width=30, rng=np.random.default_rng(2))
    end = gradient_descent(start, X @ frame.T, y, lr=0.3, steps=1200)
    model = as_torch(start)
    optimizer, target = torch.optim.SGD(model.parameters(), lr=0.15), torch.tensor(y)[:, None]
    for _ in range(1200):
        optimizer.zero_grad()
        nn.MSELoss()(model(torch.tensor(X @ frame.T)), target).backward()
        optimizer.step()
    np.testing.assert_allclose(end.W, model[0].weight.detach().numpy(), atol=1e-9)
    np.testing.assert_allclose(end.v, model[2].weight.detach().numpy()[0], atol=1e-9)
    np.testing.assert_allclose(end.b, -model[0].bias.detach().numpy(), atol=1e-9)
    dead = (X @ frame.T @ start.W.T - start.b <= 0).all(axis=0)
    assert dead.any()
    np.testing.assert_array_equal(end.v[dead], start.v[dead])


def test_its_sharpness_is_that_of_the_torch_meter():
    X, y, start = problem()
    net = gradient_descent(start, X, y, lr=0.3, steps=100)
    data = torch.tensor(X), torch.tensor(y)[:, None]
    found = sharpness(as_torch(net), nn.MSELoss(), data, tolerance=1e-10)
    assert largest_eigenvalue(hessian(net, X, y)) == pytest.approx(found.lambda_max / 2, rel=1e-6)
    H = hessian(net, X, y) @ np.eye(12 * 5 + 1)
    np.testing.assert_allclose(H, H.T, atol=1e-12)


def test_peers_norms_are_those_of_their_papers():
    net = TwoLayer(W=np.array([[0.6, 0.0], [0.0, 1.0]]), b=np.array([0.8, 0.0]), v=np.array([1.0, -1.0]), c=0.0)
    found = complexity_measures(net, np.array([[0.0, 0.0], [0.0, 2.0]]))  # rows (w, b) are orthonormal, R^2 = 4
    assert found["path norm"] == pytest.approx(2)
    assert found["spectral norms"] == pytest.approx(np.sqrt(2) * np.sqrt(5))
    # (|A'|_{2,1} / |A|)^(2/3) is 2^(2/3) of the first layer and 1 of the output row.
    assert found["margin bound"] == pytest.approx(np.sqrt(2) * np.sqrt(5) * (2 ** (2 / 3) + 1) ** 1.5)


def test_too_large_steps_are_reported():
    X, y, start = problem()
    with pytest.raises(FloatingPointError, match="lr=200"):
        gradient_descent(start, X * 10, y, lr=200.0, steps=500)
    with pytest.raises(ValueError, match="stable steps are below lr="):
        TwoLayerReLURegressor(width=20, lr=200.0, epochs=300).fit(X, y)


@parametrize_with_checks([TwoLayerReLURegressor(width=24, epochs=150, random_state=0)])
def test_the_regressor_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


def test_the_regressors_stability_is_the_reports():
    X, y = load_diabetes(return_X_y=True)
    model = TwoLayerReLURegressor(width=40, epochs=300, random_state=3).fit(X, y)
    found = model.stability_
    inputs, targets = model._inputs(X), (y - y.mean()) / y.std()
    report = relu_report(as_torch(model.net_), inputs, targets, lr=0.15)
    assert found.pathnorm_g == pytest.approx(report.pathnorm_g)
    assert found.bound_rhs == pytest.approx(report.bound_rhs, rel=1e-5)
    assert found.bound_edge == pytest.approx(report.bound_edge, rel=1e-6)
    assert (found.edge, found.stable) == (pytest.approx(2 / 0.3), report.stable)
    assert found.pathnorm_g <= found.bound_rhs
    assert (inputs**2).sum(axis=1).mean() == pytest.approx(1.0)
    np.testing.assert_array_equal(model.predict(X), clone(model).fit(X, y).predict(X))
    assert "weighted path norm" in str(found)


def test_raw_units_are_kept_on_request():
    X, y, _ = problem()
    model = TwoLayerReLURegressor(width=12, epochs=50, standardise=False, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), model.net_.predict(X))


def test_larger_steps_end_flatter():
    X, y, _ = problem(n=80)
    ends = [TwoLayerReLURegressor(64, lr=lr, epochs=int(600 / lr), random_state=0).fit(X, y) for lr in (0.1, 0.8)]
    sharp, flat = (model.stability_ for model in ends)
    assert flat.stable
    assert flat.lambda_max < sharp.lambda_max


@pytest.mark.parametrize("parameters", [{"width": 0}, {"epochs": 0}, {"lr": 0.0}, {"width": 2.5}])
def test_impossible_regressors_are_refused(parameters):
    X, y, _ = problem()
    with pytest.raises(ValueError, match=next(iter(parameters))):
        TwoLayerReLURegressor(**parameters).fit(X, y)


def train(model, X, y, steps, after):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.MSELoss()(model(X), y).backward()
        optimizer.step()
        after(model, optimizer)
    return model


def test_the_monitor_reads_every_so_many_steps_and_changes_nothing():
    torch.manual_seed(0)
    X = torch.randn(64, 3)
    y = X[:, :1].abs()
    start = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    plain, watched = nn.Sequential(*start), nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    watched.load_state_dict(plain.state_dict())
    seen = []
    monitor = StabilityMonitor(nn.MSELoss(), (X, y), every=20, report=seen.append)
    train(plain, X, y, 60, lambda *_: None)
    train(watched, X, y, 60, monitor)
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)
    assert monitor.frame["step"].tolist() == [20, 40, 60]
    assert seen == monitor.readings
    last = monitor.readings[-1]
    assert last.lambda_max == pytest.approx(sharpness(watched, nn.MSELoss(), (X, y)).lambda_max, rel=0.02)
    assert last.threshold == pytest.approx(20.0)
    assert last.pathnorm_g == pytest.approx(relu_report(watched, X).pathnorm_g)
    assert "below the threshold 20" in str(last)


def test_the_monitor_goes_on_without_a_relu_block():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    X = torch.randn(16, 3)
    monitor = StabilityMonitor(nn.MSELoss(), (X, X[:, :1]), every=5)
    train(model, X, X[:, :1], 10, monitor)
    assert not monitor.readings[0].pathnorm_g
    assert "Tanh" in str(monitor.readings[0].pathnorm_g)
    assert monitor.frame["pathnorm_g"].isna().all()
    assert monitor.frame["lambda_max"].notna().all()


def test_the_monitor_runs_in_a_fabric_loop():
    fabric_module = pytest.importorskip("lightning.fabric")
    torch.manual_seed(0)
    X = torch.randn(32, 3)
    y, loss_fn = X[:, :1], nn.MSELoss()
    monitor = StabilityMonitor(loss_fn, (X, y), every=4)
    fabric = fabric_module.Fabric(accelerator="cpu", devices=1, callbacks=[monitor])
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=0.01))
    for _ in range(8):
        optimizer.zero_grad()
        fabric.backward(loss_fn(model(X), y))
        optimizer.step()
        fabric.call("on_train_step_end", model, optimizer)
    assert [reading.step for reading in monitor.readings] == [4, 8]
    assert monitor.readings[0].threshold == pytest.approx(38 / 0.01)


def test_attention_no_grad_numpy_pairs_and_flat_losses_are_survived():
    torch.manual_seed(0)
    X = torch.randn(4, 3, 8)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad():
        found = sharpness(layer, nn.MSELoss(), (X.numpy(), X.flip(1).numpy()), tolerance=1e-6)
    assert found.lambda_max == pytest.approx(sharpness(layer, nn.MSELoss(), [(X, X.flip(1))]).lambda_max, rel=1e-4)
    flat = sharpness(nn.Linear(30, 2), lambda out, y: 1.0 + 0 * out.sum(), (torch.ones(4, 30), torch.ones(4)), k=2)
    assert flat.values.tolist() == [0, 0]
    assert flat.vector.shape == (62,)


def test_models_without_a_curvature_are_refused():
    X, y = torch.randn(8, 2), torch.randn(8, 1)
    loss_fn = nn.MSELoss()
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match="scalar mean loss"):
        sharpness(model, lambda out, y: (out - y) ** 2, (X, y))
    with pytest.raises(ValueError, match="reduction='sum'"):
        sharpness(model, nn.MSELoss(reduction="sum"), (X, y))
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        sharpness(nn.ReLU(), loss_fn, (X, y))
    with pytest.raises(ValueError, match="k=4; it must"):
        sharpness(model, loss_fn, (X, y), k=4)
    with pytest.raises(ValueError, match="kind='fisher'"):
        sharpness(model, loss_fn, (X, y), kind="fisher")
    with pytest.raises(ValueError, match="got SGD"):
        sharpness(model, loss_fn, (X, y), kind="adam", optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="at least one step"):
        sharpness(model, loss_fn, (X, y), kind="adam", optimizer=torch.optim.Adam(model.parameters()))
    with pytest.raises(ValueError, match="the loader is empty"):
        sharpness(model, loss_fn, [])
    with pytest.raises(TypeError, match="pairs"):
        sharpness(model, loss_fn, [X])
    with pytest.raises(ValueError, match="did training diverge"):
        sharpness(model, loss_fn, (X / 0, y))
    with pytest.raises(TypeError, match="Module"):
        sharpness("model", loss_fn, (X, y))
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="'weight' holds 1 values"):
        sharpness(model, loss_fn, (X, y))


def test_thresholds_that_do_not_exist_are_not_covered():
    model, X, y = nn.Linear(2, 1), torch.randn(8, 2), torch.randn(8, 1)
    for optimizer, reason in [
        (None, "no learning rate"),
        (torch.optim.Adam(model.parameters()), "kind='adam'"),
        (torch.optim.Adam(model.parameters(), weight_decay=0.1), "AdamW"),
        (torch.optim.RMSprop(model.parameters()), "RMSprop"),
        (torch.optim.SGD([{"params": model.weight, "lr": 1.0}, {"params": model.bias, "lr": 2.0}]), "different"),
    ]:
        found = sharpness(model, nn.MSELoss(), (X, y), optimizer=optimizer)
        assert not found.threshold
        assert reason in str(found.status)
        assert reason in str(found)


def test_models_without_the_block_are_refused_by_name():
    X = torch.randn(8, 3)
    with pytest.raises(ValueError, match="GELU"):
        relu_report(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)), X)
    with pytest.raises(ValueError, match="pass the pair"):
        relu_report(nn.Linear(3, 4), X)
    deep = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    with pytest.raises(ValueError, match=r"2 blocks.*'0', '2'"):
        relu_report(deep, X)
    assert relu_report(deep, X, block="2").neurons.shape[0] == 4
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    with pytest.raises(ValueError, match="1 row"):
        relu_report(net, X[:1])
    with pytest.raises(ValueError, match="not finite"):
        relu_report(net, X / 0)
    with pytest.raises(ValueError, match=r"y has shape \(5,\)"):
        relu_report(net, X, torch.zeros(5))
    with pytest.raises(ValueError, match="lr=-1"):
        relu_report(net, X, lr=-1)


def test_read_only_arrays_and_data_frames_are_taken():
    X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    X.flags.writeable = False
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = relu_report(net, X, X[:, 0])
        second = relu_report(net, pd.DataFrame(X), pd.Series(X[:, 0]))
    assert first.bound_rhs == second.bound_rhs
    assert pickle.loads(pickle.dumps(first)).pathnorm_g == copy.deepcopy(first).pathnorm_g
