"""Prints what a dataset contains, and plots samples of it.

    python -m mlti_jax.data.describe --dataset=nci

prints the counts per split, domain and class, and saves a plot of samples (for
vectors: the number of non-zero features) next to the prepared records, or to the file
given with `--picture`.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import TYPE_CHECKING

from absl import flags, logging

from mlti_jax._internal import command_line
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._data_dir import resolve_data_dir
from mlti_jax.data._registry import DATASETS, dataset_builder, load
from mlti_jax.data._sheet import save_sheet
from mlti_jax.data._splits import Splits, pool_lines
from mlti_jax.errors import InputError

if TYPE_CHECKING:
    from mlti_jax.data.builders._base import DatasetBuilder

__all__ = ["chosen_dataset", "describe", "main"]

flags.declare_key_flag("data_dir")
_DATASET = flags.DEFINE_string("dataset", None, "Name of the dataset.")
_PICTURE = flags.DEFINE_string("picture", None, "PNG file to save the plot to.")

_LARGE = 4 * 2**30  # bytes of records; larger datasets are not loaded
_MAX_GROUPS = 16  # groups listed per split of the records


def describe(name: str, data_dir: str | os.PathLike[str] | None = None) -> str:
    """Describe the records of a dataset and the pools that `load` returns for it.

    Args:
      name: name of the dataset.
      data_dir: the directory of prepared datasets; None for the default.

    Raises:
      InputError: if the dataset is unknown or not prepared.
    """
    return _describe(name, data_dir)[0]


def _describe(
    name: str, data_dir: str | os.PathLike[str] | None
) -> tuple[str, Splits | None]:
    """Return the description, and the dataset unless it is too large to load."""
    lines = []
    builder = dataset_builder(name, data_dir)
    if builder.is_prepared():
        prepared.check(builder)
        info = builder.info
        lines = [
            f"{name} {builder.version} in {builder.data_path}",
            f"{info.description} {info.homepage}",
            f"License: {info.redistribution_info.license}",
        ]
        for split in info.splits:
            lines.append(f"records of {split}: {_record_counts(builder, split)}")
        lines += prepared.findings(builder)
        if info.dataset_size > _LARGE:
            lines.append("too large to load for this description")
            return "\n".join(lines), None
    splits = _load(name, data_dir)
    lines.append(f"As loaded by default: {splits.note}")
    lines += pool_lines(splits, missing="none in the paper")
    return "\n".join(lines), splits


def _load(name: str, data_dir: str | os.PathLike[str] | None) -> Splits:
    """Load a dataset by default, without the classes that are missing."""
    builder = dataset_builder(name, data_dir)
    if builder.is_prepared() and builder.info.metadata.get("missing"):
        return load(name, data_dir=data_dir, missing_classes=prepared.SKIP)
    return load(name, data_dir=data_dir)


def _record_counts(builder: DatasetBuilder, split: str) -> str:
    counts = prepared.counts(builder, split)
    text = f"{prepared.total(counts):,}"
    if len(counts) > _MAX_GROUPS:  # The table of the loaded pools lists them.
        return f"{text} of {len(counts)} {builder.GROUPED_BY[0]}s"
    groups = [f"{name} {prepared.total(count):,}" for name, count in counts.items()]
    return f"{text} ({', '.join(groups)})"


def chosen_dataset() -> str:
    """Return the value of `--dataset`; raise `InputError` if it is missing."""
    if _DATASET.value is None:
        raise InputError(
            f"--dataset is missing; choose one of: {', '.join(sorted(DATASETS))}"
        )
    return _DATASET.value


def main() -> None:
    """Print the description and save the plot."""
    logging.set_verbosity(logging.ERROR)  # TFDS warns about missing records.
    name = chosen_dataset()
    data_dir = command_line.DATA_DIR.value
    text, splits = _describe(name, data_dir)
    print(text)
    default = resolve_data_dir(data_dir) / name / f"{name}.png"
    path = pathlib.Path(_PICTURE.value or default)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_sheet(splits or _load(name, data_dir), path)
    print(f"plot: {path}")


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
