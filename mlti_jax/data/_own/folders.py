"""Tasks from a folder of pictures."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from mlti_jax._internal.checks import check_range
from mlti_jax.data._own.assembly import Division, assemble
from mlti_jax.data._own.inputs import PICTURES, Inputs, Leaf
from mlti_jax.data._own.labels import label_classes, label_tasks
from mlti_jax.data._own.pictures import Head, in_threads, read_head, read_picture
from mlti_jax.data._own.splitting import KeptBack
from mlti_jax.data._pools import Splits
from mlti_jax.errors import InputError

# What systems put into folders by themselves.
SYSTEM_FILES = ("thumbs.db", "desktop.ini")
LARGEST = 8 * 2**30  # bytes of pixels; they are all held in memory


def from_folder(
    path: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    validation: KeptBack = None,
    test: KeptBack = 0.2,
    seed: int = 0,
    setting: str | None = None,
) -> Splits:
    """Makes pools of pictures.

    Args:
      path: a folder with a folder of pictures for each class, which tasks are drawn
        from (non-label-sharing); or with a folder for each task, and in it one for
        each class (label-sharing). Any format that Pillow reads. Files whose name
        begins with a dot are left alone.
      size: the height and width, or both, to scale pictures to (Lanczos); None if all
        are of one size already.
      validation, test, seed: which classes or tasks are kept back, as in
        `from_arrays`.
      setting: overrides what the folders suggest: with `non_label_sharing` the classes
        of a folder of tasks are all different, and named `task/class`.

    Returns:
      The pools, uint8 `[M, H, W, C]`: one channel if all pictures are grey, else three.
      `summary` says what was found and done, `inputs` treats new files alike.
    """
    root = pathlib.Path(path).expanduser()
    if not root.is_dir():
        raise InputError(
            f"there is no folder {root}; give one with folders of pictures"
        )
    files = list(_files(root, ()))
    depth = _depth(root, files)
    paths = [file for _, file in files]
    heads = in_threads(read_head, paths)
    shape = _shape(paths, heads, size)
    if len(paths) * np.prod(shape, dtype=np.int64) > LARGEST:
        raise InputError(
            f"{len(paths):,} pictures of {shape[0]}x{shape[1]} pixels would take"
            f" {len(paths) * np.prod(shape) / 2**30:.0f} GB of memory; scale them down,"
            " as by size=84"
        )
    names = np.array([parts for parts, _ in files])
    if depth == 1:
        labels, found = label_classes(names[:, 0], setting), "folders are classes"
    else:
        labels = label_tasks(names[:, 0], names[:, 1], setting)
        found = "folders are tasks, and in them classes"
    labels = dataclasses.replace(labels, found=found)
    inputs = Inputs(
        PICTURES,
        (Leaf("", shape, "uint8"),),
        resize=size is not None,
        label_names=labels.classes,
    )
    pictures = in_threads(lambda file: read_picture(file, shape, inputs.resize), paths)
    return assemble(
        Division(labels, validation, test, seed),
        np.stack(pictures),
        inputs,
        note=root.resolve().name,
        details=_words(heads, shape),
        source=root.resolve().name,
    )


def _files(
    folder: pathlib.Path, parts: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], pathlib.Path]]:
    """All files with the names of the folders they are in, sorted."""
    entries = [
        entry
        for entry in sorted(folder.iterdir())
        if not entry.name.startswith(".") and entry.name.lower() not in SYSTEM_FILES
    ]
    if not entries:
        raise InputError(
            f"the folder {folder} is empty; expected pictures, or folders of them."
            " Remove it, or fill it"
        )
    for entry in entries:
        if not entry.is_dir():
            yield parts, entry
        elif len(parts) == 2:
            raise InputError(
                f"{entry} is a folder inside of a class; expected class folders, or"
                " folders of tasks with class folders, and no more"
            )
        else:
            yield from _files(entry, (*parts, entry.name))


def _depth(
    root: pathlib.Path, files: list[tuple[tuple[str, ...], pathlib.Path]]
) -> int:
    """1 for class folders, 2 for folders of tasks with class folders."""
    by_depth = {len(parts): file for parts, file in files}
    layout = "class/picture or task/class/picture"
    if 0 in by_depth:
        raise InputError(
            f"{by_depth[0]} lies in {root} itself; expected {layout}. Put it into the"
            " folder of its class, or remove it"
        )
    if len(by_depth) == 2:
        raise InputError(
            f"{by_depth[1]} lies in a folder of {root}, but {by_depth[2]} in a folder"
            f" inside of one; expected one of {layout} for all"
        )
    return next(iter(by_depth))


def _shape(
    paths: list[pathlib.Path],
    heads: list[Head],
    size: int | tuple[int, int] | None,
) -> tuple[int, int, int]:
    channels = 1 if all(head.grey for head in heads) else 3
    if size is not None:
        sides = size if isinstance(size, tuple | list) else (size, size)
        if len(sides) != 2:
            raise InputError(f"size is {size}; expected one number, or (height, width)")
        for side in sides:
            check_range("size", side, 4096)
        return int(sides[0]), int(sides[1]), channels
    first = heads[0]
    for path, head in zip(paths, heads, strict=True):
        if head[:2] != first[:2]:
            raise InputError(
                f"pictures differ in size: {paths[0]} has {first.height}x{first.width}"
                f" pixels (height x width), {path} has {head.height}x{head.width}."
                " Choose the size that all are scaled to, as size=84, or"
                " size=(height, width)"
            )
    return first.height, first.width, channels


def _words(heads: list[Head], shape: tuple[int, int, int]) -> list[str]:
    """What was done to the pictures."""
    details = []
    scaled = sum(head[:2] != shape[:2] for head in heads)
    if scaled:
        smallest, largest = min(head[:2] for head in heads), max(h[:2] for h in heads)
        details.append(
            f"scaled to {shape[0]}x{shape[1]}: {scaled:,} pictures, of"
            f" {smallest[0]}x{smallest[1]} to {largest[0]}x{largest[1]} pixels"
        )
    grey = sum(head.grey for head in heads)
    if grey and shape[2] == 3:
        details.append(f"{grey:,} grey pictures among coloured ones: all in colour")
    return details
