"""Lookup of files, archives and tables."""

import os
import zipfile

import pytest

from mlti_jax.data._readers import files
from mlti_jax.errors import InputError


def test_damaged_archives(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("member", b"0123456789" * 100)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with (
        pytest.raises(InputError, match="a.zip is a damaged zip"),
        files.open_zip(path),
    ):
        pass
    path.write_bytes(whole.replace(b"0123456789", b"0123456780", 1))
    with (
        pytest.raises(InputError, match="member in .*a.zip is damaged"),
        files.open_zip(path) as archive,
    ):
        files.read_member(archive, "member")


def test_missing_files(tmp_path):
    with pytest.raises(InputError, match="has no a or b. To get it: it"):
        files.find(tmp_path, "a", "b", instructions="it")
    (tmp_path / "b").touch()
    assert files.find(tmp_path, "a", "b", instructions="it") == tmp_path / "b"


def test_tables(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfx,y\r\n1,2\r\n\r\n3\r\n")
    rows = files.read_table(path, ("y", "x"), source="b")
    assert rows == [(2, {"x": "1", "y": "2"}), (4, {"x": "3", "y": None})]
    with pytest.raises(InputError, match=r"no column 'z', found \['x', 'y'\]; use b"):
        files.read_table(path, ("x", "z"), source="b")
    with pytest.raises(InputError, match="file .*none.csv does not exist"):
        files.read_table(tmp_path / "none.csv", (), source="b")


def test_files_that_are_not_regular(tmp_path):
    pipe = tmp_path / "a.zip"
    os.mkfifo(pipe)
    with (
        pytest.raises(InputError, match="a.zip is a named pipe; expected a file"),
        files.open_zip(pipe),
    ):
        pass
    for read in (files.read_bytes, lambda p: files.read_table(p, (), source="b")):
        with pytest.raises(InputError, match="a.zip is a named pipe; expected a file"):
            read(pipe)
    with pytest.raises(InputError, match="is a folder; expected a file"):
        files.read_bytes(tmp_path)


def test_sizes_are_limited(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", b"\0" * 2**28)
    assert path.stat().st_size < 10**6
    with (
        files.open_zip(path) as archive,
        pytest.raises(InputError, match="bomb in .* has 268,435,456 bytes unpacked"),
    ):
        files.read_member(archive, "bomb")
    with pytest.raises(InputError, match="a.zip has .* bytes; expected at most 100"):
        files.read_bytes(path, 100)


@pytest.mark.parametrize("place", [8, 10])  # flags and method in the directory
def test_archives_that_can_not_be_unpacked(tmp_path, place):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("member", b"0123456789")
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + place] |= 1
    content[place - 2] |= 1
    path.write_bytes(content)
    with (
        files.open_zip(path) as archive,
        pytest.raises(InputError, match="member in .*a.zip is damaged"),
    ):
        files.read_member(archive, "member")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x,y\n1,2\n1,2,3\n", "line 3 has more fields than the header"),
        ("x,x,y\n1,2,3\n", "it has two columns named 'x'"),
        # Without strict quotes, all rows after the first would be one field.
        ('x,y\n1,"2\n3,4\n5,6\n', "unexpected end of data"),
        ("x,y\n1,2\0\n", "it has NUL bytes"),
        ("x,y\n1," + "2" * 200_000 + "\n", "field larger than field limit"),
    ],
)
def test_damaged_tables(tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=f"can't read .*a.csv as a table .*{message}"):
        files.read_table(path, ("x", "y"), source="b")
