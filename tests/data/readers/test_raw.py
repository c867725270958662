"""Reading publishers' files: archives, pictures, and work in parallel."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from mlti_jax.data._readers import raw
from mlti_jax.errors import InputError


def test_pictures_are_scaled_or_left_as_they_are():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    same = raw.decode_image(buffer.getvalue(), "a.png", 8)
    np.testing.assert_array_equal(same, pixels)
    assert same.dtype == np.uint8
    grey = io.BytesIO()
    Image.new("L", (20, 10), 77).save(grey, "PNG")
    scaled = raw.decode_image(grey.getvalue(), "b.png", 4)
    np.testing.assert_array_equal(scaled, np.full((4, 4, 3), 77))


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n cut"])
def test_pictures_that_are_none(content):
    with pytest.raises(InputError, match="c.jpg is no image"):
        raw.decode_image(content, "c.jpg", 4)


def test_damaged_archives(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("member", b"0123456789" * 100)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with (
        pytest.raises(InputError, match="a.zip is a damaged zip"),
        raw.open_zip(path),
    ):
        pass
    path.write_bytes(whole.replace(b"0123456789", b"0123456780", 1))
    with (
        pytest.raises(InputError, match="member in .*a.zip is damaged"),
        raw.open_zip(path) as archive,
    ):
        raw.read_member(archive, "member")


def square_or_refuse(number):
    if number < 0:
        raise InputError(f"{number} is negative")
    return number**2


def test_ordered_map_keeps_the_order():
    numbers = range(500)
    squares = [number**2 for number in numbers]
    assert list(raw.ordered_map(square_or_refuse, numbers, 1)) == squares
    assert list(raw.ordered_map(square_or_refuse, numbers, 2)) == squares


def test_ordered_map_reads_ahead_only_a_little():
    taken = []

    def numbers():
        for number in range(100_000):
            taken.append(number)
            yield number

    results = raw.ordered_map(square_or_refuse, numbers(), 2)
    assert next(results) == 0
    results.close()
    assert len(taken) < 1000


def test_ordered_map_passes_errors_on():
    results = raw.ordered_map(square_or_refuse, [*range(40), -1, *range(1000)], 2)
    with pytest.raises(InputError, match="-1 is negative"):
        list(results)
    with pytest.raises(InputError, match="processes is 0"):
        list(raw.ordered_map(square_or_refuse, [1], 0))


def test_missing_files_name_what_is_needed(tmp_path):
    with pytest.raises(InputError, match="has no a and no b. What is needed there: it"):
        raw.require(tmp_path, "a", "b", instructions="it")
    (tmp_path / "b").touch()
    assert raw.require(tmp_path, "a", "b", instructions="it") == tmp_path / "b"
