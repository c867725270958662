"""Checks of the arrays that users give, and grouping of their rows."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from mlti_jax.errors import InputError
from mlti_jax.types import PyTree


def check_values(field: str, values: np.ndarray) -> np.ndarray:
    """An array of finite numbers, or an error."""
    values = np.asarray(values)
    if values.dtype.kind not in "buif":
        raise InputError(
            f"{field} has dtype {values.dtype}; expected numbers. Rows of different"
            " lengths make an array of objects: pad them to one length first"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise InputError(
            f"{field} has NaN or infinite values, the first in row {row}; remove or"
            " replace them"
        )
    return values


def check_samples(x: PyTree) -> int:
    """The number of samples, once every leaf of x is known to be usable."""
    leaves = [check_values("x", leaf) for leaf in jax.tree.leaves(x)]
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves}
    if len(sizes) != 1 or 0 in sizes:
        raise InputError(
            f"x has shape {[list(leaf.shape) for leaf in leaves]}; expected [M, ...]"
            " with at least one sample, and as many in every array"
        )
    return sizes.pop()


def as_ids(
    field: str, values: np.ndarray, names: Sequence[str] | None, size: int
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Turns names or numbers `[size]` into ids `0..len(names)-1`, and the names."""
    values = np.asarray(values)
    if values.shape != (size,):
        raise InputError(
            f"{field} has shape {list(values.shape)}; expected [{size}], one entry a"
            " sample of x"
        )
    if values.dtype.kind not in "uiUS":
        raise InputError(
            f"{field} has dtype {values.dtype}; expected whole numbers or names"
        )
    if names is None:
        distinct, ids = np.unique(values, return_inverse=True)
        return ids.astype(np.int64), tuple(str(name) for name in distinct)
    names = tuple(str(name) for name in names)
    if values.dtype.kind in "US":
        known = {name: i for i, name in enumerate(names)}
        ids = np.array([known.get(str(value), -1) for value in values])
    else:
        ids = values.astype(np.int64)
    wrong = (ids < 0) | (ids >= len(names))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{field} of sample {row} is {values[row].item()!r}; expected one of the"
            f" {len(names)} names given, or a number from 0 to {len(names) - 1}"
        )
    return ids, names


def group_rows(group: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of each group: index `[number, K]`, padded, and count `[number]`."""
    count = np.bincount(group, minlength=number)
    rows = np.argsort(group, kind="stable")
    position = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    index = np.zeros((number, count.max()), np.int32)
    index[group[rows], position] = rows
    return index, count.astype(np.int32)
