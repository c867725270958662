"""Files that are written and trusted later: complete, sealed, bounded; and locks."""

import errno
import hashlib
import json
import os
import stat

import pytest

from mlti_jax._internal import storage
from mlti_jax._internal.locks import is_locked, locked
from mlti_jax.errors import InputError
from tests.support.hostile import device_in


def test_a_file_is_written_completely_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    storage.write_text(path, "before")

    def fail_half_way(file):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        storage.write_file(path, fail_half_way)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_new_files_have_the_usual_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        storage.write_text(tmp_path / "file", "text")
    finally:
        os.umask(before)
    # A private temporary file would lock colleagues out of a shared disk.
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_link_is_followed(tmp_path):
    (tmp_path / "target").write_text("before")
    (tmp_path / "link").symlink_to("target")
    storage.write_text(tmp_path / "link", "after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "after"


@pytest.mark.parametrize("kind", ["device", "fifo", "folder"])
def test_only_regular_files_are_replaced(tmp_path, kind):
    path = tmp_path / "output"
    if kind == "device":
        device_in("output")(tmp_path)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = os.stat(path)
    with pytest.raises(InputError, match=r"is a (device|directory)"):
        storage.write_text(path, "text")
    assert os.path.samestat(os.stat(path), before)


def test_what_killed_processes_leave_is_removed(tmp_path):
    for name in (".0123456789abcdef.tmp", ".mine.tmp", "other"):
        (tmp_path / name).write_text("")
    storage.remove_temporary(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".mine.tmp", "other"]


def test_the_seal_is_the_digest_of_the_other_fields(tmp_path):
    path = tmp_path / "value.json"
    value = {"b": [1, 2.5], "a": {"c": None, "ä": "x"}}
    storage.write_json(path, value, seal=True)
    saved = json.loads(path.read_text())
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert saved.pop("sha256") == hashlib.sha256(text.encode()).hexdigest()
    assert storage.read_json(path, "advice") == saved == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 2, "sha256": "0"}', "does not match its checksum"),
        (b'{"a": 1, "sha256": 3}', "does not match its checksum"),
        (b"[1]", "expected a dictionary, found a list"),
        (b"null", "found null"),
        (b"3", "found a number"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"a": NaN}', "it contains NaN"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 100_000, "nested too deeply"),
    ],
)
def test_damaged_json(tmp_path, content, message):
    path = tmp_path / "value.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{message}.*; do this instead"):
        storage.read_json(path, "do this instead")


def test_other_than_regular_files_are_not_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo")  # would wait for a writer
    (tmp_path / "folder").mkdir()
    for name in ("fifo", "folder"):
        with pytest.raises(InputError, match=f"{name} is not a regular file; advice"):
            storage.read_json(tmp_path / name, "advice")
    with pytest.raises(InputError, match="absent does not exist; advice"):
        storage.read_json(tmp_path / "absent", "advice")
    (tmp_path / "large").write_bytes(b" " * 100)
    monkeypatch.setattr(storage, "MAX_JSON_BYTES", 99)
    with pytest.raises(InputError, match="large has 100 bytes; expected at most 99"):
        storage.read_json(tmp_path / "large", "advice")


def test_room_is_reserved_and_released(tmp_path):
    storage.reserve(tmp_path, 2**16)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match=r".") as error:
        storage.reserve(tmp_path, 2**60)
    assert error.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert error.value.filename == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------- locks


def test_a_lock_is_seen_and_released(tmp_path):
    assert not is_locked(tmp_path)
    with locked(tmp_path, "--workdir") as check:
        assert is_locked(tmp_path)
        check()
    assert not is_locked(tmp_path)


def test_a_removed_folder_is_noticed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with locked(folder, "--workdir") as check:
        (folder / ".lock").unlink()
        with pytest.raises(InputError, match="was removed while it was in use"):
            check()
        (folder / ".lock").touch()  # by another process
        with pytest.raises(InputError, match="was removed while it was in use"):
            check()


def test_a_lock_of_the_wrong_kind(tmp_path):
    (tmp_path / ".lock").mkdir()
    with (
        pytest.raises(InputError, match=r"\.lock is not a regular file; remove it"),
        locked(tmp_path, "--workdir"),
    ):
        pass
    (tmp_path / ".lock").rmdir()
    os.mkfifo(tmp_path / ".lock")
    with (
        pytest.raises(InputError, match=r"\.lock is not a regular file; remove it"),
        locked(tmp_path, "--workdir"),
    ):
        pass
