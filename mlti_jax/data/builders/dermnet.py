"""DermNet (App. E.1): skin diseases; non-label-sharing, 5-way 1- or 5-shot.

DermNet's classes have a long tail. Of the 203 with at least 30 images, the largest 30
are for meta-training (DermNet-S) and the smallest 53 for meta-testing. The 120 between
them are added one by one, up to the full size of 150. DermNet has no validation
classes.
"""

from __future__ import annotations

import collections
import hashlib
import os
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence

import tensorflow_datasets as tfds

from mlti_jax._internal.checks import first_few
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers import files
from mlti_jax.data._readers.images import read_images
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import _base as base
from mlti_jax.data.builders._dermnet_classes import (
    ADDITIONAL,
    OTHER_NAMES,
    TEST,
    TRAIN,
)
from mlti_jax.errors import InputError

__all__ = ["Dermnet", "load"]

_SIZE = 84
_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp"}
)
_CLASSES = TRAIN + ADDITIONAL + TEST


class Dermnet(base.DatasetBuilder):
    """TFDS builder of DermNet; records are grouped by class."""

    EXAMPLES = 20_000
    INSTRUCTIONS = (
        "Put the images of the Dermnet Skin Disease Atlas (dermnet.com) into a folder"
        " DIR, in subfolders of any depth. The class of an image is the name of its"
        " folder, as in 'Acne-Cystic/12.jpg'; or, if that is not a class of the paper,"
        " the name of the file without the number at its end, as in 'train/Acne and"
        " Rosacea Photos/acne-cystic-12.jpg' of the copy on Kaggle ('Dermnet')."
    )

    def _info(self) -> tfds.core.DatasetInfo:
        return self.describe(
            {
                "image": base.image(_SIZE),
                "label": tfds.features.ClassLabel(names=_CLASSES),
            },
            description="The 203 skin diseases of DermNet with at least 30 images.",
            homepage="http://www.dermnet.com/dermatology-pictures-skin-disease-pictures",
            citation="""@misc{dermnet, title={Dermnet Skin Disease Atlas},
              howpublished={http://www.dermnet.com/}}""",
            license="Copyright Dermnet.com; see its terms of use.",
        )

    def read_raw(self, raw: pathlib.Path) -> Mapping[str, Iterable[base.Example]]:
        """Read a tree of folders; see the base class."""
        paths = self._paths(raw)
        return {
            split: read_images(
                {label: paths[label] for label in classes}, _SIZE, self.processes
            )
            for split, classes in (("train", TRAIN + ADDITIONAL), ("test", TEST))
        }

    def _paths(self, folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
        """Return the files of each class without duplicates, sorted by path."""
        known = _known_names()
        paths = collections.defaultdict(list)
        for path in _image_paths(folder):
            label = _class_of(path, known)
            if label is None:
                self.skip("not of a class of the paper")
            else:
                paths[label].append(path)
        missing = [name for name in _CLASSES if name not in paths]
        if missing:
            raise InputError(
                f"{folder} has no images of {len(missing)} of the paper's"
                f" {len(_CLASSES)} classes: {first_few(missing)}. {self.INSTRUCTIONS}"
                " If your folders have other names, rename them to these."
            )
        return {label: list(self._unique(paths[label])) for label in paths}

    def _unique(self, paths: Sequence[pathlib.Path]) -> Iterator[pathlib.Path]:
        sizes = [files.check_file(path) for path in paths]
        files_of_size = collections.Counter(sizes)
        seen = set()
        for path, size in zip(paths, sizes, strict=True):
            if files_of_size[size] > 1:  # Only files of equal size can be duplicates.
                digest = hashlib.sha256(files.read_bytes(path)).digest()
                if digest in seen:
                    self.skip("duplicate of another image of its class")
                    continue
                seen.add(digest)
            yield path


def _normalize(name: str) -> str:
    """Remove what differs between copies: case, accents, spaces and hyphens."""
    letters = unicodedata.normalize("NFKD", name).casefold()
    return re.sub(r"[^a-z0-9]", "", letters)


def _known_names() -> dict[str, str]:
    """Return the class of each normalized name.

    The part in parentheses may be missing, as in "Tinea (Ringworm) Body".
    """
    known = {_normalize(other): name for other, name in OTHER_NAMES.items()}
    for name in _CLASSES:
        known[_normalize(name)] = name
        known[_normalize(re.sub(r"\(.*?\)", "", name))] = name
    return known


def _image_paths(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return all image files below a folder, sorted."""
    return sorted(
        pathlib.Path(parent, name)
        for parent, _, names in os.walk(folder, onerror=_unreadable)
        for name in names
        if pathlib.Path(name).suffix.lower() in _SUFFIXES
    )


def _unreadable(error: OSError) -> None:
    raise InputError(f"can't read {error.filename} ({error.strerror})") from error


def _class_of(path: pathlib.Path, known: Mapping[str, str]) -> str | None:
    """Return the class of an image from its folder, else from its name, or None."""
    folder = known.get(_normalize(path.parent.name))
    return folder or known.get(_normalize(path.stem).rstrip("0123456789"))


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    train_classes: int = len(TRAIN),
) -> Splits:
    """Load DermNet from prepared records.

    Args:
      data_dir: folder of prepared datasets; None for the default.
      train_classes: number of training classes, the first in the paper's order: 30 for
        DermNet-S, 150 for the full size.

    Returns:
      Training and test classes; images uint8 `[M, 84, 84, 3]`.

    Raises:
      InputError: if `train_classes` is out of range or the dataset is not prepared.
    """
    return prepared.class_splits(
        "dermnet",
        data_dir,
        train_classes=train_classes,
        field="image",
        note="DermNet, 84x84",
    )
