"""Where the samples of a dataset are: on the device, in the host's memory, in files.

    device  arrays of JAX; a compiled loop draws tasks and runs many steps per call
    host    NumPy arrays, which may be memory-mapped; tasks are copied step by step
    stream  records in files; tasks are read, decoded and copied step by step

The tasks are the same for the same key.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax._internal.extras import require
from mlti_jax._internal.memory import available_memory, device_memory, format_bytes
from mlti_jax.data._pools import Pool
from mlti_jax.data._records import Records
from mlti_jax.data._splits import Splits
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

KINDS = ("device", "host", "stream")
# Part of a memory that samples may take; the rest is for training.
SHARE = 0.5
_SAMPLES_PER_READ = 1024


def kind_of(pool: Pool) -> str:
    """Return where the samples of a pool are, one of `KINDS`."""
    leaves = jax.tree.leaves(pool.x)
    if any(isinstance(leaf, Records) for leaf in leaves):
        return "stream"
    if any(isinstance(leaf, np.ndarray) for leaf in leaves):
        return "host"
    return "device"


def check_placement(kind: str, workers: int) -> None:
    """Raise `InputError` if `kind` is unknown, or `workers` out of range."""
    if kind not in ("auto", *KINDS):
        raise unknown_name("pool", kind, ("auto", *KINDS))
    check_range("workers", workers, 1024, smallest=0)


def place(splits: Splits, kind: str, workers: int = 0) -> Splits:
    """Move the samples of a dataset that was loaded in `samples_stay`.

    Args:
      splits: the dataset; samples are arrays or `Records`.
      kind: one of `KINDS`, or `auto` to choose by the size of the samples.
      workers: see `Records`.

    Raises:
      InputError: if samples should be streamed that are not in records.
    """
    pools = {
        name: pool
        for name in ("train", "validation", "test")
        if (pool := getattr(splits, name)) is not None
    }
    streams = all(kind_of(pool) == "stream" for pool in pools.values())
    reason = ""
    if kind == "auto":
        size = sum(leaf.nbytes for p in pools.values() for leaf in jax.tree.leaves(p.x))
        kind, reason = choose(size, streams)
    if kind == "stream":
        if not streams:
            raise InputError(
                f"{splits.name} can't be streamed: its samples are not read from"
                " prepared image records as they are; use pool='host' or 'device'"
                " (--config.dataset.pool=host)"
            )
        require("grain", "stream")
    move: dict[str, Callable[[Array | np.ndarray | Records], PyTree]] = {
        "device": lambda leaf: jnp.asarray(_in_memory(leaf)),
        "host": _in_memory,
        "stream": lambda leaf: _with_workers(leaf, workers),
    }
    moved = {
        name: dataclasses.replace(pool, x=jax.tree.map(move[kind], pool.x))
        for name, pool in pools.items()
    }
    return dataclasses.replace(
        splits, **moved, placement=f"dataset.pool={kind}{reason and f': {reason}'}"
    )


def choose(size: int, streams: bool) -> tuple[str, str]:
    """Choose where samples of a size in bytes belong.

    Args:
      size: bytes of all samples.
      streams: whether they can be streamed.

    Returns:
      One of `KINDS`, and the reason.
    """
    devices = jax.local_devices()
    on_cpu = devices[0].platform == "cpu"
    host = available_memory()
    # Each device holds all samples. On a CPU all of them are in the same memory.
    device = host if on_cpu else device_memory(1)
    copies = len(devices) + 1 if on_cpu and len(devices) > 1 else 1
    found = format_bytes(size)
    if device is None or size * copies <= SHARE * device:
        room = "" if device is None else f" of {format_bytes(device)}"
        return "device", f"{found} of samples fit into the memory{room}"
    times = f", {copies} times," if copies > 1 else ""
    why = f"{found} of samples{times} take more than half of the device's memory of "
    why += format_bytes(device)
    if host is None or size <= SHARE * host or not streams:
        return "host", why
    return "stream", f"{why}, and of this machine's"


def _in_memory(leaf: Array | np.ndarray | Records) -> Array | np.ndarray:
    if not isinstance(leaf, Records):
        return leaf
    out = np.empty(leaf.shape, leaf.dtype)
    for start in range(0, len(leaf), _SAMPLES_PER_READ):
        part = slice(start, start + _SAMPLES_PER_READ)
        out[part] = leaf[part]
    return np.asarray(out, jax.dtypes.canonicalize_dtype(out.dtype))


def _with_workers(leaf: PyTree, workers: int) -> Records:
    assert isinstance(leaf, Records)  # see `place`
    leaf = copy.copy(leaf)
    leaf.workers = workers
    return leaf
