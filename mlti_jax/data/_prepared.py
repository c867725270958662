"""Reading prepared datasets: from TFDS records to NumPy arrays."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlti_jax._internal.checks import check_range
from mlti_jax._internal.extras import require
from mlti_jax.data._data_dir import resolve_data_dir
from mlti_jax.data._pools import ClassPool
from mlti_jax.data._splits import Splits
from mlti_jax.errors import InputError

if TYPE_CHECKING:
    from mlti_jax.data.builders._base import DatasetBuilder

RECORDS_PER_READ = 1024


def builder(
    name: str, data_dir: str | os.PathLike[str] | None = None
) -> DatasetBuilder:
    """Return the TFDS builder of a dataset, prepared or not.

    The module of the dataset must be imported, which registers the builder with TFDS;
    `_registry.dataset_builder` does both.
    """
    tfds = require("tensorflow_datasets", "data")
    folder = resolve_data_dir(data_dir)
    return tfds.builder(name, data_dir=folder, file_format="array_record")


def open_prepared(
    name: str, data_dir: str | os.PathLike[str] | None = None
) -> DatasetBuilder:
    """Return the builder of a prepared dataset.

    Raises:
      InputError: if the dataset is not prepared; the message says how to do it.
    """
    found = builder(name, data_dir)
    if not found.is_prepared():
        folder = resolve_data_dir(data_dir)
        raise InputError(
            f"{name} is not prepared in {folder}. {found.INSTRUCTIONS} Then run: python"
            f" -m mlti_jax.data.prepare --dataset={name} --raw=DIR --data_dir={folder}"
        )
    return found


def counts(prepared: DatasetBuilder, split: str) -> dict[str, Any]:
    """Return the samples per class of a split, or per domain and class, in order."""
    return prepared.info.metadata["counts"][split]


def total(count: int | dict[str, Any]) -> int:
    """Return the number of samples of one entry of `counts`, or of all entries."""
    return count if isinstance(count, int) else sum(map(total, count.values()))


def first_rows(prepared: DatasetBuilder, split: str, groups: int | None) -> range:
    """Return the rows of the first `groups` classes (or domains); None for all."""
    return range(sum(list(map(total, counts(prepared, split).values()))[:groups]))


def read(
    prepared: DatasetBuilder,
    split: str,
    fields: Iterable[str],
    rows: Sequence[int] | np.ndarray,
) -> dict[str, np.ndarray]:
    """Read some records of a split.

    Args:
      prepared: from `open_prepared`.
      split: name of the split.
      fields: names of the features to read.
      rows: indices of the records.

    Returns:
      For each field an array with one entry per row: classes as integers, texts as an
      array of `str`.

    Raises:
      InputError: if the records can't be read.
    """
    tfds = require("tensorflow_datasets", "data")
    features = prepared.info.features
    columns: dict[str, Any] = {}
    texts = [name for name in fields if isinstance(features[name], tfds.features.Text)]
    # Decoding dominates the cost, so only the requested features are decoded.
    wanted = tfds.features.FeaturesDict({name: features[name] for name in fields})
    try:
        source = prepared.as_data_source(split).data_source
        for name in fields:
            shape = () if name in texts else features[name].shape
            if None in shape:  # The length is known from the records only.
                first = wanted.deserialize_example_np(source.__getitems__([0])[0])
                shape = first[name].shape
            dtype = object if name in texts else features[name].np_dtype
            columns[name] = np.empty((len(rows), *shape), dtype)
        for start in range(0, len(rows), RECORDS_PER_READ):
            part = [int(row) for row in rows[start : start + RECORDS_PER_READ]]
            for place, record in enumerate(source.__getitems__(part), start):
                example = wanted.deserialize_example_np(record)
                for name, column in columns.items():
                    column[place] = example[name]
    except MemoryError:
        raise
    except Exception as error:  # TFDS and array_record raise many types of errors.
        line = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise InputError(
            f"the prepared records in {prepared.data_path} can't be read"
            f" ({type(error).__name__}: {line}); prepare {prepared.name} again with"
            f" python -m mlti_jax.data.prepare --dataset={prepared.name} --raw=DIR"
            f" --data_dir={pathlib.Path(prepared.data_path).parent.parent} --overwrite"
        ) from error
    for name in texts:
        columns[name] = np.array([text.decode() for text in columns[name]])
    return columns


def class_splits(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    *,
    train_classes: int,
    field: str,
    note: str,
) -> Splits:
    """Load a dataset of classes with splits `train`, `test`, optionally `validation`.

    Args:
      name: name of the dataset.
      data_dir: the directory of prepared datasets; None for the default.
      train_classes: number of training classes, the first ones in the paper's order.
      field: the feature that is the network's input.
      note: start of the sentence that describes the data.
    """
    prepared = open_prepared(name, data_dir)
    check_range("train_classes", train_classes, len(counts(prepared, "train")))
    names = np.array(prepared.info.features["label"].names)

    def pool(split: str, groups: int | None = None) -> ClassPool:
        rows = first_rows(prepared, split, groups)
        columns = read(prepared, split, (field, "label"), rows)
        classes = list(counts(prepared, split))[:groups]
        return ClassPool.from_arrays(
            columns[field], names[columns["label"]], classes=classes
        )

    has_validation = "validation" in prepared.info.splits
    return Splits(
        name=name,
        setting="non_label_sharing",
        train=pool("train", train_classes),
        validation=pool("validation") if has_validation else None,
        test=pool("test"),
        note=f"{note}, {train_classes} training classes",
    )
