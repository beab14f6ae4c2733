"""A folder of pictures with a subfolder a class, as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cameraready import data


class Folder(NamedTuple):
    """Pictures of one size with their classes.

    Attributes
    ----------
    images : float32 (N, 3, size, size) in [0, 1]
    y : (N,) names of the subfolders.
    """

    images: NDArray[np.float32]
    y: NDArray[np.str_]


def read_folder(path: str | Path, *, size: int = 64) -> Folder:
    """Read ``path/<class>/*.png`` (jpg, tif, ... at any depth); pictures are cropped to squares and resized.

    Raises
    ------
    ValueError : fewer than two subfolders, or one without pictures.
    """
    from PIL import Image

    if size < 8:
        raise ValueError(f"size={size} pixels is too small to show anything; pass at least 8")
    folders = sorted(p for p in Path(path).iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(folders) < 2:
        raise ValueError(f"{path} has {len(folders)} subfolders; there must be one for each of two or more classes")
    images, labels = [], []
    for folder in folders:
        for picture in data.open(folder, kind="images"):
            height, width = picture.shape[:2]
            side = min(height, width)
            top, left = (height - side) // 2, (width - side) // 2
            square = (picture[top : top + side, left : left + side] * 255).round().astype(np.uint8)
            resized = Image.fromarray(square).resize((size, size), Image.Resampling.BILINEAR)
            images.append(np.asarray(resized, dtype=np.float32).transpose(2, 0, 1) / 255)
            labels.append(folder.name)
    return Folder(np.stack(images), np.array(labels))
