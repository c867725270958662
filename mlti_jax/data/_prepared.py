"""Reading prepared datasets: from records to arrays."""

from __future__ import annotations

import importlib
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax.data import DATASETS, default_data_dir
from mlti_jax.data._pools import ClassPool, Splits
from mlti_jax.data.builders.base import DatasetBuilder
from mlti_jax.errors import InputError

RECORDS_AT_ONCE = 1024


def builder(
    name: str, data_dir: str | os.PathLike[str] | None = None
) -> DatasetBuilder:
    """The TFDS builder of a dataset, whether it has been prepared or not."""
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    module = importlib.import_module(DATASETS[name])  # which tells TFDS of it
    if getattr(module, "READ_AS_IT_IS", False):
        raise InputError(
            f"{name} is read from your own files as they are, and not prepared; give"
            f" their path to experiments.run (--config.dataset.path), or to"
            " mlti_jax.data"
        )
    folder = pathlib.Path(data_dir or default_data_dir()).expanduser()
    return tfds.builder(name, data_dir=folder, file_format="array_record")


def open_prepared(
    name: str, data_dir: str | os.PathLike[str] | None = None
) -> DatasetBuilder:
    """The builder of a dataset that has been prepared, or an error that says how."""
    found = builder(name, data_dir)
    if not found.is_prepared():
        folder = pathlib.Path(data_dir or default_data_dir()).expanduser()
        raise InputError(
            f"{name} is not prepared in {folder}. {found.INSTRUCTIONS} Then run: python"
            f" -m mlti_jax.data.prepare --dataset={name} --raw=DIR --data_dir={folder}"
        )
    return found


def counts(prepared: DatasetBuilder, split: str) -> dict[str, Any]:
    """Samples of each class of a split, or of each class of each domain, in order."""
    return prepared.info.metadata["counts"][split]


def total(count: int | dict[str, Any]) -> int:
    """The number of samples of one entry of `counts`, or of all of it."""
    return count if isinstance(count, int) else sum(map(total, count.values()))


def first_rows(prepared: DatasetBuilder, split: str, groups: int | None) -> range:
    """The rows of the first so many classes (or domains); None for all."""
    return range(sum(list(map(total, counts(prepared, split).values()))[:groups]))


def read(
    prepared: DatasetBuilder, split: str, fields: Iterable[str], rows: Sequence[int]
) -> dict[str, np.ndarray]:
    """Reads a part of a split.

    Args:
      prepared: from `open_prepared`.
      split: its name.
      fields: the features wanted.
      rows: which records.

    Returns:
      For each field an array with one entry a row; classes as numbers, texts as an
      array of `str`.
    """
    features = prepared.info.features
    columns: dict[str, Any] = {}
    texts = [name for name in fields if isinstance(features[name], tfds.features.Text)]
    # Only what is wanted is taken out of a record, which is most of the work.
    wanted = tfds.features.FeaturesDict({name: features[name] for name in fields})
    try:
        source = prepared.as_data_source(split).data_source
        for name in fields:
            shape = () if name in texts else features[name].shape
            if None in shape:  # A length that only the raw files tell.
                first = wanted.deserialize_example_np(source.__getitems__([0])[0])
                shape = first[name].shape
            dtype = object if name in texts else features[name].np_dtype
            columns[name] = np.empty((len(rows), *shape), dtype)
        for start in range(0, len(rows), RECORDS_AT_ONCE):
            part = [int(row) for row in rows[start : start + RECORDS_AT_ONCE]]
            for place, record in enumerate(source.__getitems__(part), start):
                example = wanted.deserialize_example_np(record)
                for name, column in columns.items():
                    column[place] = example[name]
    except MemoryError:
        raise
    except Exception as error:  # TFDS and array_record raise errors of many types.
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
    """A dataset of classes with splits `train`, `test` and perhaps `validation`.

    Args:
      name: of the dataset.
      data_dir: where prepared data lives; None for the default.
      train_classes: training classes used, the first of the paper's sequence.
      field: the feature that is the network's input.
      note: the first half of a sentence for people about the data.
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
