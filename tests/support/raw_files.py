"""Helpers of tests on raw files: images, pickles, damaged copies, checks of pools."""

from __future__ import annotations

import collections
import io
import os
import pathlib
import pickle
import shutil

import jax
import numpy as np
from PIL import Image

from mlti_jax import data
from mlti_jax.data._pools import check_episode
from mlti_jax.data._registry import dataset_builder
from mlti_jax.data.prepare import prepare

__all__ = [
    "check_pool",
    "check_task",
    "dump",
    "linked_copy",
    "noise",
    "png",
    "prepare",
    "read",
    "replace",
]


def noise(rng: np.random.Generator, number: int) -> np.ndarray:
    """Images of large random squares, uint8 `[number, 84, 84, 3]`."""
    small = rng.integers(0, 256, (number, 4, 4, 3), np.uint8)
    return small.repeat(21, axis=1).repeat(21, axis=2)


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def dump(content, path: pathlib.Path, protocol: int = 4) -> None:
    with path.open("wb") as file:
        pickle.dump(content, file, protocol)


def read(name: str, folder: pathlib.Path, data_dir: pathlib.Path) -> None:
    """Read all examples without writing records, which is faster than `prepare`."""
    for examples in dataset_builder(name, data_dir).read_raw(folder).values():
        collections.deque(examples, maxlen=0)


def linked_copy(folder: pathlib.Path, copy: pathlib.Path) -> pathlib.Path:
    """A copy of a folder with links to the files, for use with `replace`."""
    shutil.copytree(folder, copy, copy_function=os.symlink)
    return copy


def replace(path: pathlib.Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def check_pool(pool, classes, expected: dict[str, np.ndarray]) -> None:
    """Check the classes and the images of each class, both in order."""
    assert pool.classes == tuple(classes)
    x, index, count = (np.asarray(part) for part in (pool.x, pool.index, pool.count))
    assert len(x) == sum(len(expected[name]) for name in classes)
    for number, name in enumerate(classes):
        rows = index[number, : count[number]]
        np.testing.assert_array_equal(x[rows], expected[name], err_msg=name)


def check_task(pool, ways: int) -> None:
    check_episode(pool, ways=ways, shots=1, queries=1)
    task = data.sample_task(pool, jax.random.key(0), ways=ways, shots=1, queries=1)
    assert task.support.x.shape == (ways, 84, 84, 3)
    assert task.query.y.shape == (ways, ways)
    assert 0 <= float(task.support.x.min()) <= float(task.support.x.max()) <= 1
