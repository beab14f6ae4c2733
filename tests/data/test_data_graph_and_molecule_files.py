"""`data.open` for graphs and molecules."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

from cameraready import data

ADJACENCY = csr_matrix(np.array([[0, 1, 0], [1, 0, 2], [0, 2, 0]], dtype=np.float32))
FEATURES = csr_matrix(np.array([[1, 0], [0, 0], [0, 3]], dtype=np.float32))


def arrays(**other):
    parts = {"adj": ADJACENCY, "attr": FEATURES}
    found = {
        f"{name}_{key}": getattr(m, key) for name, m in parts.items() for key in ("data", "indices", "indptr", "shape")
    }
    return {**found, "labels": np.array([0, 1, -1]), **other}


def written(path, **other):
    np.savez(path, **{name: array for name, array in arrays(**other).items() if array is not None})
    return path


def test_a_graph_file_gives_its_matrices_and_labels(tmp_path):
    graph = data.open(written(tmp_path / "graph.npz"), kind="graph")
    assert (graph.adjacency != ADJACENCY).nnz == 0
    assert (graph.features != FEATURES).nnz == 0
    assert graph.labels.tolist() == [0, 1, -1]


def test_features_may_be_dense_and_labels_absent(tmp_path):
    none = dict.fromkeys(("attr_data", "attr_indices", "attr_indptr", "attr_shape", "labels"))
    graph = data.open(written(tmp_path / "graph.npz", attr_matrix=FEATURES.toarray(), **none), kind="graph")
    assert (graph.features != FEATURES).nnz == 0
    assert graph.labels.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"adj_indptr": None}, "has no adj_indptr; a graph file holds adj_data"),
        ({"labels": np.zeros(2, dtype=int)}, r"labels \(2,\) do not fit together"),
        ({"labels": np.zeros(3)}, "labels of type float64; number the classes"),
        ({"adj_indices": np.array([1, 0, 7, 1])}, "are no sparse matrix"),
        ({"attr_data": np.array([1.0, np.nan])}, "values of attr that are not finite"),
    ],
)
def test_a_graph_file_that_does_not_fit_is_refused(tmp_path, other, message):
    with pytest.raises(ValueError, match=message):
        data.open(written(tmp_path / "graph.npz", **other), kind="graph")


def test_a_graph_in_another_format_is_refused(tmp_path):
    np.save(tmp_path / "graph.npy", np.eye(3))
    with pytest.raises(ValueError, match="save the arrays in one"):
        data.open(tmp_path / "graph.npy", kind="graph")


def test_molecules_keep_every_column_beside_their_smiles(tmp_path):
    rows = pd.DataFrame({"SMILES": ["CCO", "c1ccccc1"], "Eye, skin": [1.0, np.nan]})
    rows.to_csv(tmp_path / "assays.csv", index=False)
    found = data.open(tmp_path / "assays.csv", kind="molecules")
    pd.testing.assert_frame_equal(found, rows.rename(columns={"SMILES": "smiles"}))


def test_a_table_without_smiles_is_refused(tmp_path):
    pd.DataFrame({"structure": ["CCO"]}).to_csv(tmp_path / "assays.csv", index=False)
    with pytest.raises(ValueError, match="0 columns called smiles; it has structure"):
        data.open(tmp_path / "assays.csv", kind="molecules")
