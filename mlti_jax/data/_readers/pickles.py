"""Safe reader of pickles that hold only plain arrays.

Unpickling can run arbitrary code, and NumPy's own functions for unpickling arrays can
be made to interpret bytes of the file as pointers. So none of them is called: stand-ins
record dtype, shape and content of an array, which is then created from its bytes.

A small pickle can also ask for any amount of memory: for a large object, for a large
table of references, or for lists of lists that refer to each other. So the operations
of a pickle are checked before it is loaded, and the size of its content afterwards.
"""

from __future__ import annotations

import collections
import functools
import math
import mmap
import pathlib
import pickle
import pickletools
import re
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Literal

import numpy as np

from mlti_jax.data._readers import files
from mlti_jax.data._user_arrays import is_unicode
from mlti_jax.errors import InputError

# The content of a pickle may have this many times the bytes of the file. An element of
# a list takes 8 bytes, and at least one in the file.
MAX_EXPANSION = 16
FREE_BYTES = 2**16  # of content that any file may have

_PLAIN_DTYPE = re.compile(r"[<>|=]?([buif][1248]|[SU][0-9]{1,6})")


# ------------------------------------------------------------------------- operations

# Operations that arrays, numbers, strings, lists, tuples and dicts do not need: sets,
# whose elements can be chosen to take quadratic time, buffers outside the file, and
# references to other files.
_REFUSED = frozenset(
    {
        "ADDITEMS",
        "EMPTY_SET",
        "FROZENSET",
        "NEXT_BUFFER",
        "READONLY_BUFFER",
        "PERSID",
        "BINPERSID",
        "EXT1",
        "EXT2",
        "EXT4",
    }
)
_LENGTHS = {  # bytes of the length of an argument
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_LINES = {  # number of lines of an argument
    name: 2 if name in ("GLOBAL", "INST") else 1
    for name in (
        "GLOBAL",
        "INST",
        "INT",
        "LONG",
        "STRING",
        "UNICODE",
        "FLOAT",
        "GET",
        "PUT",
    )
}
_INTEGERS = frozenset({"INT", "LONG", "LONG1", "LONG4"})
_MAX_DIGITS = 24  # of an integer as text; integers in binary have at most 8 bytes
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


class _Operation:
    """What has to be known of an operation to check it and to find the next one."""

    __slots__ = ("fixed", "is_frame", "is_put", "length", "lines", "most")

    def __init__(self, code: Any):
        size = code.arg.n if code.arg is not None else 0
        self.fixed = max(size, 0)
        self.length = _LENGTHS.get(size, 0)
        self.lines = _LINES.get(code.name, 0)
        self.most = 0  # largest size of the argument; 0 for no limit
        if code.name in _INTEGERS:
            self.most = _MAX_DIGITS if self.lines else 8
        self.is_frame = code.name == "FRAME"
        self.is_put = code.name in _PUTS


_OPERATIONS = {
    ord(code.code): _Operation(code)
    for code in pickletools.opcodes
    if code.name not in _REFUSED
}
_STOP = ord(".")


def _check_size(size: int, start: int, end: int) -> None:
    if size > end - start:
        raise pickle.UnpicklingError(
            f"it claims an object of {size:,} bytes, but has only {end - start:,} more"
        )


def _check_operations(content: mmap.mmap) -> None:
    """Raise `UnpicklingError` if an operation asks for more than the file holds."""
    place, number, end = 0, 0, len(content)
    while place < end:
        code = content[place]
        operation = _OPERATIONS.get(code)
        if operation is None:
            raise pickle.UnpicklingError(f"it has the operation {code}")
        place, number = place + 1, number + 1
        start = place
        if operation.length:
            start += operation.length
            size = int.from_bytes(content[place:start], "little")
            _check_size(size, start, end)
            place = start + size
        elif operation.lines:
            for _ in range(operation.lines):
                place = content.find(b"\n", place) + 1
                if not place:
                    raise pickle.UnpicklingError("it is truncated")
        else:
            place += operation.fixed
        if operation.most and place - start > operation.most:
            raise pickle.UnpicklingError("it has an integer of more than 8 bytes")
        if operation.is_frame:
            _check_size(int.from_bytes(content[start:place], "little"), place, end)
        if operation.is_put:
            text = content[start:place]
            slot = int(text) if operation.lines else int.from_bytes(text, "little")
            # References are numbered in order, so one has at most this number.
            if slot > number:
                raise pickle.UnpicklingError(f"it has the reference number {slot:,}")
        if code == _STOP:
            return
    raise pickle.UnpicklingError("it is truncated")


# ------------------------------------------------------------------------- stand-ins


class _Budget:
    """Bytes that the content of a pickle may take."""

    def __init__(self, size: int):
        self.left = MAX_EXPANSION * size + FREE_BYTES

    def check(self, size: int) -> None:
        """Raise `UnpicklingError` if an object has more bytes than are left."""
        if size > self.left:
            raise pickle.UnpicklingError(
                f"it unpacks to more than {MAX_EXPANSION} times its size"
            )

    def take(self, size: int) -> None:
        """Subtract the size of an object."""
        self.check(size)
        self.left -= size


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

    def __init__(self, budget: _Budget):
        self.budget = budget
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        order: Literal["C", "F"] = "F" if fortran else "C"
        self.value = _make_array(self.budget, content, dtype, shape, order)


def _make_array(
    budget: _Budget,
    content: Any,
    dtype: Any,
    shape: Any,
    order: Literal["C", "F"] = "C",
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
        budget.take(8 * len(content))
        array = np.empty(len(content), object)
        for place, entry in enumerate(content):
            array[place] = entry
        return array.reshape(shape, order=order)
    if isinstance(content, str):  # Python 2 pickles bytes as text.
        content = _encode(budget, content)
    if not isinstance(content, bytes | bytearray):
        raise pickle.UnpicklingError("it holds an array whose content is not bytes")
    budget.take(len(content))
    if len(content) != dtype.value.itemsize * math.prod(shape):
        raise pickle.UnpicklingError(
            f"it holds an array of shape {shape!r} with {len(content):,} bytes"
        )
    array = np.frombuffer(content, dtype.value)
    if not is_unicode(array):
        raise pickle.UnpicklingError("it holds a text that is not valid Unicode")
    return array.reshape(shape, order=order)


def _empty_array(budget: _Budget, *args: Any) -> _Array:
    return _Array(budget)


def _empty_bytes(budget: _Budget) -> bytes:
    return b""


def _make_dtype(budget: _Budget, *args: Any) -> _Dtype:
    return _Dtype(*args)


def _make_scalar(budget: _Budget, dtype: Any, content: Any) -> Any:
    return _make_array(budget, content, dtype, ())[()]


def _encode(budget: _Budget, text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("it encodes something other than bytes")
    budget.take(len(text))
    return text.encode("latin1")


def _make_dict(budget: _Budget, items: Any = ()) -> collections.OrderedDict:
    budget.take(MAX_EXPANSION * len(items))
    return collections.OrderedDict(items)


# Under the module names of NumPy 1 and NumPy 2. Each takes a budget first.
_STANDINS: dict[tuple[str, str], Callable[..., Any]] = {
    (f"numpy.{core}.{module}", name): make
    for core in ("core", "_core")
    for module, name, make in (
        ("multiarray", "_reconstruct", _empty_array),
        ("multiarray", "scalar", _make_scalar),
        ("numeric", "_frombuffer", _make_array),
    )
} | {
    ("numpy", "ndarray"): _empty_array,
    ("numpy", "dtype"): _make_dtype,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _empty_bytes,  # in protocol 2
    ("collections", "OrderedDict"): _make_dict,
}


class _ArrayUnpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, budget: _Budget):
        # Pickles of Python 2 hold arrays as latin-1 text.
        super().__init__(file, encoding="latin1")
        self._budget = budget

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _STANDINS:
            return _Standin(functools.partial(_STANDINS[module, name], self._budget))
        raise pickle.UnpicklingError(
            f"it refers to {module}.{name}, which is not part of an array"
        )


# --------------------------------------------------------------------------- content


class _Content:
    """Replaces the stand-ins of a loaded pickle by their arrays.

    Objects that are referred to several times are converted once. Their size counts
    each time: a list of lists of one list is small, but not the array made from it.
    """

    def __init__(self, budget: _Budget):
        self._budget = budget
        # By id; the objects are kept, so that no id is used again. None: in progress.
        self._done: dict[int, tuple[Any, Any, int] | None] = {}

    def convert(self, value: Any) -> tuple[Any, int]:
        """Return a value without stand-ins, and its size in bytes.

        Raises:
          UnpicklingError: if it is too large, or holds something else.
        """
        if isinstance(value, str | bytes | bytearray):
            return value, 8 + len(value)
        if value is None or isinstance(value, bool | int | float | np.generic):
            return value, 8
        if id(value) not in self._done:
            self._done[id(value)] = None
            converted, size = self._convert(value)
            self._budget.check(size)
            self._done[id(value)] = value, converted, size
        found = self._done[id(value)]
        if found is None:
            raise pickle.UnpicklingError("it holds an object that contains itself")
        return found[1:]

    def _convert(self, value: Any) -> tuple[Any, int]:
        if isinstance(value, _Array) and value.value is not None:
            return self.convert(value.value)
        if isinstance(value, np.ndarray):
            if not value.dtype.hasobject:
                return value, 8 + value.nbytes
            flat = value.reshape(-1)
            size = self._fill(flat, enumerate(flat))
            return flat.reshape(value.shape), size
        if isinstance(value, list):
            return value, self._fill(value, enumerate(value))
        if isinstance(value, dict):
            if not all(isinstance(key, str | bytes | int | float) for key in value):
                raise pickle.UnpicklingError("it holds a dict without plain keys")
            return value, self._fill(value, value.items())
        if isinstance(value, tuple):
            parts = [self.convert(entry) for entry in value]
            return tuple(p[0] for p in parts), 8 + sum(p[1] for p in parts)
        raise pickle.UnpicklingError("it holds a dtype or function instead of an array")

    def _fill(self, value: Any, entries: Iterable[tuple[Any, Any]]) -> int:
        """Convert the entries of a container; return its size."""
        # In place, because the container can be most of the memory.
        size = 8
        for place, entry in entries:
            value[place], part = self.convert(entry)
            size += part
        return size


def load_pickle(path: pathlib.Path) -> Any:
    """Read a pickle of arrays, numbers, strings, lists, tuples and dicts.

    Raises:
      InputError: if the file can't be read, holds anything else, or unpacks to more
        than `MAX_EXPANSION` times its size; no code is run.
    """
    size = files.check_file(path)
    try:
        if not size:
            raise pickle.UnpicklingError("it is empty")
        with files.reading(path), path.open("rb") as file:
            # Mapped, since reading it would double the memory.
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                _check_operations(content)
            budget = _Budget(size)
            return _Content(budget).convert(_ArrayUnpickler(file, budget).load())[0]
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(
            f"{path} needs more memory than this machine has ({size:,} bytes in the"
            " file)"
        ) from error
    except Exception as error:  # A damaged pickle can raise nearly anything.
        raise InputError(
            f"can't read {path} as a pickle of plain arrays ({error}); use the"
            f" publisher's own file, or {files.DOWNLOAD_AGAIN}"
        ) from error
