import copy

import pytest
import torch
from torch import nn

from cameraready.methods.compress_robust import Recipe, low_rank, sweep
from cameraready.methods.compress_robust.layers import LowRank, hidden_layers
from cameraready.methods.compress_robust.sweep import train
from cameraready.methods.compress_robust.training import Stack, fit

SHORT = Recipe(steps=25)


def net():
    return nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 10))


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, padding=1)
        self.drop, self.classes = nn.Dropout(0.1), nn.Linear(6, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.a(x.reshape(-1, 1, 8, 8))))
        return self.classes(self.drop((x + torch.relu(self.b(x))).mean(dim=(2, 3))))


def test_models_that_train_side_by_side_train_as_they_would_alone(digits):
    x, y = digits[0]
    together = train(net, (x, y), knob="group_lasso", levels=[0.0, 1e-2], seeds=[3, 4], recipe=SHORT)
    alone = train(net, (x, y), knob="group_lasso", levels=[1e-2], seeds=[4], recipe=SHORT)
    for a, b in zip(together[1e-2, 4].parameters(), alone[1e-2, 4].parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert not torch.allclose(next(together[0.0, 4].parameters()), next(together[1e-2, 4].parameters()), atol=1e-4)


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("rates", [None, [1e-3, 4e-3]])
def test_the_stack_trains_as_torch_adamw_does(digits, rates, images):
    x, y = digits[0]
    make = Convolutional if images else net
    torch.manual_seed(0)
    models = [make(), make()]
    for model in models:  # chance and batch statistics aside
        for name in {"drop", "norm"} & set(dict(model.named_children())):
            setattr(model, name, nn.Identity())
    references = copy.deepcopy(models)
    trained = fit(Stack(models), x, y, recipe=Recipe(steps=10, weight_decay=0.5), seeds=[7, 8], rates=rates).unstack()
    for i, reference in enumerate(references):
        lr = 1e-3 if rates is None else rates[i]
        optimiser = torch.optim.AdamW(reference.parameters(), lr=lr, weight_decay=0.5)
        generator = torch.Generator().manual_seed(7 + i)
        for _ in range(10):
            rows = torch.randint(len(x), (32,), generator=generator)
            optimiser.zero_grad()
            nn.functional.cross_entropy(reference(x[rows]), y[rows]).backward()
            optimiser.step()
        for a, b in zip(trained[i].parameters(), reference.parameters(), strict=True):
            assert torch.allclose(a, b, atol=2e-5)


def test_batched_products_and_vmap_agree():
    for make in (net, lambda: low_rank(net(), rank=3)):
        stack, x = Stack([make() for _ in range(3)]), torch.rand(3, 5, 64)
        fast = stack(x)
        stack.is_chain = False
        assert torch.allclose(fast, stack(x), atol=1e-6)


@pytest.mark.parametrize("knob", ["rank", "active_neurons", "group_lasso", "lr"])
def test_energy_control_holds_every_layers_frobenius_norm(digits, knob):
    levels = {"rank": [None, 4, 2], "active_neurons": [None, 6, 3], "group_lasso": [0.0, 0.1], "lr": [1e-3, 1e-2]}[knob]
    models = train(net, digits[0], knob=knob, levels=levels, seeds=[0], energy_control=True, recipe=SHORT)
    torch.manual_seed(0)
    initial = [float(m.weight.norm()) for m in net() if isinstance(m, nn.Linear)]
    for model in models.values():
        norms = [float(m.weight.norm()) for m in model if isinstance(m, (nn.Linear, LowRank))]
        assert norms == pytest.approx(initial, rel=1e-4)


def test_knobs_do_what_their_level_says(digits):
    x, y = digits[0]
    rank = train(net, (x, y), knob="rank", levels=[5, 2], seeds=[0], recipe=SHORT)
    assert [int(torch.linalg.matrix_rank(rank[r, 0][0].weight)) for r in (5, 2)] == [5, 2]
    narrow = train(net, (x, y), knob="active_neurons", levels=[None, 4], seeds=[0], recipe=SHORT)
    assert narrow[None, 0][0].weight.shape == (12, 64)
    assert [int((layer.weight.abs().sum(1) > 0).sum()) for layer in hidden_layers(narrow[4, 0])] == [4, 4]
    wide = train(net, (x, y), knob="rank", levels=[50, 2], seeds=[0], recipe=SHORT)  # no layer has the rank 50
    assert [int(torch.linalg.matrix_rank(wide[r, 0][0].weight)) for r in (50, 2)] == [12, 2]
    pruned = train(net, (x, y), knob="prune_rows", levels=[0.25], seeds=[0], recipe=SHORT)
    assert [int((layer.weight.abs().sum(1) > 0).sum()) for layer in hidden_layers(pruned[0.25, 0])] == [3, 3]
    cut = train(net, (x, y), knob="svd", levels=[3], seeds=[0], recipe=SHORT)
    assert cut[3, 0][0].rank == 3
    decayed = train(net, (x, y), knob="weight_decay", levels=[0.0, 50.0], seeds=[0], recipe=SHORT)
    assert decayed[50.0, 0][2].weight.norm() < 0.5 * decayed[0.0, 0][2].weight.norm()


@pytest.mark.parametrize(
    "knob",
    ["active_neurons", *[pytest.param(k, marks=pytest.mark.slow) for k in ("rank", "prune_rows", "nuclear_norm")]],
)
def test_any_torch_model_can_be_swept(digits, knob):
    level = {"active_neurons": 3, "prune_rows": 0.5, "rank": 2, "nuclear_norm": 0.01}[knob]
    study = sweep(Convolutional, digits, knob=knob, levels=[None, level], seeds=[0], recipe=Recipe(steps=5))
    assert len(study.table) == 4
    assert study.table[["clean", "adv", "log_product"]].notna().all().all()
    assert "relative" in str(study)


def test_a_study_reports_both_energy_and_concentration_and_is_reproducible(digits):
    how = {"knob": "rank", "levels": [None, 2], "seeds": [0, 1], "recipe": Recipe(steps=60)}
    study, again = sweep(net, digits, **how), sweep(net, digits, **how)
    assert study.table.drop(columns="level").equals(again.table.drop(columns="level"))
    table = study.table
    total = table["log_energy"] + table["log_concentration"] + table["log_spread"]
    assert total.to_numpy() == pytest.approx(table["log_product"].to_numpy(), rel=1e-5)
    assert (table["relative"] - table["adv"] / table["clean"]).abs().max() < 1e-12
    titles = str(study.chart().to_dict())
    assert "energy" in titles
    assert "concentration" in titles
    assert "clean accuracy" in titles


def test_adversarial_training_makes_the_network_more_robust(digits):
    plain = sweep(net, digits, knob="rank", levels=[None], seeds=[0], recipe=Recipe(steps=150)).table
    hard = Recipe(steps=150, adversarial_eps=0.1)
    robust = sweep(net, digits, knob="rank", levels=[None], seeds=[0], recipe=hard).table
    assert robust["relative"].iloc[0] > plain["relative"].iloc[0] + 0.03


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"knob": "magic"}, "knob='magic'"),
        ({"levels": []}, "levels="),
        ({"seeds": [1, 1]}, "none twice"),
        ({"eps": {"inf": [-1.0]}}, "eps=-1.0"),
        ({"eps": {"1": [0.1]}}, "norm='1'"),
        ({"levels": [-1.0]}, "levels=\\[-1.0\\]"),
    ],
)
def test_bad_input_is_refused(digits, change, message):
    with pytest.raises(ValueError, match=message):
        sweep(net, digits, **{"knob": "rank", "levels": [2], "seeds": [0], "recipe": SHORT, **change})


def test_a_recipe_refuses_what_is_not_positive():
    with pytest.raises(ValueError, match="steps=0"):
        Recipe(steps=0)
