"""miniImageNet (App. E.1): objects; non-label-sharing, 5-way 1- or 5-shot.

miniImagenet-S has 12 classes for meta-training. The others are added one by one to
study the effect of the number of tasks, up to the 64 of the full size. Validation and
test classes are the 16 and 20 of Ravi and Larochelle. Each class has 600 images.
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers import files
from mlti_jax.data._readers.images import check_classes, read_images
from mlti_jax.data._readers.pickles import load_pickle
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import _base as base
from mlti_jax.errors import InputError

__all__ = ["MiniImagenet", "load"]

_SIZE = 84
_TRAIN = base.split_names(
    """
    n03017168 n07697537 n02108915 n02113712 n02120079 n04509417 n02089867 n03888605
    n04258138 n03347037 n02606052 n06794110
    """
)
# Added in this order to study the effect of the number of training tasks.
_ADDITIONAL = base.split_names(
    """
    n03476684 n02966193 n13133613 n03337140 n03220513 n03908618 n01532829 n04067472
    n02074367 n03400231 n02108089 n01910747 n02747177 n02795169 n04389033 n04435653
    n02111277 n02108551 n04443257 n02101006 n02823428 n03047690 n04275548 n04604644
    n02091831 n01843383 n02165456 n03676483 n04243546 n03527444 n01770081 n02687172
    n09246464 n03998194 n02105505 n01749939 n04251144 n07584110 n07747607 n04612504
    n01558993 n03062245 n04296562 n04596742 n03838899 n02457408 n13054560 n03924679
    n03854065 n01704323 n04515003 n03207743
    """
)
# Validation and test classes are in the order of Ravi and Larochelle's lists.
_VALIDATION = base.split_names(
    """
    n01855672 n02091244 n02114548 n02138441 n02174001 n02950826 n02971356 n02981792
    n03075370 n03417042 n03535780 n03584254 n03770439 n03773504 n03980874 n09256479
    """
)
_TEST = base.split_names(
    """
    n01930112 n01981276 n02099601 n02110063 n02110341 n02116738 n02129165 n02219486
    n02443484 n02871525 n03127925 n03146219 n03272010 n03544143 n03775546 n04146614
    n04149813 n04418357 n04522168 n07613480
    """
)
_CLASSES = {"train": _TRAIN + _ADDITIONAL, "validation": _VALIDATION, "test": _TEST}
_LISTS = {"train": "train.csv", "validation": "val.csv", "test": "test.csv"}
_IMAGES = "images"
# One mirror of the cache has a longer name for the validation file.
_CACHES = {
    "train": ("mini-imagenet-cache-train.pkl",),
    "validation": ("mini-imagenet-cache-val.pkl", "mini-imagenet-cache-validation.pkl"),
    "test": ("mini-imagenet-cache-test.pkl",),
}
_RELEASE = (
    "the split of Ravi and Larochelle (2017), not the older one of Vinyals et al."
)


class MiniImagenet(base.DatasetBuilder):
    """TFDS builder of miniImageNet; records are grouped by class."""

    EXAMPLES = 60_000
    EXACT = True
    CLASSES = _CLASSES
    INSTRUCTIONS = (
        "Put into a folder DIR either train.csv, val.csv and test.csv of Ravi and"
        " Larochelle's split (the repository 'twitter-research/meta-learning-lstm', in"
        " data/miniImagenet) with a folder images/ of the JPEG files that they list"
        " (from ImageNet's ILSVRC 2012, see image-net.org); or the cache"
        " mini-imagenet-cache-train.pkl, mini-imagenet-cache-val.pkl and"
        " mini-imagenet-cache-test.pkl (linked from the page of the repository"
        " 'renmengye/few-shot-ssl-public')."
    )

    def _info(self) -> tfds.core.DatasetInfo:
        names = _TRAIN + _ADDITIONAL + _VALIDATION + _TEST
        return self.describe(
            {
                "image": base.image(_SIZE),
                "label": tfds.features.ClassLabel(names=names),
            },
            description="100 classes of ImageNet, 600 images each, by WordNet id.",
            homepage="https://github.com/twitter-research/meta-learning-lstm",
            citation="""@inproceedings{ravi2017optimization,
              title={Optimization as a Model for Few-Shot Learning},
              author={Ravi, Sachin and Larochelle, Hugo}, booktitle={ICLR},
              year={2017}}""",
            license="ImageNet's terms of access: non-commercial research.",
        )

    def read_raw(self, raw: pathlib.Path) -> Mapping[str, Iterable[base.Example]]:
        """Read lists and images, or the cache; see the base class."""
        find = functools.partial(files.find, raw, instructions=self.INSTRUCTIONS)
        first = find(_LISTS["train"], *_CACHES["train"])
        if first.name != _LISTS["train"]:
            caches = {split: find(*names) for split, names in _CACHES.items()}
            return {s: _read_cache(path, _CLASSES[s]) for s, path in caches.items()}
        images = find(_IMAGES)
        # List the folder once instead of testing each of the 60,000 files.
        with files.reading(images):
            present = set(os.listdir(images))
        splits = {}
        for split, name in _LISTS.items():
            paths = self._paths(find(name), _CLASSES[split], images, present)
            if paths:
                splits[split] = read_images(
                    paths, _SIZE, self.processes, self.leave_out
                )
        if not splits:
            raise InputError(
                f"{images} has none of the files that {', '.join(_LISTS.values())}"
                f" list. {self.INSTRUCTIONS}"
            )
        return splits

    def _paths(
        self,
        path: pathlib.Path,
        classes: tuple[str, ...],
        images: pathlib.Path,
        present: Collection[str],
    ) -> dict[str, list[pathlib.Path]]:
        """Return the existing files of each class that has any, in the paper's order.

        Args:
          path: the list of the split.
          classes: classes of the split.
          images: folder of the images.
          present: names of the files in it.

        Raises:
          InputError: if only some files of a class exist and `partial` is not set.
        """
        listed = _read_list(path, classes)
        paths = {}
        for label in classes:
            found = [file for file, _ in listed[label] if file in present]
            lacking = [row for row in listed[label] if row[0] not in present]
            if not found:
                continue
            if lacking and not self.partial:
                raise InputError(
                    f"line {lacking[0][1]} of {path} lists {lacking[0][0]}, which is"
                    f" not in {images}. Class {label} is incomplete:"
                    f" {len(found)} of its {len(listed[label])} images are there. Copy"
                    f" all of them. {base.PARTIAL_ADVICE}"
                )
            self.skip(base.LEFT_OUT, len(lacking))
            self.expect({label: len(listed[label])})
            paths[label] = [images / file for file in found]
        return paths


def _read_list(
    path: pathlib.Path, classes: tuple[str, ...]
) -> dict[str, list[tuple[str, int]]]:
    """Read the file names of each class, with line numbers, from a list of a split.

    Args:
      path: the list, with columns `filename` and `label`.
      classes: classes of the split.

    Raises:
      InputError: if the classes are not those of the split.
    """
    names: dict[str, list[tuple[str, int]]] = {}
    for number, row in files.read_table(path, ("filename", "label"), source=_RELEASE):
        names.setdefault(row["label"], []).append((row["filename"], number))
    check_classes(str(path), names, classes, release=_RELEASE)
    return names


def _read_cache(path: pathlib.Path, classes: tuple[str, ...]) -> Iterator[base.Example]:
    """Yield the examples of a file of the cache, class by class."""
    images, rows = _check_cache(path, load_pickle(path), classes)
    for label in filter(rows.__contains__, classes):
        for row in rows[label]:
            yield {"image": images[row], "label": label}


def _check_cache(
    path: pathlib.Path, content: Any, classes: tuple[str, ...]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return all images, uint8 `[N, 84, 84, 3]`, and the rows of each class."""
    try:
        images, listed = content["image_data"], dict(content["class_dict"])
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise InputError(
            f"{path} does not hold 'image_data' and 'class_dict'; expected this cache:"
            f" {MiniImagenet.INSTRUCTIONS}"
        ) from error
    found = (getattr(images, "dtype", None), getattr(images, "shape", ())[1:])
    if found != (np.uint8, (_SIZE, _SIZE, 3)):
        raise InputError(
            f"'image_data' of {path} has dtype {found[0]} and images of shape"
            f" {list(found[1])}; expected uint8 and [{_SIZE}, {_SIZE}, 3]. Use this"
            f" cache: {MiniImagenet.INSTRUCTIONS}"
        )
    place = f"'class_dict' of {path}"
    check_classes(place, listed, classes, release=_RELEASE, allow_part=True)
    return images, {
        label: _check_rows(f"{label} in 'class_dict' of {path}", rows, len(images))
        for label, rows in listed.items()
    }


def _check_rows(place: str, rows: Any, size: int) -> np.ndarray:
    rows = np.asarray(rows)
    if rows.ndim != 1 or not len(rows) or rows.dtype.kind not in "iu":
        raise InputError(f"{place} is not a list of integers; {files.DOWNLOAD_AGAIN}")
    outside = rows[(rows < 0) | (rows >= size)]
    if len(outside):
        raise InputError(
            f"{place} lists image {outside[0]}, but the file has {size} images;"
            f" {files.DOWNLOAD_AGAIN}"
        )
    return rows


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    train_classes: int = len(_TRAIN),
    missing_classes: str = "refuse",
    min_images: int = 1,
) -> Splits:
    """Load miniImageNet from prepared records.

    Args:
      data_dir: folder of prepared datasets; None for the default.
      train_classes: number of training classes, the first in the paper's order: 12 for
        miniImagenet-S, 8 for its smaller variant, 64 for the full size.
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
        "mini_imagenet",
        data_dir,
        train_classes=train_classes,
        missing_classes=missing_classes,
        min_images=min_images,
        field="image",
        note="miniImageNet in Ravi and Larochelle's split, 84x84",
    )
