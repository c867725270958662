"""Images in files, and lists of their classes."""

from __future__ import annotations

import functools
import io
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from mlti_jax._internal.checks import first_few
from mlti_jax._internal.processes import ordered_map
from mlti_jax.data._readers import files
from mlti_jax.errors import InputError

# Decoders that read pixels only. Others run programs or interpreters (EPS and PDF run
# Ghostscript) or need libraries of the system (WMF).
FORMATS = (
    "PNG",
    "JPEG",
    "BMP",
    "GIF",
    "TIFF",
    "WEBP",
    "PPM",
    "TGA",
    "ICO",
    "JPEG2000",
)
# Larger images may be decompression bombs: a file of 100 KB with 10^9 pixels. This is
# the number from which Pillow warns.
MAX_PIXELS = 2**30 // 12


def open_image(file: pathlib.Path | IO[bytes], place: str) -> Any:
    """Open an image with Pillow and read its header.

    Args:
      file: the file, in one of `FORMATS`.
      place: name of the file, for the error message.

    Raises:
      InputError: if the image has more than `MAX_PIXELS` pixels. Damaged files raise
        Pillow's own errors, of many types.
    """
    from PIL import Image

    try:
        Image.init()  # registers all formats
        known = [name for name in FORMATS if name in Image.OPEN]
        image = Image.open(file, formats=known)
        width, height = image.size
    except Image.DecompressionBombError:  # Twice the limit; it closed the file.
        raise InputError(_too_large(place)) from None
    if width * height > MAX_PIXELS:
        image.close()
        raise InputError(_too_large(place))
    return image


def _too_large(place: str) -> str:
    return f"image {place} has more than {MAX_PIXELS:,} pixels; scale it down"


def decode_image(content: bytes, place: str, size: int) -> np.ndarray:
    """Decode an image and resize it.

    Args:
      content: bytes of the file, in one of `FORMATS`.
      place: name of the file, for the error message.
      size: height and width to resize to (Lanczos). An image that already has this
        size is not resampled.

    Returns:
      The image, uint8 `[size, size, 3]`.

    Raises:
      InputError: if the image can't be decoded.
    """
    from PIL import Image

    try:
        with open_image(io.BytesIO(content), place) as opened:
            image = opened.convert("RGB")
    except InputError:
        raise
    except Exception as error:  # Pillow's readers raise errors of many types.
        raise InputError(
            f"can't decode the image {place} ({error}); {files.DOWNLOAD_AGAIN}"
        ) from error
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(image, np.uint8)


def read_images(
    paths: Mapping[str, Sequence[pathlib.Path]],
    size: int,
    processes: int,
    on_damage: Callable[[InputError], None],
) -> Iterator[dict[str, Any]]:
    """Read and resize images, class by class.

    Args:
      paths: the files of each class; examples come in this order.
      size: height and width to resize to.
      processes: number of processes that decode.
      on_damage: called with the error of each file that can't be read; raises it, or
        returns to leave the file out.

    Yields:
      Examples with `image`, uint8 `[size, size, 3]`, and `label`, the class name.
    """
    labelled = [(label, path) for label, of_class in paths.items() for path in of_class]
    read = functools.partial(_read, size=size)
    for label, image in ordered_map(read, labelled, processes):
        if isinstance(image, InputError):
            on_damage(image)
        else:
            yield {"image": image, "label": label}


def _read(
    labelled: tuple[str, pathlib.Path], size: int
) -> tuple[str, np.ndarray | InputError]:
    label, path = labelled
    try:
        return label, decode_image(files.read_bytes(path), str(path), size)
    except InputError as error:
        return label, error


def check_classes(
    place: str,
    found: Iterable[str],
    classes: Sequence[str],
    *,
    release: str,
    allow_part: bool = False,
) -> None:
    """Raise `InputError` if a file does not have the classes of its split.

    Args:
      place: name of the file.
      found: its classes, in any order.
      classes: classes of the split.
      release: the release to use instead, for the error message.
      allow_part: whether some of the classes may be missing.
    """
    found = set(found)
    unknown = sorted(str(name) for name in found.difference(classes))
    missing = [name for name in classes if name not in found]
    if allow_part and found:
        missing = []
    if not unknown and not missing:
        return
    faults = []
    if missing:
        faults.append(f"{first_few(missing)} missing")
    if unknown:
        faults.append(f"{first_few(unknown)} not expected")
    raise InputError(
        f"{place} does not have the {len(classes)} classes of its split:"
        f" {'; '.join(faults)}. The file is truncated or from another release; use"
        f" {release}"
    )
