"""The mathematics against dense linear algebra in float64."""

import math

import pytest
import torch
import torch.nn.functional as F

from cameraready.methods.wildcat import compress_kv, weighted_attention, wildcat_attention
from cameraready.methods.wildcat.attend import partial_attention
from cameraready.methods.wildcat.pivots import pivoted_cholesky
from cameraready.methods.wildcat.selection import KeySet, select


def normal(*shape, seed=0, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def dense_residual(points, pivots):
    """Diagonal of the Schur complement of the Gaussian-normalised kernel."""
    kernel = torch.exp(-torch.cdist(points, points).square() / 2)
    chosen = kernel[pivots]
    return torch.diag(kernel - chosen.T @ torch.linalg.solve(chosen[:, pivots], chosen))


@pytest.mark.parametrize("block", [1, 8])
@pytest.mark.parametrize("rank", [1, 2, 5, 20])
def test_the_residual_equals_the_dense_schur_complement_after_every_step(rank, block):
    points = normal(3, 60, 4)
    fit = pivoted_cholesky(points, points.square().sum(-1) / 2, rank=rank, block=block)
    for i in range(3):
        pivots = fit.pivots[i][fit.used[i]]
        assert len(set(pivots.tolist())) == rank
        torch.testing.assert_close(fit.residual[i], dense_residual(points[i], pivots), atol=1e-10, rtol=0)
        trace = 60 - fit.factor[i].square().sum()
        torch.testing.assert_close(trace, fit.residual[i].sum(), atol=1e-9, rtol=0)


@pytest.mark.parametrize("block", [1, 4])
def test_pivots_follow_the_exponential_kernel_residual_whatever_the_block(block):
    # Exact law of the first two pivots of a 4-point problem, by enumeration; 20000 independent problems at once.
    points = normal(4, 2, seed=1, scale=0.8)
    log_norm = points.square().sum(-1) / 2
    energy = torch.exp(2 * log_norm)
    law = torch.zeros(4, 4, dtype=torch.float64)
    for first in range(4):
        second = dense_residual(points, torch.tensor([first])).clamp_min(0) * energy
        law[first] = energy[first] / energy.sum() * second / second.sum()
    copies = 20000
    fit = pivoted_cholesky(
        points.expand(copies, -1, -1).contiguous(),
        log_norm.expand(copies, -1).contiguous(),
        rank=2,
        block=block,
        generator=torch.Generator().manual_seed(3),
    )
    counts = torch.bincount(fit.pivots[:, 0] * 4 + fit.pivots[:, 1], minlength=16).view(4, 4)
    possible = law > 1e-12
    assert counts[~possible].sum() == 0
    statistic = ((counts - copies * law).square() / (copies * law))[possible].sum()
    assert statistic < 36.1  # chi-square, 11 degrees of freedom: false alarm 1.6e-4


@pytest.mark.parametrize("bins", [1, 3])
@pytest.mark.parametrize("tau", [None, 0.7, 1.5])
def test_weights_are_the_nystrom_solution_of_each_bin(bins, tau):
    keys, values, scale = normal(2, 50, 3), normal(2, 50, 4, seed=1), 0.4
    got = select(KeySet(keys), values, rank=12, scale=scale, bins=bins, weighing="bins", tau=tau)
    length = math.ceil(50 / bins)
    for head in range(2):
        for part in range(bins):
            slots = slice(part * (12 // bins), (part + 1) * (12 // bins))
            inside = slice(part * length, min((part + 1) * length, 50))
            x = (keys[head, inside] - keys[head, inside].mean(0)) * math.sqrt(scale) / got.tau[head, part]
            kernel = torch.exp(x @ x.T)
            chosen = got.index[head, slots] - part * length
            weights = torch.linalg.solve(kernel[chosen][:, chosen], kernel[chosen])
            torch.testing.assert_close(got.values[head, slots], weights @ values[head, inside], atol=1e-8, rtol=1e-8)
            torch.testing.assert_close(got.weights[head, slots, 0], weights.sum(1), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("item_weights", [False, True])
@pytest.mark.parametrize("n", [48, 50])
def test_joint_weights_are_the_nystrom_solution_of_all_pivots(n, item_weights):
    keys, values, scale = normal(2, n, 3), normal(2, n, 4, seed=1), 0.4
    bias, items = normal(2, n, seed=2), normal(2, n, seed=3) if item_weights else None
    got = select(KeySet(keys, bias, weights=items), values, rank=12, scale=scale, bins=3, tau=1.3)
    assert got.tau.shape == (2, 1)
    for head in range(2):
        chosen = got.index[head]
        assert (chosen // math.ceil(n / 3)).bincount().tolist() == [4, 4, 4]
        x = (keys[head] - keys[head].mean(0)) * math.sqrt(scale) / 1.3
        kernel = torch.exp(x @ x.T + bias[head].unsqueeze(1) + bias[head])  # features times e^(bias)
        weights = torch.linalg.solve(kernel[chosen][:, chosen], kernel[chosen])
        ones = torch.ones(n, dtype=torch.float64) if items is None else items[head]
        torch.testing.assert_close(got.values[head], weights @ values[head], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(got.weights[head, :, 0], weights @ ones, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shifted", [False, True])
def test_selection_with_every_key_reproduces_attention(shifted):
    query, key, value = (normal(3, 40, 6, seed=i) for i in range(3))
    got = select(KeySet(key), value, rank=40, scale=6**-0.5, query_shift=query.mean(1) if shifted else None, tau=1.0)
    kept = key.gather(1, got.index.unsqueeze(-1).expand(-1, -1, 6))
    part = partial_attention(query, kept, got.values, got.weights, scale=6**-0.5)
    exact = F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(part.numerator / part.denominator, exact, atol=1e-9, rtol=0)


@pytest.mark.parametrize("rank", [30, 100])
def test_rank_of_the_whole_sequence_is_exact_attention(rank):
    query, key, value = (normal(2, 3, 30, 8, seed=i) for i in range(3))
    exact = F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(wildcat_attention(query, key, value, rank=rank), exact, atol=1e-12, rtol=0)
    torch.testing.assert_close(weighted_attention(query, compress_kv(key, value, rank)), exact, atol=1e-12, rtol=0)


def test_gaussian_bias_gives_gaussian_kernel_nystrom_smoothing():
    points, targets = normal(1, 80, 2), normal(1, 80, 1, seed=1)
    bias = -points.square().sum(-1) / 2
    source = KeySet(points, bias)
    got = select(source, targets, rank=15, scale=1.0)
    kernel = torch.exp(-torch.cdist(points[0], points[0]).square() / 2)
    chosen = got.index[0]
    nystrom = kernel[:, chosen] @ torch.linalg.solve(kernel[chosen][:, chosen], kernel[chosen])
    part = partial_attention(points, points[:, chosen], got.values, got.weights, scale=1.0, bias=bias[:, chosen])
    expected = (nystrom @ targets[0]) / nystrom.sum(1, keepdim=True)
    torch.testing.assert_close((part.numerator / part.denominator)[0], expected, atol=1e-8, rtol=0)


def test_a_constant_added_to_all_keys_changes_nothing():
    query, key, value = (normal(1, 2, 60, 4, seed=i) for i in range(3))

    def answer(offset):
        return wildcat_attention(query, key + offset, value, rank=10, generator=torch.Generator().manual_seed(0))

    torch.testing.assert_close(answer(0.0), answer(25.0), atol=1e-9, rtol=0)


def test_merging_coresets_adds_their_attention_sums():
    query, key, value = (normal(2, 70, 5, seed=i) for i in range(3))
    left, right = compress_kv(key[:, :40], value[:, :40], 12), compress_kv(key[:, 40:], value[:, 40:], 9)
    both = left.merge(right)
    assert len(both) == 21

    def sums(part):
        logits = torch.exp(5**-0.5 * query @ (part.keys + part.key_mean).transpose(1, 2))
        return logits @ part.values, logits @ part.weights.unsqueeze(-1)

    numerator, denominator = (a + b for a, b in zip(sums(left), sums(right), strict=True))
    expected = (numerator / denominator).clamp(both.vmin, both.vmax)
    torch.testing.assert_close(weighted_attention(query, both), expected, atol=1e-9, rtol=0)


def test_extending_appends_exact_tokens():
    query, key, value = (normal(2, 50, 5, seed=i) for i in range(3))
    grown = compress_kv(key[:, :30], value[:, :30], 30).extend(key[:, 30:], value[:, 30:])
    exact = F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(weighted_attention(query, grown), exact, atol=1e-10, rtol=0)
    assert grown.nbytes == sum(x.numel() * 8 for x in (grown.keys, grown.values, grown.weights)) + 8 * 2 * (5 + 5 + 5)


def test_recompression_composes_linearly():
    key, value = normal(1, 60, 3), normal(1, 60, 2, seed=1)
    first = compress_kv(key, value, 20, tau=1.0)
    kept = first.keys + first.key_mean
    again = compress_kv(kept, first.values, 8, weights=first.weights, tau=1.0,
                        generator=torch.Generator().manual_seed(1))  # fmt: skip
    x = (kept[0] - kept[0].mean(0)) * 3**-0.25
    kernel = torch.exp(x @ x.T)
    chosen = [int((kept[0] - (again.keys + again.key_mean)[0, i]).abs().sum(-1).argmin()) for i in range(8)]
    outer = torch.linalg.solve(kernel[chosen][:, chosen], kernel[chosen])
    torch.testing.assert_close(again.values[0], outer @ first.values[0], atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(again.weights[0], outer @ first.weights[0], atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("chunk", [7, 16, 64])
@pytest.mark.parametrize("groups", [1, 3])
def test_causal_mode_is_exact_while_the_prefix_fits_the_rank(chunk, groups):
    query = normal(2, 2 * groups, 50, 6)
    key, value = normal(2, 2, 50, 6, seed=1), normal(2, 2, 50, 6, seed=2)
    exact = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    got = wildcat_attention(query, key, value, is_causal=True, enable_gqa=True, rank=49, chunk=chunk)
    torch.testing.assert_close(got, exact, atol=1e-10, rtol=0)


def test_causal_mode_never_looks_ahead():
    query, key, value = (normal(1, 2, 64, 4, seed=i) for i in range(3))

    def answer(k, v):
        # A given tau: the constant one looks at the norms of all keys of a chunk only, queries' norms are unchanged.
        return wildcat_attention(
            query, k, v, is_causal=True, rank=8, chunk=16, tau=1.5, generator=torch.Generator().manual_seed(0)
        )

    changed_key, changed_value = key.clone(), value.clone()
    changed_key[..., 40:, :] += 1.0
    changed_value[..., 40:, :] -= 1.0
    before, after = answer(key, value), answer(changed_key, changed_value)
    torch.testing.assert_close(before[..., :40, :], after[..., :40, :], atol=1e-9, rtol=0)
    assert (before[..., 40:, :] - after[..., 40:, :]).abs().max() > 0.1


def test_causal_error_falls_with_rank_and_beats_a_sliding_window():
    query, key = normal(1, 2, 512, 4), normal(1, 2, 512, 4, seed=1)
    value = key.cumsum(-2) / 20
    exact = F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def error(rank):
        got = wildcat_attention(query, key, value, is_causal=True, rank=rank, chunk=64,
                                generator=torch.Generator().manual_seed(0))  # fmt: skip
        return ((got - exact).norm() / exact.norm()).item()

    position = torch.arange(512)
    window = (position[:, None] >= position) & (position[:, None] - position < 128)
    local = F.scaled_dot_product_attention(query, key, value, window)
    assert error(64) < error(16)
    assert error(64) < 0.2 * ((local - exact).norm() / exact.norm()).item()
