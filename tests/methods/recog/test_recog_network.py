"""The network's formulas and invariances, each against an independent computation."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import matthews_corrcoef
from torch import nn

from cameraready.methods.recog import EvidenceBayes, Molecules, MoleculeTable, ReCoG
from cameraready.methods.recog.encoders import make_encoder
from cameraready.methods.recog.episodes import Draw, assemble, draw_episode, split_targets, usable_targets
from cameraready.methods.recog.label_statistics import LabelStatistics
from cameraready.methods.recog.network import ReCoGNetwork, _joint_statistics, _pair_counts
from cameraready.methods.recog.training import inner_step

FRAGMENTS = ["C", "CC", "CO", "CN", "c1ccccc1", "C(=O)O", "C(Cl)", "C1CC1", "CS", "C(C#N)"]


@pytest.fixture(scope="module")
def table():
    """300 molecules from fragments, six tasks that depend on them and on one another, 60 % known."""
    rng = np.random.default_rng(0)
    names = ["".join(rng.choice(FRAGMENTS, size=5)) for _ in range(300)]
    has_ring = np.array(["c1" in name for name in names], float)
    columns = {f"t{k}": np.where(rng.random(300) < 0.25, 1 - has_ring, has_ring) for k in range(6)}
    frame = pd.DataFrame(columns).where(rng.random((300, 6)) < 0.6).assign(smiles=names)
    return MoleculeTable.from_frame(frame)


@pytest.fixture(scope="module")
def statistics(table):
    return LabelStatistics.of(table.labels)


def network(**options):
    """With a gate, a readout and weights that are not at their special first values."""
    torch.manual_seed(0)
    made = ReCoGNetwork(make_encoder("ecfp", width=16), width=16, **options).eval()
    with torch.no_grad():
        made.rho.fill_(0.7)
        made.sharpness[1] = 2.0
        if made.has_bottleneck:
            nn.init.normal_(made.gate[-1].weight)
            made.message_mean.normal_()
    return made


def episodes(table, statistics, *, target=0, encoder=None, order=None):
    draw = draw_episode(table.labels, target, shots=5, n_queries=30, rng=np.random.default_rng(1))
    if order is not None:
        draw = Draw(target, draw.support[order], draw.query)
    return assemble([draw], table, statistics, encoder or make_encoder("ecfp", width=16), device=torch.device("cpu"))


def test_conditional_rates_and_correlations_are_those_of_the_table(table, statistics):
    a, b = table.labels[:, 1], table.labels[:, 4]
    both = (a >= 0) & (b >= 0)
    for label in (0, 1):
        given = b[both & (a == label)]
        expected = (given.sum() + statistics.marginal[4]) / (len(given) + 1)
        assert statistics.rates[1, 4, label] == pytest.approx(expected)
    phi = np.zeros((6, 6))
    for i, j in np.argwhere(~np.eye(6, dtype=bool)):
        known = (table.labels[:, [i, j]] >= 0).all(axis=1)
        phi[i, j] = matthews_corrcoef(table.labels[known, i], table.labels[known, j])
    np.testing.assert_allclose(statistics.phi, phi / np.abs(phi).sum(axis=1, keepdims=True), atol=1e-12)


def test_the_prior_of_a_training_task_does_not_see_that_task(table, statistics):
    changed = table.labels.copy()
    changed[:, 2] = np.where(changed[:, 2] >= 0, 1 - changed[:, 2], -1)
    others = [0, 1, 3, 4, 5]
    np.testing.assert_allclose(LabelStatistics.of(changed).prior(2)[others], statistics.prior(2)[others])
    assert not np.allclose(LabelStatistics.of(changed).prior()[others], statistics.prior()[others])


def test_tasks_without_common_molecules_have_the_marginal_rate_as_prior_and_no_correlation():
    labels = np.full((100, 2), -1, dtype=np.int8)
    labels[:50, 0], labels[50:, 1] = np.arange(50) % 2, np.arange(50) % 5 == 0
    found = LabelStatistics.of(labels)
    np.testing.assert_allclose(found.prior()[:, 0], found.marginal)
    np.testing.assert_allclose(found.prior()[:, 1], found.marginal)
    assert not found.phi.any()


def test_an_untrained_model_is_naive_bayes_with_a_vote_of_similar_molecules(table):
    model = ReCoG(steps=0, random_state=0).fit(table, table.tasks[1:])
    peer = EvidenceBayes(strength=5.0, similarity=0.5).fit(table, table.tasks[1:])
    labels = table.labels[:, 0]
    rows = np.r_[np.flatnonzero(labels == 1)[:10], np.flatnonzero(labels == 0)[:10]]
    support, context = table.molecules.take(rows), table.labels[rows, 1:]
    mine = model.adapt(support, labels[rows], context).predict_proba(table.molecules, table.labels[:, 1:])
    theirs = peer.adapt(support, labels[rows], context).predict_proba(table.molecules, table.labels[:, 1:])
    np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert np.ptp(mine[:, 1]) > 0.3


@pytest.mark.parametrize("options", [{}, {"relations": False}, {"bottleneck": False}])
def test_the_order_of_the_support_changes_nothing(table, statistics, options):
    model = network(**options)
    order = np.random.default_rng(2).permutation(10)
    plain = model(episodes(table, statistics))
    shuffled = model(episodes(table, statistics, order=order))
    torch.testing.assert_close(plain.logits, shuffled.logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("options", [{}, {"relations": False}])
def test_the_order_of_the_tasks_changes_nothing(table, statistics, options):
    model, given = network(**options), episodes(table, statistics)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    shuffled = replace(
        given,
        support_context=given.support_context[..., order],
        query_context=given.query_context[..., order],
        prior=given.prior[:, order],
        phi=given.phi[order][:, order],
    )
    plain, other = model(given), model(shuffled)
    torch.testing.assert_close(plain.logits, other.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(plain.gates[..., order], other.gates, atol=1e-6, rtol=0)


@pytest.mark.parametrize("options", [{}, {"relations": False}])
def test_a_task_that_is_unknown_everywhere_changes_nothing(table, statistics, options):
    more = MoleculeTable(
        table.molecules, np.c_[table.labels, np.full(len(table), -1, np.int8)], (*table.tasks, "t"), table.report
    )
    model = network(**options)
    plain = model(episodes(table, statistics)).logits
    with_it = model(episodes(more, LabelStatistics.of(more.labels))).logits
    torch.testing.assert_close(plain, with_it, atol=1e-5, rtol=0)


def test_fitting_with_a_task_that_is_unknown_everywhere_gives_the_same_model(table):
    more = MoleculeTable(
        table.molecules, np.c_[table.labels, np.full(len(table), -1, np.int8)], (*table.tasks, "t"), table.report
    )
    plain, other = (ReCoG(steps=3, width=8, random_state=0).fit(each) for each in (table, more))
    assert plain.tasks_ == other.tasks_
    for one, two in zip(plain.module.parameters(), other.module.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_a_prediction_does_not_depend_on_the_other_queries(table, statistics):
    model, given = network(), episodes(table, statistics)
    alone = replace(
        given,
        query=given.query[:, :1],
        query_y=given.query_y[:, :1],
        query_is=given.query_is[:, :1],
        query_context=given.query_context[:, :1],
        tanimoto=given.tanimoto[:, :1],
    )
    torch.testing.assert_close(model(given).logits[:, :1], model(alone).logits, atol=1e-5, rtol=0)


def test_a_query_without_context_falls_back_to_structure(table, statistics):
    model, given = network(bottleneck=False), episodes(table, statistics)
    bare = replace(given, query_context=torch.full_like(given.query_context, -1))
    with torch.no_grad():
        model.rho.zero_()
        h = model.encoder(bare.inputs)
        context = model.condition(bare, h[bare.support])
        vote = model.vote * model._similarity(bare, context, h[bare.query])
        torch.testing.assert_close(model(bare).logits, vote)


def test_the_targets_own_labels_are_hidden(table, statistics):
    given = episodes(table, statistics, target=3)
    assert (given.support_context[..., 3] == -1).all()
    assert (given.query_context[..., 3] == -1).all()
    assert (given.query_context[..., 2] >= 0).any()


def test_no_common_label_is_no_relation():
    counts = torch.zeros(1, 2, 2, 2)
    assert not _joint_statistics(counts).any()


def test_pair_counts_count_pairs():
    y = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    labels = torch.tensor([[[1], [-1], [1], [0]]])
    counts = _pair_counts(y, labels, labels >= 0)
    assert counts[0, 0].tolist() == [[1.0, 1.0], [0.0, 1.0]]


def test_the_bottleneck_replaces_what_it_shuts_out_by_noise_of_the_messages_size():
    model = network().train()
    message = 3 + 2 * torch.randn(20_000, 16)
    shut, noisy, _ = model._bottleneck(torch.full((20_000,), -30.0), message, 0.5)
    assert shut.max() < 1e-3
    assert (noisy - message).abs().mean() > 1
    torch.testing.assert_close(noisy.mean(0), message.mean(0), atol=0.1, rtol=0)  # 7 standard errors
    torch.testing.assert_close(noisy.std(0), message.std(0), atol=0.1, rtol=0)
    opened, passed, _ = model._bottleneck(torch.full((20_000,), 30.0), message, 0.5)
    assert opened.min() > 1 - 1e-3
    torch.testing.assert_close(passed, message, atol=1e-2, rtol=0)


def test_the_compression_term_is_the_two_divergences():
    model = network().train()
    torch.manual_seed(3)
    logit, message = torch.randn(50), torch.randn(50, 16)
    gate, _, kl = model._bottleneck(logit, message, 0.2)
    bernoulli = torch.distributions.kl_divergence(
        torch.distributions.Bernoulli(logits=logit), torch.distributions.Bernoulli(torch.tensor(0.2))
    )
    mean, spread = message.mean(0), message.std(0, correction=0)
    normal = torch.distributions.Normal
    gaussian = torch.distributions.kl_divergence(
        normal(gate[:, None] * message + (1 - gate)[:, None] * mean, (1 - gate)[:, None] * spread), normal(mean, spread)
    )
    torch.testing.assert_close(kl, (bernoulli + 0.5 * gaussian.mean(-1)).mean(), atol=1e-4, rtol=1e-4)


def test_one_inner_step_lowers_the_supports_loss(table, statistics):
    model = network()
    given = episodes(table, statistics, encoder=model.encoder)
    halves = given.halves()
    assert [len(half.query[0]) + len(half.support[0]) for half in halves] == [10, 10]
    assert all(set(half.support_y[0].tolist()) == {0.0, 1.0} for half in halves)

    def loss(parameters):
        outputs = [torch.func.functional_call(model, parameters, (half,)).logits for half in halves]
        terms = [
            nn.functional.binary_cross_entropy_with_logits(z, h.query_y) for z, h in zip(outputs, halves, strict=True)
        ]
        return torch.stack(terms).mean().item()

    assert loss(inner_step(model, given, 0.01)) < loss(dict(model.named_parameters()))


def test_an_inner_step_starts_at_the_weights_that_were_fitted_on_held_out_tasks(table, statistics):
    model = network()
    given = episodes(table, statistics, encoder=model.encoder)
    kept = {name: value + 0.5 for name, value in model.weigh().items()}
    moved = inner_step(model, given, 0.01, kept=kept)
    model.load_state_dict(kept, strict=False)
    for name, value in inner_step(model, given, 0.01).items():
        torch.testing.assert_close(moved[name], value)


def test_relations_are_the_attended_mean_of_the_triplets(table, statistics):
    model, given = network(), episodes(table, statistics)
    with torch.no_grad():
        model.joint.weight.zero_()
        h = model.encoder(given.inputs)[given.support]
        found = model.condition(replace(given, phi=torch.zeros_like(given.phi)), h).relations[0]
        for p in range(6):
            rows = torch.nonzero(given.support_context[0, :, p] >= 0).squeeze(1)
            of_target = model.label[given.support_y[0, rows].long()]
            of_task = model.label[given.support_context[0, rows, p].long()]
            e = model.triplet(torch.cat([of_target, of_task, h[0, rows]], dim=1))
            expected = (model.attention(e).softmax(dim=0) * e).sum(dim=0)
            torch.testing.assert_close(found[p], expected, atol=1e-5, rtol=1e-5)


def test_a_gate_is_the_mlp_of_its_tasks_relation_the_target_the_label_and_the_molecule(table, statistics):
    model, given = network(), episodes(table, statistics)
    with torch.no_grad():
        h = model.encoder(given.inputs)
        context = model.condition(given, h[given.support])
        gates = model(given).gates
        for q, p in torch.argwhere(given.query_context[0] >= 0)[:20].tolist():
            label = model.label[given.query_context[0, q, p].long()]
            features = [context.relations[0, p], context.target[0], label, h[given.query[0, q]]]
            expected = torch.sigmoid(model.gate(torch.cat(features))).squeeze()
            torch.testing.assert_close(gates[0, q, p], expected, atol=1e-5, rtol=0)


def test_a_support_of_one_molecule_a_class_takes_no_inner_step(table, statistics):
    draw = draw_episode(table.labels, 0, shots=1, n_queries=10, rng=np.random.default_rng(0))
    model = network()
    given = assemble([draw], table, statistics, model.encoder, device=torch.device("cpu"))
    assert all(value is dict(model.named_parameters())[name] for name, value in inner_step(model, given, 0.1).items())


def test_an_episode_has_disjoint_balanced_support_and_queries(table):
    draw = draw_episode(table.labels, 2, shots=10, n_queries=40, rng=np.random.default_rng(0))
    assert not set(draw.support) & set(draw.query)
    assert table.labels[draw.support, 2].tolist() == [1] * 10 + [0] * 10
    assert (table.labels[draw.query, 2] == 1).sum() == 20
    rare = table.labels.copy()
    rare[np.flatnonzero(rare[:, 2] == 1)[5:], 2] = -1
    assert len(draw_episode(rare, 2, shots=10, n_queries=40, rng=np.random.default_rng(0)).support) == 4


def test_tasks_with_one_molecule_of_a_class_are_no_targets():
    labels = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=np.int8)
    assert usable_targets(labels).tolist() == [0, 1]
    assert len(split_targets(labels, np.random.default_rng(0))[1]) == 0


@pytest.mark.slow
def test_the_graph_encoder_takes_single_atoms_and_gives_each_molecule_its_own_row():
    encoder = make_encoder("gin", width=16).eval()
    molecules = Molecules.from_smiles(["[Na+]", "CCO", "C", "OCC"])
    with torch.no_grad():
        h = encoder(encoder.inputs(molecules, np.arange(4), torch.device("cpu")))
        alone = encoder(encoder.inputs(molecules, np.array([0]), torch.device("cpu")))
    torch.testing.assert_close(h[1], h[3])
    torch.testing.assert_close(h[:1], alone)
    assert (h[0] - h[2]).abs().max() > 0.1
