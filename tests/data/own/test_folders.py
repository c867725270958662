"""`from_folder`: layouts, sizes, formats and errors."""

import os
import shutil
import socket
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from mlti_jax import data
from mlti_jax.errors import InputError

RNG = np.random.default_rng(0)


def save(path, height=8, width=6, mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (height, width) if mode in ("L", "1") else (height, width, len(mode))
    pixels = RNG.integers(0, 256, shape).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(path, **options)
    return pixels


@pytest.fixture
def classes(tmp_path):
    """Five classes of three images, and their pixels by class."""
    pixels = {
        name: np.stack([save(tmp_path / name / f"{i}.png") for i in range(3)])
        for name in ("ant", "bee", "cat", "dog", "elk")
    }
    return tmp_path, pixels


@pytest.fixture
def domains(tmp_path):
    """Three tasks with two classes of two images."""
    for task in ("day", "dusk", "night"):
        for name in ("cat", "dog"):
            for i in range(2):
                save(tmp_path / task / name / f"{i}.png")
    return tmp_path


def test_class_folders(classes):
    root, pixels = classes
    (root / ".DS_Store").write_text("hidden")
    (root / "ant" / ".hidden.txt").write_text("hidden")
    (root / "bee" / "Thumbs.db").write_text("hidden")
    splits = data.from_folder(root, test=["bee", "dog"])
    assert splits.setting == "non_label_sharing"
    assert splits.train.classes == ("ant", "cat", "elk")
    assert splits.test.x.dtype == np.uint8
    expected = np.concatenate([pixels["bee"], pixels["dog"]])
    np.testing.assert_array_equal(splits.test.x, expected)
    assert splits.source == root.name
    assert "15 samples of 5 classes" in splits.summary
    assert "inputs: uint8 [8, 6, 3]" in splits.summary
    assert "scaled" not in splits.summary


def test_domain_and_class_folders(domains):
    splits = data.from_folder(domains, test=["night"])
    assert splits.setting == "label_sharing"
    assert splits.train.domains == ("day", "dusk")
    assert splits.inputs.label_names == splits.train.classes == ("cat", "dog")
    other = data.from_folder(domains, setting="non_label_sharing", test=0.3)
    assert "day/cat" in other.train.classes + other.test.classes


def test_images_are_scaled(classes):
    root, _ = classes
    save(root / "ant" / "large.jpg", 40, 20)
    splits = data.from_folder(root, size=16)
    assert splits.train.x.shape[1:] == (16, 16, 3)
    assert "scaled to 16x16: 16 images of 8x6 to 40x20 pixels" in splits.summary
    wide = data.from_folder(root, size=(8, 6), test=["ant", "bee"])
    assert wide.test.x.shape[1:] == (8, 6, 3)
    assert "scaled to 8x6: 1 images of 8x6 to 40x20" in wide.summary
    with Image.open(root / "ant" / "large.jpg") as image:
        expected = image.resize((6, 8), Image.Resampling.LANCZOS)
    assert (np.asarray(wide.test.x) == np.asarray(expected)).all(axis=(1, 2, 3)).any()
    # New files are scaled too; arrays must have the right size.
    found = wide.inputs([root / "ant" / "large.jpg", str(root / "bee" / "0.png")])
    np.testing.assert_allclose(found[0], np.asarray(expected) / 255, atol=1e-6)
    assert wide.inputs(root / "ant" / "large.jpg").shape == (1, 8, 6, 3)
    np.testing.assert_array_equal(wide.inputs.compact(wide.test.x), wide.test.x)


def test_new_files_are_scaled_only_if_training_was(classes, tmp_path):
    root, _ = classes
    inputs = data.from_folder(root).inputs
    save(tmp_path.parent / "new.png", 9, 9)
    with pytest.raises(InputError, match=r"new.png has 9x9 .* expected 8x6"):
        inputs(tmp_path.parent / "new.png")


def test_grayscale_images(tmp_path):
    for name in "abcd":
        pixels = [save(tmp_path / name / f"{i}.png", mode="L") for i in range(2)]
    splits = data.from_folder(tmp_path, test=["c", "d"])
    assert splits.test.x.shape == (4, 8, 6, 1)
    np.testing.assert_array_equal(splits.test.x[2:, ..., 0], pixels)
    color = save(tmp_path / "a" / "color.png")
    mixed = data.from_folder(tmp_path, test=["a", "b"])
    assert mixed.test.x.shape == (5, 8, 6, 3)
    assert "converted to color: 8 grayscale images" in mixed.summary
    assert (np.asarray(mixed.test.x) == color).all(axis=(1, 2, 3)).sum() == 1
    # New images are converted to grayscale as in training.
    new = splits.inputs.compact(tmp_path / "a" / "color.png")
    assert new.shape == (1, 8, 6, 1)


def test_formats_and_orientation(tmp_path):
    for name in "abcd":
        for i, mode in enumerate(["RGB", "RGBA"]):
            save(tmp_path / name / f"{i}.png", mode=mode)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    save(tmp_path / "a" / "turned.jpg", 6, 8, exif=exif)
    save(tmp_path / "a" / "palette.gif", mode="L")
    splits = data.from_folder(tmp_path)
    assert splits.train.x.shape[1:] == (8, 6, 3)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            lambda root: save(root / "bee" / "9.png", 10, 6),
            {},
            "differ in size: .*0.png has 8x6 pixels .*9.png has 10x6.*example size=84",
        ),
        (
            lambda root: (root / "bee" / "notes.txt").write_text("not an image"),
            {},
            "bee/notes.txt is not an image.*remove it",
        ),
        (
            lambda root: (root / "bee" / "0.png").write_bytes(
                (root / "bee" / "0.png").read_bytes()[:80]
            ),
            {},
            "bee/0.png is damaged",
        ),
        (
            lambda root: (root / "bee" / "labels.csv").write_text(""),
            {},
            "bee/labels.csv is not an image",
        ),
        (
            lambda root: (root / "list.txt").write_text(""),
            {},
            "list.txt is directly in .*; expected class/image or task/class/image",
        ),
        (
            lambda root: save(root / "fox" / "red" / "0.png"),
            {},
            "is in a folder of .* but .*fox/red/0.png is one level deeper",
        ),
        (
            lambda root: save(root / "fox" / "red" / "old" / "0.png"),
            {},
            "red/old is a folder inside a class folder",
        ),
        (lambda root: (root / "fox").mkdir(), {}, "folder .*fox is empty"),
        (
            lambda root: save(root / "fox" / "0.png"),
            {},
            "class 'fox' has 1 sample; expected at least 2",
        ),
        (
            lambda root: Image.fromarray(np.ones((8, 6), np.uint16)).save(
                root / "bee" / "deep.png"
            ),
            {},
            "deep.png has more than 8 bits per channel",
        ),
        (lambda root: None, {"size": 0}, "size is 0"),
        (lambda root: None, {"size": (8, 8, 3)}, r"size is \(8, 8, 3\)"),
        (lambda root: None, {"size": 4096}, "would take 1 GB of memory; scale them"),
        (lambda root: None, {"test": ["be"]}, r"did you mean 'bee'\?"),
        (lambda root: None, {"setting": "label_sharing"}, "but no tasks are given"),
    ],
)
def test_errors(classes, monkeypatch, change, options, message):
    root, _ = classes
    change(root)
    monkeypatch.setattr("mlti_jax.data._own.folders.MAX_BYTES", 2**29)
    with pytest.raises(InputError, match=message):
        data.from_folder(root, **options)


def test_a_task_that_lacks_a_class(domains):
    for path in (domains / "dusk" / "cat").iterdir():
        path.unlink()
    (domains / "dusk" / "cat").rmdir()
    save(domains / "dusk" / "elk" / "0.png")
    save(domains / "dusk" / "elk" / "1.png")
    with pytest.raises(InputError, match="task 'day' has no sample of class 'elk'"):
        data.from_folder(domains)
    splits = data.from_folder(domains, setting="non_label_sharing", test=None)
    expected = "day/cat day/dog dusk/dog dusk/elk night/cat night/dog"
    assert splits.train.classes == tuple(expected.split())


def test_no_folder(tmp_path):
    with pytest.raises(InputError, match="folder .*nowhere does not exist"):
        data.from_folder(tmp_path / "nowhere")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 8\n%%EndComments\nshowpage\n"


def huge_png(side=20_000):
    """A PNG of 400 million black pixels in a file of 50 KB."""
    rows = zlib.compress(b"\0" * ((side // 8 + 1) * side), 9)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)),
        (b"IDAT", rows),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )


def unix_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "a.eps").write_bytes(EPS), "a.eps is not an image"),
        (lambda folder: (folder / "a.png").write_bytes(EPS), "a.png is not an image"),
        (lambda folder: os.mkfifo(folder / "a.png"), "a.png is a named pipe; expected"),
        (lambda folder: unix_socket(folder / "a.png"), "a.png is a socket; expected"),
        (
            lambda folder: (folder / "a.png").symlink_to("/dev/zero"),
            "a.png is a device; expected a file",
        ),
        (
            lambda folder: (folder / "a.png").symlink_to("nowhere"),
            "a.png is a link to a file that does not exist; remove it",
        ),
        (
            lambda folder: (folder / "a.png").symlink_to("a.png"),
            "a.png is a link to a file that does not exist; remove it",
        ),
        (
            lambda folder: (folder / "loop").symlink_to(folder),
            "is a folder inside a class folder",
        ),
        (
            lambda folder: (folder.parent / "loop").symlink_to(folder.parent),
            "is a folder inside a class folder",
        ),
        (
            lambda folder: shutil.copy(
                folder / "0.png", folder / os.fsdecode(b"\xff.png")
            ),
            r"bee/.udcff.png is not valid UTF-8; rename the file",
        ),
        (
            lambda folder: shutil.copytree(
                folder, folder.parent / os.fsdecode(b"b\xe9e")
            ),
            r"b.udce9e is not valid UTF-8; rename the file or folder",
        ),
        (
            lambda folder: (folder / "a.png").write_bytes(huge_png()),
            "a.png has more than 89,478,485 pixels; scale it down",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_files_that_must_not_be_opened(classes, change, message):
    root, _ = classes
    inputs = data.from_folder(root).inputs
    change(root / "bee")
    with pytest.raises(InputError, match=message) as error:
        data.from_folder(root)
    print(error.value)  # The message has no characters that can't be printed.
    str(error.value).encode()
    if (root / "bee" / "a.png").is_file():
        with pytest.raises(InputError, match=message):
            inputs([root / "bee" / "0.png", root / "bee" / "a.png"])


def test_images_between_the_limits_of_pillow(tmp_path):
    # Pillow only warns up to twice this size.
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(huge_png(10_000))
    with (
        pytest.warns(Image.DecompressionBombWarning),
        pytest.raises(InputError, match="0.png has more than 89,478,485 pixels"),
    ):
        data.from_folder(tmp_path, size=8)
