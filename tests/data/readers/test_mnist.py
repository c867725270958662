"""MNIST from each source, and invalid files."""

import gzip
import os
import pathlib
import struct

import numpy as np
import pytest

from mlti_jax.data._readers import mnist
from mlti_jax.errors import InputError

PREFIXES = {"train": 30, "t10k": 10}


def idx_bytes(array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def paths(folder, prefix, suffix=".gz"):
    return (
        folder / f"{prefix}-images-idx3-ubyte{suffix}",
        folder / f"{prefix}-labels-idx1-ubyte{suffix}",
    )


def write_idx(data_dir, suffix=".gz"):
    """Writes a small MNIST; returns its images and labels, training set first."""
    folder = data_dir / "mnist"
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    parts = []
    for prefix, size in PREFIXES.items():
        arrays = rng.integers(0, 256, (size, 28, 28)), np.arange(size) % 10
        for path, array in zip(paths(folder, prefix, suffix), arrays, strict=True):
            content = idx_bytes(array)
            path.write_bytes(gzip.compress(content) if suffix else content)
        parts.append(arrays)
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx(tmp_path, suffix):
    images, labels = write_idx(tmp_path, suffix)
    loaded = mnist.load("idx", tmp_path)
    np.testing.assert_array_equal(loaded.images, images)
    np.testing.assert_array_equal(loaded.labels, labels)
    assert loaded.images.dtype == np.uint8
    assert loaded.source == "idx"


def test_gzip_is_recognized_by_content(tmp_path):
    images, _ = write_idx(tmp_path)
    path = paths(tmp_path / "mnist", "train")[0]
    path.write_bytes(gzip.decompress(path.read_bytes()))
    np.testing.assert_array_equal(mnist.load("idx", tmp_path).images, images)


@pytest.mark.parametrize(
    ("which", "damage", "message"),
    [
        (0, lambda c: gzip.compress(c)[:-200], "damaged gzip"),
        (0, lambda c: gzip.compress(c)[:100] + b"\0" * 500, "damaged gzip"),
        (0, lambda c: b"<!DOCTYPE html>", "is not an IDX file.*starts with b'<!DO'"),
        (0, lambda c: b"", "is not an IDX file.*starts with b''"),
        (0, lambda c: c[:10], "ends after 10 bytes"),
        (0, lambda c: c[:-1], "has 23535 bytes.*header says 23536"),
        (0, lambda c: c + b"\0", "has 23537 bytes.*header says 23536"),
        (
            1,
            lambda c: idx_bytes(np.zeros((30, 28, 28))),
            "not an IDX file of 1 dimension",
        ),
        (0, lambda c: idx_bytes(np.zeros((30, 32, 32))), r"shape \[30, 32, 32\]"),
        (0, lambda c: idx_bytes(np.zeros((0, 28, 28))), "expected.*M > 0"),
        (1, lambda c: idx_bytes(np.zeros(29)), "30 images, but .* holds 29 labels"),
        (1, lambda c: idx_bytes(np.full(30, 10)), "label 10; expected digits 0 to 9"),
    ],
)
def test_damaged_idx(tmp_path, which, damage, message):
    write_idx(tmp_path)
    path = paths(tmp_path / "mnist", "train")[which]
    path.write_bytes(damage(gzip.decompress(path.read_bytes())))
    with pytest.raises(InputError, match=message) as error:
        mnist.load("auto", tmp_path)
    assert str(path) in str(error.value)


def test_huge_header(tmp_path):
    path = tmp_path / "huge"
    path.write_bytes(struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 3))
    with pytest.raises(InputError, match="header says 792281"):
        mnist.read_idx(path, ndim=3)


def test_missing_idx(tmp_path):
    with pytest.raises(InputError, match="train-images-idx3-ubyte.*is missing"):
        mnist.load("idx", tmp_path)
    write_idx(tmp_path)
    paths(tmp_path / "mnist", "t10k")[1].unlink()
    with pytest.raises(InputError, match="t10k-labels-idx1-ubyte.*is missing"):
        mnist.load("auto", tmp_path)


def test_unknown_source(tmp_path):
    with pytest.raises(InputError, match="unknown MNIST source 'web'"):
        mnist.load("web", tmp_path)


def test_builtin(tmp_path):
    loaded = mnist.load("auto", tmp_path)
    assert loaded.source == "builtin"
    assert loaded.images.shape == (5000, 28, 28)
    assert loaded.images.dtype == np.uint8
    assert np.bincount(loaded.labels).tolist() == [500] * 10
    # A well-known property of MNIST: digits lie in the middle 20 x 20 pixels or so,
    # a one has the least ink and a zero the most.
    assert (
        loaded.images[:, :2].mean() < 0.1 < 50 < loaded.images[:, 10:18, 10:18].mean()
    )
    ink = [loaded.images[loaded.labels == digit].mean() for digit in range(10)]
    assert np.argmin(ink) == 1
    assert np.argmax(ink) == 0


def serve(monkeypatch, download):
    """Replaces the one function of TFDS that goes to the network."""
    # TFDS imports it when it prepares a dataset, without declaring it.
    pytest.importorskip("importlib_resources")
    manager = pytest.importorskip("tensorflow_datasets").download.DownloadManager
    monkeypatch.setattr(manager, "download_and_extract", download)


def test_tfds(tmp_path, monkeypatch):
    served = tmp_path / "server"
    served.mkdir()
    images, labels = write_idx(served)

    def download(self, urls):
        return {key: served / "mnist" / url.split("/")[-1] for key, url in urls.items()}

    serve(monkeypatch, download)
    loaded = mnist.load("tfds", tmp_path)
    # TFDS shuffles, so compare as sets of pairs.
    expected = sorted(zip(map(bytes, images.astype(np.uint8)), labels, strict=True))
    found = sorted(zip(map(bytes, loaded.images), loaded.labels, strict=True))
    assert found == expected
    assert loaded.images.shape == (40, 28, 28)
    assert loaded.images.dtype == np.uint8
    # Once it is prepared, `auto` finds it without the network.
    serve(monkeypatch, None)
    again = mnist.load("auto", tmp_path)
    assert again.source == "tfds"
    np.testing.assert_array_equal(again.images, loaded.images)


def test_tfds_without_network(tmp_path, monkeypatch):
    def download(self, urls):
        raise ConnectionError("Name or service not known\nand more")

    serve(monkeypatch, download)
    with pytest.raises(
        InputError, match="without network access .*not known.*IDX files into"
    ):
        mnist.load("tfds", tmp_path)
    assert mnist.load("auto", tmp_path).source == "builtin"


def test_real_files(tmp_path):
    raw = os.environ.get("MLTI_RAW_DIR")
    if not raw or not pathlib.Path(raw, "mnist").is_dir():
        pytest.skip("MLTI_RAW_DIR names no folder with mnist/ in it")
    loaded = mnist.load("auto", pathlib.Path(raw))
    assert loaded.source == "idx"
    assert loaded.images.shape == (70_000, 28, 28)
    # Published class sizes of the training and test set together.
    sizes = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    assert np.bincount(loaded.labels).tolist() == sizes
    assert loaded.labels[:5].tolist() == [5, 0, 4, 1, 9]


def test_gzip_that_expands(tmp_path):
    write_idx(tmp_path)
    path = paths(tmp_path / "mnist", "train")[0]
    path.write_bytes(gzip.compress(b"\0" * (2**28 + 1)))
    with pytest.raises(InputError, match="has more than 268,435,456 bytes unpacked"):
        mnist.load("auto", tmp_path)
