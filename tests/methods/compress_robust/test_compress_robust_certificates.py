import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from cameraready.methods.compress_robust import (
    NotCovered,
    alignment_estimate,
    attack,
    certified_radius,
    lipschitz_bound,
    loss_gap_bound,
    low_rank,
)
from cameraready.methods.compress_robust.certificates import certified_accuracy
from cameraready.methods.compress_robust.pgd import pgd


def as_images(x):
    return x.reshape(-1, 1, 8, 8)


def jacobians(model, x):
    return torch.func.vmap(torch.func.jacrev(lambda v: model(v[None])[0]))(x).flatten(2).double()


def test_the_bound_of_a_chain_is_the_product_of_its_norms(mlp):
    weights = [layer.weight.detach().double().numpy() for layer in mlp if isinstance(layer, nn.Linear)]
    for p, order in (("inf", np.inf), ("2", 2)):
        norms = [np.linalg.norm(w, order) for w in weights]
        bound = lipschitz_bound(mlp, torch.zeros(1, 64), p)
        assert bound.total == pytest.approx(math.prod(norms), rel=1e-6)
        assert bound.before_last == pytest.approx(math.prod(norms[:-1]), rel=1e-6)


def test_a_residual_block_is_one_plus_its_branch():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 7), nn.Linear(7, 5)

        def forward(self, x):
            return x + self.b(torch.relu(self.a(x)))

    block = Block().eval()
    product = np.linalg.norm(block.a.weight.detach(), 2) * np.linalg.norm(block.b.weight.detach(), 2)
    assert lipschitz_bound(block, torch.zeros(1, 5), "2").total == pytest.approx(1 + product, rel=1e-6)


def test_batch_normalisation_is_folded_into_the_layer_before_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    model[1].running_var.uniform_(0.1, 2)
    model[1].weight.data.uniform_(-2, 2)
    model.eval()
    scale = model[1].weight / torch.sqrt(model[1].running_var + model[1].eps)
    folded = (scale[:, None] * model[0].weight).detach().double().numpy()
    expected = np.linalg.norm(folded, 2) * np.linalg.norm(model[3].weight.detach().double().numpy(), 2)
    assert lipschitz_bound(model, torch.zeros(1, 6), "2").total == pytest.approx(expected, rel=1e-5)


def test_max_pooling_counts_the_windows_over_a_pixel():
    torch.manual_seed(0)
    for k, s, d in ((2, 2, 1), (3, 2, 1), (3, 1, 1), (2, 1, 2)):
        pool = nn.MaxPool2d(k, stride=s, dilation=d)
        bound = lipschitz_bound(nn.Sequential(pool), torch.zeros(1, 1, 9, 9), "2").total
        # The worst input is one bright pixel, moved from 0: every window that sees it moves.
        spot = torch.zeros(81, 1, 9, 9)
        spot.view(81, 81).fill_diagonal_(1.0)
        assert float(pool(spot).flatten(1).norm(dim=1).max()) == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("p", ["inf", "2"])
def test_no_gradient_is_larger_than_the_bound(resnet, digits, p):
    x = as_images(digits[1][0][:40])
    bound = lipschitz_bound(resnet, x, p)
    J = jacobians(resnet, x)
    worst = torch.linalg.matrix_norm(J, 2).max() if p == "2" else J.abs().sum(dim=2).max()
    assert float(worst) <= bound.total
    assert next(name for name, _ in bound.factors) == "stem"
    assert "norm" not in [name for name, _ in bound.factors]


def test_the_radius_of_a_linear_model_is_the_distance_to_the_boundary():
    rng = np.random.default_rng(0)
    model = nn.Linear(6, 4).double().eval()
    x = torch.from_numpy(rng.normal(size=(50, 6)))
    logits, W = model(x).detach().numpy(), model.weight.detach().numpy()
    y = logits.argmax(axis=1)
    for p, dual in (("2", 2), ("inf", 1)):
        radii = certified_radius(model, x, torch.from_numpy(y), p=p).numpy()
        for i in range(50):
            distances = [
                (logits[i, y[i]] - logits[i, j]) / np.linalg.norm(W[y[i]] - W[j], dual) for j in range(4) if j != y[i]
            ]
            assert radii[i] == pytest.approx(min(distances), rel=1e-3, abs=1e-4)
            assert radii[i] <= min(distances)


@pytest.mark.parametrize("p", ["inf", "2"])
def test_no_attack_on_1000_points_gets_inside_a_certified_radius(mlp, resnet, digits, p):
    (x, y), (x_test, y_test) = digits
    points, labels = torch.cat([x_test, x])[:1000], torch.cat([y_test, y])[:1000]
    radii = certified_radius(mlp, points, labels, p=p)
    nearest = attack(mlp, points, labels, norm=p, eps=None, method="deepfool")
    held = nearest.success
    assert float(held.double().mean()) > 0.95
    assert bool((radii[held] <= nearest.distance[held].double() + 1e-6).all())
    assert float(radii.max()) > 0.001
    inside = as_images(points[:200])
    certified = certified_radius(resnet, inside, labels[:200], p=p)
    sure = certified > 0
    assert int(sure.sum()) > 100
    # PGD at each example's own radius: scaled so that one eps serves all.
    for radius in certified[sure].quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)).tolist():
        at = sure & (certified > radius)
        moved = pgd(resnet, inside[at], labels[:200][at], norm=p, eps=radius, bounds=(-1, 2), restarts=2)
        assert bool((resnet(moved).argmax(dim=1) == labels[:200][at]).all())


def test_misclassified_examples_have_no_radius(mlp, digits):
    x, y = digits[1]
    assert float(certified_radius(mlp, x, (mlp(x).argmax(dim=1) + 1) % 10, p="2").max()) == 0
    radii = certified_radius(mlp, x, y, p="2")
    assert certified_accuracy(radii, 0.0) == pytest.approx(float((mlp(x).argmax(1) == y).double().mean()), abs=0.005)


def test_the_added_loss_stays_below_its_bound(mlp, digits):
    x, y = digits[1]
    clean = functional.cross_entropy(mlp(x), y, reduction="none")
    for p, eps in (("inf", 0.001), ("inf", 0.05), ("2", 0.02), ("2", 0.5)):
        moved = pgd(mlp, x, y, norm=p, eps=eps, restarts=1)
        gap = functional.cross_entropy(mlp(moved), y, reduction="none") - clean
        assert float(gap.max()) <= loss_gap_bound(lipschitz_bound(mlp, x, p), eps)


def test_cross_entropys_lipschitz_constants_are_sharp():
    bound = lipschitz_bound(nn.Sequential(nn.Identity()), torch.zeros(1, 2), "2")
    for p, constant in (("2", math.sqrt(2)), ("inf", 2.0)):
        bound = lipschitz_bound(nn.Sequential(nn.Identity()), torch.zeros(1, 2), p)
        z = torch.tensor([[-20.0, 20.0]], dtype=torch.float64, requires_grad=True)
        [g] = torch.autograd.grad(functional.cross_entropy(z, torch.tensor([0])), z)
        dual = float(g.norm() if p == "2" else g.abs().sum())
        assert loss_gap_bound(bound, 1.0) == pytest.approx(dual, rel=1e-6)
        assert loss_gap_bound(bound, 1.0) == pytest.approx(constant)


def test_the_alignment_estimate_is_the_best_gate_of_all():
    torch.manual_seed(0)
    for _ in range(5):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
        A, B = model[0].weight.detach(), model[2].weight.detach()
        gates = torch.tensor(list(itertools.product([0.0, 1.0], repeat=8)), dtype=torch.float64)
        best = float(torch.linalg.matrix_norm((B * gates[:, None]) @ A, 2).max())
        estimate = alignment_estimate(model, restarts=30)
        assert estimate.aligned == pytest.approx(best, rel=1e-6)
        assert estimate.aligned <= estimate.product * (1 + 1e-9)
        assert estimate.cuts[0] == pytest.approx(best / estimate.product, rel=1e-6)


def test_the_alignment_estimate_of_three_layers_is_above_every_jacobian(mlp, digits):
    estimate = alignment_estimate(mlp)
    top = float(torch.linalg.matrix_norm(jacobians(mlp, digits[1][0][:50]), 2).max())
    assert top <= estimate.aligned <= estimate.product


def test_a_low_rank_network_is_certified_as_its_merged_one(mlp, digits):
    x, y = digits[1]
    thin = low_rank(mlp, rank=10)
    merged = nn.Sequential(*[nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]).eval()
    for a, b in zip(thin, merged, strict=True):
        if isinstance(b, nn.Linear):
            b.weight.data, b.bias.data = a.weight.data.clone(), a.bias.data.clone()
    for p in ("inf", "2"):
        assert lipschitz_bound(thin, x, p).total == pytest.approx(lipschitz_bound(merged, x, p).total, rel=1e-5)
        assert torch.allclose(certified_radius(thin, x, y, p=p), certified_radius(merged, x, y, p=p), atol=1e-5)


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Squares(nn.Module):
    def forward(self, x):
        return x * x


class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(dim=0, keepdim=True)


class Clamped(nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=2 * x)


class Aliased(nn.Module):
    def forward(self, x):
        h = torch.relu(x)
        kept = h
        h += x
        return h + kept


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), "LayerNorm '1'"),
        (nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim=1)), "Softmax"),
        (Branching(), "cannot be traced"),
        (Squares(), "product or quotient"),
        (Mixing(), "batch|broadcasts"),
        (Aliased(), "something else"),
        (Clamped(), "function clamp"),
        (nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)), "batch's own statistics"),
        (nn.Linear(4, 4, dtype=torch.complex64), "complex"),
    ],
)
def test_what_cannot_be_certified_is_refused_with_the_reason(model, reason):
    with pytest.raises(NotCovered, match=reason) as caught:
        lipschitz_bound(model.eval(), torch.zeros(2, 4), "2")
    assert str(caught.value).startswith("not covered: ")


def test_the_user_can_name_a_constant():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval()
    plain = lipschitz_bound(model[:1], torch.zeros(1, 4), "2").total
    assert lipschitz_bound(model, torch.zeros(1, 4), "2", constants={"1": 3.0}).total == pytest.approx(3 * plain)
    with pytest.raises(ValueError, match="'7'"):
        lipschitz_bound(model, torch.zeros(1, 4), "2", constants={"7": 3.0})
