"""Files of the published releases: lookup, zip archives and tables.

Every function raises one `InputError` for a file that is missing or damaged. It names
the file, the record in it and what to do.
"""

from __future__ import annotations

import contextlib
import csv
import pathlib
import zipfile
import zlib
from collections.abc import Iterator, Sequence

from mlti_jax.errors import InputError

DOWNLOAD_AGAIN = "download or copy it again"


def find(raw: pathlib.Path, *names: str, instructions: str) -> pathlib.Path:
    """Return the first of the files or folders `names` that exists in `raw`.

    Args:
      raw: folder with the publisher's files.
      names: alternative paths inside `raw`.
      instructions: how to get the files, for the error message.

    Raises:
      InputError: if none of them exists.
    """
    for name in names:
        if (raw / name).exists():
            return raw / name
    raise InputError(f"{raw} has no {' or '.join(names)}. To get it: {instructions}")


def read_bytes(path: pathlib.Path) -> bytes:
    """Read a file. Raises `InputError` if that fails."""
    with reading(path):
        return path.read_bytes()


@contextlib.contextmanager
def reading(path: pathlib.Path) -> Iterator[None]:
    """Turn an `OSError` while reading `path` into an `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"can't read {path} ({error.strerror})") from error


@contextlib.contextmanager
def open_zip(path: pathlib.Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive. Raises `InputError` if it is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except zipfile.BadZipFile as error:
        raise InputError(
            f"{path} is a damaged zip file ({error}); {DOWNLOAD_AGAIN}"
        ) from error


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read a file of an archive. Raises `InputError` if its checksum is wrong."""
    try:
        return archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise InputError(
            f"{name} in {archive.filename} is damaged ({error}); {DOWNLOAD_AGAIN}"
        ) from error


def read_table(
    path: pathlib.Path, columns: Sequence[str], *, source: str, delimiter: str = ","
) -> list[tuple[int, dict[str, str]]]:
    """Read a table with a header.

    Args:
      path: the file, in UTF-8.
      columns: names of the columns that the table must have.
      source: name of the release that the file belongs to, for the error message.
      delimiter: character between two fields.

    Returns:
      The line number and the fields of each row.

    Raises:
      InputError: if the file can't be read or has no such columns.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, delimiter=delimiter)
            found = list(rows.fieldnames or ())
            for column in columns:
                if column not in found:
                    raise InputError(
                        f"{path} has no column {column!r}, found {found}; use {source}"
                    )
            return [(rows.line_num, row) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"can't read {path} as a table ({error})") from error
