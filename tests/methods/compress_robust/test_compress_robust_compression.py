import itertools

import numpy as np
import pytest
import torch
from torch import nn

from cameraready.methods.compress_robust import (
    GroupLasso,
    NuclearNorm,
    SpreadControl,
    decompose,
    layer_targets,
    low_rank,
    prune_rows,
)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)).double()


def hidden(model):
    return [model[0].weight.detach().numpy(), model[2].weight.detach().numpy()]


def test_penalties_are_their_formulas_and_leave_the_last_layer_out():
    model = net()
    rows = sum(np.linalg.norm(w, axis=1).sum() for w in hidden(model))
    nuclear = sum(np.linalg.svd(w, compute_uv=False).sum() for w in hidden(model))
    assert GroupLasso(0.3)(model).item() == pytest.approx(0.3 * rows, rel=1e-12)
    assert NuclearNorm(0.3)(model).item() == pytest.approx(0.3 * nuclear, rel=1e-12)
    GroupLasso(1.0)(model).backward()
    assert model[4].weight.grad is None


@pytest.mark.parametrize("norm", ["inf", "2"])
def test_spread_control_is_log_spread_plus_overlap_and_ignores_scale(norm):
    W = torch.from_numpy(np.random.default_rng(0).normal(size=(8, 5)))
    values = W.abs().sum(1) if norm == "inf" else torch.linalg.svdvals(W)
    control = SpreadControl(1.0, k=4, norm=norm, orthogonality=0.5)
    top = W[W.norm(dim=1).argsort(descending=True)[:4]]
    unit = (top / top.norm(dim=1, keepdim=True)).numpy()
    overlap = np.mean([(unit[i] @ unit[j]) ** 2 for i, j in itertools.permutations(range(4), 2)])
    expected = np.log(decompose(values, norm=norm, k=4).spread) + 0.5 * overlap
    assert control.of(W, 4).item() == pytest.approx(expected, rel=1e-10)
    assert control.of(5 * W, 4).item() == pytest.approx(expected, rel=1e-10)
    assert SpreadControl(1.0, k=5).of(torch.eye(5).double(), 5).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("penalty", [GroupLasso.of, NuclearNorm.of, lambda w: SpreadControl(1.0, k=3).of(w, 3)])
def test_gradients_agree_with_finite_differences_and_stacks_with_single_matrices(penalty):
    W = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 4, 5))).requires_grad_(True)
    assert torch.autograd.gradcheck(penalty, (W,), eps=1e-6, atol=1e-5)
    assert torch.allclose(penalty(W), torch.stack([penalty(w) for w in W]))


def test_a_zero_row_has_the_gradient_zero():
    W = torch.zeros(2, 3, requires_grad=True)
    GroupLasso.of(W).backward()
    assert torch.equal(W.grad, torch.zeros(2, 3))


@pytest.mark.parametrize(("kind", "of"), [(GroupLasso, GroupLasso.of), (NuclearNorm, NuclearNorm.of)])
def test_a_proximal_step_minimises_its_objective(kind, of):
    model, penalty, lr = net(), kind(0.8), 0.5
    before = torch.from_numpy(hidden(model)[0].copy())
    penalty.proximal_(model, lr=lr)
    after = model[0].weight.detach()

    def objective(w):
        return float((w - before).square().sum() / 2 + lr * 0.8 * of(w))

    for seed in range(200):
        step = 1e-3 * torch.randn(9, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert objective(after) <= objective(after + step) + 1e-12
    assert not torch.equal(after, before)


def test_pruning_keeps_the_strongest_rows_and_the_last_layer():
    model = net()
    small = prune_rows(model, keep=0.34)
    for i, count in ((0, 3), (2, 2)):
        norms = model[i].weight.norm(dim=1)
        kept = small[i].weight.abs().sum(dim=1) > 0
        assert int(kept.sum()) == count
        assert float(norms[kept].min()) >= float(norms[~kept].max())
        assert torch.equal(small[i].weight[kept], model[i].weight[kept])
        assert float(small[i].bias[~kept].abs().max()) == 0
    assert torch.equal(small[4].weight, model[4].weight)


def test_low_rank_layers_are_the_nearest_of_their_rank():
    model = net()
    small = low_rank(model, rank=2)
    for i in (0, 2):
        u, s, vt = np.linalg.svd(model[i].weight.detach().numpy())
        nearest = u[:, :2] * s[:2] @ vt[:2]
        assert small[i].weight.detach().numpy() == pytest.approx(nearest, abs=1e-12)
        x = torch.rand(4, model[i].in_features, dtype=torch.float64)
        expected = x.numpy() @ nearest.T + model[i].bias.detach().numpy()
        assert small[i](x).detach().numpy() == pytest.approx(expected, abs=1e-12)
    conv = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(8 * 16, 2)).double()
    thin = low_rank(conv, rank=27)  # its full rank is 8: left as it is
    assert isinstance(thin[0], nn.Conv2d)
    thin = low_rank(conv, rank=7)
    same = nn.functional.conv2d(torch.ones(1, 3, 8, 8).double(), thin[0].weight, thin[0].bias, stride=2, padding=1)
    assert torch.allclose(thin[0](torch.ones(1, 3, 8, 8).double()), same)


@pytest.mark.parametrize("norm", ["inf", "2"])
def test_layer_targets_are_the_best_of_all_for_their_number_of_parameters(norm):
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    total = 4 * 5 + 5 * 6
    found = layer_targets(model, budget=0.9 if norm == "inf" else 40, norm=norm, tolerance=0.9)
    power, costs, most = (1.0, (4, 5), (5, 6)) if norm == "inf" else (0.5, (9, 11), (4, 5))
    used = sum(t.parameters for t in found)
    assert used <= (0.9 * total if norm == "inf" else 40)
    least = [t.least for t in found]
    candidates = [
        -power * (np.log(a) + np.log(b))
        for a, b in itertools.product(range(least[0], most[0] + 1), range(least[1], most[1] + 1))
        if a * costs[0] + b * costs[1] <= used
    ]
    assert -power * sum(np.log(t.k) for t in found) == pytest.approx(min(candidates))
    W = model[0].weight.detach().double()
    energy = W.abs().sum() if norm == "inf" else W.norm()
    assert found[0].norm_if_even == pytest.approx(float(energy) / found[0].k ** power)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: prune_rows(net(), keep=0.0), "keep=0.0"),
        (lambda: prune_rows(net(), keep=100), "keep=100"),
        (lambda: low_rank(net(), rank=0), "rank=0"),
        (lambda: prune_rows(nn.Linear(2, 2), keep=0.5), "no hidden layer"),
        (lambda: layer_targets(net(), budget=3), "budget=3"),
        (lambda: GroupLasso(-1.0), "strength=-1.0"),
        (lambda: SpreadControl(0.1, k=0), "k=0"),
        (lambda: SpreadControl(0.1, k=[3])(net()), "1 values of k for 2"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
