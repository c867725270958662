"""Prepares a dataset from its publisher's files, once.

    python -m mlti_jax.data.prepare --dataset=nci --raw=DIR

DIR holds the files as they were downloaded; `--help` with a dataset's name says which.
The records go to `--data_dir` (else MLTI_DATA_DIR, else ~/.cache/mlti_jax), where
`python -m experiments.run` finds them, and `tfds.builder` too. What is prepared already
is left as it is, and a preparation that was interrupted leaves nothing behind that
could be taken for a dataset: run the same command again.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator

import tensorflow_datasets as tfds
from absl import flags, logging

from mlti_jax import command_line
from mlti_jax.data import DATASETS, default_data_dir, describe, prepared, raw
from mlti_jax.data.builders.base import DatasetBuilder
from mlti_jax.errors import InputError
from mlti_jax.locks import locked
from mlti_jax.progress import Progress, format_seconds, say

RAW = flags.DEFINE_string("raw", None, "The folder with the publisher's files.")
PROCESSES = flags.DEFINE_integer(
    "processes", None, "Processes that read the files; as many as cores if not given."
)
OVERWRITE = flags.DEFINE_bool(
    "overwrite", False, "Prepare again what is prepared already."
)


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


def main(argv: list[str]) -> None:
    """Prepares, and says what came of it."""
    logging.set_verbosity(logging.ERROR)  # TFDS warns of what is not there yet.
    if len(argv) > 1:
        raise InputError(f"unexpected argument {argv[1]!r}; see --help")
    name = describe.DATASET.value
    if name is None:
        raise InputError(
            f"--dataset is missing; choose one of: {', '.join(sorted(DATASETS))}"
        )
    data_dir = describe.DATA_DIR.value
    if RAW.value is None:
        instructions = prepared.builder(name, data_dir).INSTRUCTIONS
        raise InputError(f"--raw=DIR is missing. {instructions}")
    prepare(
        name,
        RAW.value,
        data_dir,
        processes=PROCESSES.value or raw.default_processes(),
        overwrite=OVERWRITE.value,
    )
    print(describe.describe(name, data_dir))


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__))
