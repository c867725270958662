"""Safe reader of pickles that hold only plain arrays.

Unpickling can run arbitrary code, and NumPy's own functions for unpickling arrays can
be made to interpret bytes of the file as pointers. So none of them is called: stand-ins
record dtype, shape and content of an array, which is then created from its bytes.
"""

from __future__ import annotations

import collections
import math
import pathlib
import pickle
import re
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from mlti_jax.data._readers import files
from mlti_jax.errors import InputError

_PLAIN_DTYPE = re.compile(r"[<>|=]?([buif][1248]|[SU][0-9]{1,6})")


class _Standin:
    """Stand-in for a function or class that a pickle refers to."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]):
        self._make = make

    def __call__(self, *args: Any) -> Any:
        return self._make(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it modifies a function")


class _Dtype:
    """A pickled dtype: its name, then its byte order."""

    def __init__(self, name: Any, *flags: Any):
        self.value = self._check(name)

    def _check(self, name: Any) -> np.dtype:
        if isinstance(name, bytes):
            name = name.decode("latin1")
        if isinstance(name, str) and name in ("O", "O8", "|O"):
            return np.dtype(object)
        if not isinstance(name, str) or not _PLAIN_DTYPE.fullmatch(name):
            raise pickle.UnpicklingError(
                f"it holds an array of dtype {name!r}, which is not supported"
            )
        return np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        _, order, *rest = state
        if any(part is not None for part in rest[:3]):
            raise pickle.UnpicklingError("it holds a structured array")
        if isinstance(order, bytes):
            order = order.decode("latin1")
        if order in ("<", ">"):
            self.value = self.value.newbyteorder(order)


class _Array:
    """A pickled array: created empty, then filled by `__setstate__`."""

    def __init__(self, *args: Any):
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        self.value = _make_array(content, dtype, shape, "F" if fortran else "C")


def _make_array(
    content: Any, dtype: Any, shape: Any, order: Literal["C", "F"] = "C"
) -> np.ndarray:
    if not isinstance(dtype, _Dtype) or not isinstance(shape, tuple):
        raise pickle.UnpicklingError("it holds an array without a dtype or shape")
    if any(type(size) is not int or size < 0 for size in shape):
        raise pickle.UnpicklingError(f"it holds an array of invalid shape {shape!r}")
    if dtype.value.hasobject:
        if not isinstance(content, list) or len(content) != math.prod(shape):
            raise pickle.UnpicklingError(
                "it holds an object array without a list of objects"
            )
        array = np.empty(len(content), object)
        for place, entry in enumerate(content):
            array[place] = entry
        return array.reshape(shape, order=order)
    if isinstance(content, str):  # Python 2 pickles bytes as text.
        content = content.encode("latin1")
    return np.frombuffer(content, dtype.value).reshape(shape, order=order)


def _make_scalar(dtype: Any, content: Any) -> Any:
    return _make_array(content, dtype, ())[()]


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("it encodes something other than bytes")
    return text.encode("latin1")


# Under the module names of NumPy 1 and NumPy 2.
_STANDINS = {
    (f"numpy.{core}.{module}", name): standin
    for core in ("core", "_core")
    for module, name, standin in (
        ("multiarray", "_reconstruct", _Standin(_Array)),
        ("multiarray", "scalar", _Standin(_make_scalar)),
        ("numeric", "_frombuffer", _Standin(_make_array)),
    )
} | {
    ("numpy", "ndarray"): _Standin(_Array),
    ("numpy", "dtype"): _Standin(_Dtype),
    ("_codecs", "encode"): _Standin(_encode),
    ("__builtin__", "bytes"): _Standin(lambda: b""),  # empty bytes in protocol 2
    ("collections", "OrderedDict"): _Standin(collections.OrderedDict),
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _STANDINS:
            return _STANDINS[module, name]
        raise pickle.UnpicklingError(
            f"it refers to {module}.{name}, which is not part of an array"
        )


def _arrays(value: Any) -> Any:
    """Replace stand-ins by their arrays, recursively."""
    if isinstance(value, _Array) and value.value is not None:
        return _arrays(value.value)
    if isinstance(value, _Array | _Dtype | _Standin):
        raise pickle.UnpicklingError("it holds a dtype or function instead of an array")
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        flat = value.reshape(-1)
        for place, entry in enumerate(flat):
            flat[place] = _arrays(entry)
        return flat.reshape(value.shape)
    if isinstance(value, list):
        # In place, because the list can be most of the memory.
        for place, entry in enumerate(value):
            value[place] = _arrays(entry)
        return value
    if isinstance(value, tuple):
        return tuple(_arrays(entry) for entry in value)
    if isinstance(value, dict):
        return type(value)((key, _arrays(entry)) for key, entry in value.items())
    return value


def load_pickle(path: pathlib.Path) -> Any:
    """Read a pickle of arrays, numbers, strings, lists, tuples and dicts.

    Raises:
      InputError: if the file can't be read or holds anything else; no code is run.
    """
    try:
        with files.reading(path), path.open("rb") as file:
            # Pickles of Python 2 hold arrays as latin-1 text.
            return _arrays(_ArrayUnpickler(file, encoding="latin1").load())
    except (InputError, MemoryError):
        raise
    except Exception as error:  # A damaged pickle can raise nearly anything.
        raise InputError(
            f"can't read {path} as a pickle of plain arrays ({error}); use the"
            f" publisher's own file, or {files.DOWNLOAD_AGAIN}"
        ) from error
