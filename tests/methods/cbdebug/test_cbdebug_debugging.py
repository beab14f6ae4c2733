"""What fixing does to a model, what it refuses, and what it survives."""

from functools import cache

import numpy as np
import pytest
import torch

from cameraready.methods.cbdebug import (
    CBDebug,
    ConceptBank,
    NoisyExpert,
    PostHocCBM,
    PrototypeCBM,
    concept_reliance,
    flip_rate,
    group_report,
    small_encoder,
)
from cameraready.methods.cbdebug.augmentation import augmentation, span
from cameraready.methods.cbdebug.experts import given
from cameraready.methods.cbdebug.training import Schedule, train
from cbdebug_problems import fitted, pictures, shortcut_features


@cache
def leaking(n=600, seed=0, agreement=0.95):
    """A kept concept that carries background besides shape, as directions learned on biased images do."""
    X, y, background = shortcut_features(n, seed, agreement)
    bank = ConceptBank(("shape with background", "shape", "background"), [[0.6, 0.8], [1.0, -0.2], [0.0, 1.0]])
    return PostHocCBM(None, bank, strength=1e-2).fit(X, y), X, y, background


def test_weights_repair_what_removal_and_plain_retraining_leave():
    model, X, y, _ = leaking()
    held_out = shortcut_features(4000, 1, 0.5)

    def worst(m):
        return group_report(m, held_out[0], *held_out[1:]).worst_group

    from cameraready.methods.cbdebug.peers import retrained

    fixed = CBDebug(augment=None, n_permutations=2).fix(model, X, y, ["background"])
    assert worst(fixed) > worst(model) + 0.1
    assert worst(fixed) > worst(model.without([2])) + 0.1
    assert worst(fixed) > worst(retrained(model, X, y, ["background"])) + 0.05


def test_swapped_features_keep_all_but_the_flagged_part():
    model, X, y, _ = leaking(200)
    plan = augmentation("swap", model, X, y, flagged=[2], probability=np.ones(200))
    swapped = plan.features(torch.from_numpy(X), torch.Generator().manual_seed(0)).numpy()
    assert swapped[:, 0] == pytest.approx(X[:, 0], abs=1e-5)
    assert np.sort(swapped[:, 1]) == pytest.approx(np.sort(X[:, 1]), abs=1e-5)
    assert np.mean(swapped[:, 1] == X[:, 1]) < 0.1


def test_directions_given_twice_span_no_more_than_once():
    directions = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -2.0]])
    basis = span(directions)
    assert (basis @ basis.T).numpy() == pytest.approx(np.diag([1.0, 0.0, 1.0]), abs=1e-9)


def test_images_with_probability_zero_are_never_altered():
    model, X, y, _ = fitted("prototype")
    p = np.where(np.arange(len(X)) % 2, 1.0, 0.0)
    x, rows, generator = torch.from_numpy(X), torch.arange(len(X)), torch.Generator().manual_seed(0)
    for kind in ("patch", "mix"):
        plan = augmentation(kind, model, X, y, flagged=[0, 1], probability=p)
        changed = (plan.images(x, rows, generator) != x).flatten(1).any(1).numpy()
        assert not changed[p == 0].any()
        assert changed[p == 1].mean() > 0.9
    assert torch.equal(x, torch.from_numpy(X))


def test_mixing_takes_a_quarter_of_a_picture_that_shows_the_concept():
    model, X, y, _ = fitted("prototype")
    plan = augmentation("mix", model, X, y, flagged=[0], probability=np.ones(len(X)))
    x, generator = torch.from_numpy(X), torch.Generator().manual_seed(0)
    added = (plan.images(x, torch.arange(len(X)), generator) - 0.75 * x) / 0.25
    for picture in added[:5]:
        assert min(float((picture - e).abs().max()) for e in plan.evidence) < 1e-4


def test_undesired_evidence_comes_from_every_class_alike():
    model, X, y, _ = fitted("prototype")
    plan = augmentation("mix", model, X, y, flagged=[0, 3], probability=np.ones(len(X)))
    assert len(plan.evidence) == 2 * 2 * 10
    from_class_one = sum(any(torch.equal(e, torch.from_numpy(x)) for x in X[y == 1]) for e in plan.evidence)
    assert from_class_one == 20


def test_over_represented_images_are_altered_more():
    model, X, y, background = leaking()
    debug = CBDebug(augment=None, n_permutations=1)
    debug.fix(model, X, y, ["background"])
    usual = y == background
    assert debug.augment_prob_[usual].mean() > debug.augment_prob_[~usual].mean() + 0.2
    assert debug.sample_weight_[~usual].mean() > 2 * debug.sample_weight_[usual].mean()
    assert 1 < debug.n_eff_ < len(y)


def test_the_augmentation_is_chosen_by_held_out_training_images_and_reported():
    model, X, y, _ = leaking()
    debug = CBDebug(n_permutations=1)
    debug.fix(model, X, y, ["background"])
    losses = debug.report_.held_out_losses
    assert set(losses) == {"none", "swap"}
    assert debug.report_.augment == (None if min(losses, key=losses.get) == "none" else "swap")
    assert "held-out training images" in str(debug.report_)


def test_reliance_on_the_background_falls():
    model, X, y, background = leaking()
    fixed = CBDebug(augment="swap", n_permutations=1).fix(model, X, y, ["background"])
    other = X.copy()
    other[:, 1] += np.where(background == 1, -4.0, 4.0)  # the same shapes before the other background
    assert flip_rate(fixed, X, other) < flip_rate(model, X, other) - 0.1

    def known(m):
        return concept_reliance(m, X, background).product(axis=1).sum()

    assert known(fixed) < known(model)


def test_without_a_removed_column_being_frozen_training_would_revive_it():
    model = fitted("joint")[0].without([1])
    x, y = torch.from_numpy(fitted("joint")[1]), torch.from_numpy(fitted("joint")[2])

    def loss(rows, _):
        return torch.nn.functional.cross_entropy(model.network_.head(model.network_.concepts(x[rows])), y[rows])

    train(model.network_, len(x), loss, schedule=Schedule(1), removed=[1])
    assert (model.head_weight_[:, 1] == 0).all()
    train(model.network_, len(x), loss, schedule=Schedule(1))
    assert (model.head_weight_[:, 1] != 0).any()


def test_no_flag_is_plain_retraining_and_says_so():
    model, X, y, _ = leaking(300)
    debug = CBDebug()
    fixed = debug.fix(model, X, y, [])
    assert "plain retraining" in str(debug.report_)
    assert fixed.head_weight_ == pytest.approx(model.head_weight_, abs=1e-3)


def test_a_constant_flagged_concept_changes_nothing_but_the_head():
    _, X, y, _ = leaking(300)
    constant = np.concatenate([X, np.ones((300, 1), dtype=np.float32)], axis=1)
    model = PostHocCBM(None, ConceptBank(("a", "b", "constant"), np.eye(3))).fit(constant, y)
    debug = CBDebug()
    debug.fix(model, constant, y, ["constant"])
    assert (debug.sample_weight_ == 1).all()
    assert (debug.augment_prob_ == 0).all()


def test_three_very_unequal_classes_are_debugged():
    rng = np.random.default_rng(0)
    y = np.array(["a"] * 400 + ["b"] * 60 + ["c"] * 12)
    code = np.unique(y, return_inverse=True)[1]
    X = np.eye(3)[code] * 3 + rng.normal(size=(len(y), 3))
    model = PostHocCBM(None, ConceptBank(("a", "b", "c"), np.eye(3))).fit(X, y)
    fixed = CBDebug(n_permutations=1).fix(model, X, y, ["c"])
    assert (fixed.head_weight_[:, 2] == 0).all()
    assert set(fixed.predict(X)) <= set(y)


@pytest.mark.parametrize(
    ("undesired", "error", "said"),
    [
        ([0, 1, 2], ValueError, "all 3 concepts are flagged"),
        (["water"], ValueError, "'water' is not known; the names are shape with background"),
        ([7], ValueError, "concept 7 is not in 0 to 2"),
        ([1.5], TypeError, "1.5 is a float"),
        ("background", TypeError, "one string"),
        (2, TypeError, "no list of concepts"),
    ],
)
def test_flags_that_make_no_sense_are_refused(undesired, error, said):
    model, X, y, _ = leaking(100)
    with pytest.raises(error, match=said):
        CBDebug().fix(model, X, y, undesired)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weights": "best"}, "weights='best'"),
        ({"augment": "cutmix"}, "augment='cutmix'"),
        ({"weights": None, "augment": None}, "choose at least one"),
        ({"gamma": 0}, "gamma=0"),
        ({"augment": "patch"}, "possible are 'swap' and None"),
        ({"n_splits": 1}, "n_splits=1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    model, X, y, _ = leaking(100)
    with pytest.raises(ValueError, match=said):
        CBDebug(**settings).fix(model, X, y, [2])


def test_labels_of_a_missing_or_unknown_class_are_refused():
    model, X, y, _ = leaking(100)
    with pytest.raises(ValueError, match="no image of class 1"):
        CBDebug().fix(model, X, np.zeros(100, dtype=int), [2])
    with pytest.raises(ValueError, match=r"holds \[2\]"):
        CBDebug().fix(model, X, np.arange(100) % 3, [2])
    with pytest.raises(ValueError, match="y has 99 entries for 100"):
        CBDebug().fix(model, X, y[:99], [2])


def test_activations_that_are_not_finite_are_refused():
    class Broken(torch.nn.Module):
        head = torch.nn.Linear(2, 2)

        def concepts(self, x):
            return torch.log(-x.abs())

    X, y, _ = shortcut_features(50)
    with pytest.raises(ValueError, match=r"concepts \[0, 1\] are not finite"):
        CBDebug().fix(Broken(), X, y, [0])


def test_sample_weights_that_balance_the_classes_are_not_balanced_twice():
    """Weights w and w * (anything that depends on the class only) ask for the same balanced fit."""
    from cameraready.methods.cbdebug.peers import retrained

    X, y, _ = shortcut_features(400)
    rows = np.r_[np.flatnonzero(y == 0)[:80], np.flatnonzero(y == 1)[:160]]
    X, y = X[rows], y[rows]
    model = PostHocCBM(None, ConceptBank(("shape", "background"), np.eye(2)), strength=1e-3).fit(X, y)
    counts = np.bincount(y)
    balanced = retrained(model, X, y, [], 1 / counts[y])
    assert balanced.head_weight_ == pytest.approx(model.head_weight_, abs=1e-2)
    assert balanced.network_.head.bias.tolist() == pytest.approx(model.network_.head.bias.tolist(), abs=1e-2)


def test_a_frozen_encoder_runs_once_in_a_fix():
    class Counting(torch.nn.Module):
        seen = 0

        def forward(self, x):
            type(self).seen += len(x)
            return x.mean((2, 3))

    X = np.repeat(np.repeat(leaking(200)[1][:, :, None, None], 2, axis=2), 2, axis=3)
    y = leaking(200)[2]
    model = PostHocCBM(Counting(), ConceptBank(("a", "b"), np.eye(2))).fit(X, y)
    Counting.seen = 0
    fixed = CBDebug(weights="ipw").fix(model, X, y, ["b"])
    assert Counting.seen == 200
    assert fixed.network_.encoder is model.network_.encoder
    assert fixed.predict(X[:3]).shape == (3,)


def test_a_handful_of_images_is_debugged():
    model, X, y, _ = leaking(200)
    rows = np.r_[np.flatnonzero(y == 0)[:3], np.flatnonzero(y == 1)[:3]]
    assert CBDebug(weights="ipw").fix(model, X[rows], y[rows], ["background"]).removed_ == (2,)


def test_diverging_training_is_named():
    X, y = pictures()[:2]
    with pytest.raises(ValueError, match="training loss is"):
        PrototypeCBM(n_prototypes=4, align_epochs=3, epochs=1, lr=1e30).fit(X, y)


def test_an_empty_group_is_not_a_number_and_never_the_worst():
    model, X, y, _ = leaking(100)
    report = group_report(model, X, y, np.where(y == 1, "grass", "gravel"))
    assert np.isnan(report.table.accuracy[(0, "grass")])
    assert report.table.n[(0, "grass")] == 0
    assert report.worst_group == report.table.accuracy.min()
    assert "no images" in str(report)
    with pytest.raises(ValueError, match="attribute has 3"):
        group_report(model, X, y, [1, 2, 3])


def test_peers_keep_removed_concepts_out_and_the_model_unchanged():
    from cameraready.methods.cbdebug import peers

    model, X, y, background = leaking(400)
    weight = model.head_weight_.copy()
    bad = ["background"]
    groups = peers.predicted_groups(model, X, bad)
    fixed = [
        peers.jtt(model, X, y, bad),
        peers.lisa(model, X, y, bad),
        peers.group_dro(model, X, y, bad, background),
        peers.dfr(model, X, y, bad, groups),
        peers.project_out(model, X, y, bad),
        peers.augmentation_only(model, X, y, bad, "swap"),
    ]
    assert all((m.head_weight_[:, 2] == 0).all() for m in fixed)
    assert (model.head_weight_ == weight).all()
    projected = fixed[4].network_.features(torch.from_numpy(X))
    assert projected[:, 1].abs().max() < 1e-5
    assert peers.group_weights(y, background)[(y == 0) & (background == 1)].sum() == pytest.approx(100)


def test_leace_leaves_nothing_linear_of_the_undesired_concept():
    pytest.importorskip("concept_erasure")
    from cameraready.methods.cbdebug import peers

    model, X, y, _ = leaking(400)
    V = model.concepts(X)[:, 2]
    erased = peers.leace(model, X, y, ["background"]).network_.features(torch.from_numpy(X)).numpy()
    assert all(abs(np.cov(erased[:, j], V)[0, 1]) < 1e-3 for j in range(2))


@pytest.mark.parametrize("prototype", [0, *(pytest.param(j, marks=pytest.mark.slow) for j in (2, 5))])
def test_forgetting_lowers_the_flagged_prototype_where_it_was_strongest(prototype):
    from cameraready.methods.cbdebug import peers

    model, X, y, _ = fitted("prototype")
    rows, _, places = peers.liked_places(model, torch.from_numpy(X), y, [prototype])
    assert y[rows].sum() == len(rows) / 2

    def liked(m):
        return m.maps(X[rows])[:, prototype].reshape(len(rows), -1)[np.arange(len(rows)), places].mean()

    assert liked(model) == pytest.approx(model.concepts(X[rows])[:, prototype].mean())
    forgotten, plain = peers.forgetting(model, X, y, [prototype]), peers.retrained(model, X, y, [])
    assert liked(forgotten) < 0.2 * liked(plain)


@pytest.mark.filterwarnings("ignore:the images cover only")
def test_an_encoder_on_images_can_be_mixed():
    X, y = pictures()[:2]
    model = PostHocCBM(small_encoder(1), ConceptBank(("a", "b", "c"), np.eye(3, 256))).fit(X, y)
    fixed = CBDebug(augment="mix", n_permutations=1).fix(model, X, y, NoisyExpert(given([1])))
    assert fixed.network_.encoder is model.network_.encoder  # it is frozen, so one is enough
