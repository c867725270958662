"""ISIC 2018, task 3 (App. E.1): skin lesions; non-label-sharing, 2-way 1- or 5-shot.

The four largest classes are for meta-training (which gives only six class pairs), the
other three for meta-testing. ISIC has no validation classes.
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal.processes import ordered_map
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers import files
from mlti_jax.data._readers.images import decode_image
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import _base as base
from mlti_jax.errors import InputError

__all__ = ["Isic", "load"]

_SIZE = 84
# Nevus, melanoma, benign keratosis, basal cell carcinoma.
_TRAIN = ("NV", "MEL", "BKL", "BCC")
# Dermatofibroma, actinic keratosis / Bowen's disease, vascular lesion.
_TEST = ("DF", "AKIEC", "VASC")
_SPLITS = {"train": _TRAIN, "test": _TEST}
_IMAGES = "ISIC2018_Task3_Training_Input"
_LABELS = "ISIC2018_Task3_Training_GroundTruth"


class Isic(base.DatasetBuilder):
    """TFDS builder of ISIC; records are grouped by class."""

    EXAMPLES = 10_015
    EXACT = True
    CLASSES = _SPLITS
    INSTRUCTIONS = (
        f"Download the training data and ground truth of task 3 from the page of the"
        f" ISIC 2018 challenge, and put {_IMAGES}.zip (or the folder {_IMAGES} with its"
        f" images) and {_LABELS}.csv into a folder DIR."
    )

    def _info(self) -> tfds.core.DatasetInfo:
        return self.describe(
            {
                "image": base.image(_SIZE),
                "name": tfds.features.Text(doc="name of the image"),
                "label": tfds.features.ClassLabel(names=_TRAIN + _TEST),
            },
            description="Dermatoscopic images of seven types of skin lesions.",
            homepage="https://challenge.isic-archive.com/data/#2018",
            citation="""@article{tschandl2018ham10000,
              title={The {HAM10000} dataset, a large collection of multi-source
                dermatoscopic images of common pigmented skin lesions},
              author={Tschandl, Philipp and Rosendahl, Cliff and Kittler, Harald},
              journal={Scientific Data}, year={2018}}""",
            license="CC BY-NC 4.0",
        )

    def read_raw(self, raw: pathlib.Path) -> Mapping[str, Iterable[base.Example]]:
        """Read the archive or folder; see the base class."""
        find = functools.partial(files.find, raw, instructions=self.INSTRUCTIONS)
        names = _read_labels(find(f"{_LABELS}.csv", f"{_LABELS}/{_LABELS}.csv"))
        images = find(f"{_IMAGES}.zip", _IMAGES)
        return {
            split: self._examples(images, names, classes)
            for split, classes in _SPLITS.items()
        }

    def _examples(
        self,
        images: pathlib.Path,
        names: Mapping[str, list[str]],
        classes: tuple[str, ...],
    ) -> Iterator[base.Example]:
        wanted = [(name, label) for label in classes for name in names[label]]
        self.expect({label: len(names[label]) for label in classes})
        contents = _contents(images, [name for name, _ in wanted])
        decode = functools.partial(_decode, folder=images)
        decoded = ordered_map(decode, contents, self.processes)
        for (name, label), image in zip(wanted, decoded, strict=True):
            if isinstance(image, InputError):
                self.leave_out(image)
            else:
                yield {"image": image, "name": name, "label": label}


def _read_labels(path: pathlib.Path) -> dict[str, list[str]]:
    """Read the names of the images of each class."""
    rows = files.read_table(
        path,
        ("image", *_TRAIN, *_TEST),
        source="the ground truth of task 3 of ISIC 2018",
    )
    names: dict[str, list[str]] = {label: [] for label in _TRAIN + _TEST}
    for number, row in rows:
        marked = [label for label in names if row[label] in ("1", "1.0")]
        if len(marked) != 1:
            raise InputError(
                f"line {number} of {path} marks the classes {marked}; expected exactly"
                f" one. If the file is truncated, {files.DOWNLOAD_AGAIN}"
            )
        names[marked[0]].append(row["image"])
    empty = [label for label, images in names.items() if not images]
    if empty:
        raise InputError(
            f"{path} has no images of {', '.join(empty)}; {files.DOWNLOAD_AGAIN}"
        )
    return names


def _contents(
    images: pathlib.Path, names: list[str]
) -> Iterator[tuple[str, bytes | InputError]]:
    """Yield name and bytes of each image, from the archive or the folder.

    An image that is missing or can't be read has an error in place of its bytes.
    """
    if images.is_dir():
        for name in names:
            path = images / f"{name}.jpg"
            if not path.is_file():
                yield name, _missing(name, images)
                continue
            try:
                yield name, files.read_bytes(path)
            except InputError as error:
                yield name, error
        return
    with files.open_zip(images) as archive:
        members = {pathlib.PurePosixPath(m).stem: m for m in archive.namelist()}
        for name in names:
            if name not in members:
                yield name, _missing(name, images)
                continue
            try:
                yield name, files.read_member(archive, members[name])
            except InputError as error:
                yield name, error


def _missing(name: str, images: pathlib.Path) -> InputError:
    return InputError(
        f"{images} has no image {name}.jpg, which the ground truth lists; the download"
        f" is incomplete or the two are from different releases. {Isic.INSTRUCTIONS}"
    )


def _decode(
    named: tuple[str, bytes | InputError], folder: pathlib.Path
) -> np.ndarray | InputError:
    name, content = named
    if isinstance(content, InputError):
        return content
    try:
        return decode_image(content, f"{name}.jpg in {folder}", _SIZE)
    except InputError as error:
        return error


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    train_classes: int = len(_TRAIN),
    missing_classes: str = "refuse",
    min_images: int = 1,
) -> Splits:
    """Load ISIC from prepared records.

    Args:
      data_dir: folder of prepared datasets; None for the default.
      train_classes: number of training classes, the first of `NV, MEL, BKL, BCC`.
      missing_classes: if the prepared part of the release lacks some of the classes:
        `refuse` to load it, or `skip` them.
      min_images: classes with fewer images are left out.

    Returns:
      Training and test classes; images uint8 `[M, 84, 84, 3]`.

    Raises:
      InputError: if an argument is invalid, the dataset is not prepared, or classes
        are missing.
    """
    return prepared.class_splits(
        "isic",
        data_dir,
        train_classes=train_classes,
        missing_classes=missing_classes,
        min_images=min_images,
        field="image",
        note="ISIC 2018 task 3, 84x84",
    )
