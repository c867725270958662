"""Validation and conversion of the arrays that users pass in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mlti_jax.data._records import Records
from mlti_jax.errors import InputError
from mlti_jax.types import PyTree

# Squares of larger numbers, summed over features or samples, overflow in float32.
MAX_MAGNITUDE = 1e15

Place = Callable[[int], str]  # names a row, for errors
ROW: Place = "row {}".format

# ----------------------------------------------------------------------- any arrays


def as_numpy(field: str, values: Any, place: Place = ROW) -> np.ndarray:
    """Call `np.asarray`, which ignores masks and overflows, and check for both.

    Args:
      field: name of the values, for errors.
      values: anything that `np.asarray` takes.
      place: names a row, for errors.

    Raises:
      InputError: if values are masked (`numpy.ma`), or rows differ in length.
    """
    try:
        check_masks(field, values, place)
        array = np.asarray(values)
    except InputError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{field} can't be converted to an array ({error}); pad rows of different"
            " lengths to one length"
        ) from error
    if array.dtype.kind == "O":  # A column of a data frame can hold masked values.
        check_masks(field, array, place)
    return array


def check_masks(field: str, values: Any, place: Place = ROW) -> None:
    """Raise `InputError` if an array or a list of arrays has masked values."""
    row = _masked_row(values)
    if row is not None:
        raise InputError(
            f"{field} has masked values, the first in {place(row)}; fill them in"
            " (numpy.ma.filled) or remove these rows"
        )


def _masked_row(values: Any) -> int | None:
    """Return the first row with a masked value; None if nothing is masked."""
    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values)
        if mask.dtype != bool or not mask.any():
            return None  # Masks of structured arrays, which are no numbers, differ.
        return int(np.argwhere(mask)[0][0]) if mask.ndim else 0
    if isinstance(values, np.ndarray) and values.ndim and values.dtype.kind == "O":
        values = list(values)
    if not isinstance(values, list | tuple):
        return None
    nested = (np.ndarray, list, tuple)  # np.ma.masked is an array, too
    for row, entry in enumerate(values):
        if isinstance(entry, nested) and _masked_row(entry) is not None:
            return row
    return None


def is_unicode(values: np.ndarray) -> bool:
    """Whether an array has no text, or only text that can be printed and encoded."""
    if values.dtype.kind != "U" or not values.size or not values.dtype.itemsize:
        return True
    codes = np.ascontiguousarray(values).view(
        np.dtype("u4").newbyteorder(values.dtype.byteorder)
    )
    half = (codes >= 0xD800) & (codes < 0xE000)  # half of a character (a surrogate)
    return bool((codes <= 0x10FFFF).all() and not half.any())


def check_magnitude(field: str, x: PyTree, name: Place = ROW) -> None:
    """Raise `InputError` if a number does not fit the computations in float32.

    Args:
      field: what x is, for errors.
      x: arrays `[M, ...]`. Integers must fit int32, floats `MAX_MAGNITUDE`.
      name: names a row, for errors.
    """
    for leaf in jax.tree.leaves(x):
        limit = MAX_MAGNITUDE if leaf.dtype.kind == "f" else float(2**31 - 1)
        if leaf.dtype.kind not in "fiu" or leaf.dtype.itemsize < 4:
            continue
        # NaN and infinity, which casts and divisions may have made, are too large.
        fits = (leaf <= limit) & (leaf >= -limit)
        if not fits.all():
            row = np.argwhere(~fits)[0]
            raise InputError(
                f"{field} of {name(int(row[0]))} has the value {leaf[tuple(row)]:.3g};"
                f" expected at most {limit:.3g}, since larger numbers overflow in"
                " training. Scale the values down"
            )


# ------------------------------------------------------------------ arguments of pools


def check_values(field: str, values: Any) -> np.ndarray:
    """Return `values` as an array of finite numbers, or raise `InputError`."""
    values = as_numpy(field, values)
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
    # Records are not read here; `prepare` has checked them.
    leaves = [
        leaf if isinstance(leaf, Records) else check_values("x", leaf)
        for leaf in jax.tree.leaves(x)
    ]
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves}
    if len(sizes) != 1 or 0 in sizes:
        raise InputError(
            f"x has shape {[list(leaf.shape) for leaf in leaves]}; expected [M, ...]"
            " with at least one sample, and the same M in every array"
        )
    check_magnitude("x", [leaf for leaf in leaves if not isinstance(leaf, Records)])
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
    values = as_numpy(field, values)
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


def as_rows(row: Any, size: int) -> np.ndarray:
    """Check positions in an array of `size` samples; return them as int32 `[N]`."""
    row = as_numpy("row", row)
    if row.ndim != 1 or row.dtype.kind not in "ui":
        raise InputError(
            f"row has shape {list(row.shape)} and dtype {row.dtype}; expected integers"
            " [N]"
        )
    wrong = (row < 0) | (row >= size)
    if wrong.any():
        entry = int(np.argmax(wrong))
        raise InputError(
            f"row {entry} is {row[entry]}; expected 0 to {size - 1}, a position in x"
        )
    return row.astype(np.int32)


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


def _check_array(field: str, values: Any) -> np.ndarray:
    values = check_values(field, values)
    if values.ndim < 2 or 0 in values.shape:
        raise InputError(
            f"{field} has shape {list(values.shape)}; expected [M, ...], with at least"
            " one sample and one feature. For a single feature use x[:, None]"
        )
    return values


def cast(x: PyTree) -> PyTree:
    """Cast checked arrays to the dtypes that pools store.

    Images (uint8 `[M, H, W, C]`) and booleans keep their dtype; other numbers become
    float32. In a pytree of several arrays integers become int32, since they may index
    a table of embeddings. Floats that are too large become infinite, which
    `check_magnitude` reports.

    Raises:
      InputError: if an integer does not fit int32.
    """
    single = len(jax.tree.leaves(x)) == 1

    def cast_leaf(leaf: np.ndarray) -> np.ndarray:
        if leaf.dtype.kind == "b" or (leaf.dtype == np.uint8 and leaf.ndim == 4):
            return leaf
        as_integer = leaf.dtype.kind in "iu" and not single
        if as_integer:
            check_magnitude("x", leaf)
        with np.errstate(over="ignore"):
            return leaf.astype(np.int32 if as_integer else np.float32)

    return jax.tree.map(cast_leaf, x)


def is_list(node: Any) -> bool:
    """Whether a node of a pytree is a list, which counts as an array."""
    return isinstance(node, list)
