"""What people and automated experts are shown, and how their answers are read."""

from types import SimpleNamespace

import numpy as np
import pytest

from cameraready.methods.cbdebug import (
    AttributeExpert,
    CallbackExpert,
    CBDebug,
    ConceptBank,
    CSVExpert,
    LLMExpert,
    MaskExpert,
    ModuleCBM,
    NoisyExpert,
    PostHocCBM,
    explain_concepts,
    small_encoder,
)
from cameraready.methods.cbdebug.experts import given
from cbdebug_problems import fitted, pictures, shortcut_features


@pytest.fixture
def explained():
    X, y, background = shortcut_features()
    model = PostHocCBM(None, ConceptBank(("shape", "background"), np.eye(2))).fit(X, y)
    return SimpleNamespace(found=explain_concepts(model, X, y=y), X=X, y=y, background=background, model=model)


def language_model(*answers):
    """A stand-in for an OpenAI-compatible client that gives these answers in turn, the last one for ever."""
    asked = []

    def create(*, model, messages):
        asked.append(messages[0]["content"])
        text = answers[min(len(asked), len(answers)) - 1]
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=text))])

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    return client, asked


def test_an_explanation_names_the_strongest_images_and_the_heads_weights(explained):
    concept = explained.found[1]
    assert concept.name == "background"
    assert concept.rows[0] == explained.X[:, 1].argmax()
    assert list(concept.activations) == sorted(concept.activations, reverse=True)
    assert concept.weights[1] == pytest.approx(explained.model.head_weight_[1, 1])
    assert sum(c.share for c in explained.found) == pytest.approx(1)


def test_heat_of_an_encoder_without_maps_is_where_hiding_matters():
    """The concept is the brightness of the upper left quarter: the encoder pools quarters."""
    import torch

    class Quarters(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)

    rng = np.random.default_rng(0)
    X = rng.random((40, 1, 32, 32)).astype(np.float32) * 0.1
    X[:20, :, :10, :10] += 0.9
    model = PostHocCBM(Quarters(), ConceptBank(("upper left", "rest"), [[1, 0, 0, 0], [0, 1, 1, 1]]))
    found = explain_concepts(model.fit(X, np.repeat([1, 0], 20)), X)
    row, column = found.peak(3, 0)
    assert row < 16
    assert column < 16


def test_the_mask_expert_flags_what_lies_outside_the_object():
    X, _, _, masks = pictures()
    model = fitted("prototype")[0]
    found = explain_concepts(model, X)
    expected = []
    for j in range(len(found)):
        rows = np.argsort(-model.concepts(X)[:, j], kind="stable")[:30]
        maps = model.maps(X[rows])[:, j]
        places = [np.unravel_index(m.argmax(), m.shape) for m in maps]
        side = 32 // maps.shape[1]
        outside = [
            not masks[i, int((r + 0.5) * side), int((c + 0.5) * side)] for i, (r, c) in zip(rows, places, strict=True)
        ]
        if np.mean(outside) > 0.5:
            expected.append(j)
    assert MaskExpert(masks).flag(found) == expected
    assert MaskExpert(np.ones_like(masks)).flag(found) == []
    assert MaskExpert(np.zeros_like(masks)).flag(found) == list(range(16))


def test_the_attribute_expert_flags_what_tells_the_attribute_better_than_the_class(explained):
    assert AttributeExpert(explained.background).flag(explained.found) == [1]
    assert AttributeExpert(explained.background, margin=0.499).flag(explained.found) == []
    named = np.where(explained.background == 1, "water", "land")
    assert AttributeExpert(named).flag(explained.found) == [1]


def test_the_language_model_is_asked_by_name_and_read(explained):
    client, asked = language_model("NOT", "**Spurious.**")
    assert LLMExpert(client, model="any", task="one or zero").flag(explained.found) == [1]
    assert "'background'" in asked[1]


def test_nonsense_is_asked_for_twice_more_and_then_left_unflagged(explained):
    client, asked = language_model("maybe", "", None)
    expert = LLMExpert(client, model="any", task="one or zero")
    assert expert.flag(explained.found) == []
    assert len(asked) == 6
    assert expert.unanswered == ["shape", "background"]


def test_the_page_can_be_filled_in_and_read_back(explained, tmp_path):
    page = explained.found.to_html(tmp_path / "page.html")
    assert page == (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("should not matter</label>") == 2
    (tmp_path / "concepts.csv").write_text('index,concept,undesired\n0,"shape",0\n1,"background",1\n')
    assert CSVExpert(tmp_path / "concepts.csv").flag(explained.found) == [1]
    (tmp_path / "blank.csv").write_text("concept,undesired\nshape,\nbackground,1\n")
    assert CSVExpert(tmp_path / "blank.csv").flag(explained.found) == [1]
    (tmp_path / "words.csv").write_text("concept,undesired\nshape,perhaps\n")
    with pytest.raises(ValueError, match="perhaps"):
        CSVExpert(tmp_path / "words.csv").flag(explained.found)
    (tmp_path / "other.csv").write_text("concept,undesired\nwater,1\n")
    with pytest.raises(ValueError, match=r"flags \['water'\]"):
        CSVExpert(tmp_path / "other.csv").flag(explained.found)


def test_the_page_shows_a_picture_and_a_veil_for_each_image_and_escapes_names():
    X, y = pictures()[:2]
    model = PostHocCBM(small_encoder(1), ConceptBank(("<b>a</b>", "b"), np.eye(2, 256))).fit(X, y)
    page = explain_concepts(model, X, top=3, y=y).to_html()
    assert page.count("data:image/png") == 2 * 3 * 2
    assert "<b>a</b>" not in page
    assert "https://" not in page


def test_a_noisy_expert_misses_and_adds_at_its_rates():
    concepts = [SimpleNamespace(index=j, name=str(j)) for j in range(4000)]
    flagged = NoisyExpert(given(range(2000)), p_miss=0.3, p_false=0.1).flag(concepts)
    assert np.mean(np.array(flagged) < 2000) == pytest.approx(0.7 / 0.8, abs=0.02)
    assert len(flagged) == pytest.approx(1600, abs=80)  # four standard deviations
    with pytest.raises(ValueError, match="p_miss=2"):
        NoisyExpert(given([]), p_miss=2)


def test_an_expert_can_stand_where_flags_are_asked(explained):
    expert = CallbackExpert(lambda concept: concept.name == "background")
    fixed = CBDebug(weights="ipw").fix(explained.model, explained.X, explained.y, expert)
    assert fixed.removed_ == (1,)


def test_masks_and_attributes_of_a_wrong_length_are_refused(explained):
    with pytest.raises(ValueError, match="attribute has 2 entries"):
        AttributeExpert([0, 1]).flag(explained.found)
    with pytest.raises(ValueError, match="masks has 2 entries"):
        MaskExpert(np.ones((2, 4, 4))).flag(explained.found)
    with pytest.raises(ValueError, match="features, not images"):
        explained.found.heat(0)


def test_a_users_module_can_be_explained():
    from cbdebug_problems import SmallBottleneck

    X, _, _ = shortcut_features()
    assert explain_concepts(SmallBottleneck(), X).names == ModuleCBM(SmallBottleneck()).concept_names_
