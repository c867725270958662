"""Reading pickles of plain arrays, and of nothing else.

A pickle may run any code when it is read, and NumPy's own functions for reading arrays
can be made to take a file's bytes for pointers. So none of them is called: stand-ins
take down what the file says of an array, and the array is then made from its bytes.
"""

from __future__ import annotations

import collections
import math
import pathlib
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from mlti_jax.errors import InputError

_PLAIN_DTYPE = re.compile(r"[<>|=]?([buif][1248]|[SU][0-9]{1,6})")


class _Standin:
    """Takes the place of a function or class that a pickle names."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]):
        self._make = make

    def __call__(self, *args: Any) -> Any:
        return self._make(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it changes a function")


class _Dtype:
    """A dtype as a pickle tells it: a name, then its byte order."""

    def __init__(self, name: Any, *flags: Any):
        self.value = self._check(name)

    def _check(self, name: Any) -> np.dtype:
        if isinstance(name, bytes):
            name = name.decode("latin1")
        if isinstance(name, str) and name in ("O", "O8", "|O"):
            return np.dtype(object)
        if not isinstance(name, str) or not _PLAIN_DTYPE.fullmatch(name):
            raise pickle.UnpicklingError(f"it holds an array of dtype {name!r}")
        return np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        _, order, *rest = state
        if any(part is not None for part in rest[:3]):
            raise pickle.UnpicklingError("it holds an array of records")
        if isinstance(order, bytes):
            order = order.decode("latin1")
        if order in ("<", ">"):
            self.value = self.value.newbyteorder(order)


class _Array:
    """An array as a pickle tells it: made empty, then given its content."""

    def __init__(self, *args: Any):
        self.value = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        self.value = _make_array(content, dtype, shape, "F" if fortran else "C")


def _make_array(content: Any, dtype: Any, shape: Any, order: str = "C") -> np.ndarray:
    if not isinstance(dtype, _Dtype) or not isinstance(shape, tuple):
        raise pickle.UnpicklingError("it holds an array without a dtype or shape")
    if any(type(size) is not int or size < 0 for size in shape):
        raise pickle.UnpicklingError(f"it holds an array of shape {shape!r}")
    if dtype.value.hasobject:
        if not isinstance(content, list) or len(content) != math.prod(shape):
            raise pickle.UnpicklingError("it holds objects that are not listed")
        array = np.empty(len(content), object)
        for place, entry in enumerate(content):
            array[place] = entry
        return array.reshape(shape, order=order)
    if isinstance(content, str):  # Python 2 wrote bytes as text
        content = content.encode("latin1")
    return np.frombuffer(content, dtype.value).reshape(shape, order=order)


def _make_scalar(dtype: Any, content: Any) -> Any:
    return _make_array(content, dtype, ())[()]


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("it encodes something that is no bytes")
    return text.encode("latin1")


# In the names that NumPy 1 and NumPy 2 write.
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
    ("__builtin__", "bytes"): _Standin(lambda: b""),  # of protocol 2, where empty
    ("collections", "OrderedDict"): _Standin(collections.OrderedDict),
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _STANDINS:
            return _STANDINS[module, name]
        raise pickle.UnpicklingError(
            f"it asks for {module}.{name}, which is no part of an array"
        )


def _arrays(value: Any) -> Any:
    """Puts the arrays into the places of their stand-ins, also inside of others."""
    if isinstance(value, _Array) and value.value is not None:
        return _arrays(value.value)
    if isinstance(value, _Array | _Dtype | _Standin):
        raise pickle.UnpicklingError("it holds something that is no array")
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        flat = value.reshape(-1)
        for place, entry in enumerate(flat):
            flat[place] = _arrays(entry)
        return flat.reshape(value.shape)
    if isinstance(value, list):
        # In place: the list may be most of the memory.
        for place, entry in enumerate(value):
            value[place] = _arrays(entry)
        return value
    if isinstance(value, tuple):
        return tuple(_arrays(entry) for entry in value)
    if isinstance(value, dict):
        return type(value)((key, _arrays(entry)) for key, entry in value.items())
    return value


def load_pickle(path: pathlib.Path) -> Any:
    """Reads a pickle of arrays, numbers, strings, lists and dicts; refuses all else."""
    try:
        with path.open("rb") as file:
            # Pickles of Python 2 hold arrays as text in latin-1.
            return _arrays(_ArrayUnpickler(file, encoding="latin1").load())
    except OSError as error:
        raise InputError(f"{path} can't be read ({error.strerror})") from error
    except MemoryError:
        raise
    except Exception as error:  # A damaged pickle can raise nearly anything.
        raise InputError(
            f"{path} was not read as a pickle of plain arrays ({error}); use the "
            "publisher's own file, or download or copy it again"
        ) from error
