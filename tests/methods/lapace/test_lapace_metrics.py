import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cameraready.methods.lapace import TabularSpace, evaluate_counterfactuals, measure_each, retrained_models
from cameraready.methods.lapace.background import Background
from cameraready.methods.lapace.metrics import hausdorff
from lapace_applicants import score


@pytest.fixture(scope="module")
def plane():
    """Two numbers on a grid in [0, 1]; class 1 where their sum exceeds 1."""
    x, y = np.meshgrid(np.linspace(0, 1, 21), np.linspace(0, 1, 21))
    rows = pd.DataFrame({"x": x.ravel(), "y": y.ravel()})

    def above(rows):
        p = (rows["x"] + rows["y"] > 1).to_numpy(dtype=float)
        return np.column_stack([1 - p, p])

    return Background(above, TabularSpace.infer(rows), rows), above


class Answers:
    """An explainer with hand-made options, as DataFrames; what it says may depend on the input."""

    def __init__(self, answer):
        self.answer = answer

    def explain(self, X, *, target, n_options):
        return [self.answer(row) for _, row in X.iterrows()]


def measure(plane, answer, row=(0.2, 0.2), **options):
    X = pd.DataFrame({"x": [row[0]], "y": [row[1]]})
    return measure_each(Answers(answer), X, target=1, background=plane[0], **options).iloc[0]


def test_a_hand_made_set_has_the_measures_of_pen_and_paper(plane):
    options = pd.DataFrame({"x": [0.2, 0.9, 0.1], "y": [0.9, 0.9, 0.2]})  # the last has class 0
    found = measure(plane, lambda row: options)
    assert found["found"] == 1
    assert found["validity"] == pytest.approx(2 / 3)
    assert found["proximity"] == pytest.approx(0.05)  # (0.1 + 0) / 2
    assert found["proximity_all"] == pytest.approx((0.35 + 0.7 + 0.05) / 3)
    assert found["sparsity"] == pytest.approx((1 + 2 + 1) / 6)
    assert found["diversity"] == pytest.approx((0.35 + 0.4 + 0.75) / 3)
    assert found["milliseconds"] > 0


def test_one_option_has_no_diversity(plane):
    assert measure(plane, lambda row: pd.DataFrame({"x": [0.9], "y": [0.9]}))["diversity"] == 0


def test_options_that_never_move_are_perfectly_robust(plane):
    fixed = pd.DataFrame({"x": [0.9, 0.6], "y": [0.9, 0.6]})
    assert measure(plane, lambda row: fixed)["input_robustness"] == 0


def test_options_that_follow_the_input_move_by_its_noise(plane):
    found = measure(plane, lambda row: pd.DataFrame({"x": [row["x"] + 0.6], "y": [row["y"] + 0.5]}), perturbations=200)
    assert found["input_robustness"] == pytest.approx(0.02 * np.sqrt(2 / np.pi), rel=0.2)  # E|N(0, 0.02^2)|


def test_an_empty_set_is_not_valid_and_has_no_other_measure(plane):
    found = measure(plane, lambda row: pd.DataFrame({"x": [], "y": []}))
    assert (found["found"], found["validity"]) == (0, 0)
    assert found[["proximity", "sparsity", "diversity", "input_robustness", "outlier_factor"]].isna().all()


def test_a_set_that_vanishes_under_noise_scores_one(plane):
    full, empty = pd.DataFrame({"x": [0.9], "y": [0.9]}), pd.DataFrame({"x": [], "y": []})
    assert measure(plane, lambda row: full if row["x"] == 0.2 else empty)["input_robustness"] == 1


def test_rows_of_the_class_are_inliers_and_far_ones_are_not(plane):
    inside = measure(plane, lambda row: pd.DataFrame({"x": [0.8], "y": [0.8]}))
    outside = measure(plane, lambda row: pd.DataFrame({"x": [0.0], "y": [0.0]}))
    assert inside["inlier"] == 1
    assert inside["outlier_factor"] == pytest.approx(1.0, abs=0.1)
    assert outside["inlier"] == 0


def test_model_robustness_is_the_mean_share_of_models_that_agree(plane):
    def never(rows):
        return np.tile([1.0, 0.0], (len(rows), 1))

    options = pd.DataFrame({"x": [0.9, 0.1], "y": [0.9, 0.1]})
    found = measure(plane, lambda row: options, models=[plane[1], never])
    assert found["model_robustness"] == pytest.approx(0.25)
    assert np.isnan(measure(plane, lambda row: options)["model_robustness"])


def test_hausdorff_distance_is_symmetric_and_the_largest_gap(plane):
    space = plane[0].space
    a, b = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 0.2]])
    assert hausdorff(space, a, a) == 0
    assert hausdorff(space, a, b) == hausdorff(space, b, a) == pytest.approx(0.6)


def test_several_explainers_stand_in_one_table(explainer, declined):
    table = evaluate_counterfactuals({"ours": explainer, "again": explainer}, declined, target=1, perturbations=1)
    assert table.index.tolist() == ["ours", "again"]
    assert table.loc["ours", "validity"] == 1
    pd.testing.assert_series_equal(
        table.loc["ours"].drop("milliseconds"), table.loc["again"].drop("milliseconds"), check_names=False
    )
    assert evaluate_counterfactuals(explainer, declined, perturbations=0)["input_robustness"].isna().all()


def test_retrained_models_differ_and_know_all_classes(people):
    X = people[["age", "income", "loan"]]
    y = np.where(score(people)[:, 1] > 0.97, "rare", "usual")
    estimator = make_pipeline(StandardScaler(), LogisticRegression())
    models = retrained_models(estimator, X, y, n_models=6)
    answers = np.stack([model(X.head(5)) for model in models])
    assert answers.shape == (6, 5, 2)
    assert len(np.unique(answers[:, 0, 0].round(12))) >= 5  # bootstrap and 90 % samples; the seed alone changes nothing


def test_an_explainer_without_background_and_wrong_counts_are_refused(plane):
    rows = pd.DataFrame({"x": [0.2], "y": [0.2]})
    with pytest.raises(ValueError, match="background"):
        measure_each(Answers(lambda row: rows), rows, target=1)
    with pytest.raises(ValueError, match="no explainer"):
        evaluate_counterfactuals({}, rows)

    class TooFew:
        def explain(self, X, *, target, n_options):
            return []

    with pytest.raises(ValueError, match="0 results for 1 rows"):
        measure_each(TooFew(), rows, target=1, background=plane[0])
