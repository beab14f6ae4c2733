"""What is built on the landscape: audit of torch networks, basins, the benchmark problem, barriers."""

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn

from cameraready.methods.relu_landscape import (
    AuditTorch,
    Landscape,
    NotCovered,
    as_benchmark_problem,
    barrier,
    basins,
    plot_disconnectivity,
)


class Sum(nn.Module):
    def forward(self, x):
        return x.sum(dim=-1, keepdim=True)


def network(width, last=None):
    model = nn.Sequential(nn.Linear(12, width, bias=False), nn.ReLU(), last or nn.Linear(width, 1, bias=False))
    if last is None:
        model[2].weight.data.abs_()
    return model


def test_the_audit_of_a_random_pair_is_the_loss_of_a_million_samples():
    """Within three standard errors (false alarm 0.3 %, seed fixed); the error is 0.2 % of the loss."""
    torch.manual_seed(3)
    audit = AuditTorch(network(5), network(4)).run(torch.randn(1_000_000, 12))
    assert audit.sample_error < 0.003 * audit.loss
    assert abs(audit.sample_loss - audit.loss) < 3 * audit.sample_error
    assert audit.certificate.gradient_norm < 1e-8
    assert 0 < audit.relative_loss < 1


def test_inputs_that_are_not_standard_normal_are_not_covered():
    torch.manual_seed(0)
    with pytest.raises(NotCovered, match="whiten"):
        AuditTorch(network(5), network(4)).run(torch.rand(20_000, 12))


def test_a_summing_output_and_folded_weights_describe_the_same_network():
    torch.manual_seed(0)
    weighted, teacher = network(3), network(4)
    summed = network(3, last=Sum())
    summed[0].weight.data = weighted[2].weight.data[0][:, None] * weighted[0].weight.data
    first, second = AuditTorch(weighted, teacher).run(), AuditTorch(summed, teacher).run()
    assert first.loss == pytest.approx(second.loss, rel=1e-6)
    assert np.isnan(first.sample_loss)


@pytest.mark.parametrize("inputs", [torch.randn(100, 12), torch.randn(100, 12, dtype=torch.float64), np.zeros((9, 12))])
def test_a_student_that_has_become_its_teacher_is_told_so_on_any_inputs(inputs):
    torch.manual_seed(0)
    teacher = network(4)
    audit = AuditTorch(teacher, teacher).run(inputs)
    assert (audit.loss, audit.family.name) == (0.0, "global")
    assert "heading for: global" in str(audit)


def test_a_student_near_the_spurious_minimum_is_told_so():
    land = Landscape(8, K=8)
    spurious = land.find_minima(40, seed=0).points[1].W
    student, teacher = (nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), Sum()) for _ in range(2))
    student[0].weight.data = torch.tensor(spurious + 0.01, dtype=torch.float32)
    teacher[0].weight.data = torch.eye(8)
    audit = AuditTorch(student, teacher).run()
    assert audit.family.name == "1 defect"
    assert audit.certificate.status == "certified minimum"
    assert audit.distance < 0.1


@pytest.mark.parametrize("optimiser", ["gf", "adam", "sgd", "lbfgs"])
def test_every_optimiser_fills_the_table_of_basins(optimiser):
    table = basins(2, [2, 3], n=3, optimiser=optimiser, t_max=20)
    assert table["K"].unique().tolist() == [2, 3]
    assert table.groupby("K")["count"].sum().tolist() == [3, 3]
    assert ((table["low"] <= table["fraction"]) & (table["fraction"] <= table["high"])).all()


def test_the_benchmark_problem_is_solved_by_scipy_with_its_own_derivatives():
    problem = as_benchmark_problem(3, 3, d=5, n_starts=5)
    x = problem.start(seed=0)
    assert optimize.check_grad(problem.fun, problem.grad, x) < 1e-6
    found = optimize.minimize(problem.fun, x, jac=problem.grad, hess=problem.hess, method="trust-exact")
    assert problem.dim == 15
    assert problem.reached(found.x) == "global"
    assert problem.reached(x) == "none"


def test_the_barrier_between_minima_is_a_proved_saddle_above_both():
    land = Landscape(8, K=8)
    table = land.find_minima(40, seed=0)
    spurious, best = table.points[1], table.points[0]
    found = barrier(land, spurious.W, best.W, n_steps=600)
    assert spurious.loss < found.loss < 0.03
    assert land.certify(found.saddle).status == "certified saddle"
    assert (np.linalg.eigvalsh(land.hessian(found.saddle)) < 0).sum() == 1
    small = Landscape(0.01 * np.eye(8), K=8)
    lower = barrier(small, 0.01 * spurious.W, 0.01 * best.W, n_steps=600)
    assert lower.saddle is not None
    assert lower.loss == pytest.approx(1e-4 * found.loss, rel=1e-9)
    chart = plot_disconnectivity(land, table, n_steps=600).to_dict()
    heights = [row["y2"] for rows in chart["datasets"].values() for row in rows if "y2" in row]
    assert max(heights) == pytest.approx(found.loss, abs=1e-9)
