"""What datasets of pictures share: lists of classes, and pictures in files."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from mlti_jax._internal.checks import first_few
from mlti_jax.data._readers import raw
from mlti_jax.data.builders.base import Example
from mlti_jax.errors import InputError


def split_names(text: str) -> tuple[str, ...]:
    """The names in a text with white space between them."""
    return tuple(text.split())


def check_classes(
    place: str, found: Iterable[str], classes: Sequence[str], *, release: str
) -> None:
    """Refuses a file whose classes are not those of the split, in whatever order.

    Args:
      place: the name of the file.
      found: its classes.
      classes: those of the split.
      release: what to use instead.
    """
    found = set(found)
    unknown = sorted(str(name) for name in found.difference(classes))
    missing = [name for name in classes if name not in found]
    if not unknown and not missing:
        return
    faults = []
    if missing:
        faults.append(f"it lacks {first_few(missing)}")
    if unknown:
        faults.append(f"it has {first_few(unknown)}, which are not of this split")
    raise InputError(
        f"{place} does not have the {len(classes)} classes of its split:"
        f" {'; '.join(faults)}. It is of another release, or cut off; use {release}"
    )


def examples(
    files: Mapping[str, Sequence[pathlib.Path]], size: int, processes: int
) -> Iterator[Example]:
    """Reads pictures class by class.

    Args:
      files: the files of each class; examples come in this order.
      size: the height and width to scale to.
      processes: how many decode.

    Yields:
      `image`, uint8 `[size, size, 3]`, and `label`, the name of the class.
    """
    named = [(label, path) for label, paths in files.items() for path in paths]
    read = functools.partial(_read, size=size)
    for label, image in raw.ordered_map(read, named, processes):
        yield {"image": image, "label": label}


def _read(named: tuple[str, pathlib.Path], size: int) -> tuple[str, np.ndarray]:
    label, path = named
    return label, raw.read_image(path, size)
