"""What the claims are run on."""

import numpy as np
import pytest
import torch

from cameraready.methods.wildcat import claim_contests
from cameraready.methods.wildcat.claim_inputs import attention_input, denoising_input


@pytest.mark.parametrize("shape", [(300, 1), (1000, 40)])
def test_rows_of_any_size_can_be_denoised(shape):
    rng = np.random.default_rng(0)
    rows = 50 + 7 * rng.normal(size=shape)
    x, clean = denoising_input(rng, rows, 600)
    assert x.key.shape == (1, 1, min(600, shape[0]), shape[1])
    assert np.ptp(clean) <= 1.0
    noise = x.value[0, 0].numpy() - clean
    assert noise.std() == pytest.approx(0.1, rel=0.1)
    # Two noisy copies of one row are, on average, one bandwidth apart.
    assert float((x.key[0, 0].numpy() * np.sqrt(2 * shape[1]) * 0.1 - clean).std()) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("rows", [np.ones((200, 3)), np.zeros((50, 3)), np.full((200, 2), np.nan)])
def test_rows_that_cannot_be_denoised_are_refused(rows):
    with pytest.raises(ValueError, match="finite, not all equal, and at least 100"):
        denoising_input(np.random.default_rng(0), rows, 1000)


@pytest.mark.parametrize("name", ["photographs", "manifold", "smooth values", "isotropic"])
def test_every_named_input_is_one_head_of_what_was_asked(name):
    x = attention_input(np.random.default_rng(0), name, 512)
    assert x.query.shape[:3] == x.key.shape[:3] == x.value.shape[:3] == (1, 1, 512)
    assert all(part.dtype == torch.float32 for part in (x.query, x.key, x.value))
    exact = claim_contests.exact(x)()
    assert claim_contests.relative_error(claim_contests.wildcat(x, rank=512)(), exact) < 1e-4


def test_three_of_four_budgets_must_be_won():
    assert claim_contests.third_best_log_ratio([1, 1, 1, 9], [2, 2, 2, 2]) < 0
    assert claim_contests.third_best_log_ratio([1, 1, 9, 9], [2, 2, 2, 2]) > 0
    assert claim_contests.best_within([(1.0, 0.5), (2.0, 0.1)], 1.5, 1.0) == 0.5
    assert claim_contests.best_within([], 1.5, 1.0) == 1.0
