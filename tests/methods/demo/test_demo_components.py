import numpy as np
import pytest
import torch
from torch.nn import functional as F

from cameraready.methods.demo.distance import Standardiser
from cameraready.methods.demo.energy import energy, energy_gradients, energy_loss, influence, sample_weights
from cameraready.methods.demo.graph import symmetric_weights
from cameraready.methods.demo.memory import ANOMALY, NONE, NORMAL, MemoryBank
from cameraready.methods.demo.mixup import (
    PageRankMixup,
    mix_anomalies,
    mix_distant_normals,
    simulate_loss,
    vanilla_loss,
)
from cameraready.methods.demo.network import Network


@pytest.fixture
def last_layer():
    torch.manual_seed(0)
    return torch.nn.Linear(32, 1).double(), torch.randn(20, 32, dtype=torch.double)


def test_energy_gradients_are_those_of_autograd(last_layer):
    layer, a = last_layer
    closed = energy_gradients(layer(a).squeeze(-1), a)
    for i in range(len(a)):
        weight, bias = torch.autograd.grad(energy(layer(a[i])).sum(), layer.parameters())
        torch.testing.assert_close(closed[i], torch.cat([weight[0], bias]), atol=1e-5, rtol=0)


def test_influence_is_the_derivative_of_the_validation_loss(last_layer):
    """H by autograd; then theta moved by -H^-1 grad E_i must change the validation loss by I_i, to first order."""
    layer, a = last_layer
    target = (torch.arange(20) % 2).double()
    theta = torch.cat([layer.weight[0], layer.bias]).detach()
    with_bias = torch.cat([a, torch.ones(20, 1, dtype=torch.double)], dim=1)

    def train_loss(theta):
        return F.binary_cross_entropy_with_logits(with_bias @ theta, target)

    def val_loss(theta):
        return F.binary_cross_entropy_with_logits(with_bias[10:] @ theta, target[10:])

    hessian = torch.autograd.functional.hessian(train_loss, theta)
    hessian += (1e-3 * hessian.trace() / 33 + 1e-8) * torch.eye(33, dtype=torch.double)
    logit = with_bias @ theta
    found = influence(logit, a, val_logit=logit[10:], val_penultimate=a[10:], val_target=target[10:])
    for i in (0, 5, 19):
        step = torch.linalg.solve(hessian, energy_gradients(logit, a)[i])
        derivative = (val_loss(theta - 1e-6 * step) - val_loss(theta + 1e-6 * step)) / 2e-6
        assert found[i].item() == pytest.approx(derivative.item(), rel=1e-4)


def test_a_step_on_the_energy_loss_lowers_the_validation_loss(last_layer):
    layer, a = last_layer
    target = (torch.arange(20) % 2).double()

    def val_loss():
        return F.binary_cross_entropy_with_logits(layer(a[10:]).squeeze(-1), target[10:])

    logit = layer(a).squeeze(-1)
    scores = influence(logit.detach(), a, val_logit=logit[10:].detach(), val_penultimate=a[10:], val_target=target[10:])
    loss, before = energy_loss(logit, scores), val_loss().item()
    gradients = torch.autograd.grad(loss, layer.parameters())
    with torch.no_grad():
        for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
            parameter -= 0.01 * gradient
    assert val_loss().item() < before


def test_a_few_large_logits_do_not_drown_the_differences_between_other_nodes():
    """2 % of the nodes lie at 50: divided by the std, which is theirs, a difference of one std would be 0.14."""
    logit = np.random.default_rng(0).normal(size=1000)
    logit[:20] = 50
    z = Standardiser.fit(logit)
    assert (z(logit + 1) - z(logit)).mean() == pytest.approx(1, abs=0.1)
    assert z(np.median(logit)) == 0
    assert Standardiser.fit(np.full(9, 3.0))(np.full(9, 3.0)).tolist() == [0] * 9
    half_equal = np.r_[np.zeros(90), np.arange(10.0)]
    assert np.abs(Standardiser.fit(half_equal)(half_equal)).max() < 10


def test_weights_have_mean_one_in_each_class_and_are_bounded():
    torch.manual_seed(0)
    target = (torch.arange(100) < 7).float()
    weights = sample_weights(torch.randn(100), torch.randn(100, 32), torch.randn(100), target)
    assert weights[:7].mean().item() == pytest.approx(1, abs=1e-5)
    assert weights[7:].mean().item() == pytest.approx(1, abs=1e-5)
    assert 0.15 < weights.min() < weights.max() < 5.5


def test_weights_survive_one_anomaly_and_equal_nodes():
    weights = sample_weights(torch.zeros(5), torch.ones(5, 32), torch.zeros(5), torch.tensor([1.0, 0, 0, 0, 0]))
    assert torch.allclose(weights, torch.ones(5))


def test_mixtures_stay_where_they_come_from():
    torch.manual_seed(0)
    corners = torch.eye(3)
    mixed = mix_anomalies(corners, 200, torch.zeros(3))
    assert torch.allclose(mixed.sum(dim=1), torch.ones(200))
    assert (mixed >= 0).all()
    # Two communities: distant triples join both, random ones stay inside one with chance 1/4.
    normals = torch.cat([torch.tensor([[1.0, 0.05]]).repeat(50, 1), torch.tensor([[0.05, 1.0]]).repeat(50, 1)])
    void = mix_distant_normals(normals, 100)
    assert (void.min(dim=1).values > 0.06).all()


def test_void_samples_above_the_normals_are_dropped():
    torch.manual_seed(0)
    network, z = Network(4), torch.randn(20, 64)
    output, target = network.classify(z), (torch.arange(20) < 5).float()
    torch.manual_seed(1)
    closed = simulate_loss(network, output, target, torch.tensor(-100.0))
    torch.manual_seed(1)
    open_ = simulate_loss(network, output, target, torch.tensor(100.0))
    torch.manual_seed(1)
    mixed = network.classify(mix_anomalies(z[:5], 32, z[:5].std(dim=0))).logit
    torch.testing.assert_close(closed, F.binary_cross_entropy_with_logits(mixed, torch.ones(32)))
    assert open_ > closed


def test_the_other_modes_train_the_network():
    torch.manual_seed(0)
    network, target = Network(4), (torch.arange(20) < 5).float()
    z = torch.randn(20, 64, requires_grad=True)
    output = network.classify(z)
    vanilla_loss(network, output, target).backward(retain_graph=True)
    assert z.grad.abs().sum() > 0
    import scipy.sparse as sp

    ring = sp.csr_array(np.roll(np.eye(20), 1, axis=1) + np.roll(np.eye(20), -1, axis=1), dtype=np.float32)
    view = PageRankMixup(symmetric_weights(ring), torch.randn(20, 4), hidden=64, rng=np.random.default_rng(0))
    loss = view(network, output, torch.arange(5), torch.arange(5))
    assert loss >= -2  # the mean squared distance of two unit vectors is at most 4
    loss.backward()
    assert all(p.grad is not None for p in view.parameters())


def record(bank, probability, times):
    for _ in range(times):
        bank.update(torch.arange(len(probability)), probability)


def test_the_bank_forgets_like_an_exponential_mean():
    bank = MemoryBank(2, contamination=0.5)
    bank.update(torch.tensor([0]), torch.tensor([0.8]))
    bank.update(torch.tensor([0]), torch.tensor([0.3]))
    assert bank.probability[0].item() == pytest.approx(0.9 * 0.8 + 0.1 * 0.3)
    assert bank.probability[1].isnan()


def test_a_side_takes_five_records_that_agree():
    probability = torch.linspace(0, 1, 100)
    bank = MemoryBank(100, contamination=0.1)
    record(bank, probability, 4)
    assert (bank.side == NONE).all()
    record(bank, probability, 1)
    assert (bank.side[:49] == NORMAL).all()
    assert (bank.side[50:97] == NONE).all()
    assert (bank.side[97:] == ANOMALY).all()


def test_pseudo_anomalies_are_capped_by_contamination_and_by_one_half():
    bank = MemoryBank(100, contamination=0.01)
    record(bank, torch.linspace(0, 1, 100), 5)
    assert (bank.side == ANOMALY).nonzero().ravel().tolist() == [99]
    bank = MemoryBank(100, contamination=0.5)
    record(bank, torch.linspace(0, 0.49, 100), 5)
    assert not (bank.side == ANOMALY).any()
