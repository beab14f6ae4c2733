"""`data.digest` of files, folders, keys and addresses."""

import hashlib

import pytest

from cameraready import data


def test_a_file_digests_to_its_sha256(tmp_path):
    content = bytes(range(256)) * 9000  # more than two blocks
    (tmp_path / "f.bin").write_bytes(content)
    assert data.digest(tmp_path / "f.bin") == hashlib.sha256(content).hexdigest()


def test_a_folder_digest_depends_on_names_and_contents_only(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "sub" / "a.txt").write_text("x")
        (tmp_path / folder / "b.txt").write_text("y")
    original = data.digest(tmp_path / "one")
    assert data.digest(tmp_path / "two") == original
    (tmp_path / "two" / "b.txt").rename(tmp_path / "two" / "c.txt")
    assert data.digest(tmp_path / "two") != original
    (tmp_path / "one" / "b.txt").write_text("z")
    assert data.digest(tmp_path / "one") != original


def test_a_key_of_an_npz_file_is_part_of_the_digest(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"anything")
    assert data.digest(f"{tmp_path}/a.npz::x") != data.digest(f"{tmp_path}/a.npz::y")


def test_an_address_digests_like_the_file_it_names():
    import fsspec

    fsspec.filesystem("memory").pipe("/digest/f.bin", b"content")
    assert data.digest("memory://digest/f.bin") == hashlib.sha256(b"content").hexdigest()


def test_nothing_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        data.digest(tmp_path / "nothing")
