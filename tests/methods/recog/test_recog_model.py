"""Fit, adapt, predict, explain, evaluate; peers; the command."""

import pickle
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from cameraready.methods.recog import (
    AuxMean,
    EvidenceBayes,
    FewShotSklearn,
    MoleculeTable,
    ReCoG,
    TanimotoVote,
    compare,
    evaluate_fewshot,
)
from cameraready.methods.recog.__main__ import app
from cameraready.methods.recog.evaluation import _test_molecules, calibration_error
from cameraready.methods.recog.neural_peers import EpisodicPeer, FineTune

FRAGMENTS = ["C", "CC", "CO", "CN", "c1ccccc1", "C(=O)O", "C(Cl)", "C1CC1", "CS", "C(C#N)"]
OLD = [f"old {k}" for k in range(6)]


def assays(n=400, known=0.7, seed=0):
    """Six old assays and a new one that follow one hidden property, with 15 % of the labels wrong."""
    rng = np.random.default_rng(seed)
    names = ["".join(rng.choice(FRAGMENTS, size=6)) for _ in range(n)]
    hidden = np.array([name.count("O") + name.count("N") >= 2 for name in names], float)
    columns = {task: np.where(rng.random(n) < 0.15, 1 - hidden, hidden) for task in [*OLD, "new"]}
    frame = pd.DataFrame(columns)
    frame[OLD] = frame[OLD].where(rng.random((n, len(OLD))) < known)
    return frame.assign(smiles=names)


@pytest.fixture(scope="module")
def table():
    return MoleculeTable.from_frame(assays())


@pytest.fixture(scope="module")
def model(table):
    return ReCoG(steps=60, width=16, random_state=0).fit(table, OLD)


@pytest.fixture(scope="module")
def support(table):
    labels = table.labels[:, table.tasks.index("new")]
    rows = np.r_[np.flatnonzero(labels == 1)[:5], np.flatnonzero(labels == 0)[:5]]
    names = [table.molecules.smiles[row] for row in rows]
    return names, labels[rows], table.context(names, tasks=OLD)


def test_ten_labels_and_old_assays_rank_a_new_one(table, model, support):
    names, y, context = support
    classifier = model.adapt(names, y, context)
    asked = list(table.molecules.smiles[:200])
    probability = classifier.predict_proba(asked, table.context(asked, tasks=OLD))
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    truth = table.labels[:200, table.tasks.index("new")]
    assert roc_auc_score(truth, probability[:, 1]) > 0.75  # each label alone has 0.75, being wrong in 15 % twice
    assert set(classifier.predict(asked)) <= {0, 1}


def test_the_same_seed_gives_the_same_model_and_pickling_keeps_it(table, model, support):
    names, y, context = support
    again = clone(model).fit(table, OLD)
    asked = list(table.molecules.smiles[:20])
    first = model.adapt(names, y, context).predict_proba(asked)
    np.testing.assert_array_equal(first, again.adapt(names, y, context).predict_proba(asked))
    kept = pickle.loads(pickle.dumps(model.adapt(names, y, context)))
    np.testing.assert_array_equal(first, kept.predict_proba(asked))


@pytest.mark.slow
def test_a_graph_encoder_trains_adapts_and_explains(table, support):
    pytest.importorskip("torch_geometric")
    names, y, context = support
    fitted = ReCoG("gin", layers=2, steps=3, width=8, random_state=0).fit(table, OLD)
    classifier = fitted.adapt(names, y, context)
    asked = ["[Na+]", *table.molecules.smiles[:3]]
    probability = classifier.predict_proba(asked)[:, 1]
    assert np.isfinite(probability).all()
    np.testing.assert_allclose(classifier.explain(asked).probability, probability, atol=1e-6)
    assert len(fitted.history_) == 4


def test_labels_may_be_objects_and_unknown_ones_be_pandas_missing(model, support):
    names, y, context = support
    plain = model.adapt(names, y, context).predict_proba(["CCO"])
    other = model.adapt(names, np.array(y, dtype=object), context.astype("Int64")).predict_proba(["CCO"])
    np.testing.assert_array_equal(plain, other)


def test_predictions_do_not_depend_on_the_chunks(monkeypatch, table, model, support):
    names, y, context = support
    classifier, asked = model.adapt(names, y, context), list(table.molecules.smiles[:50])
    whole = classifier.predict_proba(asked, table.context(asked, tasks=OLD))
    monkeypatch.setattr("cameraready.methods.recog.model.CHUNK", 7)
    np.testing.assert_allclose(classifier.predict_proba(asked, table.context(asked, tasks=OLD)), whole, atol=1e-6)


def test_an_explanation_names_tasks_and_neighbours_and_its_terms_add_up(table, model, support):
    names, y, context = support
    classifier = model.adapt(names, y, context)
    asked = [*table.molecules.smiles[:5], "CCCCCCCC"]
    known = table.context(asked, tasks=OLD)
    why = classifier.explain(asked, known)
    assert list(why.loc[why.molecule == asked[0], "task"]) == list(known.columns[known.iloc[0].notna()])
    assert set(why.nearest) <= set(table.molecules.smiles)
    assert why.loc[why.molecule == "CCCCCCCC", "task"].isna().all()
    assert why.gate.dropna().between(0, 1).all()
    np.testing.assert_allclose(why.groupby("molecule", sort=False).probability.first(),
                               classifier.predict_proba(asked, known)[:, 1], atol=1e-6)  # fmt: skip
    # The share of the evidence in a logit is the difference that the context makes, while rho = 0.
    classifier.module.rho.data.zero_()
    odds = [np.log(p / (1 - p)) for p in (classifier.predict_proba(asked, c)[:, 1] for c in (known, None))]
    np.testing.assert_allclose(why.groupby("molecule", sort=False).evidence.sum(), odds[0] - odds[1], atol=1e-4)


def test_what_is_not_a_molecule_is_reported_and_has_no_prediction(model, support):
    names, y, _ = support
    with pytest.warns(UserWarning, match=r"rows 1 \('oops'\).*left out of the support"):
        classifier = model.adapt([names[0], "oops", *names[1:]], [y[0], 1, *y[1:]])
    np.testing.assert_allclose(classifier.predict_proba(["CCO"]), model.adapt(names, y).predict_proba(["CCO"]))
    with pytest.warns(UserWarning, match=r"rows 0 \(''\)"):
        probability = classifier.predict_proba(["", "CCO"])
    assert np.isnan(probability[0]).all()
    assert np.isfinite(probability[1]).all()
    with pytest.warns(UserWarning, match="NaN"), pytest.raises(ValueError, match="row 0 is not a molecule"):
        classifier.predict(["", "CCO"])


@pytest.mark.parametrize(
    ("names", "y", "context", "message"),
    [
        (["C", "CC"], [1, 1], None, "2 actives and 0 inactives"),
        (["C", "CC"], [1, 2], None, "y holds 2"),
        (["C", "CC"], [1, np.nan], None, "y holds nan"),
        (["C", "CC"], [1], None, "one label each"),
        (["C", "CC"], [1, 0], pd.DataFrame({"old 1": [1]}), "context has 1 rows for 2 molecules"),
        (["C", "CC"], [1, 0], pd.DataFrame({"other": [1, 0]}), "context column 'other' is not a fitted task"),
        (["C", "CC"], [1, 0], pd.DataFrame({"old 1": [1, 3]}), "context holds 3 in 'old 1'"),
        (["C", "CC"], [1, 0], pd.DataFrame({"old 1": ["yes", "no"]}), "context holds text"),
        (["C", "CC"], [1, 0], pd.DataFrame([[1, 1], [0, 1]], columns=["old 1"] * 2), "two columns 'old 1'"),
        (["C", "CC"], [1, 0], np.full((2, 6), 5, np.int8), "of 1, 0 and -1"),
    ],
)
def test_supports_that_cannot_be_used_are_refused(model, names, y, context, message):
    with pytest.raises(ValueError, match=message):
        model.adapt(names, y, context)


@pytest.mark.parametrize(
    ("options", "tasks", "message"),
    [
        ({}, ["old 9"], "no task is called 'old 9'"),
        ({}, ["old 1", "old 1"], "names one twice"),
        ({"steps": -1}, None, "steps=-1"),
        ({"shots": 0}, None, "shots=0"),
        ({"encoder": "cnn"}, None, "encoder='cnn'"),
        ({"adapt_by": "sgd"}, None, "adapt_by='sgd'"),
        ({"beta": -0.1}, None, "beta=-0.1"),
        ({"learning_rate": "fast"}, None, "learning_rate='fast'"),
        ({"device": "gpu"}, None, "device='gpu'"),
        ({}, ["old 1"], "training needs two"),
    ],
)
def test_fits_that_cannot_be_done_are_refused(table, options, tasks, message):
    with pytest.raises(ValueError, match=message):
        ReCoG(**options).fit(table, tasks)


def test_adapting_comes_after_fitting_and_fitting_takes_a_table():
    with pytest.raises(ValueError, match="call fit"):
        ReCoG().adapt(["C", "CC"], [0, 1])
    with pytest.raises(TypeError, match="MoleculeTable"):
        ReCoG().fit(pd.DataFrame())


def test_a_gpu_that_is_not_there_is_refused_before_work_starts(monkeypatch, table):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="torch sees no GPU"):
        ReCoG(device="cuda").fit(table)


@pytest.mark.parametrize(
    "peer", [AuxMean(), EvidenceBayes(similarity=0.5), TanimotoVote(), FewShotSklearn(LogisticRegression())]
)
def test_classifiers_of_peers_can_be_pickled(table, support, peer):
    names, y, context = support
    classifier = peer.fit(table, OLD).adapt(names, y, context)
    asked, known = names[:3], context.head(3)
    kept = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(kept.predict_proba(asked, known), classifier.predict_proba(asked, known))


@pytest.mark.parametrize("models", [{}, LogisticRegression(), {"a": LogisticRegression()}])
def test_what_is_no_few_shot_method_is_not_evaluated(table, models):
    with pytest.raises(TypeError, match="FewShotSklearn"):
        evaluate_fewshot(models, table, ["new"])


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        (EvidenceBayes(strength=0), "strength=0"),
        (EvidenceBayes(similarity=np.nan), "similarity=nan"),
        (AuxMean(unknown="zero"), "unknown='zero'"),
        (FewShotSklearn(LogisticRegression(), features="maccs"), "features='maccs'"),
    ],
)
def test_peers_with_settings_out_of_range_are_refused(table, peer, message):
    with pytest.raises(ValueError, match=message):
        peer.fit(table)


def test_the_mean_of_the_labels_and_logistic_regression_on_them_are_what_they_say(table, support):
    names, y, context = support
    asked = list(table.molecules.smiles[:30])
    known = table.context(asked, tasks=OLD)
    mean = AuxMean().fit(table, OLD).adapt(names, y, context).predict_proba(asked, known)[:, 1]
    np.testing.assert_allclose(mean, known.mean(axis=1).fillna(0.5))
    neutral = AuxMean(unknown="neutral").fit(table, OLD).adapt(names, y, context).predict_proba(asked, known)[:, 1]
    np.testing.assert_allclose(neutral, known.fillna(0.5).mean(axis=1))
    peer = FewShotSklearn(LogisticRegression(), features="aux").fit(table, OLD).adapt(names, y, context)
    by_hand = LogisticRegression().fit((2 * context - 1).fillna(0), y)
    expected = by_hand.predict_proba((2 * known - 1).fillna(0))
    np.testing.assert_allclose(peer.predict_proba(asked, known), expected)


@pytest.mark.parametrize(
    "peer",
    [
        EpisodicPeer("protonet", steps=2, width=8, random_state=0),
        EpisodicPeer("maml", steps=2, width=8, random_state=0),
        EpisodicPeer("par", steps=2, width=8, random_state=0),
        FineTune(steps=2, width=8, random_state=0),
        ReCoG(steps=2, width=8, adapt_by="maml", random_state=0),
        ReCoG(steps=2, width=8, relations=False, bottleneck=False, random_state=0),
    ],
)
def test_every_network_trains_adapts_and_ignores_the_supports_order(table, support, peer):
    names, y, _ = support
    fitted = clone(peer).fit(table, OLD)
    asked = list(table.molecules.smiles[:8])
    probability = fitted.adapt(names, y).predict_proba(asked)
    assert np.isfinite(probability).all()
    order = np.argsort(-y, kind="stable")
    again = fitted.adapt([names[i] for i in order], y[order]).predict_proba(asked)
    np.testing.assert_allclose(probability, again, atol=1e-5)


def test_evaluation_gives_every_method_the_same_draws(table):
    peers = {"mean": AuxMean(), "same": AuxMean(), "vote": TanimotoVote(), "bayes": EvidenceBayes()}
    results = evaluate_fewshot(peers, table, ["new", "old 3"], shots=5, draws=2, density=[1.0, 0.0])
    assert len(results) == 4 * 2 * 2 * 2
    wide = results.pivot(index=["task", "draw", "density"], columns="method", values="roc_auc")
    np.testing.assert_array_equal(wide["mean"], wide["same"])
    assert (wide.xs(0.0, level="density")["mean"] == 0.5).all()
    vote = wide["vote"].unstack("density")
    np.testing.assert_array_equal(vote[0.0], vote[1.0])
    table_ = compare(results[results.density == 1.0], "bayes").table.set_index("method")
    difference = wide.xs(1.0, level="density")
    assert table_.loc["vote", "difference"] == pytest.approx((difference["bayes"] - difference["vote"]).mean())
    assert table_.loc["vote", "low"] <= table_.loc["vote", "difference"] <= table_.loc["vote", "high"]


def test_support_only_context_leaves_the_mean_nothing(table):
    results = evaluate_fewshot(AuxMean(), table, ["new"], draws=1, context="support")
    assert results.roc_auc.tolist() == [0.5]


@pytest.mark.parametrize("split", ["molecule", "scaffold"])
def test_splits_keep_molecules_or_scaffolds_apart(table, split):
    is_test = _test_molecules(table, split, np.random.default_rng(0))
    assert 0.2 < is_test.mean() < 0.45
    if split == "scaffold":
        scaffolds = np.array(table.molecules.scaffolds)
        assert not set(scaffolds[is_test]) & set(scaffolds[~is_test])
    assert len(evaluate_fewshot(TanimotoVote(), table, ["new"], shots=2, draws=1, split=split)) == 1


@pytest.mark.parametrize(
    ("tasks", "options", "message"),
    [
        (["none"], {}, "no task is called 'none'"),
        (OLD, {}, "keep at least 2"),
        (["new"], {"split": "time"}, "split='time'"),
        (["new"], {"density": 1.5}, "density"),
        (["new"], {"draws": 0}, "draws=0"),
    ],
)
def test_evaluations_that_cannot_be_done_are_refused(table, tasks, options, message):
    with pytest.raises(ValueError, match=message):
        evaluate_fewshot(AuxMean(), table, tasks, **options)


def test_a_test_task_of_one_class_is_refused_before_anything_is_fitted(table, monkeypatch):
    labels = table.labels.copy()
    labels[labels[:, 6] == 1, 6] = -1
    monkeypatch.setattr(AuxMean, "_fit", lambda *_: pytest.fail("it was fitted"))
    with pytest.raises(ValueError, match="task 'new' has less than two molecules of a class"):
        evaluate_fewshot(AuxMean(), replace(table, labels=labels), ["new"])


def test_calibration_error_is_the_gap_between_predicted_and_true_rates():
    assert calibration_error(np.array([1, 0]), np.array([0.75, 0.75])) == pytest.approx(0.25)
    assert calibration_error(np.array([1, 0, 1, 0]), np.array([1.0, 0.0, 1.0, 0.0])) == 0


def test_the_command_ranks_the_rows_that_have_no_label(tmp_path):
    old, new, out = tmp_path / "old.csv", tmp_path / "new.csv", tmp_path / "ranking.csv"
    frame = assays(n=200)
    frame[[*OLD, "smiles"]].to_csv(old, index=False)
    mine = frame[["smiles", "new"]].rename(columns={"smiles": "structure"}).head(60)
    mine.loc[10:, "new"] = np.nan
    mine.loc[30, "structure"] = "oops"
    mine.to_csv(new, index=False)
    command = ["predict", str(new), "--label", "new", "--assays", str(old), "--steps", "0"]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert "no column 'smiles'" in refused.output
    mine.rename(columns={"structure": "smiles"}).to_csv(new, index=False)
    done = CliRunner().invoke(app, [*command, "--out", str(out), "--why"])
    assert done.exit_code == 0, done.output
    assert "row 30: 'oops'" in done.output
    assert "to rank: 49" in done.output
    assert "old 0" in done.output
    ranking = pd.read_csv(out)
    assert sorted(ranking.row) == sorted({*range(10, 60)} - {30})
    assert ranking.probability.is_monotonic_decreasing


@pytest.mark.parametrize(
    ("labels", "bad", "options", "message"),
    [
        (["yes", "no", None], 0, [], "'new' of .* holds text"),
        ([2, 0, None], 0, [], "holds 2.0, 0.0 in rows with a molecule"),
        ([1, 1, None], 0, [], "at least one of each"),
        ([1, 0, 1], 0, [], "leave those to be ranked empty"),
        ([1, 0, None], 7, [], "context holds 7 in 'old 1'"),
        ([1, 0, None], 0, ["--binarise", "high"], "--binarise high: pass a number, or median"),
        ([1, 0, None], 0, ["--smiles", "name"], "no column 'name'"),
    ],
)
def test_the_command_refuses_what_it_cannot_use_before_it_trains(tmp_path, monkeypatch, labels, bad, options, message):
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    assays(n=60)[[*OLD, "smiles"]].to_csv(old, index=False)
    frame = pd.DataFrame({"smiles": ["CCO", "CC", "CCC"], "new": labels, "old 1": [1, None, bad]})
    frame.to_csv(new, index=False)
    monkeypatch.setattr(ReCoG, "fit", lambda *_: pytest.fail("it trained"))
    refused = CliRunner().invoke(app, ["predict", str(new), "--label", "new", "--assays", str(old), *options])
    assert refused.exit_code == 2
    assert re.search(message, refused.output)
