import numpy as np
import pytest
import torch
from torch import nn

from cameraready.methods.compress_robust import NotCovered, low_rank, norm_bound, operator_norm, operator_norms
from cameraready.methods.compress_robust.layers import linear_part
from cameraready.methods.compress_robust.operator_norms import channel_norm

CONVOLUTIONS = [
    (nn.Conv2d(4, 8, 3, padding=1), (9, 9)),
    (nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2), (9, 8)),
    (nn.Conv2d(4, 8, 5, stride=2), (11, 9)),
    (nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=4), (8, 8)),
    (nn.Conv2d(4, 8, 1, stride=2), (7, 7)),
    (nn.Conv2d(4, 8, 4, stride=4), (8, 8)),
    (nn.Conv2d(4, 8, 7, padding=3), (4, 5)),  # a kernel larger than the image
    (nn.Conv2d(4, 8, 3, padding="same", dilation=2), (6, 7)),
    (nn.Conv1d(4, 6, 5, stride=3, padding=2), (17,)),
    (nn.Conv3d(4, 3, 2, stride=(1, 2, 1), padding=1), (3, 4, 3)),
]


def dense(module, shape):
    """The whole linear map as a matrix, in double precision."""
    n = int(np.prod(shape))
    x = torch.eye(n, dtype=torch.float64).reshape(n, *shape)
    return linear_part(module, x).reshape(n, -1).T.numpy()


@pytest.mark.parametrize(("module", "size"), CONVOLUTIONS, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("written_out", [True, False])
def test_a_convolutions_norms_are_those_of_its_whole_matrix(module, size, written_out, monkeypatch):
    monkeypatch.setattr(operator_norms, "DENSE", 512 if written_out else 0)  # 0: by Lanczos and by Fourier
    shape = (4, *size)
    matrix = dense(module, shape)
    two, infinity = np.linalg.norm(matrix, 2), np.linalg.norm(matrix, np.inf)
    assert operator_norm(module, "2", shape) == pytest.approx(two, rel=1e-5)
    assert operator_norm(module, "inf", shape) == pytest.approx(infinity, rel=1e-12)
    assert two <= norm_bound(module, "2", shape) <= (1 + 1e-8 if written_out else 2.0) * two
    assert infinity <= norm_bound(module, "inf", shape) <= (1 + 1e-8) * infinity


def test_the_fourier_bound_is_tight_for_large_images(monkeypatch):
    monkeypatch.setattr(operator_norms, "DENSE", 0)
    module, shape = nn.Conv2d(2, 3, 3, padding=1), (2, 20, 20)
    two = np.linalg.norm(dense(module, shape), 2)
    assert two <= norm_bound(module, "2", shape) <= 1.02 * two


def test_a_kernel_matrix_is_not_the_convolution():
    module = nn.Conv2d(1, 1, 3, padding=1, bias=False)
    module.weight.data.fill_(1.0)
    assert operator_norm(module, "2", (1, 16, 16)) > 2.5 * np.linalg.norm(module.weight.flatten(1).detach(), 2)


def test_a_low_rank_layer_has_the_norms_of_its_product():
    for layer, shape in ((nn.Linear(7, 9), None), (nn.Conv2d(3, 5, 3, stride=2, padding=1), (3, 8, 8))):
        model = low_rank(nn.Sequential(layer, nn.Linear(9, 2)), rank=2)
        merged = type(layer)(
            *((7, 9) if shape is None else (3, 5, 3)), **({} if shape is None else {"stride": 2, "padding": 1})
        )
        merged.weight.data = model[0].weight.data
        for p in ("inf", "2"):
            assert operator_norm(model[0], p, shape) == pytest.approx(operator_norm(merged, p, shape), rel=1e-6)
            assert norm_bound(model[0], p, shape) >= operator_norm(merged, p, shape) * (1 - 1e-9)


def test_pooling_norms_are_known_in_closed_form():
    assert channel_norm(nn.AvgPool2d(2), (8, 8), "2") == pytest.approx(0.5)
    assert channel_norm(nn.AdaptiveAvgPool2d(1), (4, 6), "2") == pytest.approx(24**-0.5)
    assert channel_norm(nn.AvgPool2d(3, stride=1, padding=1), (9, 9), "inf") == pytest.approx(1.0)
    assert channel_norm(nn.AvgPool2d(2, stride=1), (16, 16), "2") < 1


def test_circular_padding_is_exact_where_it_is_small_and_refused_where_no_bound_is_known(monkeypatch):
    module, shape = nn.Conv1d(3, 5, 3, padding=1, padding_mode="circular"), (3, 7)
    assert operator_norm(module, "2", shape) == pytest.approx(np.linalg.norm(dense(module, shape), 2), rel=1e-9)
    monkeypatch.setattr(operator_norms, "DENSE", 0)
    with pytest.raises(NotCovered, match="circular"):
        norm_bound(module, "2", shape)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: operator_norm(nn.ReLU(), "2"), "ReLU has no weight"),
        (lambda: operator_norm(nn.Conv2d(1, 1, 3), "2"), "pass input_shape"),
        (lambda: operator_norm(nn.Conv2d(1, 1, 3), "2", (3, 8, 8)), "input_shape="),
        (lambda: operator_norm(nn.Linear(2, 2), "1"), "p='1'"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
