"""Lock a folder against other processes."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

from mlti_jax.errors import InputError


@contextlib.contextmanager
def locked(folder: pathlib.Path, flag: str) -> Iterator[None]:
    """Lock a folder while the context is open.

    Does nothing on systems without POSIX file locks.

    Args:
      folder: an existing folder.
      flag: the flag or argument that names the folder, for the error message.

    Raises:
      InputError: if another process holds the lock.
    """
    try:
        import fcntl
    except ImportError:  # Not a POSIX system.
        yield
        return
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"another process is using {folder}; wait for it, or choose another "
                f"{flag}"
            ) from None
        yield
