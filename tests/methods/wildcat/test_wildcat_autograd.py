"""Gradients against finite differences, for fixed pivots (a seeded generator) and a given temperature."""

import pytest
import torch
from torch.autograd import gradcheck

from cameraready.methods.wildcat import wildcat_attention


def inputs(*, keys_too):
    made = [
        torch.randn(1, 2, 12, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in range(3)
    ]
    return made[0].requires_grad_(), made[1].requires_grad_(keys_too), made[2].requires_grad_()


@pytest.mark.parametrize("options", [{"rank": 6}, {"rank": 8, "bins": 2}, {"rank": 8, "is_causal": True, "chunk": 6}])
@pytest.mark.parametrize("keys_too", [True, False])
def test_gradients_agree_with_finite_differences(options, keys_too):
    query, key, value = inputs(keys_too=keys_too)

    def attend(query, key, value):
        # Recentring by the mean query makes the weights depend on all queries, which counts as selection.
        return wildcat_attention(
            query, key, value, tau=1.5, recentre_queries=False, generator=torch.Generator().manual_seed(0), **options
        )

    assert gradcheck(attend, (query, key, value))


def test_the_gradient_path_gives_the_same_output():
    query, key, value = inputs(keys_too=True)

    def attend():
        return wildcat_attention(query, key, value, rank=8, generator=torch.Generator().manual_seed(0))

    with torch.no_grad():
        plain = attend()
    torch.testing.assert_close(attend().detach(), plain, atol=1e-8, rtol=0)
