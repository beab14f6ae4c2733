"""transformers: the cache under `generate`, and the patch, on two decoders and an encoder with random weights."""

import gc

import pytest
import torch

transformers = pytest.importorskip("transformers")

from cameraready.methods.wildcat import (  # noqa: E402
    WildCatCache,
    patch_model,
    wildcat_attention,
)

VOCABULARY = 96


def llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.2, bos_token_id=None,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=1024, initializer_range=0.2,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.fixture(params=[llama, gpt2], ids=["llama", "gpt2"])
def model(request):
    torch.manual_seed(0)
    return request.param()


@pytest.fixture
def ids():
    return torch.randint(1, VOCABULARY, (2, 150), generator=torch.Generator().manual_seed(0))


def generate(model, ids, cache=None, **options):
    settings = {"max_new_tokens": 30, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    keyword = {} if cache is None else {"past_key_values": cache}
    return model.generate(ids, **(settings | keyword | options))


def logits(model, *args, **kwargs):
    with torch.no_grad():
        return model(*args, **kwargs).logits


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_generation_is_unchanged_while_everything_fits(model, ids, implementation):
    model.set_attn_implementation(implementation)
    plain = generate(model, ids)
    cache = WildCatCache(model.config, rank=400)
    ours = generate(model, ids, cache)
    assert torch.equal(plain.sequences, ours.sequences)
    assert cache.layers[0].weights is None


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_generation_decodes_from_the_compressed_cache(model, ids, implementation):
    model.set_attn_implementation(implementation)
    exact = logits(model, ids)
    spread = exact.std()
    errors = []
    for rank in (8, 64):
        cache = WildCatCache(model.config, rank=rank, sink=4, window=16)
        first = logits(model, ids[:, :130], past_key_values=cache)
        torch.testing.assert_close(first, exact[:, :130], atol=1e-4, rtol=1e-4)
        assert {layer.keys.shape[-2] for layer in cache.layers} == {rank + 4 + 16}
        rest = [logits(model, ids[:, i : i + 1], past_key_values=cache) for i in range(130, 150)]
        errors.append(((torch.cat(rest, 1) - exact[:, 130:]).square().mean().sqrt() / spread).item())
        assert cache.get_seq_length() == 150
    assert errors[1] < 0.7 * errors[0]
    assert errors[1] < 0.6
    out = generate(model, ids, WildCatCache(model.config, rank=32, sink=4, window=8))
    assert out.sequences.shape == (2, 180)


def test_a_prompt_in_two_pieces_sees_the_compressed_first_piece(model, ids):
    exact = logits(model, ids)
    cache = WildCatCache(model.config, rank=110, sink=4, window=8)
    logits(model, ids[:, :130], past_key_values=cache)
    second = logits(model, ids[:, 130:], past_key_values=cache)
    one_by_one = WildCatCache(model.config, rank=110, sink=4, window=8)
    logits(model, ids[:, :130], past_key_values=one_by_one)
    steps = [logits(model, ids[:, i : i + 1], past_key_values=one_by_one) for i in range(130, 150)]
    torch.testing.assert_close(second, torch.cat(steps, 1), atol=1e-3, rtol=1e-3)
    assert ((second - exact[:, 130:]).square().mean().sqrt() / exact.std()) < 0.5


def test_the_tail_is_compressed_again_and_the_store_stays_small(model, ids):
    cache = WildCatCache(model.config, rank=32, sink=4, window=8, max_tail=10)
    generate(model, ids, cache, max_new_tokens=60)
    assert cache.get_seq_length() == 150 + 59
    assert cache.layers[0].keys.shape[-2] <= 32 + 4 + 8 + 11
    full = transformers.DynamicCache(config=model.config)
    generate(model, ids, full, max_new_tokens=60)
    stored = sum(layer.keys.numel() + layer.values.numel() for layer in full.layers) * 4
    assert cache.nbytes < 0.4 * stored


def test_a_left_padded_row_answers_as_if_it_were_alone(model, ids):
    padding = torch.tensor([0, 90])
    mask = (torch.arange(150) >= padding[:, None]).long()
    for rank in (20, 100):
        cache = WildCatCache(model.config, rank=rank, sink=4, window=8, attention_mask=mask)
        both = generate(model, ids, cache, attention_mask=mask, max_new_tokens=5)
        alone = generate(model, ids[1:, 90:], WildCatCache(model.config, rank=rank, sink=4, window=8), max_new_tokens=5)
        # Padding takes part in no selection, but bins and draws differ: equal where all real tokens are kept.
        if rank == 100:
            torch.testing.assert_close(both.logits[1][1], alone.logits[1][0], atol=1e-3, rtol=1e-3)
        assert torch.isfinite(torch.stack(both.logits)).all()


def test_beam_search_reorders_the_compressed_cache(model, ids):
    out = generate(model, ids, WildCatCache(model.config, rank=32, max_tail=8), num_beams=3, max_new_tokens=20)
    assert out.sequences.shape == (2, 170)


def test_only_uncompressed_tokens_can_be_dropped(model, ids):
    cache = WildCatCache(model.config, rank=32, sink=4, window=16)
    logits(model, ids, past_key_values=cache)
    before = logits(model, ids[:, :1], past_key_values=cache)
    cache.crop(-1)
    torch.testing.assert_close(logits(model, ids[:, :1], past_key_values=cache), before)
    with pytest.raises(ValueError, match="only the last 17"):
        cache.crop(-40)
    cache.reset()
    assert cache.get_seq_length() == 0
    torch.testing.assert_close(logits(model, ids, past_key_values=cache), logits(model, ids), atol=1e-5, rtol=1e-5)


def test_sliding_window_layers_are_left_alone():
    config = transformers.MistralConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=16,
    )  # fmt: skip
    assert not any(hasattr(layer, "rank") for layer in WildCatCache(config, rank=8).layers)


def test_the_cache_refuses_bad_options():
    config = llama().config
    with pytest.raises(ValueError, match="rank=0"):
        WildCatCache(config, rank=0)
    with pytest.raises(ValueError, match="window=0"):
        WildCatCache(config, window=0)
    with pytest.raises(ValueError, match="left"):
        WildCatCache(config, attention_mask=torch.tensor([[1, 1, 0]]))


def test_another_attention_implementation_says_what_to_do(ids):
    from cameraready.methods.wildcat.weighted_values import WeightedValues

    values = torch.ones(1, 2, 5, 4)
    edge = torch.ones(1, 2, 1, 4)
    wrapped = WeightedValues.wrap(values, torch.ones(1, 2, 5), low=-edge, high=edge)
    with pytest.raises(TypeError, match="attn_implementation"):
        torch.einsum("bhqk,bhkd->bhqd", torch.ones(1, 2, 3, 5), wrapped)
    assert wrapped.transpose(1, 2).weights.shape == (1, 5, 2, 4)


def test_a_patched_decoder_approaches_the_exact_one_as_rank_grows(model, ids):
    exact = logits(model, ids)
    errors = []
    for rank in (8, 100, 149):
        with patch_model(model, rank=rank, chunk=32) as patched:
            errors.append((logits(patched, ids) - exact).square().mean().sqrt().item())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3
    assert torch.equal(logits(model, ids), exact)


def test_chosen_layers_are_compressed_and_the_others_exact(model, ids):
    exact = logits(model, ids)
    with patch_model(model, rank=8, layers=[], chunk=32):
        torch.testing.assert_close(logits(model, ids), exact, atol=1e-5, rtol=1e-5)
    with patch_model(model, rank=8, layers=[1], chunk=32):
        assert (logits(model, ids) - exact).abs().max() > 1e-3
    with pytest.raises(ValueError, match="layers=\\[7\\]"):
        patch_model(model, rank=8, layers=[7])


@pytest.mark.parametrize("rank", [149, 20])
def test_a_patched_model_respects_left_padding(model, ids, rank):
    mask = (torch.arange(150) >= torch.tensor([0, 60])[:, None]).long()
    position = (mask.cumsum(-1) - 1).clamp_min(0)
    other = ids.clone()
    other[1, :60] = 5
    seed = torch.Generator()
    with patch_model(model, rank=rank, chunk=150, generator=seed):
        seed.manual_seed(0)
        first = logits(model, ids, attention_mask=mask, position_ids=position)
        seed.manual_seed(0)
        second = logits(model, other, attention_mask=mask, position_ids=position)
    torch.testing.assert_close(first[1, 60:], second[1, 60:], atol=1e-4, rtol=1e-3)
    exact = logits(model, ids, attention_mask=mask, position_ids=position)
    torch.testing.assert_close(first[1, 60:], exact[1, 60:], atol=1e-3, rtol=1e-3)  # one chunk is exact


def test_a_patched_model_generates_and_an_encoder_is_compressed(model, ids):
    plain = generate(model, ids, max_new_tokens=3)
    with patch_model(model, rank=149, chunk=32):
        ours = generate(model, ids, max_new_tokens=3)
    assert torch.equal(plain.sequences, ours.sequences)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=256, initializer_range=0.2,
    )  # fmt: skip
    encoder = transformers.BertModel(config).eval()
    mask = (torch.arange(150) < torch.tensor([150, 100])[:, None]).long()
    with torch.no_grad():
        exact = encoder(ids, attention_mask=mask).last_hidden_state
        with patch_model(encoder, rank=99):
            near = encoder(ids, attention_mask=mask).last_hidden_state
        with patch_model(encoder, rank=4):
            far = encoder(ids, attention_mask=mask).last_hidden_state
    real = mask.bool()
    assert (near - exact)[real].norm() < 0.2 * exact[real].norm()
    assert (near - exact)[real].norm() < 0.5 * (far - exact)[real].norm()


def test_what_is_no_transformers_model_is_refused():
    with pytest.raises(TypeError, match="set_attn_implementation"):
        patch_model(torch.nn.Linear(2, 2), rank=4)


def test_undoing_a_patch_leaves_nothing_behind(model):
    from cameraready.methods.wildcat.patch import _OPTIONS

    patch = patch_model(model, rank=4)
    assert len(_OPTIONS) > 0
    patch.undo()
    gc.collect()
    assert len(_OPTIONS) == 0
    assert model.config._attn_implementation == "sdpa"
    assert callable(wildcat_attention)
