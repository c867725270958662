"""DermNet (App. E.1): skin diseases; non-label-sharing, 5-way 1- or 5-shot.

DermNet's classes have a long tail. Of the 203 with at least 30 images, the largest 30
are for meta-training (DermNet-S) and the smallest 53 for meta-testing. The 120 between
them are added one by one, up to the full size of 150. DermNet has no validation
classes.

The atlas changes, so a copy may lack some of the classes. It also shows some images in
several classes. These are left out, since their class is ambiguous, and since a test
image must not occur in a training class.
"""

from __future__ import annotations

import collections
import hashlib
import os
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

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
_SPLITS = {"train": TRAIN + ADDITIONAL, "test": TEST}
_CLASSES = _SPLITS["train"] + _SPLITS["test"]
_SMALLEST = 30  # images per class of the paper


class Dermnet(base.DatasetBuilder):
    """TFDS builder of DermNet; records are grouped by class."""

    EXAMPLES = 20_000
    CLASSES = _SPLITS
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
            split: read_images(of_split, _SIZE, self.processes, self.leave_out)
            for split, classes in _SPLITS.items()
            if (of_split := {name: paths[name] for name in classes if name in paths})
        }

    def _paths(self, folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
        """Return the files of each class without duplicates, sorted by path."""
        known = _known_names()
        labels = {}
        for path in _image_paths(folder):
            label = _class_of(path, known)
            if label is None:
                self.skip("not of a class of the paper")
            else:
                labels[path] = label
        if not labels:
            raise InputError(
                f"{folder} has no images of {len(_CLASSES)} of the paper's"
                f" {len(_CLASSES)} classes: {first_few(_CLASSES)}. {self.INSTRUCTIONS}"
                " If your folders have other names, rename them to these."
            )
        paths = collections.defaultdict(list)
        for path in self._unique(labels):
            paths[labels[path]].append(path)
        small = [name for name in _CLASSES if 0 < len(paths[name]) < _SMALLEST]
        if small:
            self.note(
                f"{len(small)} classes have fewer images than the {_SMALLEST} of the"
                f" paper's smallest class, the smallest of them"
                f" {min(len(paths[name]) for name in small)}"
            )
        return {label: found for label, found in paths.items() if found}

    def _unique(self, labels: Mapping[pathlib.Path, str]) -> list[pathlib.Path]:
        """Return the files whose image occurs in no other class, once per image."""
        copies = _copies(list(labels))
        kept = []
        shared: list[set[str]] = []
        for paths in copies:
            classes = {labels[path] for path in paths}
            if len(classes) > 1:
                self.skip("the same image occurs in other classes", len(paths))
                shared.append(classes)
            else:
                self.skip("duplicate of another image of its class", len(paths) - 1)
                kept.append(paths[0])
        if shared:
            train, test = (set(names) for names in _SPLITS.values())
            both = sum(bool(c & train and c & test) for c in shared)
            small = sum(bool(c & set(TRAIN) and c & test) for c in shared)
            self.note(
                f"{len(shared)} images occur in two or more classes and are left out;"
                f" {both} of them in a training and a test class ({small} for the"
                f" {len(TRAIN)} training classes of DermNet-S)"
            )
        return sorted(kept)


def _copies(paths: Sequence[pathlib.Path]) -> list[list[pathlib.Path]]:
    """Group files of the same content."""
    sizes = [files.check_file(path) for path in paths]
    files_of_size = collections.Counter(sizes)
    groups = collections.defaultdict(list)
    for path, size in zip(paths, sizes, strict=True):
        # Only files of equal size can be copies; the others are not read here.
        key: object = path
        if files_of_size[size] > 1:
            key = hashlib.sha256(files.read_bytes(path)).digest()
        groups[key].append(path)
    return list(groups.values())


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
    missing_classes: str = "skip",
    min_images: int = 1,
) -> Splits:
    """Load DermNet from prepared records.

    Args:
      data_dir: folder of prepared datasets; None for the default.
      train_classes: number of training classes, the first in the paper's order: 30 for
        DermNet-S, 150 for the full size.
      missing_classes: `skip` the classes that the prepared copy of the atlas lacks,
        or `refuse` to load it. Either way `note` and `part` of the result list them.
      min_images: classes with fewer images are left out.

    Returns:
      Training and test classes; images uint8 `[M, 84, 84, 3]`.

    Raises:
      InputError: if an argument is invalid, the dataset is not prepared, or classes
        are missing.
    """
    return prepared.class_splits(
        "dermnet",
        data_dir,
        train_classes=train_classes,
        missing_classes=missing_classes,
        min_images=min_images,
        field="image",
        note="DermNet, 84x84",
    )
