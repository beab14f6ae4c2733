"""The generalisation bound, term by term against its formula, and the predicted rates."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from cameraready.methods.stable_minima import NotCovered, generalisation_bound, predicted_rate, relu_report
from cameraready.methods.stable_minima.bound import SIZES
from cameraready.methods.stable_minima.geometries import radial
from cameraready.methods.stable_minima.weighted_depth import weighted_depth


def small_problem(n=60, m=80, d=2, width=6, seed=0):
    rng = np.random.default_rng(seed)
    X, held = radial(n, d, 1.0, rng=rng), radial(m, d, 1.0, rng=rng)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Linear(width, 1)).double()
    return net, X, held, np.tanh(X[:, 0]), np.tanh(held[:, 0])


def g_of(cloud, u, t):
    inside = cloud[cloud @ u > t]
    if not len(inside):
        return 0.0
    mean = inside.mean(axis=0)
    return (len(inside) / len(cloud)) ** 2 * (mean @ u - t) * np.sqrt(1 + mean @ mean)


def test_weighted_depth_is_the_least_weight_of_its_half_spaces():
    rng = np.random.default_rng(0)
    points, cloud, directions = (rng.normal(size=shape) for shape in ((15, 3), (40, 3), (12, 3)))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    for scale in (0.2, 5.0):  # above norm 1 the weight is not monotone in the threshold
        P, C, expected = points * scale, cloud * scale, []
        for x in P:
            found = []
            for u in np.vstack([directions, -directions]):
                found.append(g_of(C, u, u @ x))
                for t in (C @ u)[C @ u <= u @ x] - 1e-12:  # just below a point the weight is least
                    inside, outside = g_of(C, u, t), g_of(C, -u, -t)
                    found += [inside] if inside <= outside else []
            expected.append(min(found))
        np.testing.assert_allclose(weighted_depth(P, C, directions), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("height", [0.3, 10.0])
def test_where_the_weighted_depth_is_s_the_network_is_its_deep_and_affine_parts(height):
    # Held-out points far from the origin, whose sum cancels: a larger half-space can have a smaller weight.
    rng = np.random.default_rng(1)
    X, held = (rng.normal(size=(n, 2)) for n in (400, 40))
    held[:, 1] = height * np.sign(held[:, 1])
    angles = rng.uniform(-0.02, 0.02, size=30)
    W = np.column_stack([np.cos(angles), np.sin(angles)])
    b = np.array([rng.choice((held @ w)[held @ w > 0]) for w in W]) - 1e-9
    v = rng.normal(size=30)
    inside = np.array([g_of(held, w, t) for w, t in zip(W, b, strict=True)])
    outside = np.array([g_of(held, -w, -t) for w, t in zip(W, b, strict=True)])
    s = np.sort(np.minimum(inside, outside))[3]
    deep = np.minimum(inside, outside) >= s
    folded = ~deep & (outside < inside)
    Z = X[weighted_depth(X, held, W) >= s]
    assert len(Z) > 50
    parts = np.maximum(Z @ W[deep].T - b[deep], 0) @ v[deep] + Z @ (v[folded] @ W[folded]) - v[folded] @ b[folded]
    np.testing.assert_allclose(parts, np.maximum(Z @ W.T - b, 0) @ v, atol=1e-9)


def test_every_term_is_its_formula():
    net, X, held, y, y_held = small_problem()
    report = relu_report(net, X, y)
    B, delta, n = 1.5, 0.1, len(X)
    bound = generalisation_bound(report, held, B, delta=delta, y_heldout=y_held, n_directions=64)
    R = max(np.linalg.norm(X, axis=1).max(), np.linalg.norm(held, axis=1).max())
    W, b = net[0].weight.detach().numpy(), -net[0].bias.detach().numpy()
    v, c = net[2].weight.detach().numpy()[0], net[2].bias.item()
    norms = np.linalg.norm(W, axis=1)
    inside = np.array([g_of(held, w / a, t / a) for w, t, a in zip(W, b, norms, strict=True)])
    outside = np.array([g_of(held, -w / a, -t / a) for w, t, a in zip(W, b, norms, strict=True)])

    def up(value):
        return min(size for size in SIZES if size >= value)

    cells = 40 * len(SIZES) ** 3
    confidence = 4 * B**2 * np.sqrt(np.log(2 * cells / delta) / (2 * n))
    for _, row in bound.terms.iloc[::3].iterrows():
        deep = np.minimum(inside, outside) >= row.s
        folded = ~deep & (outside < inside)
        A = up((np.abs(v) * norms)[deep].sum())
        theta, shift = up(np.linalg.norm(v[folded] @ W[folded])), up(abs(c - v[folded] @ b[folded]))
        assert row.deep == pytest.approx(8 * B * 4 * A * R / np.sqrt(n))
        assert row.affine == pytest.approx(8 * B * (theta * R + shift) / np.sqrt(n))
        assert row.confidence == pytest.approx(confidence)
        assert row.total == pytest.approx(row.deep + row.affine + row.shallow + row.confidence)
    # Less the Dvoretzky-Kiefer-Wolfowitz term, the mass of the shallow set is a whole number of training points.
    part = bound.terms.shallow[bound.terms.shallow < 4 * B**2 * (1 - 1e-9)] / (4 * B**2)
    counts = (part - np.sqrt(np.log(2 / delta) / (2 * n))) * n
    assert len(part) > 10
    np.testing.assert_allclose(counts, counts.round(), atol=1e-6)
    assert bound.terms.shallow.iloc[-1] == pytest.approx(4 * B**2)
    assert bound.value == bound.terms.total.min()
    residual = net(torch.tensor(held)).detach().numpy()[:, 0].clip(-B, B) - y_held
    fit = net(torch.tensor(X)).detach().numpy()[:, 0].clip(-B, B) - y
    assert bound.observed_gap == pytest.approx((residual**2).mean() - (fit**2).mean())


def test_the_mass_of_the_shallow_set_is_counted_on_the_training_points():
    net, X, held, *_ = small_problem()
    bound = generalisation_bound(relu_report(net, X), held, 1.0, n_directions=4000)
    angles = np.linspace(0, np.pi, 2001)[:-1]
    depths = weighted_depth(X, held, np.column_stack([np.cos(angles), np.sin(angles)]))
    for _, row in bound.terms.iterrows():
        mass = row.shallow / 4 - np.sqrt(np.log(2 / 0.05) / (2 * len(X)))
        if row.shallow < 4:
            assert mass == pytest.approx(np.mean(depths < row.s), abs=2.5 / len(X))  # by other directions


def test_the_constant_of_the_deep_term_covers_the_rademacher_average():
    # E sup over |u| = 1, |t| <= R of |1/n sum eps ReLU(u.x - t)| <= 4 R / sqrt(n), in the plane by a fine grid.
    rng = np.random.default_rng(0)
    X = radial(50, 2, 0.3, rng=rng)
    angles = np.linspace(0, 2 * np.pi, 90, endpoint=False)
    thresholds = np.linspace(-1, 1, 41)
    U = np.column_stack([np.cos(angles), np.sin(angles)])
    acts = np.stack([np.maximum(X @ U.T - t, 0) for t in thresholds])
    signs = rng.choice([-1.0, 1.0], size=(200, 50))
    average = np.mean([np.abs(np.einsum("i,tiu->tu", eps, acts)).max() / 50 for eps in signs])
    assert 0.1 * 4 / np.sqrt(50) < average < 4 / np.sqrt(50)


def test_points_for_half_the_bound():
    net, X, held, *_ = small_problem(n=200)
    report = relu_report(net, X)
    bound = generalisation_bound(report, held, 1.0, n_directions=64)
    terms, factor = bound.terms, bound.n_for_half / 200
    dkw = np.sqrt(np.log(2 / 0.05) / 400)
    seen = (terms.shallow / 4 - dkw).where(terms.shallow < 4, 1.0)
    shrunk = (terms.deep + terms.affine + terms.confidence) / np.sqrt(factor)
    total = shrunk + 4 * np.minimum(seen + dkw / np.sqrt(factor), 1)
    assert total.min() == pytest.approx(bound.value / 2, rel=0.02)


def test_the_bound_exceeds_the_gap_and_says_when_it_is_vacuous():
    net, X, held, y, y_held = small_problem()
    bound = generalisation_bound(relu_report(net, X, y), held, 1.0, y_heldout=y_held, n_directions=64)
    assert bound.value > bound.observed_gap
    assert bound.vacuous == (bound.value >= 4.0)
    assert ("vacuous" in str(bound)) == bound.vacuous
    assert getattr(bound, bound.dominating) == max(bound.deep, bound.affine, bound.shallow, bound.confidence)


def test_outside_its_regime_the_bound_is_not_covered():
    net, X, held, *_ = small_problem()
    two = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    cases = {
        "2 outputs": generalisation_bound(relu_report(two, X), held, 1.0),
        "training points": generalisation_bound(relu_report(net, X), X[:50], 1.0),
        "100% of": generalisation_bound(relu_report(net.float(), X.astype(np.float32)), X[:50], 1.0),
        "unknown": generalisation_bound(relu_report((net[0], net[2]), X), held, 1.0),
    }
    for reason, answer in cases.items():
        assert isinstance(answer, NotCovered)
        assert not answer
        assert reason in str(answer)


def test_rates_are_the_balance_of_deep_and_shallow():
    for d, alpha in itertools.product((2, 5, 20), (0.3, 1.0, 4.0)):
        rate = predicted_rate("radial", d=d, alpha=alpha)
        # min over s of s^-(2 alpha + d) n^-1/2 + s^alpha, by brute force at two n
        s = np.geomspace(1e-5, 1, 200_001)
        least = [np.min(s ** -(2 * alpha + d) * n**-0.5 + s**alpha) for n in (1e8, 1e12)]
        assert rate.exponent == pytest.approx(-np.log(least[1] / least[0]) / np.log(1e4), rel=1e-3)
    assert predicted_rate("balls", m=2).exponent == pytest.approx(1 / (2 * (2 + 3)))
    assert isinstance(predicted_rate("radial", d=3, alpha=0.0), NotCovered)


def test_wrong_arguments_are_refused():
    net, X, held, y, _ = small_problem()
    report = relu_report(net, X, y)
    with pytest.raises(ValueError, match="B=0"):
        generalisation_bound(report, held, 0)
    with pytest.raises(ValueError, match="below the largest"):
        generalisation_bound(report, held, 0.1)
    with pytest.raises(ValueError, match="B=inf"):
        generalisation_bound(report, held, np.inf)
    with pytest.raises(ValueError, match="80 finite values"):
        generalisation_bound(report, held, 1.0, y_heldout=np.full(80, np.nan))
    with pytest.raises(TypeError, match="relu_report"):
        generalisation_bound(net, held, 1.0)
    with pytest.raises(ValueError, match="delta=2"):
        generalisation_bound(report, held, 1.0, delta=2)
    with pytest.raises(ValueError, match=r"shape \(80, 1\)"):
        generalisation_bound(report, held[:, :1], 1.0)
    with pytest.raises(ValueError, match="takes the dimension m="):
        predicted_rate("balls", d=3)
    with pytest.raises(ValueError, match="kind='ring'"):
        predicted_rate("ring", d=3)
    with pytest.raises(ValueError, match="alpha=-1"):
        predicted_rate("radial", d=3, alpha=-1)
