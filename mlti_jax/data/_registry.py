"""The datasets by name.

A dataset is a module with a function `load(**options) -> Splits` and one entry in
`DATASETS`. The module is imported on first use, so the requirements of one dataset
(for example RDKit) do not affect the others.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax

from mlti_jax._internal.checks import check_options, unknown_name
from mlti_jax._internal.extras import require
from mlti_jax.data import _prepared
from mlti_jax.data._placement import check_placement, place
from mlti_jax.data._pools import samples_stay
from mlti_jax.data._splits import Splits
from mlti_jax.errors import InputError

if TYPE_CHECKING:
    from mlti_jax.data.builders._base import DatasetBuilder

DATASETS = {
    "rainbow_mnist": "mlti_jax.data.builders.rainbow_mnist",
    "nci": "mlti_jax.data.builders.nci",
    "metabolism": "mlti_jax.data.builders.metabolism",
    "pose": "mlti_jax.data.builders.pose",
    "isic": "mlti_jax.data.builders.isic",
    "mini_imagenet": "mlti_jax.data.builders.mini_imagenet",
    "tiered_imagenet": "mlti_jax.data.builders.tiered_imagenet",
    "dermnet": "mlti_jax.data.builders.dermnet",
    "tabula_muris": "mlti_jax.data.builders.tabula_muris",
    "huffpost": "mlti_jax.data.builders.huffpost",
    "fsmol": "mlti_jax.data.builders.fsmol",
    "own_data": "mlti_jax.data._own.dataset",
}


_SHARED = ("min_images",)  # options that also apply to the dataset `test_on`


def load(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    test_on: str | None = None,
    pool: str = "device",
    workers: int = 0,
    **options: Any,
) -> Splits:
    """Load a dataset by name.

    Args:
      name: a key of `DATASETS`.
      data_dir: the directory of prepared datasets; None for the default
        (`MLTI_DATA_DIR`, else `~/.cache/mlti_jax`).
      test_on: name of another dataset whose test pool replaces this one's
        (cross-domain adaptation). Both must be non-label-sharing, with inputs of the
        same shape.
      pool: where the samples are: `device`; `host`, in the memory of this machine;
        `stream`, in prepared records, of which each step reads what it needs; or
        `auto`, the first of these that has the room. The tasks are the same.
      workers: number of processes that read a stream for training; 0 for threads of
        this process.
      **options: options of the dataset's own `load` function.

    Returns:
      The pools for training, validation and test.

    Raises:
      InputError: if a name or option is unknown, the dataset is not prepared, it can't
        be streamed, or the two datasets do not fit together.
    """
    check_placement(pool, workers)
    if pool == "device":
        return _load(name, data_dir, test_on, options)
    with samples_stay():
        splits = _load(name, data_dir, test_on, options)
    return place(splits, pool, workers)


def _load(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    test_on: str | None,
    options: Mapping[str, Any],
) -> Splits:
    if test_on is not None:
        splits = _load(name, data_dir, None, options)
        accepted = inspect.signature(dataset_module(test_on).load).parameters
        shared = {k: options[k] for k in _SHARED if k in options and k in accepted}
        return _with_test_of(splits, _load(test_on, data_dir, None, shared))
    loader = dataset_module(name).load
    check_options(f"dataset {name}", loader, options)
    return loader(data_dir=data_dir, **options)


def dataset_module(name: str) -> ModuleType:
    """Import the module of a dataset; raise `InputError` if `name` is unknown."""
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    if "builders" in DATASETS[name]:
        require("tensorflow_datasets", "data")
    return importlib.import_module(DATASETS[name])


def dataset_class(name: str) -> type[DatasetBuilder]:
    """Import the module of a dataset and return the class of its TFDS builder.

    Raises:
      InputError: if the name is unknown, or the dataset is not read from records.
    """
    if not getattr(dataset_module(name), "NEEDS_PREPARATION", True):
        raise InputError(
            f"{name} is read directly from your files and needs no preparation; pass"
            " their path to experiments.run (--config.dataset.path) or use"
            " mlti_jax.data.from_arrays, from_folder or from_table"
        )
    return require("tensorflow_datasets", "data").builder_cls(name)


def dataset_builder(
    name: str, data_dir: str | os.PathLike[str] | None = None
) -> DatasetBuilder:
    """Return the TFDS builder of a dataset, prepared or not.

    Raises:
      InputError: as `dataset_class`, or if prepared records are damaged.
    """
    dataset_class(name)  # registers it
    return _prepared.builder(name, data_dir)


def _with_test_of(splits: Splits, other: Splits) -> Splits:
    """Replace the test pool of `splits` with that of `other`."""
    pools = (splits.train, other.test if other.test is not None else other.train)
    shapes = [[leaf.shape[1:] for leaf in jax.tree.leaves(pool.x)] for pool in pools]
    if shapes[0] != shapes[1] or {splits.setting, other.setting} != {
        "non_label_sharing"
    }:
        raise InputError(
            f"a model trained on {splits.name} ({splits.setting}, inputs {shapes[0]})"
            f" can't be tested on {other.name} ({other.setting}, inputs {shapes[1]});"
            " test_on needs two non-label-sharing datasets with inputs of one shape"
        )
    return dataclasses.replace(
        splits,
        name=f"{splits.name}->{other.name}",
        test=other.test,
        part=_joined_parts(splits, other),
        note=f"{splits.note}; tested on the test classes of {other.note}",
    )


def _joined_parts(splits: Splits, other: Splits) -> dict[str, Any] | None:
    """Return `part` of a dataset that has the test classes of `other`."""
    prepared = [f"{s.name} {s.part['prepared']}" for s in (splits, other) if s.part]
    if not prepared:
        return None
    left_out = {
        split: names
        for s, used in ((splits, ("train", "validation")), (other, ("test",)))
        for split, names in (s.part["left_out"] if s.part else {}).items()
        if split in used
    }
    return {"prepared": "; ".join(prepared), "left_out": left_out}
