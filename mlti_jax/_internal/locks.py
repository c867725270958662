"""Lock a folder against other processes."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import stat
from collections.abc import Callable, Iterator

from mlti_jax._internal.progress import say
from mlti_jax.errors import InputError

try:
    import fcntl
except ImportError:  # Not a POSIX system.
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def locked(folder: pathlib.Path, flag: str) -> Iterator[Callable[[], None]]:
    """Lock a folder while the context is open.

    Does nothing on systems without POSIX file locks. On file systems without locks,
    such as some network disks, it prints a message and continues.

    Args:
      folder: an existing folder.
      flag: the flag or argument that names the folder, for the error message.

    Yields:
      A function that raises `InputError` if the folder was removed in the meantime.

    Raises:
      InputError: if another process holds the lock.
    """
    if fcntl is None:
        yield lambda: None
        return
    descriptor = _acquire(folder)
    if descriptor is None:
        raise InputError(
            f"another process is using {folder}; wait for it, or choose another {flag}"
        )

    def check() -> None:
        if not _is_current(descriptor, folder):
            raise InputError(
                f"{folder} was removed while it was in use; nothing more is written. "
                "Run the same command again to start from the beginning"
            )

    try:
        yield check
    finally:
        os.close(descriptor)


def is_locked(folder: pathlib.Path) -> bool:
    """Whether another process holds the lock of a folder."""
    if fcntl is None or not (folder / ".lock").exists():
        return False
    descriptor = _acquire(folder)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def _acquire(folder: pathlib.Path) -> int | None:
    """Return a file descriptor that holds the lock; None if it is taken."""
    path = folder / ".lock"
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
        except IsADirectoryError:
            raise _not_a_file(path) from None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _not_a_file(path)
            if not _flock(descriptor, folder):
                os.close(descriptor)
                return None
            # The folder may have been removed and created again in between.
            if _is_current(descriptor, folder):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_current(descriptor: int, folder: pathlib.Path) -> bool:
    """Whether an open lock file is still the one in its folder."""
    try:
        found = os.stat(folder / ".lock")
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(os.fstat(descriptor), found)


def _flock(descriptor: int, folder: pathlib.Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        say(
            f"cannot lock {folder} ({error.strerror}); make sure that no other process "
            "uses it"
        )
    return True


def _not_a_file(path: pathlib.Path) -> InputError:
    return InputError(f"{path} is not a regular file; remove it")
