"""Pickles of plain arrays are read; all others raise and run no code."""

import collections
import os
import pathlib
import pickle
import struct
import tracemalloc

import numpy as np
import pytest

from mlti_jax.data._readers.pickles import load_pickle
from mlti_jax.errors import InputError


class Evil:
    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path("touched"),)


def test_pickles_of_arrays_are_read(tmp_path):
    content = {
        "x": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "y": (np.float32(1.5), [np.array(["a", "b"])]),
        "order": np.asfortranarray(np.ones((2, 2))),
    }
    for protocol in range(6):
        path = tmp_path / f"{protocol}.pkl"
        path.write_bytes(pickle.dumps(content, protocol))
        read = load_pickle(path)
        np.testing.assert_array_equal(read["x"], content["x"])
        np.testing.assert_array_equal(read["order"], content["order"])
        assert read["y"][0] == 1.5
        assert read["y"][1][0].tolist() == ["a", "b"]


def test_a_pickle_of_python_2_is_read(tmp_path):
    # An array of Python 2: its bytes are a str, here with a byte above 127.
    path = tmp_path / "two.pkl"
    path.write_bytes(
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
        b"(I1\n(I2\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\nt"
        b"bI00\nS'\\xff\\x01'\ntb."
    )
    np.testing.assert_array_equal(load_pickle(path), [255, 1])


@pytest.mark.parametrize("content", [Evil(), [np.ones(2), Evil()], pathlib.PurePath()])
def test_pickles_of_other_objects_raise_and_run_no_code(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(InputError, match=r"can't read .*evil.pkl .* refers to .*\."):
        load_pickle(path)
    assert not (tmp_path / "touched").exists()


def test_object_arrays_can_not_hide_other_objects(tmp_path):
    array = np.empty(1, object)
    array[0] = Evil()
    path = tmp_path / "objects.pkl"
    path.write_bytes(pickle.dumps(array))
    with pytest.raises(InputError, match="which is not part of an array"):
        load_pickle(path)


def test_damaged_pickles(tmp_path):
    path = tmp_path / "cut.pkl"
    path.write_bytes(pickle.dumps(np.ones(1000))[:-100])
    with pytest.raises(InputError, match="can't read .*cut.pkl as a pickle"):
        load_pickle(path)
    with pytest.raises(InputError, match="file .*none.pkl does not exist"):
        load_pickle(tmp_path / "none.pkl")


class Reduced:
    """Pickled as a function call, with an optional state."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


def structured():
    """A structured array with object fields, whose bytes would become pointers."""
    dtype = Reduced(
        np.dtype,
        ("V8", False, True),
        (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0),
    )
    return Reduced(np.ndarray, ((1,), dtype, b"\x01" * 8))


@pytest.mark.parametrize(
    "content",
    [
        structured(),
        Reduced(np.ndarray, ((1,), np.dtype("O"), b"\x01" * 8)),
        np.zeros(2, [("a", "i4"), ("b", "f4")]),
        np.zeros(2, "M8[s]"),
        np.array([1 + 2j]),
        Reduced(np._core.multiarray.scalar, (np.dtype("O"), b"\x01" * 8)),
        Reduced(np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), {"a": 1}),
        [np.dtype("f4")],
    ],
)
def test_arrays_that_are_not_plain_raise(tmp_path, content):
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(content, 4))
    with pytest.raises(InputError, match="can't read .*a.pkl as a pickle of plain"):
        load_pickle(path)


def test_functions_can_not_be_changed(tmp_path):
    path = tmp_path / "a.pkl"
    # BUILD sets attributes of the object that `find_class` returned.
    path.write_bytes(
        b"\x80\x04cnumpy.core.numeric\n_frombuffer\n}\x8c\x05_makeK\x01sb."
    )
    with pytest.raises(InputError, match="it modifies a function"):
        load_pickle(path)


def test_dtypes_orders_and_nesting_survive(tmp_path):
    content = collections.OrderedDict(
        big=np.arange(3, dtype=">i4"),
        flags=np.array([True, False]),
        names=np.array(["ab", "c"]),
        octets=np.array([b"ab", b"c"]),
        nothing=np.zeros((0, 4), np.float32),
        objects=np.array([np.arange(2), "text", None], object),
        number=np.int64(7),
        columns=np.arange(6).reshape(2, 3).T,
    )
    for protocol in (2, 4, 5):
        path = tmp_path / f"{protocol}.pkl"
        path.write_bytes(pickle.dumps(content, protocol))
        read = load_pickle(path)
        assert list(read) == list(content)
        for name in ("big", "flags", "names", "octets", "nothing", "columns"):
            np.testing.assert_array_equal(read[name], content[name])
            assert read[name].dtype == content[name].dtype
        assert read["number"] == 7
        np.testing.assert_array_equal(read["objects"][0], [0, 1])
        assert read["objects"][1:].tolist() == ["text", None]


def laughs(container):
    """Ten containers of ten containers of ..., nine times: 10^10 numbers."""
    content = container([0] * 10)
    for _ in range(9):
        content = container([content] * 10)
    return content


NUMBERS = b"cnumpy\ndtype\n\x8c\x02f4\x85R"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"a.", "an object of 1,099,511,"),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"a.", "an object of 1,099,511,"),
        (b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"N.", "an object of 1,099,511,"),
        # Numbers of references, for which Python allocates a table.
        (b"\x80\x04Nr\xff\xff\xff\x3f.", "the reference number 1,073,741,823"),
        (b"Np999999999\n.", "the reference number 999,999,999"),
        (
            b"\x80\x02\x8b" + struct.pack("<i", 9) + b"\1" * 9 + b".",
            "more than 8 bytes",
        ),
        (b"I" + b"9" * 5000 + b"\n.", "more than 8 bytes"),
        (pickle.dumps(laughs(list)), "unpacks to more than 16 times"),
        (pickle.dumps(laughs(tuple)), "unpacks to more than 16 times"),
        (pickle.dumps({"a": laughs(list)}), "unpacks to more than 16 times"),
        (pickle.dumps([np.zeros(9000)] * 1000), "unpacks to more than 16 times"),
        (b"\x80\x04]\x94h\x00a.", "contains itself"),
        (b"\x80\x04" + b"]" * 10**5 + b"a" * (10**5 - 1) + b".", "recursion depth"),
        # A text of 1 MB that is encoded 10,000 times.
        (
            b"\x80\x02X" + struct.pack("<I", 10**6) + b"a" * 10**6 + b"q\x000]("
            b"c_codecs\nencode\nq\x02h\x00\x85R" + b"h\x02h\x00\x85R" * 10**4 + b"e.",
            "unpacks to more than 16 times",
        ),
        (
            b"\x80\x04cnumpy.core.numeric\n_frombuffer\n(K\x05" + NUMBERS + b"K\x01\x85"
            b"\x8c\x01CtR.",
            "whose content is not bytes",
        ),
        (
            b"\x80\x04cnumpy.core.numeric\n_frombuffer\n(C\x04abcd"
            + NUMBERS
            + b"\x8a\x07\0\0\0\0\0\0\x10\x85\x8c\x01CtR.",
            r"shape \(4503599627370496,\) with 4 bytes",
        ),
        (
            pickle.dumps(np.full(2, 0x7FFFFFFF, np.int32).view("U2")),
            "a text that is not valid Unicode",
        ),
        (pickle.dumps({1, 2}), "it has the operation 143"),
        (b"\x80\x04}cnumpy\nndarray\n)RK\x01s.", "a dict without plain keys"),
        (b"\x80\x04N", "it is truncated"),
        (b"Sabc", "it is truncated"),
    ],
)
def test_pickles_that_ask_for_too_much(tmp_path, content, message):
    path = tmp_path / "a.pkl"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(InputError, match=f"can't read .*a.pkl .*{message}"):
        load_pickle(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * len(content) + 10**7


def test_pickles_that_are_not_files(tmp_path):
    os.mkfifo(tmp_path / "a.pkl")
    with pytest.raises(InputError, match="a.pkl is a named pipe; expected a file"):
        load_pickle(tmp_path / "a.pkl")


def test_shared_objects_are_read(tmp_path):
    array = np.arange(3)
    content = {"a": [array, array], "b": (array, [array])}
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(content))
    read = load_pickle(path)
    assert read["a"][0] is read["a"][1] is read["b"][1][0]
    np.testing.assert_array_equal(read["b"][0], array)
