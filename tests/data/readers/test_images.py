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


def test_formats_that_run_programs_are_not_opened():
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 8\n%%EndComments\n"
    with pytest.raises(InputError, match="can't decode the image a.jpg"):
        decode_image(eps, "a.jpg", 4)


@pytest.mark.parametrize("side", [10_000, 20_000])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_images_that_expand(side):
    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, "PNG")
    with pytest.raises(InputError, match="image a.png has more than 89,478,485 pixels"):
        decode_image(buffer.getvalue(), "a.png", 4)
