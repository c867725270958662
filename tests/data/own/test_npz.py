"""`read_npz`: arrays of .npz files, and files that are damaged or hostile."""

import os
import struct
import zipfile

import numpy as np
import pytest

from mlti_jax.data._own.files import read_npz
from mlti_jax.errors import InputError

X, Y = np.arange(12.0).reshape(4, 3), np.array(["a", "b", "a", "b"])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read(tmp_path, save):
    path = tmp_path / "a.npz"
    save(path, x=np.asfortranarray(X), y=Y, other=np.array([None], object))
    found = read_npz(path, ("x", "y"), optional=("task",))
    assert sorted(found) == ["x", "y"]
    np.testing.assert_array_equal(found["x"], X)
    np.testing.assert_array_equal(found["y"], Y)
    assert "other" not in found  # never read, so its objects do not matter


def member(header, content=b"\0" * 64):
    """An array file with any header."""
    text = header.ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode() + content


def write_member(path, header, **options):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", member(header, **options))


def flip(path, place, value=255):
    content = bytearray(path.read_bytes())
    content[place] ^= value
    path.write_bytes(content)


def patch_directory(path, place, value):
    """Changes a field of both headers of the first member."""
    np.savez(path, x=X)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + place] |= value
    content[place - 2] |= value
    path.write_bytes(content)


def write_twice(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("x.npy", b"")


def flipped(path):
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=100))
    flip(path, 200)


def flipped_content(path):
    np.savez(path, x=X)
    flip(path, 250, 1)


SHAPE = "{{'descr': '{}', 'fortran_order': False, 'shape': {}}}"


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: np.save(path.open("wb"), X), "not a zip file"),
        (lambda path: path.write_bytes(b""), "not a zip file"),
        (lambda path: path.write_bytes(b"PK\5\6" + b"\xff" * 18), "can't be read"),
        (flipped, "can't be read"),
        (flipped_content, "can't be read .*CRC"),
        (lambda path: write_member(path, SHAPE.format("<f8", (2**40,))), "is damaged"),
        (lambda path: write_member(path, SHAPE.format("<f8", (-1, 8))), "is damaged"),
        (lambda path: write_member(path, SHAPE.format("<f8", (7,))), "is damaged"),
        (lambda path: write_member(path, SHAPE.format("|O", (8,))), "dtype object"),
        (lambda path: write_member(path, "-" * 9000 + "1"), "can't be read"),
        (lambda path: write_member(path, "(" * 9000 + ")" * 9000), "can't be read"),
        (lambda path: write_member(path, "[]"), "can't be read"),
        (lambda path: np.savez(path, x=np.array([None])), "has dtype object; expected"),
        (lambda path: np.savez(path, y=X, z=X), "has no array 'x', but y, z; expected"),
        (lambda path: np.savez(path), "has no array 'x'"),
        (lambda path: patch_directory(path, 8, 1), "is encrypted"),
        (lambda path: patch_directory(path, 10, 77), "compression method"),
        (write_twice, "two arrays of one name"),
        (lambda path: path.mkdir(), "a.npz is a folder; expected a file"),
        (os.mkfifo, "a.npz is a named pipe; expected a file"),
        (lambda path: path.symlink_to("/dev/zero"), "a.npz is a device; expected"),
    ],
)
def test_damaged_files(tmp_path, write, message):
    path = tmp_path / "a.npz"
    write(path)
    with pytest.raises(InputError, match=message) as error:
        read_npz(path, ("x",))
    assert "a.npz" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_truncated_files(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=X)
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="a.npz can't be read"):
            read_npz(path, ("x",))


def test_arrays_that_expand(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros(2**20))
    assert path.stat().st_size < 2**14
    monkeypatch.setattr("mlti_jax.data._own.files.MAX_BYTES", 2**23)
    with pytest.raises(
        InputError, match="a.npz have 8,388,736 bytes; expected at most"
    ):
        read_npz(path, ("x",))
