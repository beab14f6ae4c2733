"""The concept bottleneck models, one small interface for all."""

import numpy as np
import pytest
import torch
from torch import nn

from cameraready.methods.cbdebug import (
    CBDebug,
    ConceptBank,
    JointCBM,
    ModuleCBM,
    PostHocCBM,
    PrototypeCBM,
    SequentialCBM,
    concept_bank,
    read_folder,
    small_encoder,
)
from cbdebug_problems import (
    FAMILIES,
    SmallBottleneck,
    digest,
    fitted,
    pictures,
    shortcut_features,
)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_and_decides_by_its_concepts(family):
    model, X, y, _ = fitted(family)
    assert model.score(X, y) > 0.85
    concepts = model.concepts(X)
    assert concepts.shape == (len(X), len(model.concept_names_))
    assert model.predict_proba(X).sum(1) == pytest.approx(1, abs=1e-5)
    if family != "prototype":  # its read-out is log(1 + s^2) of the head's s
        scores = concepts @ model.head_weight_.T + model.network_.head.bias.numpy(force=True)
        assert model.decision_function(X) == pytest.approx(scores, abs=1e-4)


@pytest.mark.filterwarnings("ignore:the images cover only")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_flagged_columns_are_exactly_zero_and_the_input_model_is_unchanged(family):
    model, X, y, undesired = fitted(family)
    before = digest(model)
    fixed = CBDebug(n_permutations=1).fix(model, X, y, undesired)
    assert type(fixed) is type(model)
    flagged = [model.concept_names_.index(name) for name in undesired]
    assert (fixed.head_weight_[:, flagged] == 0).all()
    assert fixed.removed_ == tuple(flagged)
    assert digest(model) == before
    assert digest(fixed) != before
    assert np.isfinite(fixed.decision_function(X)).all()


@pytest.mark.filterwarnings("ignore:the images cover only")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_fix_keeps_the_first_removal(family):
    model, X, y, undesired = fitted(family)
    once = CBDebug(weights="ipw", augment=None).fix(model, X, y, undesired)
    twice = CBDebug(weights="ipw", augment=None).fix(once, X, y, [])
    assert set(once.removed_) <= set(twice.removed_)
    assert (twice.head_weight_[:, list(once.removed_)] == 0).all()


def test_a_users_module_comes_back_as_the_same_type_without_the_concept():
    X, y, _ = shortcut_features()
    module = SmallBottleneck()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    fixed = CBDebug(weights="ipw", augment=None).fix(module, X, y, undesired=[1])
    assert isinstance(fixed, SmallBottleneck)
    assert (fixed.head.weight[:, 1] == 0).all()
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


def test_a_users_module_may_have_its_classes_in_any_order():
    X, y, _ = shortcut_features()
    named = np.where(y == 1, "cat", "dog")
    model = ModuleCBM(SmallBottleneck(), classes=["dog", "cat"])
    fixed = CBDebug(weights="ipw", augment=None).fix(model, X, named, undesired=[1])
    assert fixed.score(X, named) > 0.85


def test_a_users_module_in_train_mode_is_read_in_eval_mode_and_left_in_train_mode():
    X, _, _ = shortcut_features()
    module = SmallBottleneck().train()
    model = ModuleCBM(module)
    assert (model.concepts(X) == model.concepts(X)).all()  # its dropout is off
    assert module.training


@pytest.mark.parametrize("module", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))])
def test_a_module_without_concepts_and_head_is_refused(module):
    with pytest.raises(TypeError, match=r"concepts\(x\)"):
        ModuleCBM(module)


def test_concepts_do_not_depend_on_the_batch_size():
    X, y = pictures()[:2]
    bank = ConceptBank(("a", "b"), np.eye(2, 256))
    model = PostHocCBM(small_encoder(1).eval(), bank).fit(X, y)
    large = model.concepts(X)
    model.batch_size = 7
    assert model.concepts(X) == pytest.approx(large, abs=1e-4)


def test_post_hoc_concepts_are_standardised_projections():
    X, y, _ = shortcut_features()
    model = PostHocCBM(None, ConceptBank(("a", "b"), [[2.0, 0.0], [0.0, 3.0]])).fit(X, y)
    expected = (X - X.mean(0)) / X.std(0)
    assert model.concepts(X) == pytest.approx(expected, abs=1e-4)


def test_the_heads_optimum_is_that_of_its_stated_loss():
    """Elastic net: at the optimum the loss's gradient is in the penalty's subdifferential."""
    X, y, _ = shortcut_features()
    model = PostHocCBM(None, ConceptBank(("a", "b"), np.eye(2)), strength=0.05).fit(X, y)
    c = model.concepts(X)
    w = 2 * model.head_weight_[1]  # log-odds
    p = model.predict_proba(X)[:, 1]
    balance = np.where(y == 1, len(y) / (2 * y.sum()), len(y) / (2 * (1 - y).sum()))
    gradient = ((p - y) * balance) @ c / len(y)
    for g, weight in zip(gradient, w, strict=True):
        if weight == 0:
            assert abs(g) <= 0.05 * 0.99 + 1e-3
        else:
            assert g == pytest.approx(-0.05 * (0.99 * np.sign(weight) + 0.01 * weight), abs=2e-3)


def test_a_concept_direction_points_to_its_examples():
    rng = np.random.default_rng(0)
    shown, other = rng.normal(loc=[0, 0, 3, 0], size=(50, 4)), rng.normal(size=(50, 4))
    direction = concept_bank(None, {"third": (shown, other)}).directions[0]
    assert direction.argmax() == 2
    assert np.linalg.norm(direction) == pytest.approx(1)


def test_prototypes_share_each_place_and_the_head_is_not_negative():
    model, X, _, _ = fitted("prototype")
    maps = model.maps(X[:4])
    assert maps.sum(1) == pytest.approx(1, abs=1e-5)
    assert maps.max((2, 3)) == pytest.approx(model.concepts(X[:4]), abs=1e-6)
    assert (model.head_weight_ >= 0).all()


def test_only_training_with_classes_begins_with_the_head_alone(monkeypatch):
    from cameraready.methods.cbdebug import prototypes

    head_only = []
    monkeypatch.setattr(prototypes, "train", lambda *_, schedule, **__: head_only.append(schedule.head_only_epochs))
    PrototypeCBM(n_prototypes=4, align_epochs=3, epochs=3).fit(*pictures()[:2])
    assert head_only == [0, 1]


def test_prototypes_are_not_all_the_same():
    model, X, _, _ = fitted("prototype")
    strongest = model.maps(X).argmax(1)
    assert len(np.unique(strongest)) >= 4


@pytest.mark.parametrize("family", [JointCBM, SequentialCBM])
def test_labelled_concepts_are_learned(family):
    X, y, background = shortcut_features()
    labels = np.stack([y, background], axis=1)
    model = family(concept_names=["shape", "background"], lr=0.05).fit(X, y, labels)
    assert ((model.concepts(X) > 0.5) == labels).mean() > 0.9


def test_a_seed_gives_the_same_model_twice():
    X, y = pictures()[:2]
    first, second = (PrototypeCBM(n_prototypes=4, align_epochs=1, epochs=1).fit(X, y) for _ in range(2))
    assert digest(first) == digest(second)


def test_a_folder_of_pictures_is_read_with_its_classes(tmp_path):
    from PIL import Image

    for name, grey in (("wolf", 10), ("husky", 200)):
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.new("RGB", (40, 30 + i), (grey, grey, grey)).save(tmp_path / name / f"{i}.png")
    images, y = read_folder(tmp_path, size=16)
    assert images.shape == (4, 3, 16, 16)
    assert y.tolist() == ["husky", "husky", "wolf", "wolf"]
    assert images[0].mean() == pytest.approx(200 / 255, abs=0.01)


def test_a_folder_without_classes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has 0 subfolders"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (np.zeros((4, 8, 8)), "grey pictures"),
        (np.full((4, 2), 1e300), "not finite"),
        (np.zeros((4, 8, 8, 3)), "channels last"),
        (np.full((4, 2), np.nan), "8 values that are not finite"),
        (np.zeros((0, 2)), "empty"),
    ],
)
def test_images_of_a_wrong_form_are_refused(images, said):
    with pytest.raises(ValueError, match=said):
        PostHocCBM(None, ConceptBank(("a", "b"), np.eye(2))).fit(images, [0, 1] * (len(images) // 2))


def test_settings_of_models_that_make_no_sense_are_refused():
    X, y, _ = shortcut_features(50)
    bank = ConceptBank(("a", "b"), np.eye(2))
    with pytest.raises(TypeError, match="numbers"):
        PostHocCBM(None, bank).fit(X.astype(str), y)
    for settings in ({"strength": 0}, {"batch_size": 0}, {"l1_ratio": 2}):
        with pytest.raises(ValueError, match=f"{next(iter(settings))}="):
            PostHocCBM(None, bank, **settings).fit(X, y)
    with pytest.raises(ValueError, match="n_prototypes=1"):
        PrototypeCBM(n_prototypes=1).fit(pictures()[0], pictures()[1])
    with pytest.raises(ValueError, match="all weights of class number 1 are 0"):
        PostHocCBM(None, bank).fit(X, y, sample_weight=1.0 - y)


def test_images_outside_the_encoders_shape_are_refused():
    X, y = pictures()[:2]
    model = PrototypeCBM(n_prototypes=4, align_epochs=0, epochs=0).fit(X, y)
    with pytest.raises(ValueError, match=r"does not take images of shape \(2, 3, 32, 32\)"):
        model.predict(np.zeros((2, 3, 32, 32)))


def test_whole_numbers_are_bytes():
    X, y = pictures()[:2]
    model = PrototypeCBM(n_prototypes=4, align_epochs=0, epochs=0).fit(X, y)
    as_bytes = (X * 255).round().astype(np.uint8)
    assert model.concepts(as_bytes) == pytest.approx(model.concepts(as_bytes / 255.0), abs=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_device_follows_the_images():
    X, y = pictures()[:2]
    model = PrototypeCBM(n_prototypes=4, align_epochs=1, epochs=1).fit(torch.from_numpy(X).cuda(), y)
    assert next(model.network_.parameters()).is_cuda
    CBDebug(augment="patch").fix(model, torch.from_numpy(X).cuda(), y, [0])
