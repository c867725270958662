"""Work in several processes."""

from __future__ import annotations

import collections
import concurrent.futures
import concurrent.futures.process
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from mlti_jax.errors import InputError

T = TypeVar("T")
R = TypeVar("R")

_ITEMS_PER_CHUNK = 32


def ordered_map(
    function: Callable[[T], R],
    items: Iterable[T],
    processes: int,
) -> Iterator[R]:
    """Compute `map(function, items)` in several processes and keeps the order.

    At most a few hundred items are in progress at any time, so memory is bounded.

    Args:
      function: a module-level function, or a partial of one, that can be pickled.
      items: arguments of `function`.
      processes: number of worker processes; 1 runs everything in this process.

    Yields:
      The results, in the order of `items`.

    Raises:
      InputError: if `processes` is less than 1 or a worker process died.
    """
    if processes < 1:
        raise InputError(f"processes is {processes}; expected 1 or more")
    if processes == 1:
        yield from map(function, items)
        return
    items = iter(items)
    # Not forked: forking a process with threads, such as JAX's, can hang.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(
        processes, context, initializer=exit_with_parent
    )
    pending: collections.deque[concurrent.futures.Future[list[R]]] = collections.deque()
    try:
        while chunk := list(itertools.islice(items, _ITEMS_PER_CHUNK)):
            pending.append(pool.submit(_apply, function, chunk))
            if len(pending) > 3 * processes:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise InputError(
            "a worker process died, possibly because it ran out of memory; use fewer"
            " processes (--processes=1)"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def exit_with_parent() -> None:
    """Exit this process when its parent ends, however the parent ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # This runs in a worker.

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _apply(function: Callable[[T], R], chunk: list[T]) -> list[R]:
    return [function(item) for item in chunk]


STOP_WITH_PARENT = "MLTI_STOP_WITH_PARENT"  # name of an environment variable


def stop_with_parent() -> None:
    """Send SIGTERM to this process when the program that started it has ended.

    Only if that program has set the variable `STOP_WITH_PARENT` and holds the other end
    of this process's standard input, which closes however the program ends.
    """
    if not os.environ.pop(STOP_WITH_PARENT, ""):
        return
    descriptor = sys.stdin.fileno()

    def wait() -> None:
        while os.read(descriptor, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def default_processes() -> int:
    """Return the number of CPU cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
