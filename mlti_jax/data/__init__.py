"""Datasets by name.

A dataset is a module with a function `load(**options) -> Splits`, and a line below.
Its module is imported when it is asked for, so that what one dataset needs (RDKit,
say) is not needed by the others.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import pathlib
from typing import Any

import jax

from mlti_jax._internal.checks import check_options, unknown_name
from mlti_jax.data._own import Inputs, from_arrays, from_folder, from_table
from mlti_jax.data._pools import (
    ClassPool,
    DomainPool,
    Pool,
    RegressionPool,
    Splits,
    check_episode,
    sample_batch,
    sample_flat,
    sample_task,
)
from mlti_jax.data._summary import describe_splits
from mlti_jax.errors import InputError

__all__ = [
    "DATASETS",
    "ClassPool",
    "DomainPool",
    "Inputs",
    "Pool",
    "RegressionPool",
    "Splits",
    "check_episode",
    "default_data_dir",
    "describe_splits",
    "from_arrays",
    "from_folder",
    "from_table",
    "load",
    "sample_batch",
    "sample_flat",
    "sample_task",
]

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
    "own_data": "mlti_jax.data._own.dataset",
}


def load(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    test_on: str | None = None,
    **options: Any,
) -> Splits:
    """Loads a dataset.

    Args:
      name: of the dataset.
      data_dir: where prepared data lives; None for the default.
      test_on: another dataset whose test pool takes the place of this one's
        (cross-domain adaptation). Both must draw classes of inputs of one shape.
      **options: those of the `load` of the dataset's module.
    """
    if test_on is not None:
        splits = load(name, data_dir=data_dir, **options)
        return _with_test_of(splits, load(test_on, data_dir=data_dir))
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    loader = importlib.import_module(DATASETS[name]).load
    check_options(f"dataset {name}", loader, options)
    return loader(data_dir=data_dir, **options)


def _with_test_of(splits: Splits, other: Splits) -> Splits:
    shapes = [
        [leaf.shape[1:] for leaf in jax.tree.leaves(part.test.x)]
        for part in (splits, other)
    ]
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
        note=f"{splits.note}; tested on the test classes of {other.note}",
    )


def default_data_dir() -> pathlib.Path:
    """`MLTI_DATA_DIR`, or a cache directory in the user's home."""
    folder = os.environ.get("MLTI_DATA_DIR") or "~/.cache/mlti_jax"
    return pathlib.Path(folder).expanduser()
