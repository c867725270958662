"""Tasks from a folder of images."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from mlti_jax._internal.checks import check_range
from mlti_jax.data._own.files import MAX_BYTES
from mlti_jax.data._own.image_files import (
    ImageHeader,
    list_folder,
    map_threads,
    read_header,
    read_image,
)
from mlti_jax.data._own.inputs import IMAGES, Inputs, Leaf
from mlti_jax.data._own.labels import label_classes, label_tasks
from mlti_jax.data._own.splitting import HeldOut, Partition, make_splits
from mlti_jax.data._readers.files import check_name
from mlti_jax.data._splits import Splits
from mlti_jax.errors import InputError

LAYOUTS = "class/image or task/class/image"


def from_folder(
    path: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    validation: HeldOut = None,
    test: HeldOut = 0.2,
    seed: int = 0,
    setting: str | None = None,
) -> Splits:
    """Create a dataset from a folder of images.

    Args:
      path: a folder with one subfolder of images per class, from which tasks are drawn
        (non-label-sharing); or with one subfolder per task, each with one subfolder
        per class (label-sharing). Formats are PNG, JPEG, BMP, GIF, TIFF, WebP, PPM,
        TGA, ICO and JPEG 2000. Files whose names start with a dot are ignored.
      size: the side length, or (height, width), to scale images to (Lanczos); None if
        all have the same size.
      validation: classes or tasks for model selection, as in `from_arrays`.
      test: classes or tasks for evaluation, as in `from_arrays`.
      seed: seed to draw held-out fractions.
      setting: overrides what the folders suggest: with `non_label_sharing` every class
        of every task is a separate class, named `task/class`.

    Returns:
      The pools, uint8 `[M, H, W, C]`: one channel if all images are grayscale, else
      three. `summary` describes the data and all changes to it, and `inputs` converts
      new files the same way.

    Raises:
      InputError: if the folder has another layout, a file can't be read, or the
        images do not fit into memory.
    """
    root = pathlib.Path(path).expanduser()
    check_name(root)
    if not root.is_dir():
        raise InputError(
            f"folder {root} does not exist; expected a folder of {LAYOUTS}"
        )
    files = list(_files(root, ()))
    depth = _depth(root, files)
    paths = [file for _, file in files]
    headers = map_threads(read_header, paths)
    shape = _shape(paths, headers, size)
    if len(paths) * np.prod(shape, dtype=np.int64) > MAX_BYTES:
        raise InputError(
            f"{len(paths):,} images of {shape[0]}x{shape[1]} pixels would take"
            f" {len(paths) * np.prod(shape) / 2**30:.0f} GB of memory; scale them down,"
            " for example with size=84"
        )
    names = np.array([parts for parts, _ in files])
    if depth == 1:
        labels, found = label_classes(names[:, 0], setting), "folders are classes"
    else:
        labels = label_tasks(names[:, 0], names[:, 1], setting)
        found = "folders are tasks, their subfolders are classes"
    labels = dataclasses.replace(labels, found=found)
    inputs = Inputs(
        IMAGES,
        (Leaf("", shape, "uint8"),),
        resize=size is not None,
        label_names=labels.classes,
    )
    images = map_threads(lambda file: read_image(file, shape, inputs.resize), paths)
    return make_splits(
        Partition(labels, validation, test, seed),
        np.stack(images),
        inputs,
        note=root.resolve().name,
        details=_details(headers, shape),
        source=root.resolve().name,
    )


def _files(
    folder: pathlib.Path, parts: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], pathlib.Path]]:
    """List all files with the names of their parent folders, sorted."""
    for entry in list_folder(folder):
        if not entry.is_dir():
            yield parts, entry
        elif len(parts) == 2:
            raise InputError(
                f"{entry} is a folder inside a class folder; expected {LAYOUTS}"
            )
        else:
            yield from _files(entry, (*parts, entry.name))


def _depth(
    root: pathlib.Path, files: list[tuple[tuple[str, ...], pathlib.Path]]
) -> int:
    """Return 1 for `class/image`, 2 for `task/class/image`."""
    by_depth = {len(parts): file for parts, file in files}
    if 0 in by_depth:
        raise InputError(
            f"{by_depth[0]} is directly in {root}; expected {LAYOUTS}. Move it to the"
            " folder of its class or remove it"
        )
    if len(by_depth) == 2:
        raise InputError(
            f"{by_depth[1]} is in a folder of {root}, but {by_depth[2]} is one level"
            f" deeper; expected the same layout for all files, {LAYOUTS}"
        )
    return next(iter(by_depth))


def _shape(
    paths: list[pathlib.Path],
    headers: list[ImageHeader],
    size: int | tuple[int, int] | None,
) -> tuple[int, int, int]:
    channels = 1 if all(header.grayscale for header in headers) else 3
    if size is not None:
        sides = size if isinstance(size, tuple | list) else (size, size)
        if len(sides) != 2:
            raise InputError(f"size is {size}; expected an integer or (height, width)")
        for side in sides:
            check_range("size", side, 4096)
        return int(sides[0]), int(sides[1]), channels
    first = headers[0]
    for path, header in zip(paths, headers, strict=True):
        if header[:2] != first[:2]:
            raise InputError(
                f"images differ in size: {paths[0]} has {first.height}x{first.width}"
                f" pixels (height x width), {path} has {header.height}x{header.width}."
                " Set the size to scale all images to, for example size=84 or"
                " size=(height, width)"
            )
    return first.height, first.width, channels


def _details(headers: list[ImageHeader], shape: tuple[int, int, int]) -> list[str]:
    """Describe how images were changed."""
    details = []
    scaled = sum(header[:2] != shape[:2] for header in headers)
    if scaled:
        smallest, largest = min(h[:2] for h in headers), max(h[:2] for h in headers)
        details.append(
            f"scaled to {shape[0]}x{shape[1]}: {scaled:,} images of"
            f" {smallest[0]}x{smallest[1]} to {largest[0]}x{largest[1]} pixels"
        )
    grayscale = sum(header.grayscale for header in headers)
    if grayscale and shape[2] == 3:
        details.append(f"converted to color: {grayscale:,} grayscale images")
    return details
