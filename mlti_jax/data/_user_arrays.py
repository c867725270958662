"""Validation and conversion of the arrays that users pass in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from mlti_jax.errors import InputError
from mlti_jax.types import PyTree

# ------------------------------------------------------------------ arguments of pools


def check_values(field: str, values: Any) -> np.ndarray:
    """Return `values` as an array of finite numbers, or raise `InputError`."""
    values = np.asarray(values)
    if values.dtype.kind not in "buif":
        raise InputError(
            f"{field} has dtype {values.dtype}; expected numbers. Rows of different"
            " lengths become an array of objects: pad them to one length"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise InputError(
            f"{field} has NaN or infinite values, the first in row {row}; remove or"
            " replace them"
        )
    return values


def check_samples(x: PyTree) -> int:
    """Check every leaf of x and return the number of samples."""
    leaves = [check_values("x", leaf) for leaf in jax.tree.leaves(x)]
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves}
    if len(sizes) != 1 or 0 in sizes:
        raise InputError(
            f"x has shape {[list(leaf.shape) for leaf in leaves]}; expected [M, ...]"
            " with at least one sample, and the same M in every array"
        )
    return sizes.pop()


def as_ids(
    field: str, values: Any, names: Sequence[str] | None, size: int
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Convert names or integers `[size]` to ids `0..len(names)-1`.

    Args:
      field: name of the argument, for errors.
      values: names, or positions in `names`.
      names: all names; None for the sorted distinct values.
      size: number of samples.

    Returns:
      The ids, int64 `[size]`, and the names.
    """
    values = np.asarray(values)
    if values.shape != (size,):
        raise InputError(
            f"{field} has shape {list(values.shape)}; expected [{size}], one entry per"
            " sample of x"
        )
    if values.dtype.kind not in "uiUS":
        raise InputError(
            f"{field} has dtype {values.dtype}; expected integers or names"
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
            f" {len(names)} given names, or an integer from 0 to {len(names) - 1}"
        )
    return ids, names


def group_rows(group: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """List the rows of each group: index `[number, K]`, padded, count `[number]`."""
    count = np.bincount(group, minlength=number)
    rows = np.argsort(group, kind="stable")
    position = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    index = np.zeros((number, count.max()), np.int32)
    index[group[rows], position] = rows
    return index, count.astype(np.int32)


# -------------------------------------------------------------------- users' own arrays


def check_arrays(field: str, x: Any) -> PyTree:
    """Convert a user's inputs to NumPy arrays, every leaf `[M, ...]` with M > 0.

    Args:
      field: name of x, for errors.
      x: an array, anything that `np.asarray` takes, or a pytree of these (a list is an
        array).

    Raises:
      InputError: if a leaf is not a numeric array, or the leaves differ in M.
    """
    leaves, structure = jax.tree.flatten(x, is_leaf=is_list)
    if not leaves:
        raise InputError(f"{field} is empty; expected an array [M, ...]")
    checked = [_check_array(field, leaf) for leaf in leaves]
    if len({len(array) for array in checked}) > 1:
        raise InputError(
            f"{field} has arrays of {', '.join(str(len(a)) for a in checked)} samples;"
            " expected the same number in each"
        )
    return jax.tree.unflatten(structure, checked)


def as_numpy(field: str, values: Any) -> np.ndarray:
    """Call `np.asarray`; raise `InputError` for rows of different lengths."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(
            f"{field} can't be converted to an array ({error}); pad rows of different"
            " lengths to one length"
        ) from error


def _check_array(field: str, values: Any) -> np.ndarray:
    values = check_values(field, as_numpy(field, values))
    if values.ndim < 2 or 0 in values.shape:
        raise InputError(
            f"{field} has shape {list(values.shape)}; expected [M, ...], with at least"
            " one sample and one feature. For a single feature use x[:, None]"
        )
    if values.dtype.kind == "f" and np.abs(values).max() > np.finfo(np.float32).max:
        raise InputError(
            f"{field} has values up to {np.abs(values).max():g}, too large for float32;"
            " scale them down"
        )
    return values


def cast(x: PyTree) -> PyTree:
    """Cast checked arrays to the dtypes that pools store.

    Images (uint8 `[M, H, W, C]`) and booleans keep their dtype; other numbers become
    float32. In a pytree of several arrays integers become int32, since they may index
    a table of embeddings.
    """
    single = len(jax.tree.leaves(x)) == 1

    def cast_leaf(leaf: np.ndarray) -> np.ndarray:
        if leaf.dtype.kind == "b" or (leaf.dtype == np.uint8 and leaf.ndim == 4):
            return leaf
        as_integer = leaf.dtype.kind in "iu" and not single
        return leaf.astype(np.int32 if as_integer else np.float32)

    return jax.tree.map(cast_leaf, x)


def is_list(node: Any) -> bool:
    """Whether a node of a pytree is a list, which counts as an array."""
    return isinstance(node, list)
