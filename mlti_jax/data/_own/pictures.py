"""Pictures in users' files: what their heads say, and their pixels."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mlti_jax.data._readers import raw
from mlti_jax.errors import InputError

GREY = ("1", "L", "LA", "La")
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF


class Head(NamedTuple):
    """Height and width as seen, and whether there is no colour."""

    height: int
    width: int
    grey: bool


def read_head(path: pathlib.Path) -> Head:
    """What a picture's file says before its pixels are decoded."""
    with _opened(path) as image:
        width, height = image.size
        if image.getexif().get(ORIENTATION) in SIDEWAYS:
            width, height = height, width
        return Head(height, width, image.mode in GREY)


def read_picture(path: pathlib.Path, shape: Sequence[int], resize: bool) -> np.ndarray:
    """Reads a picture, turned upright, uint8 `[H, W, C]`.

    Args:
      path: the file.
      shape: (H, W, C), with 1 channel for grey and 3 for colour.
      resize: whether pictures of another size are scaled (Lanczos); else refused.
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


def in_threads(function: Any, items: Sequence[Any]) -> list[Any]:
    """`map(function, items)`, in order; decoders of pictures do not hold the GIL."""
    pool = concurrent.futures.ThreadPoolExecutor(raw.default_processes())
    try:
        return list(pool.map(function, items))
    finally:  # After an error the other items are not worth the time.
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[Any]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):
                raise InputError(
                    f"{path} has more than 8 bits a pixel (mode {image.mode});"
                    " convert it to 8 bits first, or give arrays of floats"
                )
            yield image
    except (InputError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise InputError(
            f"{path} is no picture, or of a format that can't be read; remove it (files"
            " whose name begins with a dot are left alone)"
        ) from error
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except Exception as error:  # Pillow's readers raise errors of many types.
        raise InputError(
            f"{path} is damaged, or no picture ({error}); remove it, or copy it again"
        ) from error
