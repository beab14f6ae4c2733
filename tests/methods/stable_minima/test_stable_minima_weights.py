"""The weight g, the neurons' report and the stability inequality against definitions, quadrature and dense algebra."""

import sys

import numpy as np
import pytest
import torch
from scipy import integrate, special
from torch import nn

from cameraready.methods.stable_minima import NotCovered, relu_report, suggest_lr, weight_function
from cameraready.methods.stable_minima.geometries import ball, balls, radial, sphere
from cameraready.methods.stable_minima.relu_report import pathnorm_bound
from cameraready.methods.stable_minima.weight_function import half_spaces


def defined_weight(X, u, t):
    """g~(u, t) word for word."""
    inside = X[X @ u > t]
    if not len(inside):
        return 0.0
    return (len(inside) / len(X)) ** 2 * np.mean(inside @ u - t) * np.sqrt(1 + np.sum(inside.mean(axis=0) ** 2))


def cap_weight(t, d, alpha):
    """P and g~(u, t) of the half-space u.x > t, 0 < t < 1, under the radial law, by quadrature over the radius.

    Given r, (1 + u.x / r) / 2 is Beta((d - 1)/2, (d - 1)/2); by symmetry E[x | u.x > t] is parallel to u.
    """
    half = (d - 1) / 2

    def tail(r):  # P(u.x > t | r)
        return special.betainc(half, half, (1 - t / r) / 2)

    def first_moment(r):  # E[u.x; u.x > t | r]: the density of q = u.x/r integrates in closed form
        return r * (1 - (t / r) ** 2) ** half / (2 * half * special.beta(half, 0.5))

    def over_radius(value):
        if alpha == 0:
            return value(1.0)
        # p = (1 - r)^alpha is uniform; p = top q^power makes the integrand smooth at r = 1 for large alpha too.
        top, power = (1 - t) ** alpha, max(alpha, 1.0)

        def integrand(q):
            return value(1 - (top * q**power) ** (1 / alpha)) * top * power * q ** (power - 1)

        return integrate.quad(integrand, 0, 1, epsabs=0, epsrel=1e-9, limit=400)[0]

    probability, moment = over_radius(tail), over_radius(first_moment)
    mean = moment / probability
    return probability, probability**2 * (mean - t) * np.sqrt(1 + mean**2)


def network(d=4, width=9, outputs=1, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Linear(width, outputs)).double()


def hessians(net, X, y):
    """Dense Hessian and Gauss-Newton matrix of 1/(2n) sum |f - y|^2, float64."""
    names, shapes = zip(*[(n, p.shape) for n, p in net.named_parameters()], strict=True)
    at = torch.cat([p.detach().reshape(-1) for p in net.parameters()])

    def outputs(flat):
        parts = flat.split([s.numel() for s in shapes])
        values = {n: p.reshape(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        return torch.func.functional_call(net, values, (X,))

    H = torch.autograd.functional.hessian(lambda flat: ((outputs(flat) - y) ** 2).sum() / (2 * len(X)), at)
    J = torch.autograd.functional.jacobian(outputs, at).reshape(-1, len(at))
    return H.numpy(), (J.T @ J / len(X)).numpy(), J.reshape(len(X), -1, len(at)).numpy()


def test_the_weight_is_its_definition_on_both_sides():
    rng = np.random.default_rng(0)
    X, U, t = rng.normal(size=(50, 3)), rng.normal(size=(20, 3)), rng.normal(size=20)
    unit, s = U / np.linalg.norm(U, axis=1, keepdims=True), t / np.linalg.norm(U, axis=1)
    both = [(defined_weight(X, u, a), defined_weight(X, -u, -a)) for u, a in zip(unit, s, strict=True)]
    np.testing.assert_allclose(weight_function(X, U, t), np.min(both, axis=1), rtol=1e-12)
    np.testing.assert_allclose(half_spaces(X, unit, s).inside, [a for a, _ in both], rtol=1e-12)
    np.testing.assert_allclose(weight_function(X, -U, -t), weight_function(X, U, t), rtol=1e-12)


def test_a_point_on_the_hyperplane_is_in_neither_half_space():
    X = np.array([[-2.0], [0.0], [0.0], [1.0]])
    spaces = half_spaces(X, np.array([[1.0]]), np.array([0.0]))
    assert spaces.active[0] == 0.25
    assert spaces.inside[0] == pytest.approx(1 / 16 * 1 * np.sqrt(2))
    assert spaces.outside[0] == pytest.approx(1 / 16 * 2 * np.sqrt(5))


def test_half_spaces_with_no_or_with_all_points_have_weight_zero():
    X = np.random.default_rng(0).uniform(-1, 1, size=(30, 2))
    assert weight_function(X, [[1.0, 0.0], [1.0, 0.0]], [2.0, -2.0]).tolist() == [0, 0]


def test_blocks_of_rows_change_nothing(monkeypatch):
    module = sys.modules[weight_function.__module__]  # the function's name hides it in the package
    rng = np.random.default_rng(0)
    X, U, t = rng.normal(size=(100, 3)), np.eye(3), np.zeros(3)
    whole = weight_function(X, U, t)
    monkeypatch.setattr(module, "BLOCK", 21)
    np.testing.assert_allclose(weight_function(X, U, t), whole, rtol=1e-13)


@pytest.mark.parametrize(("d", "alpha"), [(3, 1.0), (5, 1.0), (5, 0.3), (5, 3.0)])
def test_exponents_of_the_weight_by_quadrature(d, alpha):
    near, far = cap_weight(1 - 1e-4, d, alpha), cap_weight(1 - 1e-3, d, alpha)
    slopes = np.log(np.divide(far, near)) / np.log(10)
    assert slopes[1] == pytest.approx(2 * alpha + d, abs=0.005)
    assert slopes[0] == pytest.approx(alpha + (d - 1) / 2, abs=0.005)


@pytest.mark.parametrize(("d", "alpha", "t"), [(3, 1.0, 0.3), (5, 0.3, 0.4), (4, 0.0, 0.3), (2, 3.0, 0.1)])
def test_the_quadrature_is_what_sampling_gives(d, alpha, t):
    rng = np.random.default_rng(0)
    e = np.eye(d)[0]
    estimates = []
    for _ in range(20):
        X = radial(20_000, d, alpha, rng=rng)
        spaces = half_spaces(X, e[None], np.array([t]))
        estimates.append([spaces.active[0], spaces.inside[0]])
    error = np.std(estimates, axis=0, ddof=1) / np.sqrt(20)
    exact = np.array(cap_weight(t, d, alpha))
    assert (error < 0.01 * exact).all()  # so that an error of a few per cent would show
    assert (np.abs(np.mean(estimates, axis=0) - exact) < 4.5 * error).all()


def test_samplers_follow_their_laws():
    rng = np.random.default_rng(0)
    n = 40_000
    for alpha in (0.3, 3.0):
        z = 1 - np.linalg.norm(radial(n, 4, alpha, rng=rng), axis=1)
        assert np.mean(z**alpha) == pytest.approx(0.5, abs=4.5 * np.sqrt(1 / 12 / n))  # z^alpha is uniform
    r = np.linalg.norm(ball(n, 4, rng=rng), axis=1)
    assert np.mean(r**4) == pytest.approx(0.5, abs=4.5 * np.sqrt(1 / 12 / n))
    np.testing.assert_allclose(np.linalg.norm(sphere(10, 3, rng=rng), axis=1), 1)
    flat = balls(200, 9, m=2, count=3, rng=rng)
    assert np.linalg.matrix_rank(flat) == 6
    assert np.linalg.norm(flat, axis=1).max() <= 1


def test_the_mean_gradient_attains_the_gauss_newton_part_of_the_inequality():
    # |mean gradient|^2 >= 1 + 2 sum a g~, with equality where each neuron's two layers balance: every constant counts.
    net = network()
    X = torch.randn(40, 4).double()
    _, _, J = hessians(net, X, torch.zeros(40, 1).double())
    W, b = net[0].weight.detach().numpy(), -net[0].bias.detach().numpy()
    norms = np.linalg.norm(W, axis=1)
    spaces = half_spaces(X.numpy(), W / norms[:, None], b / norms)
    mean_act = torch.relu(net[0](X)).mean(0).detach().numpy()
    v = np.abs(net[2].weight.detach().numpy()[0])
    inside = (net[0](X) > 0).double().detach().numpy()
    pulled = np.sqrt(inside.mean(0) ** 2 + np.linalg.norm(inside.T @ X.numpy() / 40, axis=1) ** 2)
    balance = np.sqrt(mean_act / (v * pulled))  # w -> w / s, v -> v s leaves a and f
    with torch.no_grad():
        net[0].weight /= torch.tensor(balance)[:, None]
        net[0].bias /= torch.tensor(balance)
        net[2].weight *= torch.tensor(balance)
    _, _, J = hessians(net, X, torch.zeros(40, 1).double())
    mean_gradient = J[:, 0].mean(axis=0)
    assert mean_gradient @ mean_gradient == pytest.approx(1 + 2 * (v * norms) @ spaces.inside, rel=1e-10)


def test_the_residuals_part_of_the_inequality_is_attained():
    # One active neuron, one point twice: H - G has the eigenvalue -|r| sqrt(1 + |x|^2), and sqrt(2 L) = |r|.
    net = network(d=3, width=1)
    with torch.no_grad():
        net[0].bias.fill_(5.0)
    X = torch.tensor([[1.0, 2.0, -0.5]] * 2).double()
    y = net(X).detach() + 0.7
    H, G, _ = hessians(net, X, y)
    lowest = np.linalg.eigvalsh(H - G)[0]
    report = relu_report(net, X, y)
    at_zero = pathnorm_bound(0.0, report.loss, report.radius, report.block)
    assert 2 * at_zero + 1 == pytest.approx(-lowest, rel=1e-10)


def test_the_reports_sharpness_is_that_of_the_dense_hessian():
    net = network(outputs=2)
    X, y = torch.randn(25, 4).double(), torch.randn(25, 2).double()
    H, _, _ = hessians(net, X, y)
    report = relu_report(net, X, y)
    assert report.lambda_max == pytest.approx(np.linalg.eigvalsh(H)[-1], rel=1e-6)
    assert report.loss == pytest.approx(((net(X) - y) ** 2).sum().item() / 50)
    expected = np.sqrt(2) / 2 * (report.lambda_max - 1 + np.sqrt(1 + report.radius**2) * np.sqrt(2 * report.loss))
    assert report.bound_rhs == pytest.approx(expected)


def test_the_inequality_holds_for_random_networks():
    rng = np.random.default_rng(0)
    for trial in range(40):
        outputs, bias, head = int(rng.choice([1, 1, 2, 7])), rng.random() < 0.7, rng.random() < 0.7
        torch.manual_seed(trial)
        net = nn.Sequential(nn.Linear(3, 8, bias=bias), nn.ReLU(), nn.Linear(8, outputs, bias=head)).double()
        with torch.no_grad():
            for p in net.parameters():
                p *= 10 ** rng.uniform(-1, 1)
        X = torch.tensor(rng.normal(size=(int(rng.integers(2, 30)), 3)) * 10 ** rng.uniform(-1, 0.5))
        y = net(X).detach() + torch.tensor(rng.normal(size=(len(X), outputs)) * 10 ** rng.uniform(-3, 0.5))
        report = relu_report(net, X, y)
        assert report.bound_lhs <= report.bound_rhs * (1 + 1e-9) + 1e-12


def test_path_norms_do_not_see_a_neurons_rescaling():
    net, X = network(), torch.randn(30, 4).double()
    before = relu_report(net, X)
    with torch.no_grad():
        net[0].weight *= 3
        net[0].bias *= 3
        net[2].weight /= 3
    after = relu_report(net, X)
    assert after.pathnorm_g == pytest.approx(before.pathnorm_g)
    assert after.pathnorm == pytest.approx(before.pathnorm)


def test_neurons_are_counted():
    net = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0], [1.0], [1.0], [0.0]]))
        net[0].bias.copy_(-torch.tensor([100.0, 7.5, 3.5, -1.0]))
        net[2].weight.fill_(2.0)
    report = relu_report(net, torch.arange(10.0)[:, None].double())
    neurons = report.neurons
    assert neurons["active_points"].tolist() == [0, 2, 6, 10]  # the last has no weights: a constant
    assert neurons["alive"].tolist() == [False, True, True, True]
    assert neurons["memoriser"].tolist() == [False, True, False, False]
    assert neurons["a"].tolist() == [2, 2, 2, 0]
    assert neurons["g"].tolist()[0] == neurons["g"].tolist()[3] == 0
    assert report.pathnorm_g == pytest.approx((neurons["a"] * neurons["g"]).sum())
    assert "1 dead, 1 active on fewer than 5" in str(report)


def test_a_block_inside_a_model_is_measured_on_what_it_receives():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh())
    head = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))
    model, X = nn.Sequential(body, head), torch.randn(20, 3, 4)
    report = relu_report(model, X, torch.randn(20, 2))
    direct = relu_report((head[0], head[2]), body(X))
    assert report.pathnorm_g == pytest.approx(direct.pathnorm_g)
    assert "part of a larger network" in str(report.bound_rhs)
    assert isinstance(direct.bound_rhs, NotCovered)


def test_mean_squared_errors_learning_rate_is_converted():
    for outputs in (1, 3):
        net = network(outputs=outputs)
        X, y = torch.randn(20, 4).double(), torch.randn(20, outputs).double()
        report = relu_report(net, X, y, lr=0.2)
        # MSELoss is 2 / C times the loss of the theory: its edge 2 / 0.2 is lambda_max = C / 2 * 10 there.
        expected = pathnorm_bound(10 * outputs / 2, report.loss, report.radius, report.block)
        assert report.bound_edge == pytest.approx(expected)


def test_the_suggested_rate_has_the_wanted_bound():
    net = network(outputs=2)
    X, y = torch.randn(30, 4).double(), torch.randn(30, 2).double()
    lr = suggest_lr(net, [(X[:10], y[:10]), (X[10:], y[10:])], target_pathnorm=9.0)
    assert relu_report(net, X, y, lr=lr).bound_edge == pytest.approx(9.0)
    with pytest.raises(ValueError, match="out of reach"):
        suggest_lr(net, (X, y), target_pathnorm=0.1)


def test_several_outputs_need_the_root_of_their_number():
    # One neuron an output, all active on all points but one that is far away: without sqrt(C) the bound is violated,
    # with it the two sides are within 6 %.
    C, X = 16, torch.zeros(20, 2).double()
    X[:-1, 0], X[-1, 0] = 1.0, -30.0
    net = network(d=2, width=C, outputs=C)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        net[0].weight[:, 0] = 0.3
        net[2].weight.copy_(torch.eye(C))
    report = relu_report(net, X, net(X).detach())
    assert report.pathnorm_g > (report.lambda_max - 1) / 2
    assert 0.94 * report.bound_rhs < report.pathnorm_g <= report.bound_rhs
