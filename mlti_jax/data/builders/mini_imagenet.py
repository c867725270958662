"""miniImageNet (App. E.1): objects; non-label-sharing, 5-way 1- or 5-shot.

miniImagenet-S has 12 classes for meta-training; the effect of more tasks is studied by
adding the others one after the other, up to the 64 of the full size. Validation and
test classes are those of Ravi and Larochelle, 16 and 20. A class has 600 images.
"""

from __future__ import annotations

import csv
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers import image_folders, raw
from mlti_jax.data._readers.image_folders import split_names
from mlti_jax.data._readers.pickles import load_pickle
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import base
from mlti_jax.errors import InputError

SIZE = 84
TRAIN = split_names(
    """
    n03017168 n07697537 n02108915 n02113712 n02120079 n04509417 n02089867 n03888605
    n04258138 n03347037 n02606052 n06794110
    """
)
# Added one after the other to study the number of training tasks.
ADDITIONAL = split_names(
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
# These two in the order of Ravi and Larochelle's lists.
VALIDATION = split_names(
    """
    n01855672 n02091244 n02114548 n02138441 n02174001 n02950826 n02971356 n02981792
    n03075370 n03417042 n03535780 n03584254 n03770439 n03773504 n03980874 n09256479
    """
)
TEST = split_names(
    """
    n01930112 n01981276 n02099601 n02110063 n02110341 n02116738 n02129165 n02219486
    n02443484 n02871525 n03127925 n03146219 n03272010 n03544143 n03775546 n04146614
    n04149813 n04418357 n04522168 n07613480
    """
)
CLASSES = {"train": TRAIN + ADDITIONAL, "validation": VALIDATION, "test": TEST}
LISTS = {"train": "train.csv", "validation": "val.csv", "test": "test.csv"}
IMAGES = "images"
# The validation file has a longer name in one mirror of the cache.
CACHES = {
    "train": ("mini-imagenet-cache-train.pkl",),
    "validation": ("mini-imagenet-cache-val.pkl", "mini-imagenet-cache-validation.pkl"),
    "test": ("mini-imagenet-cache-test.pkl",),
}
RELEASE = "the split of Ravi and Larochelle (2017), not the older one of Vinyals et al."


class MiniImagenet(base.DatasetBuilder):
    """The builder; records are grouped by class."""

    EXAMPLES = 60_000
    INSTRUCTIONS = (
        "Put into a folder DIR either train.csv, val.csv and test.csv of Ravi and"
        " Larochelle's split (the repository 'twitter-research/meta-learning-lstm', in"
        " data/miniImagenet) with a folder images/ of the JPEG files that they name"
        " (cut from ImageNet's ILSVRC 2012, see image-net.org); or the cache"
        " mini-imagenet-cache-train.pkl, mini-imagenet-cache-val.pkl and"
        " mini-imagenet-cache-test.pkl (linked from the page of the repository"
        " 'renmengye/few-shot-ssl-public')."
    )

    def _info(self):
        names = TRAIN + ADDITIONAL + VALIDATION + TEST
        return self.describe(
            {
                "image": base.image(SIZE),
                "label": tfds.features.ClassLabel(names=names),
            },
            description="100 classes of ImageNet, 600 pictures each, by WordNet id.",
            homepage="https://github.com/twitter-research/meta-learning-lstm",
            citation="""@inproceedings{ravi2017optimization,
              title={Optimization as a Model for Few-Shot Learning},
              author={Ravi, Sachin and Larochelle, Hugo}, booktitle={ICLR},
              year={2017}}""",
            license="ImageNet's terms of access: non-commercial research.",
        )

    def read_raw(self, folder: pathlib.Path) -> dict[str, Iterable[base.Example]]:
        """Reads lists and images, or the cache; see the base class."""
        first = raw.require(
            folder, LISTS["train"], *CACHES["train"], instructions=self.INSTRUCTIONS
        )
        if first.name == LISTS["train"]:
            return self._from_lists(folder)
        paths = {
            split: raw.require(folder, *names, instructions=self.INSTRUCTIONS)
            for split, names in CACHES.items()
        }
        return {split: cached(path, CLASSES[split]) for split, path in paths.items()}

    def _from_lists(self, folder: pathlib.Path) -> dict[str, Iterator[base.Example]]:
        images = raw.require(folder, IMAGES, instructions=self.INSTRUCTIONS)
        # One look at the folder, rather than one for each of 60,000 files.
        present = set(os.listdir(images))
        splits = {}
        for split, name in LISTS.items():
            path = raw.require(folder, name, instructions=self.INSTRUCTIONS)
            listed = read_list(path, CLASSES[split], present)
            files = {
                label: [images / file for file in listed[label]]
                for label in CLASSES[split]
            }
            splits[split] = image_folders.examples(files, SIZE, self.processes)
        return splits


def read_list(
    path: pathlib.Path, classes: tuple[str, ...], present: set[str]
) -> dict[str, list[str]]:
    """The file names of each class in a list with columns `filename` and `label`.

    Args:
      path: of the list.
      classes: those that it must have, all of them and no other.
      present: names of the files that are there.
    """
    files: dict[str, list[str]] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            for column in ("filename", "label"):
                if column not in (rows.fieldnames or ()):
                    raise InputError(
                        f"{path} has no column {column!r}, but {rows.fieldnames};"
                        f" use {RELEASE}"
                    )
            for row in rows:
                if row["filename"] not in present:
                    raise InputError(
                        f"line {rows.line_num} of {path} names {row['filename']}, which"
                        f" is not in {path.parent / IMAGES}; copy all pictures there"
                    )
                files.setdefault(row["label"], []).append(row["filename"])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} can't be read as a table ({error})") from error
    image_folders.check_classes(str(path), files, classes, release=RELEASE)
    return files


def cached(path: pathlib.Path, classes: tuple[str, ...]) -> Iterator[base.Example]:
    """The examples of a file of the cache, class by class."""
    images, rows = check_cache(path, load_pickle(path), classes)
    for label in classes:
        for row in rows[label]:
            yield {"image": images[row], "label": label}


def check_cache(
    path: pathlib.Path, content: Any, classes: tuple[str, ...]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """All images, uint8 `[N, 84, 84, 3]`, and the numbers of those of each class."""
    try:
        images, listed = content["image_data"], dict(content["class_dict"])
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise InputError(
            f"{path} does not hold 'image_data' and 'class_dict'; use the cache that is"
            f" described here: {MiniImagenet.INSTRUCTIONS}"
        ) from error
    found = (getattr(images, "dtype", None), getattr(images, "shape", ())[1:])
    if found != (np.uint8, (SIZE, SIZE, 3)):
        raise InputError(
            f"'image_data' of {path} has dtype {found[0]} and pictures of shape"
            f" {list(found[1])}; expected uint8 and [{SIZE}, {SIZE}, 3]. Use the cache"
            f" that is described here: {MiniImagenet.INSTRUCTIONS}"
        )
    image_folders.check_classes(
        f"'class_dict' of {path}", listed, classes, release=RELEASE
    )
    return images, {
        label: _check_rows(f"{label} in 'class_dict' of {path}", numbers, len(images))
        for label, numbers in listed.items()
    }


def _check_rows(place: str, numbers: Any, size: int) -> np.ndarray:
    numbers = np.asarray(numbers)
    if numbers.ndim != 1 or not len(numbers) or numbers.dtype.kind not in "iu":
        raise InputError(f"{place} is no list of whole numbers; {raw.AGAIN}")
    outside = numbers[(numbers < 0) | (numbers >= size)]
    if len(outside):
        raise InputError(
            f"{place} lists picture {outside[0]}, but there are {size} pictures;"
            f" {raw.AGAIN}"
        )
    return numbers


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    train_classes: int = len(TRAIN),
) -> Splits:
    """Loads miniImageNet, images `[M, 84, 84, 3]`.

    Args:
      data_dir: where prepared data lives; None for the default.
      train_classes: training classes, the first of `TRAIN + ADDITIONAL`: 12 for
        miniImagenet-S, 8 for its smaller variant, 64 for the full size.
    """
    return prepared.class_splits(
        "mini_imagenet",
        data_dir,
        train_classes=train_classes,
        field="image",
        note="miniImageNet in Ravi and Larochelle's split, 84x84",
    )
