"""Reading users' images, with errors that name the file."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mlti_jax._internal.extras import require
from mlti_jax._internal.processes import default_processes
from mlti_jax.data._readers.files import check_file, check_name, reading
from mlti_jax.data._readers.images import FORMATS, open_image
from mlti_jax.errors import InputError

# Files that operating systems create in folders.
SYSTEM_FILES = ("thumbs.db", "desktop.ini")
GRAYSCALE_MODES = ("1", "L", "LA", "La")
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF tag, and values of a quarter turn

T = TypeVar("T")
R = TypeVar("R")


def list_folder(folder: pathlib.Path) -> list[pathlib.Path]:
    """List the files and folders of a folder, sorted, without hidden ones.

    Raises:
      InputError: if the folder can't be read or is empty, or an entry has a name that
        is not UTF-8 or is not a file or folder.
    """
    with reading(folder):
        found = [
            entry
            for entry in sorted(folder.iterdir())
            if not entry.name.startswith(".") and entry.name.lower() not in SYSTEM_FILES
        ]
    if not found:
        raise InputError(
            f"folder {folder} is empty; expected images, or folders of images. Remove"
            " it or add files"
        )
    for entry in found:
        check_name(entry)
        if not entry.is_dir():
            check_file(entry)
    return found


class ImageHeader(NamedTuple):
    """Height and width after EXIF rotation, and whether the image is grayscale."""

    height: int
    width: int
    grayscale: bool


def read_header(path: pathlib.Path) -> ImageHeader:
    """Read the header of an image file without decoding its pixels."""
    with _opened(path) as image:
        width, height = image.size
        if image.getexif().get(ORIENTATION) in SIDEWAYS:
            width, height = height, width
        return ImageHeader(height, width, image.mode in GRAYSCALE_MODES)


def read_image(path: pathlib.Path, shape: Sequence[int], resize: bool) -> np.ndarray:
    """Read an image and apply its EXIF rotation, uint8 `[H, W, C]`.

    Args:
      path: the file.
      shape: (H, W, C), with 1 channel for grayscale and 3 for color.
      resize: whether to scale images of another size (Lanczos).

    Raises:
      InputError: if the file is not an image, or has another size and `resize` is
        False.
    """
    from PIL import Image, ImageOps

    height, width, channels = shape
    with _opened(path) as image:
        image = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
        if image.size != (width, height):
            if not resize:
                raise InputError(
                    f"{path} has {image.size[1]}x{image.size[0]} pixels (height x"
                    f" width); expected {height}x{width}. Scale it first"
                )
            image = image.resize((width, height), Image.Resampling.LANCZOS)
        return np.asarray(image, np.uint8).reshape(height, width, channels)


def map_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return `list(map(function, items))`; image decoders release the GIL."""
    pool = concurrent.futures.ThreadPoolExecutor(default_processes())
    try:
        return list(pool.map(function, items))
    finally:  # After an error the remaining items are not needed.
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[Any]:
    require("PIL", "own")
    from PIL import UnidentifiedImageError

    check_file(path)
    try:
        with open_image(path, str(path)) as image:
            if image.mode.startswith(("I", "F")):
                raise InputError(
                    f"{path} has more than 8 bits per channel (mode {image.mode});"
                    " convert it to 8 bits, or use from_arrays with floats"
                )
            yield image
    except InputError:
        raise
    except UnidentifiedImageError as error:
        raise InputError(
            f"{path} is not an image, or its format is not supported"
            f" ({', '.join(FORMATS)}); remove it (files whose names start with a dot"
            " are ignored)"
        ) from error
    except Exception as error:  # Pillow's decoders raise many types of errors.
        raise InputError(
            f"{path} is damaged or not an image ({error}); remove it or copy it again"
        ) from error
