"""Lookup of files, archives and tables."""

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
    with pytest.raises(InputError, match="can't read .*none.csv as a table"):
        files.read_table(tmp_path / "none.csv", (), source="b")
