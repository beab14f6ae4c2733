import numpy as np
import pytest
import torch
from torch import nn

from cameraready.methods.compress_robust import attack, masking_checks, sensitive_directions, universal_perturbation
from cameraready.methods.compress_robust.pgd import margins, pgd, project, random_start


@pytest.mark.parametrize(("norm", "eps"), [("inf", 0.05), ("inf", 0.1), ("2", 0.5)])
def test_pgd_is_as_strong_as_foolboxs_at_equal_steps(mlp, digits, norm, eps):
    x, y = digits[1]
    ours = np.mean([attack(mlp, x, y, norm=norm, eps=eps, restarts=1, seed=s).accuracy for s in range(3)])
    how = {"norm": norm, "eps": eps, "method": "foolbox-pgd"}
    theirs = np.mean([attack(mlp, x, y, seed=s, **how).accuracy for s in range(3)])
    assert ours <= theirs + 0.01
    assert abs(ours - theirs) <= 0.02  # the same algorithm: ours also keeps the best iterate
    assert attack(mlp, x, y, norm=norm, eps=eps, restarts=5).accuracy <= ours


@pytest.mark.parametrize("method", ["pgd", "foolbox-pgd", "deepfool", "apgd-ce", "apgd-dlr", "square"])
@pytest.mark.parametrize(("norm", "eps"), [("inf", 0.1), ("2", 0.5)])
def test_every_attack_stays_in_its_ball_and_box_and_says_what_it_changed(mlp, digits, method, norm, eps):
    x, y = digits[1][0][:40], digits[1][1][:40]
    result = attack(mlp, x, y, norm=norm, eps=eps, method=method, steps=20)
    assert float(result.distance.max()) <= eps * (1 + 1e-5)
    assert float(result.adversarial.min()) >= 0
    assert float(result.adversarial.max()) <= 1
    assert torch.equal(mlp(result.adversarial).argmax(1) != y, result.success)
    assert 0 <= result.accuracy < float((mlp(x).argmax(1) == y).double().mean()) + 1e-9
    again = attack(mlp, x, y, norm=norm, eps=eps, method=method, steps=20)
    assert torch.equal(result.adversarial, again.adversarial)


def test_libraries_leave_the_global_generators_alone(mlp, digits):
    x, y = digits[1][0][:8], digits[1][1][:8]
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    attack(mlp, x, y, norm="inf", eps=0.1, method="square", steps=3)
    attack(mlp, x, y, norm="inf", eps=0.1, method="foolbox-pgd", steps=3)
    assert (torch.rand(1), np.random.rand()) == expected  # noqa: NPY002


def test_square_attacks_images_vectors_and_odd_sizes():
    for shape in ((1, 8, 8), (13,), (3, 5, 7), (2, 9)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 3)).eval()
        x = torch.rand(20, *shape)
        result = attack(model, x, model(x).argmax(1), norm="inf", eps=0.3, method="square", steps=50)
        assert result.adversarial.shape == x.shape
        assert result.accuracy < 1


def test_an_eps_of_zero_changes_nothing(mlp, digits):
    x, y = digits[1]
    result = attack(mlp, x, y, norm="2", eps=0.0)
    assert torch.equal(result.adversarial, x)
    assert result.accuracy == pytest.approx(float((mlp(x).argmax(1) == y).double().mean()))


def test_projection_and_random_starts_are_those_of_the_ball():
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(4000, 3, dtype=torch.float64)
    start = random_start(x, norm="2", eps=2.0, generator=generator)
    radii = start.norm(dim=1) / 2.0
    assert float(radii.max()) <= 1
    # Uniform in a 3-ball: P(r < t) = t^3; the mean is 3/4, five standard errors are 0.016.
    assert float(radii.mean()) == pytest.approx(0.75, abs=0.016)
    cube = random_start(x, norm="inf", eps=2.0, generator=generator)
    assert float(cube.abs().max()) <= 2
    assert float(cube.abs().mean()) == pytest.approx(1.0, abs=0.03)
    delta = 5 * torch.randn(50, 3, generator=generator, dtype=torch.float64)
    for norm, order in (("2", 2), ("inf", np.inf)):
        moved = project(delta, norm=norm, eps=1.5)
        assert np.linalg.norm(moved.numpy(), order, axis=1).max() <= 1.5 + 1e-12
        short = project(delta * 1e-3, norm=norm, eps=1.5)
        assert torch.equal(short, delta * 1e-3)


def test_one_l_2_step_follows_the_normalised_gradient():
    model = nn.Linear(3, 2, bias=False).double().eval()
    w = model.weight.detach()
    x = torch.full((1, 3), 0.5, dtype=torch.float64)
    y = model(x).argmax(1)
    moved = pgd(model, x, y, norm="2", eps=0.1, steps=200, restarts=1)
    direction = (w[1 - y[0]] - w[y[0]]) / (w[0] - w[1]).norm()
    assert torch.allclose(moved[0] - x[0], 0.1 * direction, atol=1e-6)
    assert float(margins(model(moved), y) - margins(model(x), y)) == pytest.approx(-0.1 * float((w[0] - w[1]).norm()))


def test_sensitive_directions_are_the_top_of_the_dense_jacobian(mlp, digits):
    x = digits[1][0][:60]
    J = torch.func.vmap(torch.func.jacrev(mlp))(x).double()
    J = J - J.mean(dim=1, keepdim=True)
    values, vectors = torch.linalg.eigh(torch.einsum("nci,ncj->ij", J, J) / len(x))
    found = sensitive_directions(mlp, x, rank=4, iterations=20)
    assert found.gains.double().numpy() == pytest.approx(values.flip(0)[:4].sqrt().detach().numpy(), rel=1e-3)
    assert found.share == pytest.approx(float(values.flip(0)[:4].sum() / values.sum()), rel=1e-3)
    overlap = torch.linalg.svdvals(found.directions.double() @ vectors.flip(1)[:, :4])
    assert float(overlap.min()) > 0.999
    assert torch.allclose(found.energy(found.directions), torch.ones(4), atol=1e-4)
    noise = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
    assert float(found.energy(noise).mean()) == pytest.approx(found.chance, abs=0.004)
    assert float(found.energy(torch.zeros(1, 64))) == 0


def test_a_universal_perturbation_is_judged_on_other_examples(mlp, digits):
    loader = [(digits[1][0], digits[1][1])]
    found = universal_perturbation(mlp, loader, norm="inf", eps=0.2)
    assert float(found.delta.abs().max()) <= 0.2 + 1e-6
    assert (found.crafted_on, found.tested_on) == (298, 299)
    assert found.accuracy < found.random - 0.1
    small = universal_perturbation(mlp, loader, norm="2", eps=0.5, steps=10)
    assert float(small.delta.norm()) <= 0.5 + 1e-6


class Masked(nn.Module):
    """Logits so large that float32 cross-entropy has no gradient: attacks fail, and nothing is more robust."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x) * 1e4 + 0 * x.sum()


def test_masking_is_noticed(mlp, digits):
    x, y = digits[1][0][:30], digits[1][1][:30]
    honest = masking_checks(mlp, x, y, norm="inf", eps=0.1)
    assert [check.name for check in honest if not check.passed] == []
    failed = {c.name for c in masking_checks(Masked(mlp), x, y, norm="inf", eps=0.1, black_box=True) if not c.passed}
    assert "gradients are there" in failed
    weak = masking_checks(mlp, x, y, norm="inf", eps=0.1, attacked=0.97)
    assert {"more steps change little", "random noise is weaker", "transferred attacks are weaker"} & {
        check.name for check in weak if not check.passed
    }


@pytest.mark.slow
def test_pgd_is_within_three_points_of_the_autoattack_trio(mlp, digits):
    x, y = digits[1][0][:200], digits[1][1][:200]
    for norm, eps in (("inf", 0.05), ("2", 0.5)):
        ours = attack(mlp, x, y, norm=norm, eps=eps).accuracy
        assert ours <= attack(mlp, x, y, norm=norm, eps=eps, method="autoattack").accuracy + 0.03
