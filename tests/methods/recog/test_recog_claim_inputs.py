"""What the claims do to a data set before they use it."""

import numpy as np
import pandas as pd
import pytest

from cameraready.methods.recog import ReCoG
from cameraready.methods.recog.claim_inputs import CHEMBL, assays, gates_by_kind, new_tasks, with_junk

CHAINS = ["C" * n + end for n in range(1, 31) for end in ("O", "N")]


def frame(n_tasks=6, seed=0):
    rng = np.random.default_rng(seed)
    columns = {f"a{k}": rng.integers(2, size=60).astype(float) for k in range(n_tasks)}
    return pd.DataFrame({"smiles": CHAINS, **columns}).mask(rng.random((60, n_tasks + 1)) < [0, *[0.3] * n_tasks])


def test_labels_are_taken_as_they_are_and_measured_values_cut_at_the_median():
    labelled = frame().assign(weight=np.linspace(1, 2, 60))
    table = assays(labelled, molecules=100, rng=np.random.default_rng(0))
    assert table.tasks == tuple(f"a{k}" for k in range(6))
    measured = pd.DataFrame({"smiles": CHAINS, **{f"a{k}": np.linspace(4, 9, 60) for k in range(4)}})
    table = assays(measured, molecules=40, rng=np.random.default_rng(0))
    assert len(table) == 40
    assert (table.labels.sum(axis=0) == 20).all()


def test_of_the_archive_only_receptors_and_kinases_count():
    values = np.random.default_rng(0).normal(6, 1, size=(60, len(CHEMBL) + 1))
    archive = pd.DataFrame(values, columns=[*CHEMBL, "CHEMBL0_Ki"]).assign(smiles=CHAINS)
    archive.loc[:9, list(CHEMBL)] = np.nan
    table = assays(archive, molecules=100, rng=np.random.default_rng(0))
    assert (len(table), set(table.tasks)) == (50, set(CHEMBL))


def test_a_file_of_three_assays_is_too_small():
    with pytest.raises(ValueError, match="has 3 assays"):
        assays(frame(3), molecules=100, rng=np.random.default_rng(0))


def test_four_seeds_make_every_task_new_once():
    table = assays(frame(), molecules=100, rng=np.random.default_rng(0))
    assert sorted(name for seed in range(4) for name in new_tasks(table, seed)) == sorted(table.tasks)
    tox21 = frame(5).rename(columns={"a4": "SR-p53"})
    assert new_tasks(assays(tox21, molecules=100, rng=np.random.default_rng(0)), 3) == ["a2", "a3", "SR-p53"]


def test_junk_has_the_rates_of_the_real_assays_in_another_order():
    table = assays(frame(), molecules=100, rng=np.random.default_rng(0))
    mixed = with_junk(table, 2, np.random.default_rng(1))
    assert len(mixed.tasks) == len(set(mixed.tasks)) == 18
    np.testing.assert_array_equal(mixed.labels[:, :6], table.labels)
    for junk in (mixed.labels[:, 6:12], mixed.labels[:, 12:]):
        np.testing.assert_array_equal(junk == -1, table.labels == -1)
        np.testing.assert_array_equal((junk == 1).sum(axis=0), (table.labels == 1).sum(axis=0))
        assert (junk != table.labels).any()


def test_gates_are_averaged_over_real_and_junk_assays():
    table = with_junk(assays(frame(), molecules=100, rng=np.random.default_rng(0)), 1, np.random.default_rng(1))
    model = ReCoG(steps=0, width=8, random_state=0).fit(table, table.tasks[1:])
    gates = gates_by_kind(model, table, ["a0"], np.random.default_rng(2))
    assert gates[True] == gates[False] == pytest.approx(0.5)
