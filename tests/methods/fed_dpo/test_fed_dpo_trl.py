"""Loss and gradient against trl's DPOTrainer, on a tiny GPT-2 with a word-level tokenizer made here."""

import copy

import pytest
import torch

from cameraready.methods.fed_dpo import FederatedDPO, Objective, PreferenceClient, TokenPairs, dpo_loss, sequence_logps

transformers = pytest.importorskip("transformers")

ROWS = [
    {"prompt": "the cat", "chosen": " sat on a mat", "rejected": " ran"},
    {"prompt": "a dog on", "chosen": " the mat ran", "rejected": " the cat sat sat"},
    {"prompt": "the", "chosen": " dog", "rejected": " mat on a cat"},
    {"prompt": "on a mat", "chosen": " sat the dog", "rejected": " a a"},
]


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<pad>", "<eos>", "the", "cat", "sat", "on", "a", "mat", "dog", "ran", "<unk>"]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def gpt2(*, seed=0, dropout=0.0):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "beta"), [("sigmoid", 0.1), ("sigmoid", 0.7), ("ipo", 0.3)])
def test_loss_and_gradient_equal_trl(tmp_path, kind, beta):
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    reference, policy = gpt2(seed=0), gpt2(seed=1)
    args = trl.DPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, beta=beta, loss_type=[kind], report_to=[],
        use_cpu=True, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = trl.DPOTrainer(
        model=copy.deepcopy(policy),
        ref_model=copy.deepcopy(reference),
        args=args,
        train_dataset=Dataset.from_list(ROWS),
        processing_class=tokenizer(),
    )
    batch = next(iter(trainer.get_train_dataloader()))
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    wanted = torch.cat([p.grad.reshape(-1) for p in trainer.model.parameters() if p.requires_grad])

    client = PreferenceClient(ROWS, tokenizer=tokenizer(), beta=beta)
    ours = Objective(reference, [client], kind=kind, length_normalized=kind == "ipo")  # the reference is the model now
    theta = torch.cat([p.detach().reshape(-1) for p in policy.parameters()])
    found = ours.losses(theta)
    assert float(found.loss) == pytest.approx(float(loss), abs=1e-6)
    assert torch.allclose(found.gradient[0], wanted, atol=1e-6)


def test_sequence_log_probability_is_the_sum_of_token_log_probabilities():
    model, pairs = gpt2().eval(), TokenPairs.from_rows(ROWS, tokenizer())
    with torch.no_grad():
        found = sequence_logps(model, pairs.input_ids[0], pairs.mask[0], pairs.completion[0])
        logits = model(pairs.input_ids[0][:1]).logits[0].log_softmax(dim=-1)
    ids = pairs.input_ids[0, 0].tolist()
    assert ids[:7] == [2, 3, 4, 5, 6, 7, 1]  # the cat | sat on a mat <eos>
    assert float(found[0]) == pytest.approx(float(sum(logits[k - 1, ids[k]] for k in range(2, 7))), abs=1e-5)


def test_loss_follows_its_formula():
    logps = torch.tensor([[1.0, -2.0], [0.5, 0.0], [0.2, 0.1], [0.0, -0.3]])
    h = torch.tensor([0.3, -2.4])
    smooth = dpo_loss(*logps, beta=0.5, label_smoothing=0.2, reduction="none")
    by_hand = -0.8 * torch.sigmoid(0.5 * h).log() - 0.2 * torch.sigmoid(-0.5 * h).log()
    assert torch.allclose(smooth, by_hand)
    assert torch.allclose(dpo_loss(*logps, beta=0.5, kind="ipo", reduction="sum"), ((h - 1) ** 2).sum())


def test_tied_parameters_count_once_and_the_reference_stays():
    model = gpt2(dropout=0.3)
    run = FederatedDPO(model, [PreferenceClient(ROWS, tokenizer=tokenizer())], local_steps=2, lr=0.1, rounds=3)
    assert len(run.theta) == sum(p.numel() for p in model.parameters())
    first = run.objective.theta_ref.clone()
    history = run.fit()
    assert torch.equal(run.objective.theta_ref, first)
    assert history.table["loss"].is_monotonic_decreasing
    assert model.lm_head.weight is model.transformer.wte.weight
    assert torch.equal(run.objective.read(), run.theta)


def test_lora_trains_adapters_only_and_the_product_average_keeps_what_clients_do_on_average():
    pytest.importorskip("peft")
    halves = [PreferenceClient(ROWS[:2], tokenizer=tokenizer()), PreferenceClient(ROWS[2:], tokenizer=tokenizer())]
    common = {"local_steps": 3, "lr": 0.5, "rounds": 1, "trainable": "lora"}
    run = FederatedDPO(gpt2(), halves, lora_average="product", **common)
    frozen = {name: p.clone() for name, p in run.model.named_parameters() if "lora" not in name}
    start = run.theta
    code = run.server.average.encode
    assert torch.allclose(
        code(run.server.average.decode(code(start)))[len(start) :], code(start)[len(start) :], atol=1e-6
    )
    run.fit()
    changed = dict(run.model.named_parameters())
    assert all(torch.equal(changed[name], p) for name, p in frozen.items())
    assert run.objective.dimension < 0.5 * sum(p.numel() for p in run.model.parameters())
    # two clients: the mean of products has rank 16 at most, and the best rank 8 approximation is closer than that of
    # averaged factors
    each = run.objective
    from cameraready.methods.fed_dpo.local_training import local_steps

    after = local_steps(each, start, which=[0, 1], steps=3, lr=0.5)
    wanted = (code(after[0]) + code(after[1]))[len(start) :] / 2
    by_product = code(run.theta)[len(start) :]
    by_factors = code(after.mean(dim=0))[len(start) :]
    assert (by_product - wanted).norm() < 1e-6 + (by_factors - wanted).norm()


def test_empty_completions_after_truncation_are_dropped():
    rows = [*ROWS, {"prompt": "the cat sat on a mat", "chosen": " ran", "rejected": " sat"}]
    with pytest.warns(UserWarning, match="1 pairs have no completion within max_length=5"):
        assert len(TokenPairs.from_rows(rows, tokenizer(), max_length=5)) == 4
    with pytest.raises(ValueError, match="no pair is left of 1"), pytest.warns(UserWarning, match="dropped"):
        TokenPairs.from_rows(rows[4:], tokenizer(), max_length=5)


@pytest.mark.parametrize("name", ["eos_token", "pad_token"])
def test_a_tokenizer_without_padding_or_end_is_refused(name):
    lacking = tokenizer()
    setattr(lacking, name, None)
    with pytest.raises(ValueError, match=f"no {name}"):
        PreferenceClient(ROWS, tokenizer=lacking)


def test_rows_that_prefer_nothing_or_have_another_form_are_refused():
    same = [{"prompt": "the", "chosen": " cat", "rejected": " cat"}]
    with pytest.raises(ValueError, match="same in every pair"):
        PreferenceClient(same, tokenizer=tokenizer())
    with pytest.raises(TypeError, match="as in trl"):
        PreferenceClient([{"prompt": "the"}], tokenizer=tokenizer())
    with pytest.raises(TypeError, match="needs tokenizer="):
        PreferenceClient(ROWS)
