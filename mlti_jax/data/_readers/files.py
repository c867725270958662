"""Files: lookup, zip archives and tables of the published releases.

Every function raises one `InputError` for a file that is missing or damaged. It names
the file, the record in it and what to do. Only regular files are opened, since reading
a named pipe or a device may never end, and never more than a limit is read.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
import pathlib
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence

from mlti_jax.errors import InputError

DOWNLOAD_AGAIN = "download or copy it again"

# The largest files of the releases that are read as a whole have 50 MB (MNIST's
# images, unpacked), the largest members of their archives 12 MB (NCI).
MAX_FILE_BYTES = 2**28
MAX_MEMBER_BYTES = 2**27

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_name(path: str | os.PathLike[str]) -> None:
    """Raise `InputError` if a path is not valid UTF-8, so it can't be printed."""
    text = os.fspath(path)
    escaped = text.encode("utf-8", "backslashreplace").decode()
    if escaped != text or "\0" in text:
        raise InputError(
            f"the name {escaped.replace(chr(0), '<NUL>')} is not valid UTF-8; rename"
            " the file or folder"
        )


def check_file(path: pathlib.Path) -> int:
    """Return the size of a file in bytes.

    Raises:
      InputError: if it does not exist or is not a regular file.
    """
    check_name(path)
    try:
        found = path.stat()
    except OSError as error:
        if path.is_symlink():
            raise InputError(
                f"{path} is a link to a file that does not exist; remove it"
            ) from error
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise InputError(f"file {path} does not exist") from error
        raise InputError(f"can't read {path} ({error.strerror})") from error
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "not a regular file")
        raise InputError(f"{path} is {kind}; expected a file")
    return found.st_size


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


def read_bytes(path: pathlib.Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Read a file. Raises `InputError` if that fails or it has more bytes."""
    size = check_file(path)
    if size > limit:
        raise InputError(
            f"{path} has {size:,} bytes; expected at most {limit:,}. It is not the"
            " publisher's file"
        )
    with reading(path):
        return path.read_bytes()


def unpack_gzip(
    content: bytes, path: pathlib.Path, limit: int = MAX_FILE_BYTES
) -> bytes:
    """Unpack a gzip file that has been read; return other content as it is.

    Judges by content, not by suffix: some browsers unpack without renaming.

    Raises:
      InputError: if the file is damaged or has more than `limit` bytes unpacked.
    """
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            unpacked = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path} is a damaged gzip file ({error}); {DOWNLOAD_AGAIN}"
        ) from error
    if len(unpacked) > limit:
        raise InputError(
            f"{path} has more than {limit:,} bytes unpacked. It is not the publisher's"
            f" own file; {DOWNLOAD_AGAIN}"
        )
    return unpacked


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
    check_file(path)
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:  # A damaged directory raises errors of many types.
        raise InputError(
            f"{path} is a damaged zip file ({error}); {DOWNLOAD_AGAIN}"
        ) from error
    with archive:
        yield archive


def read_member(
    archive: zipfile.ZipFile, name: str, limit: int = MAX_MEMBER_BYTES
) -> bytes:
    """Read a file of an archive.

    Raises:
      InputError: if its checksum is wrong or it has more than `limit` bytes.
    """
    place = f"{name} in {archive.filename}"
    size = archive.getinfo(name).file_size
    if size > limit:
        raise InputError(
            f"{place} has {size:,} bytes unpacked; expected at most {limit:,}. It is"
            " not the publisher's file"
        )
    try:
        return archive.read(name)
    except Exception as error:  # Each decompressor has its own types of errors.
        raise InputError(f"{place} is damaged ({error}); {DOWNLOAD_AGAIN}") from error


def read_table(
    path: pathlib.Path, columns: Sequence[str], *, source: str, delimiter: str = ","
) -> list[tuple[int, dict[str, str]]]:
    """Read a table with a header.

    Args:
      path: the file, in UTF-8, gzip-compressed or not.
      columns: names of the columns that the table must have.
      source: name of the release that the file belongs to, for the error message.
      delimiter: character between two fields.

    Returns:
      The line number and the fields of each row.

    Raises:
      InputError: if the file can't be read or has no such columns.
    """
    content = unpack_gzip(read_bytes(path), path)
    try:
        if b"\0" in content:
            raise csv.Error("it has NUL bytes")
        lines = io.StringIO(content.decode("utf-8-sig"), newline="")
        # Strict: an unpaired quote would otherwise hide all rows up to the next one.
        rows = csv.DictReader(lines, delimiter=delimiter, strict=True)
        found = list(rows.fieldnames or ())
        for column in columns:
            if found.count(column) > 1:
                raise csv.Error(f"it has two columns named {column!r}")
            if column not in found:
                raise InputError(
                    f"{path} has no column {column!r}, found {found[:20]}; use {source}"
                )
        table = []
        for row in rows:
            if None in row:
                raise csv.Error(f"line {rows.line_num} has more fields than the header")
            table.append((rows.line_num, row))
        return table
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"can't read {path} as a table ({error}); {DOWNLOAD_AGAIN}"
        ) from error
