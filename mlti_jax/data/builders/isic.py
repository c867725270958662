"""ISIC 2018, task 3 (App. E.1): skin lesions; non-label-sharing, 2-way 1- or 5-shot.

The four largest classes are for meta-training (so there are only six pairs of them),
the other three for meta-testing; there is no validation class.
"""

from __future__ import annotations

import csv
import functools
import io
import os
import pathlib
from collections.abc import Iterable, Iterator

import tensorflow_datasets as tfds

from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers import raw
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import base
from mlti_jax.errors import InputError

SIZE = 84
# Nevus, melanoma, benign keratosis, basal cell carcinoma.
TRAIN = ("NV", "MEL", "BKL", "BCC")
# Dermatofibroma, actinic keratosis / Bowen's disease, vascular lesion.
TEST = ("DF", "AKIEC", "VASC")
IMAGES = "ISIC2018_Task3_Training_Input"
LABELS = "ISIC2018_Task3_Training_GroundTruth"


class Isic(base.DatasetBuilder):
    """The builder; records are grouped by class."""

    EXAMPLES = 10_015
    INSTRUCTIONS = (
        f"Download the training data and ground truth of task 3 from the page of the"
        f" ISIC 2018 challenge, and put {IMAGES}.zip (or the folder {IMAGES} with its"
        f" pictures) and {LABELS}.csv into a folder DIR."
    )

    def _info(self):
        return self.describe(
            {
                "image": base.image(SIZE),
                "name": tfds.features.Text(doc="of the picture"),
                "label": tfds.features.ClassLabel(names=TRAIN + TEST),
            },
            description="Dermatoscopic pictures of seven kinds of skin lesions.",
            homepage="https://challenge.isic-archive.com/data/#2018",
            citation="""@article{tschandl2018ham10000,
              title={The {HAM10000} dataset, a large collection of multi-source
                dermatoscopic images of common pigmented skin lesions},
              author={Tschandl, Philipp and Rosendahl, Cliff and Kittler, Harald},
              journal={Scientific Data}, year={2018}}""",
            license="CC BY-NC 4.0",
        )

    def read_raw(self, folder: pathlib.Path) -> dict[str, Iterable[base.Example]]:
        """Reads the archive or folder; see the base class."""
        labels = raw.require(
            folder,
            f"{LABELS}.csv",
            f"{LABELS}/{LABELS}.csv",
            instructions=self.INSTRUCTIONS,
        )
        images = raw.require(
            folder, f"{IMAGES}.zip", IMAGES, instructions=self.INSTRUCTIONS
        )
        names = read_labels(labels)
        return {
            "train": self._classes(images, names, TRAIN),
            "test": self._classes(images, names, TEST),
        }

    def _classes(
        self,
        images: pathlib.Path,
        names: dict[str, list[str]],
        classes: tuple[str, ...],
    ) -> Iterator[base.Example]:
        wanted = [(name, label) for label in classes for name in names[label]]
        contents = _contents(images, [name for name, _ in wanted])
        decode = functools.partial(_decode, folder=images)
        pictures = raw.ordered_map(decode, contents, self.processes)
        for (name, label), picture in zip(wanted, pictures, strict=True):
            yield {"image": picture, "name": name, "label": label}


def read_labels(path: pathlib.Path) -> dict[str, list[str]]:
    """The names of the pictures of each class."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} can't be read as a table ({error})") from error
    found = list(rows[0]) if rows else []
    for column in ("image", *TRAIN, *TEST):
        if column not in found:
            raise InputError(
                f"{path} has no column {column!r}, but {found}; use the ground truth of"
                " task 3 of ISIC 2018"
            )
    names: dict[str, list[str]] = {label: [] for label in TRAIN + TEST}
    for number, row in enumerate(rows, start=2):
        marked = [label for label in names if row[label] in ("1", "1.0")]
        if len(marked) != 1:
            raise InputError(
                f"line {number} of {path} marks the classes {marked}; expected one."
                f" If the file is cut off, {raw.AGAIN}"
            )
        names[marked[0]].append(row["image"])
    empty = [label for label, images in names.items() if not images]
    if empty:
        raise InputError(f"{path} has no pictures of {', '.join(empty)}; {raw.AGAIN}")
    return names


def _contents(images: pathlib.Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each picture, from the archive or the folder."""
    if images.is_dir():
        for name in names:
            path = images / f"{name}.jpg"
            if not path.is_file():
                raise _missing(name, images)
            yield name, path.read_bytes()
        return
    with raw.open_zip(images) as archive:
        members = {pathlib.PurePosixPath(m).stem: m for m in archive.namelist()}
        for name in names:
            if name not in members:
                raise _missing(name, images)
            yield name, raw.read_member(archive, members[name])


def _missing(name: str, images: pathlib.Path) -> InputError:
    return InputError(
        f"{images} has no picture {name}.jpg, which the ground truth lists; the two are"
        f" of different releases, or the download is not complete. {Isic.INSTRUCTIONS}"
    )


def _decode(named: tuple[str, bytes], folder: pathlib.Path):
    name, content = named
    return raw.decode_image(content, f"{name}.jpg in {folder}", SIZE)


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    train_classes: int = len(TRAIN),
) -> Splits:
    """Loads ISIC, images `[M, 84, 84, 3]`.

    Args:
      data_dir: where prepared data lives; None for the default.
      train_classes: training classes, the first of `TRAIN`.
    """
    return prepared.class_splits(
        "isic",
        data_dir,
        train_classes=train_classes,
        field="image",
        note="ISIC 2018 task 3, 84x84",
    )
