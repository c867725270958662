"""tieredImageNet (App. E.8): objects; non-label-sharing, 5-way 1- or 5-shot.

Ren et al. split 608 classes of ImageNet by superclass: 351 for meta-training, 97 for
validation and 160 for testing. tieredImageNet-S has 35 of the training classes. The
paper does not list them; here they are the first of Ren et al.'s list.

The release numbers the classes of each split in its own order and gives their English
names (`label_specific_str`) instead of WordNet ids. The lines of synsets.txt and
class_names.txt map names to ids. The name "crane" belongs to two ids, only one of which
is in tieredImageNet, so names are looked up among the classes of the split.

A pickle can't be read in parts: preparing needs more memory than the largest file,
train_images_png.pkl with 448,695 images (about 10 GB). Splits are read one at a time.
"""

from __future__ import annotations

import functools
import io
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal.checks import first_few
from mlti_jax._internal.processes import ordered_map
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers import files
from mlti_jax.data._readers.images import check_classes, decode_image, open_image
from mlti_jax.data._readers.pickles import load_pickle
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import _base as base
from mlti_jax.data.builders._tiered_imagenet_classes import TEST, TRAIN, VALIDATION
from mlti_jax.errors import InputError

__all__ = ["TieredImagenet", "load"]

_SIZE = 84
_SMALL = 35  # training classes of tieredImageNet-S
_CLASSES = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
_PREFIXES = {"train": "train", "validation": "val", "test": "test"}
_LONG_PREFIX = "tiered-imagenet-"  # of all files, in some mirrors
_RELEASE = "tiered-imagenet.tar of Ren et al. (2018)"


class TieredImagenet(base.DatasetBuilder):
    """TFDS builder of tieredImageNet; records are grouped by class."""

    EXAMPLES = 779_165
    EXACT = True
    CLASSES = _CLASSES
    INSTRUCTIONS = (
        "Download tiered-imagenet.tar, which the page of the repository"
        " 'renmengye/few-shot-ssl-public' links to, and unpack it into a folder DIR, so"
        " that synsets.txt, class_names.txt, train_images_png.pkl, train_labels.pkl and"
        " the same two for val and test are directly in DIR. Names with the prefix"
        " 'tiered-imagenet-', as in some mirrors, are accepted too."
    )

    def _info(self) -> tfds.core.DatasetInfo:
        return self.describe(
            {
                "image": base.image(_SIZE),
                "label": tfds.features.ClassLabel(names=TRAIN + VALIDATION + TEST),
            },
            description="608 classes of ImageNet, by WordNet id, split by superclass.",
            homepage="https://github.com/renmengye/few-shot-ssl-public",
            citation="""@inproceedings{ren2018meta,
              title={Meta-Learning for Semi-Supervised Few-Shot Classification},
              author={Ren, Mengye and Triantafillou, Eleni and Ravi, Sachin and
                Snell, Jake and Swersky, Kevin and Tenenbaum, Joshua B. and
                Larochelle, Hugo and Zemel, Richard S.}, booktitle={ICLR},
              year={2018}}""",
            license="ImageNet's terms of access: non-commercial research.",
        )

    def read_raw(self, raw: pathlib.Path) -> Mapping[str, Iterable[base.Example]]:
        """Read labels now and images lazily; see the base class."""
        ids = _read_ids(
            self._find(raw, "synsets.txt"), self._find(raw, "class_names.txt")
        )
        splits = {}
        for split, prefix in self._present_prefixes(raw).items():
            labels = _read_labels(
                self._find(raw, f"{prefix}_labels.pkl"), ids, _CLASSES[split]
            )
            images = self._find(raw, f"{prefix}_images_png.pkl")
            splits[split] = self._examples(images, labels, _CLASSES[split])
        return splits

    def _present_prefixes(self, folder: pathlib.Path) -> dict[str, str]:
        """Return the splits of which a file is there; all if no split has one."""

        def is_present(prefix: str) -> bool:
            names = (f"{prefix}_labels.pkl", f"{prefix}_images_png.pkl")
            return any(
                (folder / f"{start}{name}").exists()
                for start in ("", _LONG_PREFIX)
                for name in names
            )

        present = {s: prefix for s, prefix in _PREFIXES.items() if is_present(prefix)}
        return present or _PREFIXES

    def _find(self, folder: pathlib.Path, name: str) -> pathlib.Path:
        return files.find(
            folder, name, f"{_LONG_PREFIX}{name}", instructions=self.INSTRUCTIONS
        )

    def _examples(
        self, path: pathlib.Path, labels: np.ndarray, classes: tuple[str, ...]
    ) -> Iterator[base.Example]:
        images = load_pickle(path)
        if not isinstance(images, list | np.ndarray) or len(images) != len(labels):
            size = len(images) if hasattr(images, "__len__") else 1
            raise InputError(
                f"{path} holds a {type(images).__name__} of {size}; expected a list of"
                f" {len(labels)} images, one per label. Use {_RELEASE}"
            )
        numbers = np.bincount(labels, minlength=len(classes))
        self.expect(dict(zip(classes, map(int, numbers), strict=True)))
        rows = np.argsort(labels, kind="stable")
        # Converted one by one: all at once would double the memory.
        contents = ((int(row), _png_bytes(path, int(row), images[row])) for row in rows)
        decode = functools.partial(_decode_png, path=path)
        decoded = ordered_map(decode, contents, self.processes)
        for row, image in zip(rows, decoded, strict=True):
            if isinstance(image, InputError):
                self.leave_out(image)
            else:
                yield {"image": image, "label": classes[labels[row]]}


def _read_ids(
    synsets: pathlib.Path, class_names: pathlib.Path
) -> list[tuple[str, str]]:
    """Read name and WordNet id of each class of ImageNet."""
    columns = []
    for path in (class_names, synsets):
        try:
            lines = files.read_bytes(path).decode("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(
                f"can't read {path} ({error}); {files.DOWNLOAD_AGAIN}"
            ) from error
        columns.append([line.strip() for line in lines])
    names, ids = columns
    if len(names) != len(ids):
        raise InputError(
            f"{class_names} has {len(names)} lines and {synsets} {len(ids)}; expected"
            f" one line per class in both. Use {_RELEASE}"
        )
    return list(zip(names, ids, strict=True))


def _read_labels(
    path: pathlib.Path, ids: list[tuple[str, str]], classes: tuple[str, ...]
) -> np.ndarray:
    """Read the class of each image of a split, `[N]`, as its position in `classes`."""
    numbers, names = _label_columns(path, load_pickle(path))
    position = {
        name: classes.index(wordnet_id)
        for name, wordnet_id in ids
        if wordnet_id in classes
    }
    unknown = [name for name in names if name not in position]
    if unknown:
        raise InputError(
            f"{path} has the classes {first_few(unknown)}, which class_names.txt and"
            " synsets.txt do not list as classes of this split; use all files of"
            f" {_RELEASE}"
        )
    of_number = np.array([position[name] for name in names])
    outside = np.flatnonzero((numbers < 0) | (numbers >= len(names)))
    if len(outside):
        raise InputError(
            f"image {outside[0]} of {path} has class {numbers[outside[0]]}; expected a"
            f" number from 0 to {len(names) - 1}. If the file is damaged,"
            f" {files.DOWNLOAD_AGAIN}"
        )
    labels = of_number[numbers]
    found = (classes[label] for label in np.unique(labels))
    check_classes(str(path), found, classes, release=_RELEASE, allow_part=True)
    return labels


def _label_columns(path: pathlib.Path, content: Any) -> tuple[np.ndarray, list[str]]:
    """Return the class number of each image, `[N]`, and the names of the classes."""
    try:
        numbers = np.asarray(content["label_specific"])
        names = [str(name).strip() for name in content["label_specific_str"]]
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise InputError(
            f"{path} does not hold 'label_specific' and 'label_specific_str'; use"
            f" {_RELEASE}"
        ) from error
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise InputError(
            f"'label_specific' of {path} has dtype {numbers.dtype} and shape"
            f" {list(numbers.shape)}; expected a one-dimensional array of integers. Use"
            f" {_RELEASE}"
        )
    if len(set(names)) != len(names):
        raise InputError(
            f"'label_specific_str' of {path} has duplicate names; use {_RELEASE}"
        )
    return numbers, names


def _png_bytes(path: pathlib.Path, number: int, content: Any) -> bytes:
    """Return the bytes of a PNG file, which the release stores as a uint8 array."""
    if not isinstance(content, np.ndarray) or content.dtype != np.uint8:
        raise InputError(
            f"image {number} of {path} is not a uint8 array with the bytes of a PNG"
            f" file; use {_RELEASE}"
        )
    return content.tobytes()


def _decode_png(
    numbered: tuple[int, bytes], path: pathlib.Path
) -> np.ndarray | InputError:
    """Decode an image, uint8 `[84, 84, 3]`; the release has no other size.

    Returns:
      The image, or the error if it is damaged.
    """
    number, content = numbered
    place = f"{number} of {path}"
    try:
        decoded = decode_image(content, place, _SIZE)
    except InputError as error:
        return error
    with open_image(io.BytesIO(content), place) as image:
        width, height = image.size
    if (width, height) != (_SIZE, _SIZE):
        raise InputError(
            f"image {place} is {width}x{height}; expected {_SIZE}x{_SIZE}. The file is"
            f" from another release; use {_RELEASE}"
        )
    return decoded


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    train_classes: int = _SMALL,
    missing_classes: str = "refuse",
    min_images: int = 1,
) -> Splits:
    """Load tieredImageNet from prepared records.

    Args:
      data_dir: folder of prepared datasets; None for the default.
      train_classes: number of training classes, the first of Ren et al.'s list: 35 for
        tieredImageNet-S, 351 for the full size.
      missing_classes: if the prepared part of the release lacks some of the classes:
        `refuse` to load it, or `skip` them.
      min_images: classes with fewer images are left out.

    Returns:
      Training, validation and test classes; images uint8 `[M, 84, 84, 3]`.

    Raises:
      InputError: if an argument is invalid, the dataset is not prepared, or classes
        are missing.
    """
    return prepared.class_splits(
        "tiered_imagenet",
        data_dir,
        train_classes=train_classes,
        missing_classes=missing_classes,
        min_images=min_images,
        field="image",
        note="tieredImageNet in Ren et al.'s split, 84x84",
    )
