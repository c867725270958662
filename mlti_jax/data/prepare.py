"""Prepares a dataset from its publisher's files, once.

    python -m mlti_jax.data.prepare --dataset=nci --raw=DIR

DIR holds the files as downloaded; without `--raw` the command prints which files it
needs. The records go to `--data_dir` (else MLTI_DATA_DIR, else ~/.cache/mlti_jax),
where `python -m experiments.run` and `tfds.builder` find them. A dataset that is
already prepared is not changed. An interrupted preparation leaves no partial dataset:
run the same command again.

The image datasets can be prepared from a part of their classes: those whose files are
all there. Runs that need the others are refused. `--partial` also accepts classes with
missing or damaged files, and leaves these files out.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import shutil
import sys
import time
from typing import TYPE_CHECKING

from absl import flags, logging

from mlti_jax._internal import command_line
from mlti_jax._internal.checks import check_range
from mlti_jax._internal.extras import require
from mlti_jax._internal.interrupts import raise_again
from mlti_jax._internal.locks import locked
from mlti_jax._internal.processes import default_processes
from mlti_jax._internal.progress import format_seconds, say
from mlti_jax._internal.storage import disk_errors, make_folder
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._data_dir import resolve_data_dir
from mlti_jax.data._registry import dataset_builder, dataset_class
from mlti_jax.data.describe import chosen_dataset, describe
from mlti_jax.errors import InputError

if TYPE_CHECKING:
    from mlti_jax.data.builders._base import DatasetBuilder

__all__ = ["main", "prepare"]

flags.declare_key_flag("dataset")
flags.declare_key_flag("data_dir")
_RAW = flags.DEFINE_string("raw", None, "Folder with the publisher's files.")
_PROCESSES = flags.DEFINE_integer(
    "processes", None, "Number of processes that read the files; default: all cores."
)
_OVERWRITE = flags.DEFINE_bool(
    "overwrite", False, "Prepare the dataset again if it is already prepared."
)
_PARTIAL = flags.DEFINE_bool(
    "partial", False, "Leave out files that are missing or damaged (image datasets)."
)


def prepare(
    name: str,
    folder: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    *,
    processes: int = 1,
    overwrite: bool = False,
    partial: bool = False,
) -> DatasetBuilder:
    """Prepare a dataset; new records replace old ones only when they are complete.

    A dataset of images may lack whole classes: those whose files are all there are
    prepared, and the metadata lists the others.

    Args:
      name: name of the dataset.
      folder: folder with the publisher's files.
      data_dir: directory for the records; None for the default.
      processes: number of processes that read the files.
      overwrite: whether to prepare a dataset again that is already prepared.
      partial: whether to prepare classes of images with missing or damaged files from
        their other files, instead of raising an error.

    Returns:
      The builder, ready to read from.

    Raises:
      InputError: if the files are missing or unusable, or another process prepares
        the same dataset.
    """
    check_range("processes", processes, 1024)
    data_dir = resolve_data_dir(data_dir)
    if not overwrite and (builder := dataset_builder(name, data_dir)).is_prepared():
        prepared.check(builder)
        say(
            f"{name} is already prepared in {builder.data_path}; use --overwrite to"
            " prepare it again"
        )
        return builder
    # From here on nothing is read from old records, which may be damaged.
    of_dataset = dataset_class(name)
    if partial and not of_dataset.CLASSES:
        raise InputError(
            f"--partial applies to datasets of images; {name} needs all of its files."
            f" {of_dataset.INSTRUCTIONS}"
        )
    folder = pathlib.Path(folder).expanduser()
    if not folder.is_dir() or not any(folder.iterdir()):
        raise InputError(
            f"{folder} is not a folder with files. {of_dataset.INSTRUCTIONS}"
        )
    place = data_dir / name
    target = place / str(of_dataset.VERSION)
    make_folder(place)
    with locked(place, "--data_dir"):
        _restore(target)
        # Records are written to a staging folder; remove that of a killed process.
        staging = place / ".preparing"
        shutil.rmtree(staging, ignore_errors=True)
        try:
            builder = dataset_builder(name, staging)
            builder.partial = partial
            with disk_errors(place):
                _write(builder, folder, processes)
            _swap(pathlib.Path(builder.data_path), target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return prepared.open_prepared(name, data_dir)


def _write(builder: DatasetBuilder, folder: pathlib.Path, processes: int) -> None:
    builder.processes = processes
    builder.show_progress = True
    tfds = require("tensorflow_datasets", "data")
    start = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(manual_dir=folder)
        )
    prepared.write_digests(pathlib.Path(builder.data_path))
    say(f"prepared {builder.name} in {format_seconds(time.monotonic() - start)}")
    if builder.CLASSES:
        for line in prepared.findings(builder):
            say(line)
        return
    number = builder.info.splits.total_num_examples
    if number < 0.99 * builder.EXAMPLES:
        say(
            f"note: wrote {number:,} examples; the published release has about"
            f" {builder.EXAMPLES:,}. Check that the download is complete"
        )


def _backup(place: pathlib.Path) -> pathlib.Path:
    return place.with_name(f"{place.name}.old")


def _restore(place: pathlib.Path) -> None:
    """Undo a `_swap` that was killed between its two renames."""
    if _backup(place).exists() and not place.exists():
        _backup(place).rename(place)


def _swap(new: pathlib.Path, place: pathlib.Path) -> None:
    """Replace the old records with the new ones."""
    shutil.rmtree(_backup(place), ignore_errors=True)
    if place.exists():
        place.rename(_backup(place))
    new.rename(place)
    shutil.rmtree(_backup(place), ignore_errors=True)


def main() -> None:
    """Prepare the dataset that the flags name and print its description."""
    raise_again()  # to remove the unfinished records
    logging.set_verbosity(logging.ERROR)  # TFDS warns about missing records.
    name = chosen_dataset()
    data_dir = command_line.DATA_DIR.value
    if not _RAW.value:
        instructions = dataset_class(name).INSTRUCTIONS
        raise InputError(f"--raw=DIR is missing. {instructions}")
    processes = _PROCESSES.value
    prepare(
        name,
        _RAW.value,
        data_dir,
        processes=default_processes() if processes is None else processes,
        overwrite=_OVERWRITE.value,
        partial=_PARTIAL.value,
    )
    print(describe(name, data_dir))


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
