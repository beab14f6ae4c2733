import json

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import GradientBoostingClassifier

from cameraready.methods.lapace import LAPACEExplainer, TabularSpace, Training
from cameraready.methods.lapace.path_search import last_run
from lapace_applicants import QUICK, applicants, score


class Boosted:
    """A model with an interface of its own, as xgboost's wrappers have: codes in, float32 probabilities out."""

    def fit(self, rows, labels):
        self.inner = GradientBoostingClassifier(n_estimators=20, random_state=0).fit(self.codes(rows), labels)
        return self

    def codes(self, rows):
        return rows.assign(home=rows["home"].map({"own": 0, "rent": 1, "parents": 2}), school=rows["school"].cat.codes)

    def predict_proba(self, rows):
        return self.inner.predict_proba(self.codes(rows)).astype(np.float32)


def test_a_pipeline_a_boosted_wrapper_and_a_function_are_all_explained(people, forest):
    boosted = Boosted().fit(people, score(people)[:, 1] > 0.5)
    for model, target in ((forest, "yes"), (boosted, 1), (boosted.predict_proba, 1), (score, 1)):
        explainer = LAPACEExplainer(model, TabularSpace.infer(people), training=QUICK).fit(people)
        found = explainer.explain(people.head(30), target=target)
        call = getattr(model, "predict_proba", model)
        for explanation in found:
            assert explanation.status in ("ok", "already_target")
            assert (call(explanation.options)[:, 1] >= 0.5).all()
            assert (explanation.options.dtypes == people.dtypes).all()


def test_the_end_of_a_path_does_not_depend_on_the_input(explainer, declined):
    one, *others = explainer.explain(declined, target=1, select="last")
    for other in others:
        assert set(map(tuple, other.option_codes)) == set(map(tuple, one.option_codes))


def test_options_are_those_of_the_stable_entry(explainer, declined):
    for explanation in explainer.explain(declined, target=1):
        for path in explanation.paths:
            behind = path.alphas >= path.alpha
            assert path.valid[behind].all()
            assert path.probability[behind].min() >= 0.5
            before = np.flatnonzero(~behind)
            if len(before):  # bisection: at most 1/64 of a grid step after the last point that is not valid
                assert not path.valid[before[-1]]
                assert path.alpha > path.alphas[before[-1]]


def test_the_last_run_ignores_an_earlier_visit():
    first, last = last_run(np.array([[True, False, True, True], [True, True, False, False], [False] * 4]))
    assert first.tolist() == [2, 0, -1]
    assert last.tolist() == [3, 1, -1]


def test_confident_options_are_surer_and_further_than_first_ones(explainer, declined):
    near = explainer.explain(declined, target=1, select="first")
    sure = explainer.explain(declined, target=1, select="confident")
    for a, b in zip(near, sure, strict=True):
        for one, other in zip(a.paths, b.paths, strict=True):
            assert other.alpha >= one.alpha
        # Where no point of a path is as sure as 0.8, its surest one is taken.
        reachable = [min(0.8, path.probability[path.valid].max()) for path in b.paths]
        assert b.probability.min() >= min(reachable) - 1e-12


def test_shares_run_from_the_first_to_the_last_point(explainer, declined):
    ways = {s: explainer.explain(declined, target=1, select=s) for s in ("first", 0.0, 0.5, 1.0, "last")}
    for same in ((0.0, "first"), (1.0, "last")):
        for a, b in zip(*(ways[s] for s in same), strict=True):
            np.testing.assert_array_equal(a.option_codes, b.option_codes)
    alphas = {s: [path.alpha for e in ways[s] for path in e.paths] for s in ways}
    assert (np.array(alphas["first"]) <= np.array(alphas[0.5]) + 0.05).all()
    assert (np.array(alphas[0.5]) <= np.array(alphas["last"])).all()


def test_options_are_distinct_sorted_by_distance_and_as_many_as_asked(explainer, declined):
    space = explainer.background_.space
    for explanation in explainer.explain(declined, target=1, select="last", n_options=2):
        assert 1 <= len(explanation.options) <= 2
        assert not explanation.options.duplicated().any()
        far = space.distances(space.scale(explanation.option_codes), space.scale(explanation.start[None]))[:, 0]
        assert (np.diff(far) >= 0).all()


def test_keeping_unchanged_values_changes_fewer_columns(explainer, declined):
    def changed(**options):
        return np.mean([len(c) for e in explainer.explain(declined, target=1, **options) for c in e.changes])

    kept = explainer.explain(declined, target=1, keep_unchanged=0.1)
    assert changed(keep_unchanged=0.1) < changed()
    assert all((score(e.options)[:, 1] >= 0.5).all() for e in kept if e.status == "ok")


def test_what_was_saved_explains_bit_by_bit_the_same(explainer, declined, tmp_path):
    explainer.save(tmp_path)
    loaded = LAPACEExplainer.load(tmp_path, score)
    for a, b in zip(explainer.explain(declined), loaded.explain(declined), strict=True):
        np.testing.assert_array_equal(a.option_codes, b.option_codes)
        np.testing.assert_array_equal(a.probability, b.probability)
    pd.testing.assert_frame_equal(explainer.centroids_, loaded.centroids_)


def test_the_same_seed_gives_the_same_explanations(people, explainer, declined):
    again = LAPACEExplainer(score, TabularSpace.infer(people), training=QUICK).fit(people)
    for a, b in zip(explainer.explain(declined), again.explain(declined), strict=True):
        np.testing.assert_array_equal(a.option_codes, b.option_codes)


def test_many_inputs_are_explained_like_each_alone(explainer, declined, monkeypatch):
    whole = explainer.explain(declined, target=1)
    monkeypatch.setattr("cameraready.methods.lapace.explainer.CHUNK_BYTES", 300_000)
    for i, explanation in enumerate(explainer.explain(declined, target=1)):
        np.testing.assert_allclose(explanation.option_codes, whole[i].option_codes, rtol=1e-4, atol=1.0)
    assert len(explainer.explain(declined.iloc[[0]], target=1)) == 1
    assert explainer.explain(declined.iloc[:0], target=1) == []


def test_rows_of_the_target_class_stay_as_they_are(explainer, people):
    accepted = people[score(people)[:, 1] > 0.9].head(3)
    for explanation, (_, row) in zip(explainer.explain(accepted, target=1), accepted.iterrows(), strict=True):
        assert explanation.status == "already_target"
        assert explanation.options.iloc[0].to_dict() == pytest.approx(row.to_dict())


def test_rows_that_the_model_raises_on_are_set_apart(people, declined):
    poison = declined.index[3]
    age = int(people.loc[poison, "age"])

    def picky(rows):
        if ((rows["age"] == age) & np.isclose(rows["income"], people.loc[poison, "income"])).any():
            raise RuntimeError("no such person")
        return score(rows)

    with pytest.warns(UserWarning, match="raised on 1 training rows"):
        explainer = LAPACEExplainer(picky, TabularSpace.infer(people), training=Training(epochs=5)).fit(people)
    status = [explanation.status for explanation in explainer.explain(declined, target=1)]
    assert status[3] == "model_error"
    assert set(status) - {"model_error"} <= {"ok", "no_valid_path"}
    assert status.count("model_error") == 1


def test_three_classes_are_explained_and_opposite_is_refused(people):
    def three(rows):
        p = score(rows)[:, 1]
        scores = np.stack([8 * (0.4 - p), np.zeros(len(p)), 8 * (p - 0.7)], axis=1)
        return np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)

    explainer = LAPACEExplainer(three, TabularSpace.infer(people), classes=["no", "maybe", "yes"], training=QUICK)
    explainer.fit(people)
    found = explainer.explain(people.head(20), target="yes")
    rows = pd.concat([explanation.options for explanation in found])
    assert (three(rows).argmax(axis=1) == 2).all()
    with pytest.raises(ValueError, match="two classes"):
        explainer.explain(people.head(2))
    with pytest.raises(ValueError, match="'perhaps'"):
        explainer.explain(people.head(2), target="perhaps")


def test_labels_may_be_the_truth(people):
    truth = (people["income"] > people["income"].median()).to_numpy().astype(int)
    space = TabularSpace.infer(people)
    explainer = LAPACEExplainer(score, space, labels="truth", training=Training(epochs=3)).fit(people, truth)
    assert explainer.explain(people.head(3), target=1)
    with pytest.raises(ValueError, match="needs y"):
        LAPACEExplainer(score, space, labels="truth").fit(people)


def test_a_class_without_a_valid_centroid_falls_back_to_training_rows(people):
    rare = people["income"].quantile(0.97)

    def strict(rows):
        p = 1 / (1 + np.exp(-(rows["income"].to_numpy() - rare) * 2))
        return np.column_stack([1 - p, p])

    explainer = LAPACEExplainer(strict, TabularSpace.infer(people), training=Training(epochs=1))
    with pytest.warns(UserWarning, match="class 1"):
        explainer.fit(people)
    about = explainer.centroids_[explainer.centroids_["class"] == 1]
    served = about["active"].any()
    status = {explanation.status for explanation in explainer.explain(people.head(20), target=1)}
    assert status <= ({"ok", "already_target"} if served else {"no_valid_path", "already_target"})
    assert served == (about["source"] == "medoid").all()


def test_the_centroid_table_says_what_the_model_says(explainer):
    about = explainer.centroids_
    assert about.groupby("class")["weight"].sum().to_numpy() == pytest.approx(1.0)
    rows = about[explainer.background_.space.names]
    p = score(rows.astype({"school": explainer.background_.space.columns[-1].dtype}))
    np.testing.assert_allclose(p[np.arange(len(about)), about["class"].astype(int)], about["probability"])


def test_results_print_tabulate_and_serialise(explainer, declined):
    explanation = explainer.explain(declined.head(1), target=1)[0]
    assert str(explanation).startswith("ok: ")
    assert "->" in str(explanation)
    table = explanation.paths[0].to_frame()
    assert len(table) == explainer.grid
    assert table["path_a"].tolist() == pytest.approx(np.linspace(0, 1, explainer.grid))
    assert {"path_probability", "path_distance", "path_outlier_factor", "age"} <= set(table)
    assert json.loads(json.dumps(explanation.to_dict(), default=str))["status"] == "ok"
    assert "facet" in explanation.paths[0].plot().to_dict()
    assert len(explanation.plot().to_dict()["vconcat"]) == len(explanation.paths)


def test_constant_columns_and_repeated_rows_survive():
    frame = pd.concat([applicants(100)] * 4, ignore_index=True).assign(country="NO")
    explainer = LAPACEExplainer(score, TabularSpace.infer(frame), training=Training(epochs=10)).fit(frame)
    found = explainer.explain(frame.head(5).assign(country="NO"), target=1)
    assert all((explanation.options["country"] == "NO").all() for explanation in found)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda rows: score(rows)[:, 1], "shape"),
        (lambda rows: score(rows)[:, :1], "shape"),
        (lambda rows: score(rows)[:-1], "shape"),
        (lambda rows: score(rows) * 0.9, "sum to 1"),
        (lambda rows: score(rows) * np.nan, "finite"),
        (lambda rows: np.tile([0.9, 0.1], (len(rows), 1)), "class 0 to all"),
        (lambda rows: 1 / 0, "raised on every training row"),
        (lambda rows: ["a"] * len(rows), "not numbers"),
    ],
)
def test_models_whose_answers_are_no_probabilities_are_refused(people, answer, message):
    with pytest.raises(ValueError, match=message):
        LAPACEExplainer(answer, TabularSpace.infer(people)).fit(people)


@pytest.mark.parametrize(
    "settings",
    [{"n_components": 0}, {"grid": 1}, {"latent_dim": 0}, {"threshold": 1.0}, {"labels": "both"}],
)
def test_settings_out_of_range_are_refused(people, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        LAPACEExplainer(score, TabularSpace.infer(people), **settings).fit(people)


@pytest.mark.parametrize(
    "request_",
    [{"select": "nearest"}, {"select": 1.5}, {"n_options": 4}, {"n_options": 0}, {"keep_unchanged": 1.0}],
)
def test_requests_out_of_range_are_refused(explainer, declined, request_):
    with pytest.raises(ValueError, match=next(iter(request_))):
        explainer.explain(declined, target=1, **request_)


def test_an_explainer_must_be_fitted_on_a_space(people):
    with pytest.raises(ValueError, match="not fitted"):
        LAPACEExplainer(score, TabularSpace.infer(people)).explain(people)
    with pytest.raises(TypeError, match="TabularSpace"):
        LAPACEExplainer(score, ["age"]).fit(people)
