"""Images from files: one, or a folder of them, as float arrays in [0, 1]."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


def read_images(address: str) -> list[NDArray[np.float32]]:
    """The image at a path or fsspec URL, or all images in the folder there and below, in order of file name.

    Each is float32 (height, width, 3) in [0, 1]: grey is repeated to three channels, transparency dropped, a camera's
    orientation tag applied, of an animation the first picture taken.
    """
    import fsspec

    system, root = fsspec.core.url_to_fs(address)
    names = [root]
    if system.isdir(root):
        names = sorted(name for name in system.find(root) if PurePosixPath(name).suffix.lower() in EXTENSIONS)
        if not names:
            raise ValueError(f"the folder {address} holds no image ({' '.join(EXTENSIONS)}) at any depth")
    pictures = []
    for name in names:
        with system.open(name, "rb") as stream:
            pictures.append(_read(stream, name))
    return pictures


def _read(stream: IO[bytes], name: str) -> NDArray[np.float32]:
    import numpy as np
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        picture: Any = ImageOps.exif_transpose(Image.open(stream))
        picture.load()
    except (UnidentifiedImageError, OSError, SyntaxError) as error:  # Pillow raises SyntaxError for a broken PNG
        raise ValueError(f"{name} is damaged or no image that Pillow reads: {error}") from error
    if picture.mode.startswith("I;16"):  # Pillow's own conversion would clip 16 bits to 8
        grey = np.asarray(picture, dtype=np.float32) / np.float32(65535)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if picture.mode in ("I", "F"):
        raise ValueError(
            f"{name} holds {picture.mode!r} values (32 bits a pixel) without a fixed range; save it with 8 or 16 bits"
        )
    return np.asarray(picture.convert("RGB"), dtype=np.float32) / np.float32(255)
