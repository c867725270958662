"""Datasets by name.

A dataset is a module with a function `load(**options) -> Splits`, and a line below.
Its module is imported when it is asked for, so that what one dataset needs (RDKit,
say) is not needed by the others.
"""

from __future__ import annotations

import importlib
import os
import pathlib
from typing import Any

from mlti_jax.data.pools import (
    ClassPool,
    DomainPool,
    Pool,
    RegressionPool,
    Splits,
    check_episode,
    sample_batch,
    sample_task,
)
from mlti_jax.errors import check_options, unknown_name

__all__ = [
    "DATASETS",
    "ClassPool",
    "DomainPool",
    "Pool",
    "RegressionPool",
    "Splits",
    "check_episode",
    "default_data_dir",
    "load",
    "sample_batch",
    "sample_task",
]

DATASETS = {
    "rainbow_mnist": "mlti_jax.data.builders.rainbow_mnist",
    "nci": "mlti_jax.data.builders.nci",
    "metabolism": "mlti_jax.data.builders.metabolism",
}


def load(name: str, **options: Any) -> Splits:
    """Loads the dataset `name`; the options are those of its module's `load`."""
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    loader = importlib.import_module(DATASETS[name]).load
    check_options(f"dataset {name}", loader, options)
    return loader(**options)


def default_data_dir() -> pathlib.Path:
    """`MLTI_DATA_DIR`, or a cache directory in the user's home."""
    folder = os.environ.get("MLTI_DATA_DIR") or "~/.cache/mlti_jax"
    return pathlib.Path(folder).expanduser()
