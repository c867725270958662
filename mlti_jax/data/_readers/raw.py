"""Reading what publishers release: images and archives, and work in parallel.

Every function turns what can be wrong with a file into one `InputError` that names
the file, the record in it, and what to do.
"""

from __future__ import annotations

import collections
import concurrent.futures
import concurrent.futures.process
import contextlib
import io
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from mlti_jax.errors import InputError

AGAIN = "download or copy it again"


def require(raw: pathlib.Path, *names: str, instructions: str) -> pathlib.Path:
    """The first of the files or folders `names` that is in `raw`, or an error."""
    for name in names:
        if (raw / name).exists():
            return raw / name
    raise InputError(
        f"{raw} has no {' and no '.join(names)}. What is needed there: {instructions}"
    )


@contextlib.contextmanager
def open_zip(path: pathlib.Path) -> Iterator[zipfile.ZipFile]:
    """Opens a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except zipfile.BadZipFile as error:
        raise InputError(f"{path} is a damaged zip file ({error}); {AGAIN}") from error


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The content of a file of an archive, its checksum verified."""
    try:
        return archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise InputError(
            f"{name} in {archive.filename} is damaged ({error}); {AGAIN}"
        ) from error


def decode_image(content: bytes, place: str, size: int) -> np.ndarray:
    """Decodes a picture and scales it, uint8 `[size, size, 3]`.

    Args:
      content: the file's bytes, of any format that Pillow reads.
      place: the name of the file, for errors.
      size: the height and width to scale to (Lanczos); pictures of this size already
        are left as they are.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            image = image.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers raise errors of many types.
        raise InputError(f"{place} is no image ({error}); {AGAIN}") from error
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(image, np.uint8)


def read_image(path: pathlib.Path, size: int) -> np.ndarray:
    """Reads a picture's file, see `decode_image`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} can't be read ({error.strerror})") from error
    return decode_image(content, str(path), size)


def ordered_map(
    function: Callable[[Any], Any], items: Iterable[Any], processes: int
) -> Iterator[Any]:
    """`map(function, items)` in several processes, in order.

    Only a few hundred items are under way at any time, so that memory is bounded.

    Args:
      function: a function of a module (or a partial of one), which processes can find.
      items: its arguments.
      processes: how many; 1 for this process alone.
    """
    if processes < 1:
        raise InputError(f"processes is {processes}; expected 1 or more")
    if processes == 1:
        yield from map(function, items)
        return
    items = iter(items)
    # Not forked: a fork of a process with threads (JAX has some) can hang.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(
        processes, context, initializer=_end_with_parent
    )
    pending = collections.deque()
    try:
        while chunk := list(itertools.islice(items, 32)):
            pending.append(pool.submit(_apply, function, chunk))
            if len(pending) > 3 * processes:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise InputError(
            "a process that reads the files has died, perhaps for want of memory; use"
            " fewer (--processes=1)"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """Ends this process when the one that started it is gone, however that ended."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _apply(function: Callable[[Any], Any], chunk: list[Any]) -> list[Any]:
    return [function(item) for item in chunk]


def default_processes() -> int:
    """As many processes as there are cores for this one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
