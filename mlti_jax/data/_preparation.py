"""From a publisher's files to prepared records: whole, or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import shutil
import time

import tensorflow_datasets as tfds

from mlti_jax._internal.locks import locked
from mlti_jax._internal.progress import format_seconds, say
from mlti_jax.data import _prepared as prepared
from mlti_jax.data import default_data_dir
from mlti_jax.data.builders.base import DatasetBuilder
from mlti_jax.errors import InputError


def prepare(
    name: str,
    folder: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    *,
    processes: int = 1,
    overwrite: bool = False,
) -> DatasetBuilder:
    """Prepares a dataset; the new one takes its place only when it is complete.

    Args:
      name: of the dataset.
      folder: the publisher's files.
      data_dir: where the records go; None for the default.
      processes: how many read the files.
      overwrite: prepare again what is prepared already.

    Returns:
      The builder, to read from.
    """
    data_dir = pathlib.Path(data_dir or default_data_dir()).expanduser()
    builder = prepared.builder(name, data_dir)
    if builder.is_prepared() and not overwrite:
        say(
            f"{name} is prepared already in {builder.data_path}; --overwrite to do it"
            " again"
        )
        return builder
    folder = pathlib.Path(folder).expanduser()
    if not folder.is_dir() or not any(folder.iterdir()):
        raise InputError(
            f"{folder} is no folder with files in it. {builder.INSTRUCTIONS}"
        )
    place = data_dir / name
    try:
        place.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{place} is a file, not a directory") from None
    with locked(place, "--data_dir"):
        _restore(pathlib.Path(builder.data_path))
        # All is written beside the final place; what a killed process left goes first.
        staging = place / ".preparing"
        shutil.rmtree(staging, ignore_errors=True)
        try:
            _write(prepared.builder(name, staging), folder, processes)
            _swap(
                staging / name / str(builder.version), pathlib.Path(builder.data_path)
            )
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return prepared.open_prepared(name, data_dir)


def _write(builder: DatasetBuilder, folder: pathlib.Path, processes: int) -> None:
    builder.processes = processes
    builder.show_progress = True
    start = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(manual_dir=folder)
        )
    say(f"prepared {builder.name} in {format_seconds(time.monotonic() - start)}")
    number = builder.info.splits.total_num_examples
    if number < 0.99 * builder.EXAMPLES:
        say(
            f"note: {number:,} examples were made; the release as published makes about"
            f" {builder.EXAMPLES:,}. Is the download complete?"
        )


def _aside(place: pathlib.Path) -> pathlib.Path:
    return place.with_name(f"{place.name}.old")


def _restore(place: pathlib.Path) -> None:
    """Undoes an exchange that was cut off between its two steps."""
    if _aside(place).exists() and not place.exists():
        _aside(place).rename(place)


def _swap(new: pathlib.Path, place: pathlib.Path) -> None:
    """Puts the new records into the place of the old ones."""
    shutil.rmtree(_aside(place), ignore_errors=True)
    if place.exists():
        place.rename(_aside(place))
    new.rename(place)
    shutil.rmtree(_aside(place), ignore_errors=True)
