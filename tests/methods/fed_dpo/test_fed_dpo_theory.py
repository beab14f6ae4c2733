"""Theory functions against closed forms, and against runs."""

import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from scipy import optimize, special

sys.path.insert(0, str(Path(__file__).parent))
from fed_dpo_clients import log_linear_clients

from cameraready.coverage import NotCovered
from cameraready.methods.fed_dpo import (
    DecentralizedDPO,
    FederatedDPO,
    LogLinearPairs,
    LogLinearPolicy,
    Objective,
    PreferenceClient,
    best_local_steps,
    consensus_bound,
    consensus_contraction,
    dsgd_bound,
    dsgd_fixed_point,
    exponential_graph,
    fedavg_bound,
    fedavg_fixed_point,
    heterogeneity,
    metropolis,
    mixing_time,
    optimum,
    rounds_to,
    smoothness,
    spectral_gap,
)
from cameraready.methods.fed_dpo.landscape import hessians, local_optima, noise, third_derivatives, weights_of
from cameraready.methods.fed_dpo.theory import drift_to_first_order, fit_constants, nonconvex_terms


def objective(n=4, **more):
    return Objective(LogLinearPolicy(3), log_linear_clients(n, **more))


def test_the_bound_has_its_four_terms():
    common = {"lr": 0.1, "K": 3, "R": 5, "M": 4, "L": 2.0}
    zero = {"D": 0.0, "sigma2": 0.0, "zeta2": 0.0}
    assert fedavg_bound(**common, **{**zero, "D": 3.0}) == pytest.approx(9 / (2 * 0.1 * 3 * 5))
    assert fedavg_bound(**common, **{**zero, "sigma2": 1.0}) == pytest.approx(0.1 / 4 + 4 * 3 * 0.01 * 2)
    assert fedavg_bound(**common, **{**zero, "zeta2": 1.0}) == pytest.approx(18 * 9 * 0.01 * 2)


def test_a_step_beyond_the_bounds_range_warns():
    with pytest.warns(UserWarning, match=r"lr=0.3 is above 1 / \(4 L\) = 0.25"):
        fedavg_bound(D=1.0, lr=0.3, K=1, R=1, M=1, sigma2=0, zeta2=0, L=1.0)


def test_rounds_to_is_the_first_that_reaches_eps():
    problem = {"D": 2.0, "M": 5, "sigma2": 1.0, "zeta2": 0.3, "L": 1.5}
    R, lr = rounds_to(0.05, K=4, **problem)
    assert fedavg_bound(lr=lr, K=4, R=R, **problem) <= 0.05 * (1 + 1e-9)
    grid = np.linspace(1e-4, 1 / 6, 2000)
    assert min(fedavg_bound(lr=x, K=4, R=R - 1, **problem) for x in grid) > 0.05


def test_best_local_steps_is_the_best_of_all():
    problem = {"D": 2.0, "M": 5, "sigma2": 1.0, "zeta2": 0.001, "L": 1.5}
    K, R, lr = best_local_steps(2000, round_cost=20, step_cost=1, **problem)
    assert K > 1  # communication is dear, and clients are alike
    best = fedavg_bound(lr=lr, K=K, R=R, **problem)
    for other in (1, 2, 5, 10, 20, 50, 100):
        rounds = 2000 // (20 + other)
        values = [fedavg_bound(lr=x, K=other, R=rounds, **problem) for x in np.geomspace(1e-3, 1 / 6, 300)]
        assert best <= min(values) * (1 + 1e-9)
    assert best_local_steps(2000, round_cost=0, step_cost=1, **problem)[0] == 1  # communication is free


def test_constants_are_found_again():
    rng = np.random.default_rng(0)
    runs = [
        nonconvex_terms(delta0=1.0, lr=lr, K=K, R=50, M=4, sigma2=1.0, zeta2=2.0, L=1.0)
        for lr, K in zip(rng.uniform(0.01, 0.2, size=12), rng.integers(1, 10, size=12), strict=True)
    ]
    assert fit_constants(runs, np.array(runs) @ [2.0, 0.5, 3.0, 7.0]) == pytest.approx([2.0, 0.5, 3.0, 7.0], rel=1e-6)


def test_fixed_point_of_two_quadratics_is_the_weighted_mean_of_where_they_pull():
    # f_i = h_i / 2 (x - a_i)^2: K steps shrink by (1 - lr h_i)^K towards a_i
    h, a, p, lr, K = np.array([1.0, 3.0]), np.array([1.0, -1.0]), np.array([0.3, 0.7]), 0.1, 4
    star = (p * h) @ a / (p @ h)
    pull = p * (1 - (1 - lr * h) ** K)
    found = fedavg_fixed_point(h[:, None, None], (h * (star - a))[:, None], lr=lr, K=K, p=p)
    assert found.offset[0] == pytest.approx(pull @ a / pull.sum() - star)
    assert found.floor == pytest.approx((p @ h) * found.offset[0] ** 2 / 2)
    assert found.rate == pytest.approx(1 - pull.sum())


def test_dsgd_fixed_point_solves_its_equation():
    h, a, lr = np.array([1.0, 3.0, 2.0]), np.array([1.0, -1.0, 0.5]), 0.1
    W = metropolis(nx.path_graph(3))
    star = h @ a / h.sum()
    x = np.zeros(3)
    for _ in range(3000):
        x = W @ (x - lr * h * (x - a))
    found = dsgd_fixed_point(W, h[:, None, None], (h * (star - a))[:, None], lr=lr)
    assert found.nodes[:, 0] == pytest.approx(x - star)
    assert found.spread == pytest.approx(x.std())


@pytest.mark.parametrize("K", [2, 5])
def test_third_derivatives_leave_an_error_of_higher_order(K):
    """Halving the clients' differences about halves our relative error, and leaves the quadratic model's."""
    lr, a = 3.0, np.array([-1.0, 0.1, 0.3, 1.5])
    errors = []
    for apart in (0.2, 0.1):  # f_i' = sigmoid(x - apart a_i) - 0.8, away from where f_i''' is 0

        def slope(x, at=apart * a):
            return special.expit(x - at) - 0.8

        star = optimize.brentq(lambda x: slope(x).sum(), -1, 5, xtol=1e-15)
        x = star
        for _ in range(300):
            local = np.full(4, x)
            for _ in range(K):
                local = local - lr * slope(local)
            x = local.mean()
        g = slope(star)
        H = (g + 0.8) * (0.2 - g)
        T = H * (1 - 2 * (g + 0.8))
        common = {"lr": lr, "K": K, "p": np.full(4, 0.25)}
        found = [
            fedavg_fixed_point(H[:, None, None], g[:, None], third=third, **common).offset[0]
            for third in (None, lambda v, T=T: T[:, None] * v**2)
        ]
        errors.append(np.abs(np.array(found) / (x - star) - 1))
    (quadratic_far, ours_far), (quadratic_near, ours_near) = errors
    assert ours_near < 0.65 * ours_far
    assert ours_near < 0.05 < 0.1 < quadratic_near
    assert quadratic_near > 0.9 * quadratic_far


def test_the_second_order_of_local_steps_is_that_of_automatic_differentiation():
    """K real steps from t o on gradients shifted to t g_i are t path + t^2 bend + ...; both by nested autograd."""
    ours, K, lr = objective(), 4, 0.8
    star, p = optimum(ours), weights_of(ours).numpy()
    g = ours.losses(star).gradient
    H, third = hessians(ours, star).numpy(), third_derivatives(ours, star)
    common = {"lr": lr, "K": K, "p": p}
    first, both = (fedavg_fixed_point(H, g.numpy(), third=bend, **common) for bend in (None, third))
    paths, bends = [], []
    for i, client in enumerate(ours.clients):

        def loss(theta, D=client.data.D):
            return -torch.nn.functional.logsigmoid(D @ theta).mean()

        def after(t, i=i, loss=loss):
            u = t * torch.from_numpy(first.offset)
            for _ in range(K):
                u = u - lr * (torch.func.grad(loss)(star + u) - (1 - t) * g[i])
            return u

        zero = torch.zeros((), dtype=torch.float64)
        paths.append(torch.func.jacfwd(after)(zero).numpy())
        bends.append(torch.func.jacfwd(torch.func.jacfwd(after))(zero).numpy() / 2)
    paths, bends = np.stack(paths), np.stack(bends)
    assert p @ paths == pytest.approx(first.offset, abs=1e-10)  # the fixed point of the first order
    assert both.remainder == pytest.approx(np.linalg.norm(bends, axis=1).max() / np.linalg.norm(paths, axis=1).max())
    kept = np.eye(3) - np.einsum("n,nij->ij", p, np.stack([np.linalg.matrix_power(np.eye(3) - lr * h, K) for h in H]))
    assert both.offset - first.offset == pytest.approx(np.linalg.solve(kept, p @ bends), abs=1e-10)


def test_predictions_are_made_only_where_they_hold():
    clients = log_linear_clients(3)
    common = {"local_steps": 2, "rounds": 5}
    with pytest.raises(ValueError, match="'scaffold'"):
        FederatedDPO(LogLinearPolicy(3), clients, lr=0.2, algorithm="scaffold", **common).predict()
    far = FederatedDPO(LogLinearPolicy(3), clients, lr=20.0, **common).predict()
    assert far.rate > 1
    assert "does not contract" in far.floor.reason
    single = LogLinearPolicy(3, dtype=torch.float32)
    rough = FederatedDPO(single, clients, lr=0.2, **common).predict()
    exact = FederatedDPO(LogLinearPolicy(3), clients, lr=0.2, **common).predict()
    assert rough.floor == pytest.approx(exact.floor, rel=1e-3)
    with pytest.raises(ValueError, match="sum 2"):
        fedavg_fixed_point(np.ones((2, 1, 1)), np.ones((2, 1)), lr=0.1, K=2, p=[1, 1])
    with pytest.raises(ValueError, match="0 rounds"):
        fedavg_bound(D=1.0, lr=0.1, K=1, R=0, M=1, sigma2=0.0, zeta2=0.0, L=1.0)


def test_derivatives_agree_with_automatic_differentiation():
    ours = objective(2)
    theta = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    loss = -torch.nn.functional.logsigmoid(ours.clients[1].data.D @ theta).mean()
    (slope,) = torch.autograd.grad(loss, theta, create_graph=True)
    (along,) = torch.autograd.grad(slope @ v, theta, create_graph=True)
    (twice,) = torch.autograd.grad(along @ v, theta)
    point = theta.detach()
    assert torch.allclose(ours.losses(point).gradient[1], slope.detach())
    assert torch.allclose(hessians(ours, point)[1] @ v, along.detach())
    assert torch.allclose(torch.as_tensor(third_derivatives(ours, point)(np.stack([v.numpy()] * 2))[1]), twice)


def test_optima_have_no_gradient_and_the_mixture_is_not_the_mean():
    ours = objective()
    star, each = optimum(ours), local_optima(ours)
    assert (weights_of(ours) @ ours.losses(star).gradient).norm() < 1e-10
    assert ours.losses(each).gradient.norm(dim=1).max() < 1e-9
    assert (each.mean(dim=0) - star).norm() > 0.05


def test_no_curvature_exceeds_the_smoothness():
    ours = objective()
    L = smoothness(ours)
    for theta in torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64):
        assert bool((torch.linalg.eigvalsh(hessians(ours, theta))[:, -1] <= L * (1 + 1e-12)).all())
    assert torch.allclose(
        torch.linalg.eigvalsh(hessians(ours, ours.theta_ref))[:, -1], L
    )  # reached where margins are 0


def test_a_client_without_a_finite_optimum_is_named():
    """Its pairs agree on one feature and not on the other: gradients vanish along a ray, Newton's steps do not."""
    half = LogLinearPairs([[1.0, 1.0], [1.0, -1.0], [0.5, 1.0], [0.5, -1.0], [0.0, 1.0], [0.0, -1.0]])
    clients = [PreferenceClient(LogLinearPairs([[1.0, 0.0], [-0.5, 1.0], [0.0, -1.0]]), beta=1.0)]
    clients.append(PreferenceClient(half, beta=1.0))
    with pytest.raises(ValueError, match=r"clients \[1\] have no finite minimiser"):
        local_optima(Objective(LogLinearPolicy(2), clients))
    with pytest.raises(ValueError, match="separable"):
        optimum(Objective(LogLinearPolicy(2), clients[1:]))
    ours = Objective(LogLinearPolicy(2), clients, ridge=1e-3)
    theta = local_optima(ours)
    assert ours.losses(theta).gradient.norm(dim=1).max() < 1e-12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"H": np.ones((2, 3, 3)), "g": np.ones((3, 3)), "p": [0.5, 0.5]}, "and g"),
        ({"H": np.ones((2, 3, 3)), "g": np.ones((2, 3)), "p": [0.5, 0.4]}, r"sum 0\.9"),
    ],
)
def test_derivatives_of_other_shapes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        fedavg_fixed_point(**arguments, lr=0.1, K=2)


def test_noise_without_replacement_is_exact():
    ours = objective(2)
    theta = torch.tensor([0.2, 0.0, -0.4], dtype=torch.float64)
    rng = np.random.default_rng(0)
    whole = ours.losses(theta).gradient[0]
    rows = torch.from_numpy(np.stack([rng.choice(ours.sizes[0], 8, replace=False) for _ in range(4000)]))
    share = torch.full((4000, 8), 1 / 8, dtype=torch.float64)
    gradients = ours.losses(theta, which=[0] * 4000, rows=rows, share=share).gradient
    squares = ((gradients - whole) ** 2).sum(dim=1).numpy()
    error = np.std(squares) / 4000**0.5
    assert abs(np.mean(squares) - float(noise(ours, theta, batch_size=8)[0])) < 4 * error  # false alarms: 1 in 16,000
    assert float(noise(ours, theta, batch_size=ours.sizes[0])[0]) == 0


def test_identical_users_have_no_heterogeneity():
    clients = log_linear_clients(1) * 5
    assert heterogeneity(clients, LogLinearPolicy(3)).zeta2 < 1e-25
    assert heterogeneity(objective()).zeta2 > 1e-3


def test_metropolis_gaps_are_known():
    assert spectral_gap(metropolis(nx.complete_graph(10))) == pytest.approx(1)
    # a ring has eigenvalues 1/3 + 2/3 cos(2 pi k / n)
    assert spectral_gap(metropolis(nx.cycle_graph(10))) == pytest.approx(2 / 3 * (1 - np.cos(2 * np.pi / 10)))
    assert spectral_gap(metropolis(nx.path_graph(10))) == pytest.approx(2 / 3 * (1 - np.cos(np.pi / 10)))
    assert spectral_gap(metropolis(exponential_graph(10))) == pytest.approx(0.571, abs=1e-3)
    W = metropolis(nx.star_graph(4))
    assert consensus_contraction(W) == pytest.approx(0.8)
    assert mixing_time(0.01, W=W) == pytest.approx(np.log(0.01) / np.log(0.8))


def test_consensus_bound_is_reached_by_constant_gradients_along_the_slowest_eigenvector():
    W = metropolis(nx.cycle_graph(8))
    values, vectors = np.linalg.eigh(W)
    g, x, rho = vectors[:, -2], np.zeros(8), values[-2]
    for _ in range(3000):
        x = W @ (x - 0.1 * g)
    zeta = np.sqrt((g**2).mean())
    assert x.std() == pytest.approx(consensus_bound(lr=0.1, rho=rho, zeta=zeta), rel=1e-6)
    bound = dsgd_bound(D=0.0, lr=0.1, T=1, n=8, rho=rho, sigma2=0.0, zeta2=zeta**2, L=2.0)
    assert bound == pytest.approx(2.0 * x.std() ** 2, rel=1e-5)


def test_predictions_come_true():
    clients = log_linear_clients(5, apart=0.5)
    fed = FederatedDPO(LogLinearPolicy(3), clients, local_steps=4, lr=0.4, rounds=150)
    print(fed.predict())
    table = fed.fit().compare()
    assert table.loc[["rate", "floor", "spread"], "ratio"].to_list() == pytest.approx([1, 1, 1], abs=0.15)
    gossip = DecentralizedDPO(LogLinearPolicy(3), clients, nx.path_graph(5), lr=0.3, steps=400)
    gossip.predict()
    table = gossip.fit().compare()
    assert table.loc[["rate", "floor", "spread"], "ratio"].to_list() == pytest.approx([1, 1, 1], abs=0.15)
    assert table.loc["bound", "ratio"] < 1
    assert isinstance(gossip.prediction.first_drift, NotCovered)


def test_drift_of_the_first_round_is_known_for_small_steps():
    clients = log_linear_clients(5)
    ours = Objective(LogLinearPolicy(3), clients)
    found = heterogeneity(ours, theta=ours.theta_ref)
    run = FederatedDPO(LogLinearPolicy(3), clients, local_steps=6, lr=1e-3, rounds=1)
    expected = drift_to_first_order(lr=1e-3, K=6, sigma2=0.0, zeta2=found.zeta2)
    assert run.fit().table["drift"][0] == pytest.approx(expected, rel=0.02)
