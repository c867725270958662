"""The tasks of each training step or evaluation pass, from a pool off the device.

`TaskSource` is a sequence: item i holds the tasks of step i (or pass i), with the
samples as they are stored. Rows are drawn on the CPU by the function that draws them on
the device, with the same random bits, so the tasks are the same. `prefetch` reads the
next items ahead with Grain.
"""

from __future__ import annotations

import collections
import dataclasses
import signal
import threading
from collections.abc import Generator
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from mlti_jax._internal.extras import require
from mlti_jax._internal.processes import default_processes, exit_with_parent
from mlti_jax.data._placement import kind_of
from mlti_jax.data._pools import Pool, draw_rows, read_rows
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree, Task

# A draw may wait for the device, which may be busy with a training step, so the rows of
# many items are drawn at a time.
_ITEMS_PER_DRAW = 256
_BYTES_PER_DRAW = 4 * 2**20
_MAX_THREADS = 16
_ITEMS_AHEAD = 2  # per thread or process, at least


class Draw(Protocol):
    """Draws the rows of the tasks of item i; hashable, and can be pickled."""

    def __call__(self, pool: Pool, key: Array, item: Array) -> Task:
        """Return tasks `[tasks, ...]` as `draw_rows` does; `pool.x` is None."""


class TaskSource:
    """A sequence of tasks, `[tasks, ...]` per item; leaves are NumPy arrays.

    Args:
      pool: the samples, in the host's memory or in files.
      key: random key of all items.
      draw: draws the rows of an item.
      items: number of items.
    """

    def __init__(self, pool: Pool, key: Array, draw: Draw, items: int) -> None:
        self._x = pool.x
        self._small = without_samples(pool)
        self._key = np.asarray(jax.random.key_data(key)), str(jax.random.key_impl(key))
        self._draw, self._items = draw, items
        shapes = jax.eval_shape(draw, self._small, key, np.int32(0))
        size = sum(4 * leaf.size for leaf in jax.tree.leaves(shapes))
        self._per_draw = max(1, min(_ITEMS_PER_DRAW, _BYTES_PER_DRAW // size))
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._drawn: collections.OrderedDict[int, Task] = collections.OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_lock", "_drawn")
        return {k: v for k, v in self.__dict__.items() if k not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __len__(self) -> int:
        return self._items

    def __getitem__(self, item: int) -> Task:
        """Read the tasks of an item.

        Raises:
          InputError: if a record can't be read.
        """
        return read_rows(self._x, self.rows(int(item)))

    def rows(self, item: int) -> Task:
        """Draw the tasks of an item, with rows in place of samples."""
        first, place = divmod(item, self._per_draw)
        with self._lock:
            if first not in self._drawn:
                with jax.default_device(_cpu()):
                    drawn = _draw_items(
                        self._draw,
                        self._key[1],
                        self._per_draw,
                        self._small,
                        self._key[0],
                        first * self._per_draw,
                    )
                self._drawn[first] = jax.device_get(drawn)
                # Threads are at most a few items apart.
                while len(self._drawn) > _MAX_THREADS:
                    self._drawn.popitem(last=False)
            return jax.tree.map(lambda leaf: leaf[place], self._drawn[first])


@partial(jax.jit, static_argnums=(0, 1, 2))
def _draw_items(
    draw: Draw, impl: str, number: int, pool: Pool, key_data: np.ndarray, first: int
) -> PyTree:
    key = jax.random.wrap_key_data(jnp.asarray(key_data), impl=impl)
    items = jnp.arange(number) + first
    return jax.vmap(lambda item: draw(pool, key, item))(items)


def without_samples(pool: Pool) -> Pool:
    """Return a pool's small arrays, from which rows are drawn; `x` is None."""
    return jax.device_get(dataclasses.replace(pool, x=None))


def _cpu() -> jax.Device:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS excludes it.
        return jax.local_devices()[0]


def iterate(
    source: TaskSource, pool: Pool, start: int = 0, workers: int = 0, ahead: int = 0
) -> Generator[Task, None, None]:
    """Yield the items of a source from `start` on; a stream is read ahead.

    Close the iterator to end its threads or processes.

    Args:
      source: the items.
      pool: the pool of the source.
      start: the first item.
      workers: number of processes that read a stream; 0 for threads.
      ahead: smallest number of items to read ahead.
    """
    if kind_of(pool) == "stream":
        yield from _prefetched(source, start, workers, ahead)
    else:
        # The device still computes while the caller waits here.
        yield from (source[item] for item in range(start, len(source)))


def _prefetched(
    source: TaskSource, start: int, workers: int, ahead: int
) -> Generator[Task, None, None]:
    if start >= len(source):
        return
    grain = require("grain", "stream")
    threads = 1 if workers else min(default_processes(), _MAX_THREADS)
    options = grain.ReadOptions(
        num_threads=threads, prefetch_buffer_size=max(ahead, threads * _ITEMS_AHEAD)
    )
    left = grain.MapDataset.source(source).slice(slice(start, len(source)))
    dataset = left.to_iter_dataset(options)
    if workers:
        if not flags.FLAGS.is_parsed():  # Grain reads flags, also in a notebook.
            flags.FLAGS.mark_as_parsed()
        dataset = dataset.mp_prefetch(
            grain.MultiprocessingOptions(
                num_workers=workers,
                per_worker_buffer_size=max(-(-ahead // workers), _ITEMS_AHEAD),
            ),
            worker_init_fn=_start_worker,
        )
    items = iter(dataset)
    try:
        yield from items
    except RuntimeError as error:
        if "Worker process was terminated" not in str(error):
            raise
        raise InputError(
            "a process that reads records died, possibly because it ran out of memory;"
            f" use fewer than {workers} (--config.dataset.workers), or 0 for threads"
        ) from error
    finally:
        items.close()


def _start_worker(worker: int, workers: int) -> None:
    """Set up a process that reads records."""
    del worker, workers
    # The main process saves its state on Ctrl-C and then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()
    jax.config.update("jax_platforms", "cpu")


def workers_of(pool: Pool) -> int:
    """Return the number of processes that read a streamed pool."""
    return max(getattr(leaf, "workers", 0) for leaf in jax.tree.leaves(pool.x))


def read_tasks(
    pool: Pool, keys: Array, *, ways: int, shots: int, queries: int | None
) -> Task:
    """Return the tasks `[tasks, ...]` of `sample_task` from a pool off the device.

    Inputs are not converted, see `task_inputs`.
    """
    rows = _draw_rows(without_samples(pool), keys, ways, shots, queries)
    return read_rows(pool.x, jax.device_get(rows))


@partial(jax.jit, static_argnums=(2, 3, 4))
def _draw_rows(
    pool: Pool, keys: Array, ways: int, shots: int, queries: int | None
) -> Task:
    draw = partial(draw_rows, pool, ways=ways, shots=shots, queries=queries)
    return jax.vmap(draw)(keys)
