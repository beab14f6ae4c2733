import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from cameraready.methods.compress_robust import GroupLasso, audit, certified_radius, layer_table, low_rank, prune_rows
from cameraready.methods.compress_robust.__main__ import app

EPS = {"inf": [0.05], "2": [0.3]}


def loader(digits, n=60, *, images=False):
    x, y = digits[1][0][:n], digits[1][1][:n]
    return DataLoader(TensorDataset(x.reshape(-1, 1, 8, 8) if images else x, y), batch_size=32)


@pytest.fixture(scope="module")
def report(resnet, digits):
    return audit(resnet, loader(digits, 60, images=True), eps={"inf": [0.02, 0.05], "2": [0.3]})


def test_a_residual_network_with_batch_normalisation_is_audited_whole(report):
    assert list(report.layers["name"])[:2] == ["stem", "blocks.0.first"]
    product = (
        report.layers["energy"]
        * report.layers["concentration"]
        * report.layers["spread"]
        * report.layers["conv_factor"]
    )
    assert product.to_numpy() == pytest.approx(report.layers["opnorm_2"].to_numpy(), rel=1e-9)
    table = report.robustness
    assert (table["low"] <= table["adv"]).all()
    assert (table["adv"] <= table["high"]).all()
    assert (table["loss_gap"] <= table["loss_gap_bound"]).all()
    assert table["relative"].to_numpy() == pytest.approx((table["adv"] / table["clean"]).to_numpy())
    at = report.certified.merge(table, on=["norm", "eps"])
    assert len(at) == 3
    assert (at["accuracy"] <= at["adv"]).all()
    assert not report.not_covered
    assert len(report.uap) == 2
    inf = table[table["norm"] == "inf"]
    assert inf["adv"].iloc[1] <= inf["adv"].iloc[0] <= report.clean
    assert 0 < report.attack_energy <= 1


def test_the_page_stands_alone_and_shows_energy_and_concentration(report, tmp_path):
    report.to_html(tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text()
    assert page.count("<svg") == 2
    assert "<script" not in page
    assert "http-equiv" not in page
    for words in ("energy", "concentration", "blocks.0.first", "Can these attacks be trusted?", "proved"):
        assert words in page
    assert "clean accuracy" in str(report)
    assert "warning: Only 60 examples" in str(report)


def test_names_from_the_model_are_escaped_in_the_page(digits):
    model = nn.Sequential()
    model.add_module("<b>x", nn.Linear(64, 10))
    page = audit(model.eval(), loader(digits), eps={"inf": [0.01]}).to_html()
    assert "<b>x" not in page


def test_what_cannot_be_certified_is_said_and_the_rest_goes_on(digits):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 10)).eval()
    found = audit(model, loader(digits), eps=EPS)
    assert set(found.not_covered) == {"inf", "2"}
    assert "LayerNorm" in found.not_covered["2"]
    assert found.certified.empty
    assert found.robustness["loss_gap_bound"].isna().all()
    assert "not covered" in str(found)
    assert "No certificate" in found.to_html()


def test_survivors_really_survive(mlp, digits):
    one = audit(mlp, loader(digits, 1), eps=EPS)
    assert one.n == 1
    assert len(one.uap) == 0
    assert one.to_html()
    half = audit(prune_rows(mlp, keep=0.3).half(), loader(digits), eps=EPS)
    assert any("half precision" in text for text in half.warnings)
    assert int(half.layers["zero_rows"].iloc[0]) == 45
    zero = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).eval()
    zero[0].weight.data.zero_()
    flat = audit(zero, loader(digits), eps={"inf": [0.05]})
    assert flat.layers["opnorm_2"].iloc[0] == 0
    assert flat.certified["accuracy"].eq(flat.clean).all()  # nothing can change its predictions, at any radius
    assert flat.certified["eps"].max() == 0.05
    assert flat.to_html()
    wrong = [(digits[1][0][:40], (mlp(digits[1][0][:40]).argmax(1) + 1) % 10)]
    assert audit(mlp, wrong, eps={"inf": [0.05]}).clean == 0


def test_quantised_layers_are_tabled_as_they_act_and_not_compressed_further(digits):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)
    found = audit(quantised, loader(digits, 4), eps={"inf": [0.05]})
    weight = quantised[0].weight().dequantize()
    assert found.layers["opnorm_2"].iloc[0] == pytest.approx(float(torch.linalg.matrix_norm(weight, 2)), rel=1e-6)
    assert "quantised" in found.not_covered["inf"]
    assert "Quantised layers are analysed with their dequantised weights." in found.warnings
    for change in (lambda m: prune_rows(m, keep=0.5), lambda m: low_rank(m, rank=2), GroupLasso(0.1)):
        with pytest.raises(ValueError, match="quantised"):
            change(quantised)


def test_computed_weights_are_refused_where_a_change_would_be_lost(mlp):
    masked = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).eval()
    prune.l1_unstructured(masked[0], "weight", 0.5)
    with pytest.raises(ValueError, match="'0' computes its weight"):
        prune_rows(masked, keep=0.5)
    prune.remove(masked[0], "weight")
    assert int((prune_rows(masked, keep=0.5)[0].weight.abs().sum(1) > 0).sum()) == 8


def test_an_audit_inside_no_grad_still_attacks(mlp, digits):
    with torch.no_grad():
        found = audit(mlp, loader(digits, 20), eps={"inf": [0.1]})
    assert list(found.robustness["attack"]) == ["pgd"]


def test_complex_layers_have_a_table_and_no_certificate():
    model = nn.Sequential(nn.Linear(4, 3, dtype=torch.complex64))
    table = layer_table(model, torch.zeros(1, 4, dtype=torch.complex64))
    assert table["opnorm_2"].iloc[0] == pytest.approx(float(torch.linalg.matrix_norm(model[0].weight, 2)), rel=1e-5)


def test_a_model_without_a_gradient_is_attacked_by_square_and_said_so(mlp, digits):
    class Rounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = mlp

        def forward(self, x):
            return self.model(torch.round(x.detach() * 4) / 4)

    found = audit(Rounded().eval(), loader(digits, 6), eps={"inf": [0.1]})
    assert list(found.robustness["attack"]) == ["square"]
    assert any("cut off from the input" in text for text in found.warnings)


def test_training_mode_is_refused_unless_forced_and_put_back(digits):
    model = nn.Sequential(nn.Linear(64, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 10))
    with pytest.raises(ValueError, match=r"'1' is in training mode; call model.eval"):
        audit(model, loader(digits), eps=EPS)
    audit(model, loader(digits), eps={"inf": [0.01]}, force_eval=True)
    assert model.training
    assert model[1].training


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eps": {"inf": [-0.1]}}, "eps=-0.1"),
        ({"eps": {"1": [0.1]}}, "norm='1'"),
        ({"eps": {}}, "eps="),
        ({"bounds": (0, 0.5)}, "outside bounds"),
        ({"bounds": (1, 0)}, "bounds="),
        ({"attacks": "all"}, "attacks='all'"),
        ({"limit": 0}, "limit=0"),
        ({"eps": {"inf": 0.1}}, "list of radii"),
        ({"device": "cuda:99"}, "device='cuda:99'"),
    ],
)
def test_bad_settings_are_refused_before_work_starts(mlp, digits, change, message):
    with pytest.raises(ValueError, match=message):
        audit(mlp, loader(digits), **{"eps": EPS, **change})


def test_bad_data_are_refused(mlp, digits):
    x, y = digits[1][0][:8], digits[1][1][:8]
    broken = nn.Sequential(nn.Linear(64, 10)).eval()
    broken[0].weight.data[0, 0] = float("nan")
    for model, batch, message in (
        (mlp, (x, y + 20), "labels from"),
        (mlp, (x * float("nan"), y), "not finite"),
        (broken, (x, y), "logits are not finite"),
        (mlp, (x, y[:3]), "labels of shape"),
    ):
        with pytest.raises(ValueError, match=message):
            audit(model, [batch], eps=EPS)
    with pytest.raises(ValueError, match="loader is empty"):
        audit(mlp, [], eps=EPS)
    with pytest.raises(TypeError, match="labels of dtype"):
        certified_radius(mlp, x, y.float(), p="2")
    with pytest.raises(TypeError, match=r"pass a torch\.nn\.Module"):
        audit(lambda v: v, [(x, y)])
    with pytest.raises(ValueError, match=r"does not take inputs of shape \(8, 64\) and dtype torch.float64"):
        certified_radius(mlp, x.double(), y, p="2")


def test_the_command_line_audits_a_saved_model(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10)).eval(), "model.pt")
    np.savez("test.npz", x=digits[1][0][:30].numpy(), y=digits[1][1][:30].numpy())
    command = ["model.pt", "--data", "test.npz"]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert "--trust" in refused.output
    options = ["--trust", "--eps-inf", "8/255", "--eps-2", "", "--html", "page.html"]
    done = CliRunner().invoke(app, [*command, *options])
    assert done.exit_code == 0, done.output
    assert "certified, l_inf" in done.output
    assert (tmp_path / "page.html").exists()
    unknown = CliRunner().invoke(app, [*command, "--trust", "--eps-inf", "8/0"])
    assert "radii '8/0'" in unknown.output


class Bottleneck(nn.Module):
    def __init__(self, into, width, stride):
        super().__init__()
        out = 4 * width
        self.a, self.b = nn.Conv2d(into, width, 1, bias=False), nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.c, self.relu = nn.Conv2d(width, out, 1, bias=False), nn.ReLU(inplace=True)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.BatchNorm2d(out)])
        self.skip = nn.Identity()
        if stride > 1 or into != out:
            self.skip = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        h = self.relu(self.norms[0](self.a(x)))
        h = self.relu(self.norms[1](self.b(h)))
        return self.relu(self.norms[2](self.c(h)) + self.skip(x))


def resnet50():
    parts, into = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(depth):
            parts.append(Bottleneck(into, width, stride if i == 0 else 1))
            into = 4 * width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)).eval()


@pytest.mark.slow
def test_a_resnet_50_has_its_layer_table_within_a_minute():
    torch.manual_seed(0)
    start = time.process_time()
    table = layer_table(resnet50(), torch.rand(1, 3, 224, 224))
    assert time.process_time() - start < 120  # CPU seconds of a loaded machine; about half on a quiet one
    assert len(table) == 54
    assert table["opnorm_2"].notna().all()
