"""Pose (App. D.1; Yin et al., 2020): the angle of an object in an image; regression.

A task is one object, 15-shot, evaluated by MSE. Yin et al. release 50 objects for
meta-training and 15 for meta-testing with 100 grayscale images each, and no validation
objects.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal.checks import check_range
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._pools import RegressionPool
from mlti_jax.data._readers import files
from mlti_jax.data._readers.pickles import load_pickle
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import _base as base
from mlti_jax.errors import InputError

__all__ = ["Pose", "load"]

_SIZE = 128
_FILES = {"train": "train_data_ins.pkl", "test": "val_data_ins.pkl"}
# The release does not name its objects.
_OBJECTS = {
    "train": tuple(f"train_{number:02d}" for number in range(50)),
    "test": tuple(f"test_{number:02d}" for number in range(15)),
}
# Yin et al. train on ten times the angle in turns.
_TARGET_SCALE = 10.0


class Pose(base.DatasetBuilder):
    """TFDS builder of Pose; records are grouped by object."""

    GROUPED_BY = ("object",)
    EXAMPLES = 6_500
    INSTRUCTIONS = (
        "Get the pose data of 'Meta-Learning without Memorization' (Yin et al., 2020;"
        " google-research repository, folder meta_learning_without_memorization, which"
        " explains how to render it from PASCAL3D+) and put train_data_ins.pkl and"
        " val_data_ins.pkl into a folder DIR."
    )

    def _info(self) -> tfds.core.DatasetInfo:
        return self.describe(
            {
                "image": base.image(_SIZE, channels=1),
                "turns": tfds.features.Scalar(np.float32, doc="angle / 2 pi"),
                "object": tfds.features.ClassLabel(
                    names=_OBJECTS["train"] + _OBJECTS["test"]
                ),
            },
            description="Rendered objects of PASCAL3D+ at random angles.",
            homepage="https://github.com/google-research/google-research/tree/master/meta_learning_without_memorization",
            citation="""@inproceedings{yin2020meta,
              title={Meta-Learning without Memorization},
              author={Yin, Mingzhang and Tucker, George and Zhou, Mingyuan and Levine,
                Sergey and Finn, Chelsea}, booktitle={ICLR}, year={2020}}""",
            license="Research use; see PASCAL3D+.",
        )

    def read_raw(self, raw: pathlib.Path) -> Mapping[str, Iterable[base.Example]]:
        """Read the two pickles; see the base class."""
        paths = {
            split: files.find(raw, name, instructions=self.INSTRUCTIONS)
            for split, name in _FILES.items()
        }
        return {split: self._examples(split, path) for split, path in paths.items()}

    def _examples(self, split: str, path: pathlib.Path) -> Iterator[base.Example]:
        images, turns = _read_pickle(path)
        names = _OBJECTS[split]
        if len(images) > len(names):
            raise InputError(
                f"{path} holds {len(images)} objects; the release has at most"
                f" {len(names)}. Use Yin et al.'s files"
            )
        for name, of_object, angles in zip(names, images, turns, strict=False):
            for image, angle in zip(of_object, angles, strict=True):
                yield {"image": image, "turns": angle, "object": name}


def _read_pickle(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Read images and angles.

    Returns:
      Images uint8 `[objects, n, 128, 128, 1]` and angles in turns `[objects, n]`.
    """
    content = load_pickle(path)
    if not isinstance(content, tuple | list) or len(content) != 2:
        raise InputError(
            f"{path} holds a {type(content).__name__}; expected a pair (x, y) of arrays"
        )
    try:
        x, y = (np.asarray(part) for part in content)
    except ValueError as error:
        raise InputError(
            f"{path} holds objects of different sizes ({error}); expected arrays"
        ) from error
    if x.ndim != 3 or x.shape[2] != _SIZE * _SIZE or y.ndim != 3 or not x.size:
        raise InputError(
            f"{path} holds x of shape {list(x.shape)} and y of shape {list(y.shape)};"
            f" expected x [objects, n, {_SIZE * _SIZE}] and y [objects, n, 1 or more]"
        )
    if x.shape[:2] != y.shape[:2] or not y.shape[2]:
        raise InputError(
            f"{path} holds {list(x.shape[:2])} images, but {list(y.shape)} angles;"
            " expected one or more angles per image"
        )
    if x.dtype.kind not in "ui" or x.min() < 0 or x.max() > 255:
        raise InputError(
            f"{path} holds x of dtype {x.dtype}, from {x.min()} to {x.max()}; expected"
            " gray values, integers from 0 to 255"
        )
    if y.dtype.kind != "f" or not np.isfinite(y).all():
        raise InputError(f"{path} holds y of dtype {y.dtype}; expected finite floats")
    return x.astype(np.uint8).reshape(*x.shape[:2], _SIZE, _SIZE, 1), y[..., -1]


def load(
    *, data_dir: str | os.PathLike[str] | None = None, train_classes: int | None = None
) -> Splits:
    """Load Pose from prepared records.

    Args:
      data_dir: folder of prepared datasets; None for the default.
      train_classes: number of training objects, the first of the file; None for all.

    Returns:
      Images uint8 `[M, 128, 128, 1]`; targets float32 `[M, 1]`, ten times the angle in
      turns.

    Raises:
      InputError: if `train_classes` is out of range or the dataset is not prepared.
    """
    found = prepared.open_prepared("pose", data_dir)
    available = len(prepared.counts(found, "train"))
    if train_classes is not None:
        check_range("train_classes", train_classes, available)

    def pool(split: str, objects: int | None) -> RegressionPool:
        rows = prepared.first_rows(found, split, objects)
        columns = prepared.read(found, split, ("turns", "object"), rows)
        names = np.array(found.info.features["object"].names)[columns["object"]]
        targets = _TARGET_SCALE * columns["turns"][:, None]
        images = prepared.samples(found, split, "image", rows)
        return RegressionPool.from_arrays(images, targets, names)

    train, test = pool("train", train_classes), pool("test", None)
    return Splits(
        name="pose",
        setting="regression",
        train=train,
        validation=None,
        test=test,
        note=f"pose, {len(train.domains)} training and {len(test.domains)} test objects"
        " (paper: 50 and 15)",
    )
