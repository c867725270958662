"""Decoding images, and checks of classes."""

import io

import numpy as np
import pytest
from PIL import Image

from mlti_jax.data._readers.images import check_classes, decode_image
from mlti_jax.errors import InputError


def test_images_are_resized_only_if_needed():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    same = decode_image(buffer.getvalue(), "a.png", 8)
    np.testing.assert_array_equal(same, pixels)
    assert same.dtype == np.uint8
    gray = io.BytesIO()
    Image.new("L", (20, 10), 77).save(gray, "PNG")
    scaled = decode_image(gray.getvalue(), "b.png", 4)
    np.testing.assert_array_equal(scaled, np.full((4, 4, 3), 77))


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n cut"])
def test_damaged_images(content):
    with pytest.raises(InputError, match="can't decode the image c.jpg"):
        decode_image(content, "c.jpg", 4)


def test_check_classes():
    check_classes("a.csv", ["y", "x"], ("x", "y"), release="the release")
    message = "a.csv does not have the 2 classes .*: x missing; z not expected.* use b"
    with pytest.raises(InputError, match=message):
        check_classes("a.csv", ["y", "z"], ("x", "y"), release="b")
