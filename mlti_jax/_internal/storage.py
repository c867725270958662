"""Files that a program writes and trusts later: complete, checked and bounded.

A file is written under a temporary name and renamed, so readers see the old content or
the new one, never a part. JSON files may be sealed: a field `sha256` holds the digest
of all other fields, and `read_json` verifies it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NoReturn

from mlti_jax.errors import InputError

# A larger JSON file is not one of ours: 10^7 results per task fit.
MAX_JSON_BYTES = 2**27
_SEAL = "sha256"
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")


# ------------------------------------------------------------------------- writing


def write_file(path: pathlib.Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file completely or not at all.

    The content is on disk when this returns. A symbolic link is followed.

    Args:
      path: the file; it may exist.
      write: writes the content to an open file.

    Raises:
      InputError: if `path` exists and is not a regular file.
      OSError: if it cannot be written, for example on a full disk.
    """
    check_target(path)
    path = path.resolve()
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        # "x": a file or link of that name is never followed or truncated.
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: pathlib.Path, text: str) -> None:
    """Write a text file in UTF-8, completely or not at all; see `write_file`."""
    write_file(path, lambda file: file.write(text.encode()))


def write_json(path: pathlib.Path, value: object, *, seal: bool = False) -> None:
    """Write a JSON file, with each list of numbers on one line; see `write_file`.

    Args:
      path: the file.
      value: plain values; numbers must be finite.
      seal: whether to add the digest that `read_json` verifies; `value` must then be
        a dictionary.
    """
    if seal:
        assert isinstance(value, dict)
        value = {**value, _SEAL: digest(value)}
    text = json.dumps(value, indent=2, allow_nan=False)
    # JSON strings contain no line breaks, so a match is always a list.
    text = re.sub(r"\[\n[-+.eE\d,\s]*\]", _on_one_line, text)
    write_text(path, text + "\n")


def _on_one_line(numbers: re.Match[str]) -> str:
    return f"[{', '.join(numbers.group()[1:-1].replace(',', ' ').split())}]"


def check_target(path: pathlib.Path) -> None:
    """Raise `InputError` if a path exists and is not a regular file."""
    if path.is_dir():
        raise InputError(f"{path} is a directory; give the path of a file")
    if path.exists() and not path.is_file():
        raise InputError(
            f"{path} is a device or another special file; give the path of a file"
        )


def make_folder(path: pathlib.Path, name: str | None = None) -> None:
    """Create a folder and its parents, if needed.

    Args:
      path: the folder.
      name: how to name it in errors, such as `--workdir=DIR`; the path if None.

    Raises:
      InputError: if it or one of its parents is a file.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(
            f"{name or path} is a file, not a directory, or is inside of a file; "
            "remove it or choose another"
        ) from None


def remove_temporary(folder: pathlib.Path) -> None:
    """Remove what killed processes left; the caller must hold the folder's lock."""
    for path in folder.iterdir():
        if is_temporary(path):
            path.unlink(missing_ok=True)


def is_temporary(path: pathlib.Path) -> bool:
    """Whether a file is one that `write_file` has not finished."""
    return _TEMPORARY.fullmatch(path.name) is not None


def reserve(folder: pathlib.Path, size: int) -> None:
    """Raise `OSError` if `folder` has no room for a file of `size` bytes.

    Tests the disk, quotas and limits at once by allocating the file and removing it.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    path = folder / f".{secrets.token_hex(8)}.tmp"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            # `posix_fallocate` does not know the path.
            raise OSError(error.errno, error.strerror, str(folder)) from None
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def disk_errors(folder: pathlib.Path) -> Iterator[None]:
    """Raise `OSError` if a library that writes into `folder` reports a full disk.

    Libraries in C++ raise other types, with the reason in the text.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError):
            raise
        if not folder.is_dir():
            code = errno.ENOENT
        elif any(text in str(error) for text in ("RESOURCE_EXHAUSTED", "No space")):
            code = errno.ENOSPC
        elif "quota exceeded" in str(error):
            code = errno.EDQUOT
        elif "File too large" in str(error):
            code = errno.EFBIG
        else:
            raise
        raise OSError(code, os.strerror(code), str(folder)) from error


# ------------------------------------------------------------------------- reading


def read_json(path: pathlib.Path, advice: str) -> dict[str, Any]:
    """Read a JSON file that holds a dictionary, and verify its seal if it has one.

    Args:
      path: the file.
      advice: what to do if it is missing or damaged, for errors.

    Returns:
      The dictionary, without the seal.

    Raises:
      InputError: if it is missing, damaged, too large or holds anything else.
    """
    value, found = read_sealed_json(path, advice)
    if found not in (None, digest(value)):
        raise damaged(path, "its content does not match its checksum", advice)
    return value


def read_sealed_json(
    path: pathlib.Path, advice: str
) -> tuple[dict[str, Any], str | None]:
    """Read a JSON file that holds a dictionary, and return its seal, not verified."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"it contains {constant}")

    try:
        text = read_regular(path, MAX_JSON_BYTES).decode()
        value = json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise damaged(path, "it is nested too deeply", advice) from None
    except ValueError as error:  # also not UTF-8
        if isinstance(error, InputError):
            raise InputError(f"{error}; {advice}") from None
        raise damaged(path, f"not valid JSON: {error}", advice) from None
    if not isinstance(value, dict):
        raise damaged(path, f"expected a dictionary, found {_kind(value)}", advice)
    return value, value.pop(_SEAL, None)


def read_regular(path: pathlib.Path, max_bytes: int) -> bytes:
    """Read a regular file; never wait for a pipe or device.

    Raises:
      InputError: if it is missing, not a regular file, or larger than `max_bytes`.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path} does not exist") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise InputError(f"{path} is not a regular file")
    with open(descriptor, "rb") as file:
        if status.st_size > max_bytes:
            raise InputError(
                f"{path} has {status.st_size:,} bytes; expected at most {max_bytes:,}"
            )
        return file.read(max_bytes)


def damaged(path: pathlib.Path, fault: str, advice: str) -> InputError:
    """Return the error for a damaged file."""
    return InputError(f"{path} is damaged ({fault}); {advice}")


def digest(fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain values, whatever the order of their names."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _kind(value: object) -> str:
    names = {list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
