"""tieredImageNet (App. E.8): objects; non-label-sharing, 5-way 1- or 5-shot.

Ren et al. divide 608 classes of ImageNet by super-class, 351 for meta-training, 97 for
validation and 160 for testing. tieredImageNet-S has 35 of the training classes; the
paper does not name them, and here they are the first of Ren et al.'s list.

The release numbers the classes of a split in an order of its own and gives each its
name in words (`label_specific_str`), not its WordNet id. Its files synsets.txt and
class_names.txt, read line by line, say which id a name belongs to. One name ("crane")
belongs to two ids there, of which one is in tieredImageNet: so names are looked up
among the classes of the split alone.

A pickle can only be read whole: preparing takes more memory than the largest of the
files has bytes, train_images_png.pkl with its 448,695 pictures (some 10 GB). One split
is read at a time.
"""

from __future__ import annotations

import functools
import io
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers import image_folders, raw
from mlti_jax.data._readers.pickles import load_pickle
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import base
from mlti_jax.data.builders.tiered_imagenet_classes import TEST, TRAIN, VALIDATION
from mlti_jax.errors import InputError

SIZE = 84
SMALL = 35  # training classes of tieredImageNet-S
CLASSES = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
FILES = {"train": "train", "validation": "val", "test": "test"}
RELEASE = "tiered-imagenet.tar of Ren et al. (2018)"


class TieredImagenet(base.DatasetBuilder):
    """The builder; records are grouped by class."""

    EXAMPLES = 779_165
    INSTRUCTIONS = (
        "Download tiered-imagenet.tar, which the page of the repository"
        " 'renmengye/few-shot-ssl-public' links to, and unpack it into a folder DIR, so"
        " that synsets.txt, class_names.txt, train_images_png.pkl, train_labels.pkl and"
        " the same two for val and test are in DIR itself. Names that begin with"
        " 'tiered-imagenet-', as some mirrors have them, will do."
    )

    def _info(self):
        return self.describe(
            {
                "image": base.image(SIZE),
                "label": tfds.features.ClassLabel(names=TRAIN + VALIDATION + TEST),
            },
            description="608 classes of ImageNet, by WordNet id, split by super-class.",
            homepage="https://github.com/renmengye/few-shot-ssl-public",
            citation="""@inproceedings{ren2018meta,
              title={Meta-Learning for Semi-Supervised Few-Shot Classification},
              author={Ren, Mengye and Triantafillou, Eleni and Ravi, Sachin and
                Snell, Jake and Swersky, Kevin and Tenenbaum, Joshua B. and
                Larochelle, Hugo and Zemel, Richard S.}, booktitle={ICLR},
              year={2018}}""",
            license="ImageNet's terms of access: non-commercial research.",
        )

    def read_raw(self, folder: pathlib.Path) -> dict[str, Iterable[base.Example]]:
        """Reads labels, and images when they are asked for; see the base class."""
        ids = read_ids(
            self._require(folder, "synsets.txt"),
            self._require(folder, "class_names.txt"),
        )
        splits = {}
        for split, name in FILES.items():
            labels = read_labels(
                self._require(folder, f"{name}_labels.pkl"), ids, CLASSES[split]
            )
            images = self._require(folder, f"{name}_images_png.pkl")
            splits[split] = self._examples(images, labels, CLASSES[split])
        return splits

    def _require(self, folder: pathlib.Path, name: str) -> pathlib.Path:
        return raw.require(
            folder, name, f"tiered-imagenet-{name}", instructions=self.INSTRUCTIONS
        )

    def _examples(
        self, path: pathlib.Path, labels: np.ndarray, classes: tuple[str, ...]
    ) -> Iterator[base.Example]:
        images = load_pickle(path)
        if not isinstance(images, list | np.ndarray) or len(images) != len(labels):
            size = len(images) if hasattr(images, "__len__") else 1
            raise InputError(
                f"{path} holds a {type(images).__name__} of {size}; expected a list of"
                f" {len(labels)} pictures, as many as there are labels. Use {RELEASE}"
            )
        rows = np.argsort(labels, kind="stable")
        # Made into bytes one by one: all at once would double the memory.
        contents = ((int(row), png_bytes(path, int(row), images[row])) for row in rows)
        decode = functools.partial(decode_png, path=path)
        pictures = raw.ordered_map(decode, contents, self.processes)
        for row, picture in zip(rows, pictures, strict=True):
            yield {"image": picture, "label": classes[labels[row]]}


def read_ids(synsets: pathlib.Path, class_names: pathlib.Path) -> list[tuple[str, str]]:
    """Name and WordNet id of each class of ImageNet."""
    columns = []
    for path in (class_names, synsets):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} can't be read ({error}); {raw.AGAIN}") from error
        columns.append([line.strip() for line in lines])
    names, ids = columns
    if len(names) != len(ids):
        raise InputError(
            f"{class_names} has {len(names)} lines and {synsets} {len(ids)}; expected"
            f" one line a class in both. Use {RELEASE}"
        )
    return list(zip(names, ids, strict=True))


def read_labels(
    path: pathlib.Path, ids: list[tuple[str, str]], classes: tuple[str, ...]
) -> np.ndarray:
    """The class of each picture of a split, `[N]`, as its position in `classes`."""
    numbers, names = _label_columns(path, load_pickle(path))
    position = {
        name: classes.index(wordnet_id)
        for name, wordnet_id in ids
        if wordnet_id in classes
    }
    unknown = [name for name in names if name not in position]
    if unknown:
        raise InputError(
            f"{path} has the classes {image_folders.first_few(unknown)}, which"
            " class_names.txt and synsets.txt do not name as classes of this split;"
            f" use all files of {RELEASE}"
        )
    of_number = np.array([position[name] for name in names])
    outside = np.flatnonzero((numbers < 0) | (numbers >= len(names)))
    if len(outside):
        raise InputError(
            f"picture {outside[0]} of {path} is of class {numbers[outside[0]]}, but"
            f" there are {len(names)} names; {raw.AGAIN}"
        )
    labels = of_number[numbers]
    found = (classes[label] for label in np.unique(labels))
    image_folders.check_classes(str(path), found, classes, release=RELEASE)
    return labels


def _label_columns(path: pathlib.Path, content: Any) -> tuple[np.ndarray, list[str]]:
    """The number of each picture's class, `[N]`, and the classes' names."""
    try:
        numbers = np.asarray(content["label_specific"])
        names = [str(name).strip() for name in content["label_specific_str"]]
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise InputError(
            f"{path} does not hold 'label_specific' and 'label_specific_str'; use"
            f" {RELEASE}"
        ) from error
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise InputError(
            f"'label_specific' of {path} has dtype {numbers.dtype} and shape"
            f" {list(numbers.shape)}; expected whole numbers and one dimension. Use"
            f" {RELEASE}"
        )
    if len(set(names)) != len(names):
        raise InputError(
            f"'label_specific_str' of {path} has a name twice; use {RELEASE}"
        )
    return numbers, names


def png_bytes(path: pathlib.Path, number: int, content: Any) -> bytes:
    """The bytes of a picture's file, which the release holds as an array of them."""
    if not isinstance(content, np.ndarray) or content.dtype != np.uint8:
        raise InputError(
            f"picture {number} of {path} is no uint8 array of the bytes of a PNG file;"
            f" use {RELEASE}"
        )
    return content.tobytes()


def decode_png(numbered: tuple[int, bytes], path: pathlib.Path) -> np.ndarray:
    """A picture, uint8 `[84, 84, 3]`; no other size is in the release."""
    from PIL import Image

    number, content = numbered
    place = f"picture {number} of {path}"
    picture = raw.decode_image(content, place, SIZE)
    with Image.open(io.BytesIO(content)) as image:
        width, height = image.size
    if (width, height) != (SIZE, SIZE):
        raise InputError(
            f"{place} is {width}x{height}; expected {SIZE}x{SIZE}. It is of another"
            f" release; use {RELEASE}"
        )
    return picture


def load(
    *, data_dir: str | os.PathLike[str] | None = None, train_classes: int = SMALL
) -> Splits:
    """Loads tieredImageNet, images `[M, 84, 84, 3]`.

    Args:
      data_dir: where prepared data lives; None for the default.
      train_classes: training classes, the first of `TRAIN`: 35 for tieredImageNet-S,
        351 for the full size.
    """
    return prepared.class_splits(
        "tiered_imagenet",
        data_dir,
        train_classes=train_classes,
        field="image",
        note="tieredImageNet in Ren et al.'s split, 84x84",
    )
