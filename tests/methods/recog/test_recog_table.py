"""Reading molecules and tables of assays as users have them."""

import numpy as np
import pandas as pd
import pytest

from cameraready.methods.recog import Molecules, MoleculeTable
from cameraready.methods.recog.molecules import N_BITS, tanimoto

# The beginning of SIDER's header, whose third task has commas in its name.
SIDER = """\
smiles,Hepatobiliary disorders,"Neoplasms benign, malignant and unspecified (incl cysts and polyps)",Eye disorders
C(CNCCNCCNCCN)N,1,0,1
CC(C)(C)C1=CC=CC=C1,0,1,
c1ccccc1O,,1,0
"""


def test_a_quoted_header_with_commas_does_not_shift_the_labels(tmp_path):
    path = tmp_path / "sider.csv"
    path.write_text(SIDER)
    table = MoleculeTable.from_csv(path)
    assert table.tasks[1] == "Neoplasms benign, malignant and unspecified (incl cysts and polyps)"
    assert table.labels.tolist() == [[1, 0, 1], [0, 1, -1], [-1, 1, 0]]


def test_compressed_files_and_columns_that_are_no_labels_are_read_past(tmp_path):
    path = tmp_path / "tox.csv.gz"
    pd.DataFrame({"NR-AR": [1, 0, None], "mol_id": ["a", "b", "c"], "MW": [46.1, 32.0, 44.1],
                  "smiles": ["CCO", "CO", "CC=O"]}).to_csv(path, index=False)  # fmt: skip
    table = MoleculeTable.from_csv(path)
    assert table.tasks == ("NR-AR",)
    assert table.report.left_out == ("MW",)
    assert table.labels[:, 0].tolist() == [1, 0, -1]


def test_what_is_not_a_molecule_is_left_out_and_named_by_its_row():
    frame = pd.DataFrame({"smiles": ["CCO", "", "C1CC", None, "[Na+].[Cl-]", "[Fe]"], "a": [1, 0, 0, 1, 1, 0]})
    table = MoleculeTable.from_frame(frame)
    assert [row for row, _ in table.report.rejected] == [1, 2, 3]
    assert table.labels[:, 0].tolist() == [1, 1, 0]
    assert "row 2: 'C1CC'" in str(table.report)


def test_repeated_molecules_are_merged_by_majority_and_a_tie_is_unknown():
    frame = pd.DataFrame(
        {"smiles": ["CCO", "OCC", "C(O)C", "CC", "CC"], "a": [1, 1, 0, 1, 0], "b": [None, 0, None, 1, 1]}
    )
    table = MoleculeTable.from_frame(frame)
    assert table.molecules.smiles == ("CCO", "CC")
    assert table.labels.tolist() == [[1, 0], [-1, 1]]
    assert (table.report.duplicates, table.report.conflicts) == (3, 1)


def test_measured_values_are_cut_at_the_median_or_a_threshold():
    frame = pd.DataFrame({"smiles": ["C", "CC", "CCC", "CCCC", "CCCC"], "pKi": [5.0, 6.0, 7.0, 8.0, 10.0]})
    assert MoleculeTable.from_frame(frame, binarise="median").labels[:, 0].tolist() == [0, 0, 1, 1]
    assert MoleculeTable.from_frame(frame, binarise=7.5).labels[:, 0].tolist() == [0, 0, 0, 1]
    assert MoleculeTable.from_frame(frame, binarise={"pKi": 5.5}).labels[:, 0].tolist() == [0, 1, 1, 1]


def test_the_largest_fragment_of_a_salt_can_be_taken():
    salt = ["CC(=O)[O-].[Na+]"]
    assert Molecules.from_smiles(salt, largest_fragment=True).smiles == ("CC(=O)[O-]",)
    assert Molecules.from_smiles(salt).smiles == ("CC(=O)[O-].[Na+]",)


def test_fingerprints_are_capped_counts_and_tanimoto_is_rdkits():
    from rdkit import Chem, DataStructs
    from rdkit.Chem import rdFingerprintGenerator

    names = ["CCCCCCCCCCCC", "c1ccccc1CCO", "CC(=O)Oc1ccccc1C(=O)O", "CCO"]
    molecules = Molecules.from_smiles(names)
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=N_BITS)
    theirs = [generator.GetCountFingerprintAsNumPy(Chem.MolFromSmiles(name)) for name in names]
    np.testing.assert_array_equal(molecules.counts.toarray(), np.minimum(theirs, 4))
    bits = [generator.GetFingerprint(Chem.MolFromSmiles(name)) for name in names]
    expected = [DataStructs.BulkTanimotoSimilarity(one, bits) for one in bits]
    np.testing.assert_allclose(tanimoto(molecules, molecules), expected, atol=1e-6)


def test_labels_are_looked_up_for_other_files_molecules():
    table = MoleculeTable.from_frame(pd.DataFrame({"smiles": ["CCO", "CC"], "a": [1, None], "b": [0, 1]}))
    found = table.context(["OCC", "CCCC", "not one", "CC"])
    np.testing.assert_array_equal(found, [[1, 0], [np.nan, np.nan], [np.nan, np.nan], [np.nan, 1]])


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"smiles": "SMILES"}, "no column 'SMILES'; there is smiles, a"),
        ({}, {"tasks": ["b"]}, "no column 'b'"),
        ({}, {"tasks": "a"}, "pass a list"),
        ({"a": [2, 0]}, {"tasks": ["a"]}, "task 'a' holds 2; labels are 1, 0 and empty"),
        ({"a": [2.5, 0]}, {}, "binarise='median'"),
        ({"a": ["yes", "no"]}, {"tasks": ["a"]}, "task 'a' holds text"),
        ({"a": [np.nan, np.nan]}, {}, "no molecule has a label"),
        ({"smiles": ["", "?"]}, {}, "none of the 2 rows"),
        ({"a": [5.5, 6.0], "b": [np.nan, np.nan]}, {}, "binarise='median'"),
        ({}, {"binarise": "mean"}, "binarise='mean'"),
        ({}, {"binarise": np.nan}, "binarise=nan"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(change, options, message):
    frame = pd.DataFrame({"smiles": ["CCO", "CC"], "a": [1, 0]} | change)
    with pytest.raises(ValueError, match=message):
        MoleculeTable.from_frame(frame, **options)


def test_a_column_that_is_there_twice_is_refused():
    frame = pd.DataFrame([["CCO", 1, 0]], columns=["smiles", "a", "a"])
    with pytest.raises(ValueError, match="several columns are called a"):
        MoleculeTable.from_frame(frame)


def test_one_string_is_not_a_list_of_smiles():
    with pytest.raises(TypeError, match="one string"):
        Molecules.from_smiles("CCO")
