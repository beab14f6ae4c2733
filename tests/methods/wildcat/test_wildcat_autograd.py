"""Gradients against finite differences, for fixed pivots (a seeded generator) and a given temperature."""

import pytest
import torch
from torch.autograd import gradcheck

from cameraready.methods.wildcat import wildcat_attention


def inputs(*, keys_too):
    made = [torch.randn(1, 1, 8, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in range(3)]
    return made[0].requires_grad_(), made[1].requires_grad_(keys_too), made[2].requires_grad_()


@pytest.mark.parametrize(
    ("keys_too", "options"),
    [
        (True, {"rank": 4, "bins": 2}),
        (True, {"rank": 6, "is_causal": True, "chunk": 4}),
        (False, {"rank": 6}),
        pytest.param(True, {"rank": 6}, marks=pytest.mark.slow),
        pytest.param(True, {"rank": 6, "bins": 2, "weighing": "bins"}, marks=pytest.mark.slow),
        pytest.param(False, {"rank": 6, "bins": 2}, marks=pytest.mark.slow),
        pytest.param(False, {"rank": 6, "is_causal": True, "chunk": 4}, marks=pytest.mark.slow),
    ],
)
def test_gradients_agree_with_finite_differences(keys_too, options):
    query, key, value = inputs(keys_too=keys_too)

    def attend(query, key, value):
        # Recentring by the mean query makes the weights depend on all queries, which counts as selection.
        return wildcat_attention(
            query, key, value, tau=1.5, recentre_queries=False, generator=torch.Generator().manual_seed(0), **options
        )

    assert gradcheck(attend, (query, key, value))


@pytest.mark.parametrize("weighing", ["joint", "bins"])
def test_the_gradient_path_gives_the_same_output(weighing):
    query, key, value = inputs(keys_too=True)

    def attend():
        return wildcat_attention(query, key, value, rank=6, bins=2, weighing=weighing,
                                 generator=torch.Generator().manual_seed(0))  # fmt: skip

    with torch.no_grad():
        plain = attend()
    torch.testing.assert_close(attend().detach(), plain, atol=1e-8, rtol=0)
