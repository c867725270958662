"""Keeping two processes from writing into one folder."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

from mlti_jax.errors import InputError


@contextlib.contextmanager
def locked(folder: pathlib.Path, flag: str) -> Iterator[None]:
    """Keeps a second process out of the folder while this one uses it.

    Args:
      folder: which must exist.
      flag: the command-line flag that names the folder, for the error.
    """
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        yield
        return
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"another process is running in {folder}; wait for it, or use another "
                f"{flag}"
            ) from None
        yield
