"""The a-posteriori bounds hold, and the a-priori rank is what Taylor's theorem says."""

import math

import pytest
import torch
import torch.nn.functional as F

from cameraready.methods.wildcat import guaranteed_rank, wildcat_attention
from cameraready.methods.wildcat.bounds import log_entry_bound
from cameraready.methods.wildcat.selection import KeySet, select


@pytest.mark.parametrize("cases", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_bounds_are_never_violated_on_random_cases(cases):
    generator = torch.Generator().manual_seed(0)
    tight = 0
    for case in range(cases):
        n, width, rank = 20 + case % 40, 1 + case % 6, 1 + case % 17
        size = 10 ** (-1 + 2 * ((case * 7) % 100) / 100)
        query, key, value = (torch.randn(2, n, width, generator=generator, dtype=torch.float64) for _ in range(3))
        query, key = query * size, key * size
        bins, shifted = 1 + case % 3, case % 2 == 0
        output, info = wildcat_attention(
            query, key, value, rank=rank, bins=bins, weighing="joint" if case % 5 else "bins", recentre_queries=shifted,
            return_info=True, generator=generator,
        )  # fmt: skip
        error = (output - F.scaled_dot_product_attention(query, key, value)).abs().amax(-1)
        assert bool((error <= info.bound * (1 + 1e-9) + 1e-10).all()), f"case {case}"
        reach = value.amax(-2) - value.amin(-2)
        tight += int((info.bound < 0.5 * reach.amax(-1, keepdim=True)).any())
    assert tight > cases / 5  # the bound says something, too


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("bins", "weighing"), [(1, "joint"), (2, "joint"), (2, "bins")])
def test_the_entry_bound_covers_the_dense_error_matrix(shifted, bins, weighing):
    generator = torch.Generator().manual_seed(1)
    for rank in (2, 6, 20):
        query, key = (torch.randn(1, 40, 3, generator=generator, dtype=torch.float64) for _ in range(2))
        # With the identity as values, W V is W itself.
        chosen = select(
            KeySet(key), torch.eye(40, dtype=torch.float64)[None], rank=rank, scale=0.5, bins=bins, weighing=weighing,
            query_shift=query.mean(1) if shifted else None, generator=generator,
        )  # fmt: skip
        exact = torch.exp(0.5 * query[0] @ key[0].T)
        approximate = torch.exp(0.5 * query[0] @ key[0, chosen.index[0]].T) @ chosen.values[0]
        error = (exact - approximate).abs()
        assert bool((error.amax(1) <= log_entry_bound(chosen, query, 0.5)[0].exp() * (1 + 1e-6)).all())
        assert bool((error.sum(1) <= log_entry_bound(chosen, query, 0.5, total=True)[0].exp() * (1 + 1e-6)).all())


def test_the_guaranteed_rank_counts_taylor_features():
    got = guaranteed_rank(1e-3, key_norm=1.0, query_norm=1.0, head_dim=4, n=65536, scale=1.0)
    remainder = [math.e / math.factorial(degree + 1) for degree in range(10)]
    assert got.degree == next(d for d, r in enumerate(remainder) if r <= 1e-3)
    assert got.rank == math.comb(4 + got.degree, 4)
    assert got.remainder == pytest.approx(remainder[got.degree])
    assert got.useful
    assert not guaranteed_rank(1e-6, key_norm=4.0, query_norm=4.0, head_dim=64, n=4096).useful
    assert guaranteed_rank(0.1, key_norm=0.0, query_norm=1.0, head_dim=8, n=10).rank == 1


def test_a_coreset_of_the_guaranteed_rank_reaches_the_error():
    generator = torch.Generator().manual_seed(2)
    key = F.normalize(torch.randn(1, 3000, 2, generator=generator, dtype=torch.float64), dim=-1)
    key = key * torch.rand(1, 3000, 1, generator=generator, dtype=torch.float64).sqrt()
    promise = guaranteed_rank(1e-4, key_norm=1.0, query_norm=1.0, head_dim=2, n=3000, scale=1.0)
    chosen = select(KeySet(key), key, rank=2 * promise.rank, scale=1.0, tau=1.0, generator=generator)
    assert float(chosen.log_max_root_residual.exp()) < 1e-2  # its square is an entry of the residual kernel
    assert float(chosen.log_max_root_residual.exp()) ** 2 < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [({"error": 0.0}, "error=0.0"), ({"head_dim": 0}, "head_dim=0"), ({"key_norm": -1.0}, "key_norm=-1.0")],
)
def test_impossible_guarantees_are_refused(change, message):
    asked = {"error": 0.1, "key_norm": 1.0, "query_norm": 1.0, "head_dim": 4, "n": 100} | change
    with pytest.raises(ValueError, match=message):
        guaranteed_rank(asked.pop("error"), **asked)
