"""`data.open`: every format, and errors that name what does not fit."""

import gzip
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import feather

from cameraready import data
from cameraready.data.formats import split_key

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3) / 7


def as_frame() -> pd.DataFrame:
    return pd.DataFrame(VECTORS, columns=["a", "b", "c"]).assign(words=["w", "x", "y", "z"])


def test_all_table_formats_give_the_same_embeddings_from_their_numeric_columns(tmp_path):
    frame = as_frame()
    frame.to_csv(tmp_path / "plain.csv", index=False)
    frame.to_csv(tmp_path / "with_row_numbers.csv")
    frame.to_csv(tmp_path / "packed.CSV.gz", index=False, compression="gzip")
    frame.to_csv(tmp_path / "tabs.tsv", index=False, sep="\t")
    frame.to_csv(tmp_path / "semicolons.csv", index=False, sep=";")
    frame.to_parquet(tmp_path / "rows.parquet")
    feather.write_feather(pa.Table.from_pandas(frame), tmp_path / "rows.feather")
    with pa.ipc.new_stream(tmp_path / "rows.arrow", pa.Table.from_pandas(frame).schema) as writer:
        writer.write_table(pa.Table.from_pandas(frame))
    (tmp_path / "parts").mkdir()
    frame[:2].to_parquet(tmp_path / "parts" / "0.parquet")
    frame[2:].to_parquet(tmp_path / "parts" / "1.parquet")
    for path in tmp_path.iterdir():
        array = data.open(path, kind="embeddings")
        np.testing.assert_allclose(array, VECTORS, rtol=1e-6, err_msg=path.name)
        assert array.dtype.kind == "f"


def test_parquet_keeps_float32(tmp_path):
    as_frame().to_parquet(tmp_path / "rows.parquet")
    assert data.open(tmp_path / "rows.parquet", kind="embeddings").dtype == np.float32


def test_a_header_is_told_from_data(tmp_path):
    np.savetxt(tmp_path / "bare.csv", VECTORS, delimiter=",")
    pd.DataFrame(VECTORS).to_csv(tmp_path / "numbered.csv", index=False)
    np.testing.assert_allclose(data.open(tmp_path / "bare.csv", kind="embeddings"), VECTORS, rtol=1e-6)
    np.testing.assert_allclose(data.open(tmp_path / "numbered.csv", kind="embeddings"), VECTORS, rtol=1e-6)
    assert list(data.open(tmp_path / "bare.csv", kind="table").X) == ["x0", "x1", "x2"]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float64(), 3), pa.large_list(pa.int64())])
def test_one_column_of_lists_is_the_embedding(tmp_path, kind):
    rows = np.arange(12).reshape(4, 3)
    table = pa.table({"id": [7, 8, 9, 10], "vector": pa.array(rows.tolist(), type=kind)})
    pa.parquet.write_table(table, tmp_path / "v.parquet", row_group_size=2)
    np.testing.assert_array_equal(data.open(tmp_path / "v.parquet", kind="embeddings"), rows)


def test_lists_of_unequal_length_several_list_columns_and_missing_lists_are_named(tmp_path):
    path = tmp_path / "v.parquet"
    pa.parquet.write_table(pa.table({"v": [[1.0, 2.0], [3.0, 4.0], [5.0]]}), path)
    with pytest.raises(ValueError, match=r"'v' has lists of unequal length: row 0 holds 2 numbers, row 2 1"):
        data.open(path, kind="embeddings")
    pa.parquet.write_table(pa.table({"v": [[1.0, 2.0], None]}), path)
    with pytest.raises(ValueError, match=r"'v'.*row 1 nan"):
        data.open(path, kind="embeddings")
    pa.parquet.write_table(pa.table({"v": [[1.0]], "w": [[2.0]]}), path)
    with pytest.raises(ValueError, match="2 columns of lists: v, w"):
        data.open(path, kind="embeddings")
    pa.parquet.write_table(pa.table({"v": [[1.0, None], [1.0, 2.0]]}), path)
    with pytest.raises(ValueError, match="entry 1 of column 'v' is NaN in row 0"):
        data.open(path, kind="embeddings")


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "inf")])
def test_nan_and_inf_are_refused_by_column_and_row(tmp_path, value, word):
    frame = as_frame()
    frame.loc[2, "b"] = value
    frame.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=f"column 'b' is {word} in row 2"):
        data.open(tmp_path / "rows.parquet", kind="embeddings")
    np.save(tmp_path / "rows.npy", frame[["a", "b", "c"]].to_numpy())
    with pytest.raises(ValueError, match=f"column 1 is {word} in row 2"):
        data.open(tmp_path / "rows.npy", kind="embeddings")


def test_a_missing_value_of_a_nullable_integer_column_is_refused(tmp_path):
    pd.DataFrame({"a": [1, 2], "b": pd.array([3, None], dtype="Int64")}).to_parquet(tmp_path / "n.parquet")
    with pytest.raises(ValueError, match="column 'b' is NaN in row 1"):
        data.open(tmp_path / "n.parquet", kind="embeddings")


def test_a_table_without_numbers_is_refused_naming_its_columns(tmp_path):
    pd.DataFrame({"name": ["a"], "place": ["b"]}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ValueError, match=r"no numeric column.*name \(.*place \("):
        data.open(tmp_path / "t.csv", kind="embeddings")


def test_a_local_npy_file_stays_memory_mapped_and_integers_become_exact_floats(tmp_path):
    np.save(tmp_path / "f.npy", VECTORS)
    assert isinstance(data.open(tmp_path / "f.npy", kind="embeddings"), np.memmap)
    for dtype, expected in ((np.uint8, np.float32), (np.int64, np.float64), (np.float16, np.float16)):
        np.save(tmp_path / "i.npy", np.arange(6, dtype=dtype).reshape(2, 3))
        array = data.open(tmp_path / "i.npy", kind="embeddings")
        assert array.dtype == expected
        np.testing.assert_array_equal(array, [[0, 1, 2], [3, 4, 5]])


def test_npz_needs_a_key_only_where_it_holds_several_arrays(tmp_path):
    np.savez(tmp_path / "one.npz", VECTORS)
    np.savez(tmp_path / "two.npz", train=VECTORS, test=VECTORS[:1])
    np.testing.assert_array_equal(data.open(tmp_path / "one.npz", kind="embeddings"), VECTORS)
    np.testing.assert_array_equal(data.open(f"{tmp_path}/two.npz::test", kind="embeddings"), VECTORS[:1])
    assert data.open(f"{tmp_path}/two.npz::test", kind="table").X.shape == (1, 3)
    with pytest.raises(ValueError, match=r"holds 2 arrays: train, test; name the one to read, as .*two\.npz::train"):
        data.open(tmp_path / "two.npz", kind="embeddings")
    with pytest.raises(ValueError, match="no array 'valid'; it holds train, test"):
        data.open(f"{tmp_path}/two.npz::valid", kind="embeddings")


def test_only_an_npz_address_is_split_at_its_key():
    assert split_key("a/b.npz::x") == ("a/b.npz", "x")
    assert split_key("zip://a.csv::s3://bucket/b.zip") == ("zip://a.csv::s3://bucket/b.zip", "")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(5), r"shape \(5,\); embeddings must have two axes"),
        (np.zeros((2, 3, 4)), r"shape \(2, 3, 4\)"),
        (np.zeros((0, 3)), "at least one row"),
        (np.zeros((2, 2), dtype=complex), "complex128 values"),
        (np.array([["a"]]), "<U1 values"),
    ],
)
def test_arrays_of_another_shape_or_type_are_refused(tmp_path, array, words):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=words):
        data.open(tmp_path / "a.npy", kind="embeddings")


def test_a_pickled_array_is_refused_and_its_code_not_run(tmp_path):
    np.save(tmp_path / "o.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="holds Python objects"):
        data.open(tmp_path / "o.npy", kind="embeddings")


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.parquet", "a.feather", "a.arrow"])
@pytest.mark.parametrize("content", [b"", b"no such format at all"])
def test_damaged_files_are_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        data.open(tmp_path / name, kind="embeddings")


def test_truncated_files_are_named(tmp_path):
    np.save(tmp_path / "t.npy", VECTORS)
    np.savez(tmp_path / "t.npz", VECTORS)
    as_frame().to_parquet(tmp_path / "t.parquet")
    for path in list(tmp_path.iterdir()):
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(ValueError, match=path.name):
            data.open(path, kind="embeddings")


def test_a_damaged_compressed_table_is_named(tmp_path):
    packed = gzip.compress(as_frame().to_csv(index=False).encode())
    for content in (b"not packed at all", packed[:-9], packed[:20] + b"zzzzzz" + packed[26:], b"\x80\x81\xff\n1"):
        (tmp_path / "t.csv.gz").write_bytes(content)
        with pytest.raises(ValueError, match=r"t\.csv\.gz is not a readable CSV table"):
            data.open(tmp_path / "t.csv.gz", kind="table")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n1,2,3,4\n")
    with pytest.raises(ValueError, match=r"t\.csv is not a readable CSV table.*line 3"):
        data.open(tmp_path / "t.csv", kind="table")


def test_an_empty_csv_and_an_unknown_extension_are_refused(tmp_path):
    (tmp_path / "e.csv").write_text("")
    with pytest.raises(ValueError, match=r"e\.csv is not a readable CSV table"):
        data.open(tmp_path / "e.csv", kind="table")
    (tmp_path / "e.xlsx").write_text("")
    with pytest.raises(ValueError, match=r"extension \.xlsx.*\.csv"):
        data.open(tmp_path / "e.xlsx", kind="table")
    with pytest.raises(FileNotFoundError, match=r"no file or folder at .*missing\.csv"):
        data.open(tmp_path / "missing.csv", kind="table")
    with pytest.raises(ValueError, match=r"holds no \.parquet files"):
        data.open(tmp_path, kind="table")


def test_the_target_is_the_named_column_or_y_target_label_or_none(tmp_path):
    frame = as_frame()
    frame.to_csv(tmp_path / "none.csv", index=False)
    frame.rename(columns={"c": "label"}).to_csv(tmp_path / "label.csv", index=False)
    X, y = data.open(tmp_path / "none.csv", kind="table")
    assert y is None
    assert list(X) == ["a", "b", "c", "words"]
    X, y = data.open(tmp_path / "label.csv", kind="table")
    assert (y.name, list(X)) == ("label", ["a", "b", "words"])
    X, y = data.open(tmp_path / "label.csv", kind="table", target="words")
    assert (y.tolist(), list(X)) == (["w", "x", "y", "z"], ["a", "b", "label"])
    with pytest.raises(ValueError, match=r"no column target='lable' \(close: 'label'\); it has a, b, label, words"):
        data.open(tmp_path / "label.csv", kind="table", target="lable")


def test_a_missing_target_value_and_a_table_without_rows_are_refused(tmp_path):
    pd.DataFrame({"a": [1, np.nan], "y": [np.nan, 1]}).to_csv(tmp_path / "m.csv", index=False)
    with pytest.raises(ValueError, match="target column 'y' is missing in row 0"):
        data.open(tmp_path / "m.csv", kind="table")
    pd.DataFrame({"a": [], "y": []}).to_csv(tmp_path / "n.csv", index=False)
    with pytest.raises(ValueError, match=r"no rows \(columns: a, y\)"):
        data.open(tmp_path / "n.csv", kind="table")


def test_images_are_floats_in_zero_to_one_in_order_of_name(tmp_path):
    Image.new("L", (4, 2), 51).save(tmp_path / "b.png")
    Image.new("RGBA", (3, 5), (255, 0, 51, 0)).save(tmp_path / "a.png")
    Image.fromarray(np.full((2, 2), 65535 // 5, dtype=np.uint16)).save(tmp_path / "c.png")
    (tmp_path / "notes.txt").write_text("not an image")
    colour, grey, deep = data.open(tmp_path, kind="images")
    assert colour.shape == (5, 3, 3)
    np.testing.assert_allclose(colour[0, 0], [1, 0, 0.2])
    assert grey.shape == (2, 4, 3)
    np.testing.assert_allclose(grey, 0.2)
    np.testing.assert_allclose(deep, 0.2, atol=1e-5)
    assert len(data.open(tmp_path / "b.png", kind="images")) == 1


def test_a_folder_without_images_and_a_broken_image_are_named(tmp_path):
    with pytest.raises(ValueError, match="holds no image"):
        data.open(tmp_path, kind="images")
    (tmp_path / "x.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(ValueError, match=r"x\.png is damaged"):
        data.open(tmp_path, kind="images")


def test_fsspec_addresses_are_read_like_files():
    import io

    import fsspec

    memory = fsspec.filesystem("memory")
    buffer = io.BytesIO()
    np.save(buffer, VECTORS)
    memory.pipe("/bucket/v.npy", buffer.getvalue())
    memory.pipe("/bucket/v.csv.gz", gzip.compress(as_frame().to_csv(index=False).encode()))
    buffer = io.BytesIO()
    Image.new("L", (4, 2), 51).save(buffer, format="png")
    memory.pipe("/bucket/images/a.png", buffer.getvalue())
    np.testing.assert_array_equal(data.open("memory://bucket/v.npy", kind="embeddings"), VECTORS)
    np.testing.assert_allclose(data.open("memory://bucket/v.csv.gz", kind="embeddings"), VECTORS, rtol=1e-6)
    assert data.open("memory://bucket/images", kind="images")[0].shape == (2, 4, 3)


def test_text_must_be_utf8(tmp_path):
    (tmp_path / "t.txt").write_text("Größe", encoding="utf-8")
    assert data.open(tmp_path / "t.txt", kind="text") == "Größe"
    (tmp_path / "l.txt").write_bytes("Größe".encode("latin-1"))
    with pytest.raises(ValueError, match=r"l\.txt is not UTF-8"):
        data.open(tmp_path / "l.txt", kind="text")


def test_unknown_kinds_and_stray_targets_are_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([]))
    with pytest.raises(ValueError, match="kind='sound' is not known; pass one of embeddings"):
        data.open(path, kind="sound")
    with pytest.raises(ValueError, match="target='y' goes with kind='table'"):
        data.open(path, kind="embeddings", target="y")
