"""The call: SDPA's signature, its masks and heads, what it refuses and what it survives."""

import math

import pytest
import torch
import torch.nn.functional as F

from cameraready.methods.wildcat import WildCatAttention, compress_kv, weighted_attention, wildcat_attention


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def smooth(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=seeded(seed)).to(dtype)


def error_of(got, exact):
    return ((got.double() - exact.double()).norm() / exact.double().norm()).item()


@pytest.fixture
def qkv():
    return [smooth(2, 3, 300, 8, seed=i) for i in range(3)]


def test_error_falls_with_rank_and_beats_uniform_subsampling():
    query, key = (smooth(1, 4, 2048, 4, seed=i) for i in range(2))
    value = torch.tanh(key @ smooth(4, 4, seed=2)) + smooth(1, 4, 2048, 4, seed=3)
    exact = F.scaled_dot_product_attention(query, key, value)
    errors = [error_of(wildcat_attention(query, key, value, rank=r, generator=seeded()), exact) for r in (16, 64, 256)]
    pick = torch.randperm(2048, generator=seeded())[:64]
    uniform = error_of(F.scaled_dot_product_attention(query, key[..., pick, :], value[..., pick, :]), exact)
    assert errors[0] > errors[1] > errors[2]
    assert errors[1] < 0.2 * uniform


def test_shapes_follow_sdpa_also_for_other_value_widths_and_few_axes():
    query, key, value = smooth(5, 40, 8), smooth(5, 300, 8, seed=1), smooth(5, 300, 3, seed=2)
    assert wildcat_attention(query, key, value, rank=32).shape == (5, 40, 3)
    assert wildcat_attention(query[0], key[0], value[0], rank=32).shape == (40, 3)
    assert wildcat_attention(query[:, :0], key, value, rank=32).shape == (5, 0, 3)
    assert wildcat_attention(query[:0], key[:0], value[:0], rank=32).shape == (0, 40, 3)


def test_grouped_queries_equal_repeated_keys(qkv):
    query = smooth(2, 6, 300, 8, seed=5)
    _, key, value = qkv
    options = {"rank": 200, "tau": 1.5, "recentre_queries": False}
    got = wildcat_attention(query, key, value, enable_gqa=True, generator=seeded(), **options)
    # The same seed chooses the same keys for both queries of a group asked separately.
    for member in range(2):
        alone = wildcat_attention(query[:, member::2], key, value, generator=seeded(), **options)
        torch.testing.assert_close(got[:, member::2], alone, atol=1e-5, rtol=1e-4)
    ckv = compress_kv(key, value, 200, tau=1.5, generator=seeded())
    torch.testing.assert_close(weighted_attention(query, ckv), got, atol=1e-4, rtol=1e-3)


def test_padded_keys_do_not_matter(qkv):
    query, key, value = qkv
    mask = torch.ones(2, 1, 1, 300, dtype=torch.bool)
    mask[1, ..., 190:] = False
    poisoned = key.clone()
    poisoned[1, :, 190:] = 100.0
    spoiled = value.clone()
    spoiled[1, :, 190:] = -50.0
    exact = F.scaled_dot_product_attention(query, key, value, mask)
    for bins in (1, 3):
        got = wildcat_attention(query, poisoned, spoiled, mask, rank=180, bins=bins, generator=seeded())
        clean = wildcat_attention(query, key, value, mask, rank=180, bins=bins, generator=seeded())
        torch.testing.assert_close(got, clean, atol=1e-5, rtol=1e-4)
        assert error_of(got, exact) < 0.15


def test_a_fully_masked_row_of_the_batch_answers_as_sdpa_does(qkv):
    query, key, value = qkv
    mask = torch.ones(2, 1, 1, 300, dtype=torch.bool)
    mask[0] = False
    got = wildcat_attention(query, key, value, mask, rank=100, generator=seeded())
    exact = F.scaled_dot_product_attention(query, key, value, mask)
    assert torch.equal(got[0], exact[0])
    assert torch.isfinite(got[1]).all()


def test_key_bias_is_added_to_the_logits(qkv):
    query, key, value = qkv
    bias = smooth(2, 3, 300, seed=9)
    exact = F.scaled_dot_product_attention(query, key, value, bias.unsqueeze(-2))
    assert error_of(wildcat_attention(query, key, value, key_bias=bias, rank=220, generator=seeded()), exact) < 0.02
    assert error_of(wildcat_attention(query, key, value, key_bias=bias, rank=300), exact) < 1e-6
    ckv = compress_kv(key, value, 220, key_bias=bias, generator=seeded())
    assert error_of(weighted_attention(query, ckv), exact) < 0.05


def test_outputs_stay_in_the_range_of_the_values():
    query, key, value = (smooth(1, 2, 400, 16, seed=i) * 3 for i in range(3))
    got = wildcat_attention(query, key, value, rank=4, generator=seeded())
    assert (got <= value.amax(-2, keepdim=True)).all()
    assert (got >= value.amin(-2, keepdim=True)).all()


def test_a_generator_makes_the_answer_reproducible_and_the_block_does_not_bias_it(qkv):
    first, second = (wildcat_attention(*qkv, rank=20, generator=seeded(4)) for _ in range(2))
    assert torch.equal(first, second)
    exact = F.scaled_dot_product_attention(*qkv)
    single, blocked = (
        sum(error_of(wildcat_attention(*qkv, rank=60, block=b, generator=seeded(s)), exact) for s in range(8)) / 8
        for b in (1, 16)
    )
    assert 0.8 < single / blocked < 1.25


def test_tolerance_stops_early_and_falls_back_where_it_cannot_be_met(qkv):
    query, key, value = qkv
    _, easy = wildcat_attention(query, key, value, rank=250, tol=0.3, bins=1, generator=seeded(), return_info=True)
    assert (easy.rank < 250).all()
    assert (easy.residual <= 0.3).all()
    got, hard = wildcat_attention(query, key, value, rank=8, tol=0.001, generator=seeded(), return_info=True)
    assert hard.fallback_heads.all()
    assert error_of(got, F.scaled_dot_product_attention(query, key, value)) < 1e-5
    loose = wildcat_attention(query, key, value, rank=8, tol=0.001, fallback="uniform", generator=seeded())
    left = wildcat_attention(query, key, value, rank=8, tol=0.001, fallback=None, generator=seeded())
    assert loose.shape == left.shape
    assert not torch.equal(loose, left)


def test_automatic_rank_meets_the_tolerance():
    query, key, value = (smooth(1, 2, 2000, 4, seed=i) for i in range(3))
    _, info = wildcat_attention(query, key, value, rank="auto", tol=0.05, generator=seeded(), return_info=True)
    assert (info.residual <= 0.05).all()
    assert (info.rank < 500).all()
    assert not info.fallback_heads.any()


def test_tuning_the_temperature_is_no_worse_than_a_bad_one(qkv):
    exact = F.scaled_dot_product_attention(*qkv)
    tuned = error_of(wildcat_attention(*qkv, rank=40, tau="tuned", generator=seeded()), exact)
    bad = error_of(wildcat_attention(*qkv, rank=40, tau=0.3, generator=seeded()), exact)
    assert tuned < bad


def test_the_module_has_no_parameters_and_answers_like_the_function(qkv):
    attend = WildCatAttention(40, seed=3)
    assert list(attend.parameters()) == []
    assert torch.equal(attend(*qkv), wildcat_attention(*qkv, rank=40, generator=seeded(3)))
    assert "rank=40" in repr(attend)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype):
    query, key, value = (smooth(1, 2, 300, 8, seed=i, dtype=dtype) for i in range(3))
    got = wildcat_attention(query, key, value, rank=200, generator=seeded())
    assert got.dtype == dtype
    single = wildcat_attention(query.float(), key.float(), value.float(), rank=200, generator=seeded())
    assert torch.equal(got, single.to(dtype))
    # Logits of 60000 * 8 overflow half precision; the answer must not.
    loud = wildcat_attention(query, (key * 1000).clamp(-6e4, 6e4), value, rank=64, generator=seeded())
    assert torch.isfinite(loud).all()


def test_equal_keys_need_one_pivot_and_are_exact():
    key = smooth(1, 1, 1, 8).expand(1, 2, 200, 8)
    query, value = smooth(1, 2, 50, 8, seed=1), smooth(1, 2, 200, 4, seed=2)
    got, info = wildcat_attention(query, key, value, rank=32, bins=1, return_info=True)
    assert info.rank.tolist() == [[1, 1]]
    torch.testing.assert_close(got, value.mean(-2, keepdim=True).expand_as(got), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_keys_in_every_bin_do_not_make_joint_weights_singular(dtype):
    key = smooth(1, 2, 50, 4, dtype=dtype).repeat(1, 1, 8, 1)
    query, value = smooth(1, 2, 60, 4, seed=1, dtype=dtype), smooth(1, 2, 400, 3, seed=2, dtype=dtype)
    exact = F.scaled_dot_product_attention(query, key, value)
    got = wildcat_attention(query, key, value, rank=320, bins=8, generator=seeded())
    assert error_of(got, exact) < 1e-2
    equal = key[..., :1, :].expand_as(key)
    got = wildcat_attention(query, equal, value, rank=32, bins=8, generator=seeded())
    torch.testing.assert_close(got, value.mean(-2, keepdim=True).expand_as(got), atol=1e-4, rtol=1e-4)


def test_joint_weights_make_up_for_binned_pivots():
    place = torch.rand(2, 4096, 3, generator=seeded()) * 2 - 1
    query, key = (torch.sin(x @ smooth(3, 16, seed=1)) * 2 for x in place)
    value = torch.cos(place[1] @ smooth(3, 4, seed=2))
    exact = F.scaled_dot_product_attention(query, key, value)
    one, joint, alone = (
        error_of(wildcat_attention(query, key, value, rank=128, bins=b, weighing=w, generator=seeded()), exact)
        for b, w in ((1, "joint"), (8, "joint"), (8, "bins"))
    )
    assert joint < 2 * one
    assert joint < 0.5 * alone


# Joint weights solve for small keys beside huge ones, whose rounding errors they feel more.
@pytest.mark.parametrize(("weighing", "limit"), [("joint", 0.4), ("bins", 0.2)])
@pytest.mark.parametrize("norm", [30.0, 100.0, 300.0])
def test_huge_keys_in_bins_stay_finite(norm, weighing, limit):
    query, key, value = (smooth(1, 1, 500, 16, seed=i) for i in range(3))
    key[..., ::100, :] *= norm
    got = wildcat_attention(query, key, value, rank=64, bins=4, weighing=weighing, generator=seeded())
    assert torch.isfinite(got).all()
    assert error_of(got, F.scaled_dot_product_attention(query, key, value)) < limit


@pytest.mark.parametrize("norm", [30.0, 100.0, 300.0])
def test_huge_keys_neither_overflow_nor_hang(norm):
    query, value = smooth(1, 1, 64, 16), smooth(1, 1, 500, 4, seed=2)
    key = smooth(1, 1, 500, 16, seed=1)
    key[..., :5, :] *= norm
    got = wildcat_attention(query, key, value, rank=64, generator=seeded())
    assert torch.isfinite(got).all()
    exact = F.scaled_dot_product_attention(query, key, value)
    # The five huge keys win almost every softmax, and pivots of the exponential kernel must find them.
    assert error_of(got, exact) < 0.2


def test_nan_in_one_head_stays_there(qkv):
    query, key, value = (x.clone() for x in qkv)
    key[1, 2, 7, 3] = math.nan
    keep = torch.ones(2, 3, dtype=torch.bool)
    keep[1, 2] = False
    for bins in (1, 3):
        got = wildcat_attention(query, key, value, rank=120, bins=bins, generator=seeded())
        assert got[1, 2].isnan().all()
        assert torch.isfinite(got[keep]).all()
        assert error_of(got[keep], F.scaled_dot_product_attention(*qkv)[keep]) < 0.2


@pytest.mark.parametrize("bins", [1, 3])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_in_the_only_head_gives_nan_and_no_crash(bad, bins):
    query, key, value = (smooth(1, 1, 200, 8, seed=i) for i in range(3))
    key[0, 0, 7, 3] = bad
    assert wildcat_attention(query, key, value, rank=30, bins=bins).isnan().all()


def test_vanishing_denominators_fall_back_to_exact_rows(monkeypatch):
    from cameraready.methods.wildcat import attend

    query, key, value = (smooth(1, 2, 200, 8, seed=i) for i in range(3))
    # Pretend that everything below a large threshold has vanished: those rows must come back exact.
    monkeypatch.setattr(attend, "SMALLEST_DENOMINATOR", 40.0)
    got, info = wildcat_attention(query, key, value, rank=20, generator=seeded(), return_info=True)
    exact = F.scaled_dot_product_attention(query, key, value)
    assert 0 < info.fallback_rows.sum() < 400
    replaced = info.bound == 0
    assert replaced.sum() == info.fallback_rows.sum()
    torch.testing.assert_close(got[replaced], exact[replaced], atol=1e-5, rtol=1e-4)


def test_a_length_that_bins_do_not_divide_works():
    query, key, value = (smooth(1, 1, 103, 4, seed=i) for i in range(3))
    value = torch.cat([value, torch.ones(1, 1, 103, 1)], -1)
    exact = F.scaled_dot_product_attention(query, key, value)
    for bins in (2, 4, 10):
        got = wildcat_attention(query, key, value, rank=80, bins=bins, generator=seeded())
        assert error_of(got, exact) < 0.2
        # Constant values come back exactly: numerator and denominator share every weight.
        torch.testing.assert_close(got[..., -1], torch.ones(1, 1, 103), atol=1e-4, rtol=0)


ONE = torch.randn(2, 3, 64, 8)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rank": 0}, ValueError, "rank=0"),
        ({"rank": 2.5}, TypeError, "rank=2.5"),
        ({"rank": "auto"}, ValueError, "tol="),
        ({"tol": 2.0}, ValueError, "tol=2.0"),
        ({"bins": 0}, ValueError, "bins=0"),
        ({"key_bias": torch.zeros(5)}, ValueError, "one number a key"),
        ({"weighing": "both"}, ValueError, "weighing='both'"),
        ({"tau": "best"}, ValueError, "tau='best'"),
        ({"tau": -1.0}, ValueError, "tau=-1.0"),
        ({"fallback": "skip"}, ValueError, "fallback='skip'"),
        ({"dropout_p": 0.1}, NotImplementedError, "dropout_p=0.1"),
        ({"attn_mask": torch.zeros(64)}, NotImplementedError, "key_bias"),
        ({"attn_mask": torch.ones(64, 64, dtype=torch.bool).tril()}, NotImplementedError, "is_causal"),
        ({"attn_mask": torch.ones(65, dtype=torch.bool)}, ValueError, "broadcast"),
        ({"is_causal": True, "tol": 0.1}, NotImplementedError, "fixed rank"),
        ({"scale": 0.0}, ValueError, "scale=0.0"),
        ({"key": ONE[..., :0], "query": ONE[..., :0]}, ValueError, "head dimension of 0"),
        ({"key": ONE[:, :2], "value": ONE[:, :2]}, ValueError, "enable_gqa"),
        ({"value": ONE[:, :, :5]}, ValueError, "one value a key"),
        ({"query": ONE.double()}, ValueError, "dtype"),
        ({"key": ONE.to(torch.complex64)}, TypeError, "complex64"),
        ({"query": ONE.tolist()}, TypeError, "list"),
        ({"key": ONE.to("meta"), "value": ONE}, ValueError, "meta"),
    ],
)
def test_bad_input_is_refused_with_the_way_out(change, error, message):
    asked = {"query": ONE, "key": ONE, "value": ONE, "rank": 16} | change
    with pytest.raises(error, match=message):
        wildcat_attention(**asked)


def test_compression_refuses_the_same():
    for wrong, message in [
        ({"bins": 0}, "bins=0"),
        ({"weighing": "x"}, "weighing='x'"),
        ({"tau": -1.0}, "tau=-1.0"),
        ({"tau": "tuned"}, "tau='tuned'"),
        ({"key_bias": torch.zeros(5)}, "key_bias"),
    ]:
        with pytest.raises(ValueError, match=message):
            compress_kv(ONE, ONE, 4, **wrong)
    with pytest.raises(ValueError, match="head dimension"):
        weighted_attention(torch.randn(2, 3, 5, 9), compress_kv(ONE, ONE, 4))
    with pytest.raises(ValueError, match="rank=0"):
        compress_kv(ONE, ONE, 0)
    with pytest.raises(ValueError, match="one value a key"):
        compress_kv(ONE, ONE[:, :, 1:], 4)
    with pytest.raises(ValueError, match="same heads"):
        compress_kv(ONE, ONE, 4).merge(compress_kv(ONE[:1], ONE[:1], 4))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_eager_path_follows_its_inputs_to_cuda():
    query, key, value = (smooth(1, 2, 2000, 16, seed=i).cuda() for i in range(3))
    got = wildcat_attention(query, key, value, rank=256)
    assert got.is_cuda
    assert error_of(got, F.scaled_dot_product_attention(query, key, value)) < 0.7
