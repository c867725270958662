"""From a publisher's files to prepared records: whole, or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import shutil
import time
from collections.abc import Iterator

import tensorflow_datasets as tfds

from mlti_jax.data import default_data_dir, prepared
from mlti_jax.data.builders.base import DatasetBuilder
from mlti_jax.errors import InputError
from mlti_jax.locks import locked
from mlti_jax.progress import Progress, format_seconds, say


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
    with _progress(builder), contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(manual_dir=folder)
        )


@contextlib.contextmanager
def _progress(builder: DatasetBuilder) -> Iterator[None]:
    """One line of progress over all splits, in the place of TFDS's several."""
    bar = Progress(f"preparing {builder.name}", builder.EXAMPLES, unit="example")
    start = time.monotonic()
    builder.on_example = lambda split: bar.update(1, split)
    tfds.disable_progress_bar()
    try:
        yield
    finally:
        tfds.enable_progress_bar()
        bar.close()
    say(f"prepared {builder.name} in {format_seconds(time.monotonic() - start)}")


def _swap(new: pathlib.Path, place: pathlib.Path) -> None:
    """Moves the new records to their place, so that there are always some."""
    old = place.with_name(f"{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)
