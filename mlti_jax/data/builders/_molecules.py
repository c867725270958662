"""Shared code of NCI and Metabolism (App. D.1): assays of molecules.

An assay labels molecules as active or inactive. The records hold every molecule, those
of a class in the order of the release; the paper's sample of 1,000 molecules is drawn
on loading. Assays share molecules: many meta-test molecules also occur in the
meta-training sets, with labels of related assays. Two splits are available:

- `paper` samples as the paper does;
- `disjoint` draws the same test sets, so results can be paired, then draws the
  training sets from molecules (by canonical SMILES) that occur in no test set. An assay
  with fewer than 20 such molecules of a class is dropped.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax._internal.processes import ordered_map
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._pools import DomainPool
from mlti_jax.data._readers.files import DOWNLOAD_AGAIN
from mlti_jax.data._readers.fingerprints import BITS, FINGERPRINTS, Molecule
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders._base import DatasetBuilder, Example
from mlti_jax.errors import InputError

CLASSES = ("inactive", "active")
SPLITS = ("paper", "disjoint")
DRAWS = ("random", "first")
MAX_SKIPPED_SHARE = 0.05
MIN_PER_CLASS = 20  # molecules of a training assay in the split `disjoint`


class Assay(NamedTuple):
    """Molecules of an assay and their labels.

    Attributes:
      place: name of the file, for error messages.
      texts: one molecule each, in the format of the release.
      labels: 1 for active and 0 for inactive.
    """

    place: str
    texts: Sequence[str]
    labels: Sequence[int]


class MoleculeBuilder(DatasetBuilder, skip_registration=True):
    """Builder of assays of molecules, with splits `train` and `test`."""

    GROUPED_BY = ("assay", "label")

    def molecule_features(self, assays: Sequence[str]) -> dict[str, Any]:
        """Return the features of a record."""
        bits = functools.partial(
            tfds.features.Tensor,
            shape=(BITS,),
            dtype=np.bool_,
            encoding=tfds.features.Encoding.ZLIB,
        )
        return {
            "smiles": tfds.features.Text(doc="canonical SMILES of RDKit"),
            "morgan": bits(doc="Morgan fingerprint of radius 2"),
            "path": bits(doc="RDKit's path fingerprint"),
            "label": tfds.features.ClassLabel(names=CLASSES),
            "assay": tfds.features.ClassLabel(names=assays),
        }

    def assay_splits(
        self,
        parse: Callable[[str], Molecule | None],
        assays: Mapping[str, Assay],
        splits: Mapping[str, Sequence[str]],
    ) -> dict[str, Iterator[Example]]:
        """Return the examples of each split.

        Args:
          parse: parses the text of a molecule; returns None if RDKit rejects it.
          assays: assays by name.
          splits: names of the assays of each split.
        """

        @functools.cache
        def molecules() -> dict[str, Molecule | None]:
            # Assays share molecules, so each is parsed only once.
            texts = dict.fromkeys(t for assay in assays.values() for t in assay.texts)
            parsed = ordered_map(parse, texts, self.processes)
            parsed = self.watch(parsed, "parsing molecules", len(texts), "molecule")
            return dict(zip(texts, parsed, strict=True))

        def examples(names: Sequence[str]) -> Iterator[Example]:
            for name in names:
                yield from self._examples(name, assays[name], molecules())

        return {split: examples(names) for split, names in splits.items()}

    def _examples(
        self, name: str, assay: Assay, molecules: Mapping[str, Molecule | None]
    ) -> Iterator[Example]:
        """Yield inactive molecules first; skips those that RDKit rejects."""
        rejected = [i for i, text in enumerate(assay.texts) if molecules[text] is None]
        if len(rejected) > MAX_SKIPPED_SHARE * len(assay.texts):
            raise InputError(
                f"RDKit can't parse {len(rejected)} of the {len(assay.texts)} molecules"
                f" in {assay.place} (records {rejected[:5]}, ...), more than"
                f" {MAX_SKIPPED_SHARE:.0%}; the file is damaged or from another"
                f" dataset. If it is damaged, {DOWNLOAD_AGAIN}"
            )
        for _ in rejected:
            self.skip(f"{name}: RDKit can't read the molecule")
        for wanted, class_name in enumerate(CLASSES):
            kept = [
                molecule
                for text, label in zip(assay.texts, assay.labels, strict=True)
                if label == wanted and (molecule := molecules[text]) is not None
            ]
            if not kept:
                raise InputError(
                    f"{assay.place} has no {class_name} molecule; the file is truncated"
                    f" or from another dataset. If it is truncated, {DOWNLOAD_AGAIN}"
                )
            for molecule in kept:
                yield {**molecule._asdict(), "label": wanted, "assay": name}


def load_assays(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    *,
    balanced: bool,
    split: str,
    train_classes: int,
    molecules_per_assay: int | None,
    fingerprint: str,
    seed: int,
    draw: str = "random",
) -> Splits:
    """Load a prepared dataset of assays.

    Args:
      name: name of the dataset.
      data_dir: folder of prepared datasets; None for the default.
      balanced: whether to draw equally many molecules of each class.
      split: `paper` or `disjoint`.
      train_classes: number of training assays.
      molecules_per_assay: number of molecules drawn from each assay; None for all.
      fingerprint: `morgan` or `path`.
      seed: seed of the draw.
      draw: `random`, or `first`: the first molecules of each class for training, in the
        order of the release, and all molecules for testing.

    Raises:
      InputError: if an option is invalid or the dataset is not prepared.
    """
    if draw not in DRAWS:
        raise unknown_name("draw of molecules", draw, DRAWS)
    if split not in SPLITS:
        raise unknown_name("split of molecules", split, SPLITS)
    if fingerprint not in FINGERPRINTS:
        raise unknown_name("fingerprint", fingerprint, FINGERPRINTS)
    found = prepared.open_prepared(name, data_dir)
    available = len(prepared.counts(found, "train"))
    check_range("train_classes", train_classes, available)
    if molecules_per_assay is not None:
        check_range("molecules_per_assay", molecules_per_assay, 10**6, smallest=2)
    assays = found.info.features["assay"].names
    first = draw == "first"
    fields = ("smiles", fingerprint, "label", "assay")
    of_test = draw_assays(
        found,
        "test",
        size=None if first else molecules_per_assay,
        balanced=balanced and not first,
        seed=seed,
    )
    test = prepared.read(found, "test", fields, of_test)
    excluded = set(test["smiles"].tolist()) if split == "disjoint" else None
    rows = draw_assays(
        found,
        "train",
        assays=train_classes,
        size=molecules_per_assay,
        balanced=balanced,
        seed=None if first else seed,
        excluded=excluded,
    )
    train = prepared.read(found, "train", fields, rows)

    def pool(columns: dict[str, np.ndarray]) -> DomainPool:
        present = np.unique(columns["assay"])
        return DomainPool.from_arrays(
            columns[fingerprint],
            np.searchsorted(present, columns["assay"]),
            columns["label"],
            domains=[assays[assay] for assay in present],
            classes=CLASSES,
        )

    train_pool = pool(train)
    limit = "all" if molecules_per_assay is None else f"at most {molecules_per_assay:,}"
    of_assay = "molecules per assay"
    if first:
        of_assay = "molecules per training assay, the first of each class in file order"
    note = (
        f"{name}, {limit} {of_assay}, {fingerprint} fingerprints, split"
        f" {split}: {_overlap(train, test, assays)}"
    )
    dropped = set(assays[:train_classes]) - set(train_pool.domains)
    if dropped:
        note += (
            f"; dropped {', '.join(sorted(dropped))} with fewer than {MIN_PER_CLASS}"
            f" molecules of a class, {len(train_pool.domains)} training assays remain"
        )
    return Splits(
        name=name,
        setting="label_sharing",
        train=train_pool,
        validation=None,
        test=pool(test),
        note=note,
        source=split,
    )


def draw_assays(
    found: DatasetBuilder,
    split: str,
    *,
    assays: int | None = None,
    size: int | None,
    balanced: bool,
    seed: int | None,
    excluded: set[str] | None = None,
) -> np.ndarray:
    """Draw a sample from each assay of a prepared dataset.

    The draw of an assay depends only on the seed and the assay.

    Args:
      found: the prepared dataset.
      split: `train` or `test`.
      assays: number of assays, the first of the split; None for all.
      size: see `draw`.
      balanced: see `draw`.
      seed: seed of the draw; None for the first molecules of each class.
      excluded: SMILES that must not be drawn.

    Returns:
      Rows of the split's records.

    Raises:
      InputError: if `excluded` leaves no assay with enough molecules.
    """
    feature = found.info.features["assay"]
    drawn, start = [], 0
    for assay, count in list(prepared.counts(found, split).items())[:assays]:
        label = np.repeat(np.arange(len(CLASSES)), [count[name] for name in CLASSES])
        rows = np.arange(start, start + len(label))
        start += len(label)
        if excluded is not None:
            smiles = prepared.read(found, split, ("smiles",), rows)["smiles"]
            kept = np.array([text not in excluded for text in smiles])
            label, rows = label[kept], rows[kept]
            if np.bincount(label, minlength=len(CLASSES)).min() < MIN_PER_CLASS:
                continue
        if seed is None:
            drawn.append(rows[first_of_each_class(label, size)])
        else:
            rng = np.random.default_rng([seed, feature.str2int(assay)])
            drawn.append(rows[draw(label, size, balanced, rng)])
    if not drawn:
        raise InputError(
            f"no assay of {found.name} has {MIN_PER_CLASS} molecules of each class"
            " outside the test sets; use split='paper' or more training assays"
        )
    return np.concatenate(drawn)


def first_of_each_class(label: np.ndarray, size: int | None) -> np.ndarray:
    """Return the first `size // 2` indices of each class, sorted; all if it is None."""
    each = None if size is None else size // len(CLASSES)
    by_class = [np.flatnonzero(label == c)[:each] for c in range(len(CLASSES))]
    return np.sort(np.concatenate(by_class))


def draw(
    label: np.ndarray, size: int | None, balanced: bool, rng: np.random.Generator
) -> np.ndarray:
    """Draw the sample of an assay.

    Args:
      label: 0 or 1, `[M]`.
      size: largest number of molecules; None for as many as possible.
      balanced: whether to draw equally many molecules of each class.
      rng: random generator.

    Returns:
      Sorted indices into `label`.
    """
    order = rng.permutation(len(label))
    if not balanced:
        return np.sort(order[:size])
    by_class = [order[label[order] == c] for c in range(len(CLASSES))]
    smallest = min(len(rows) for rows in by_class)
    each = smallest if size is None else min(smallest, size // len(CLASSES))
    return np.sort(np.concatenate([rows[:each] for rows in by_class]))


def _overlap(
    train: dict[str, np.ndarray], test: dict[str, np.ndarray], assays: list[str]
) -> str:
    """Describe which share of each test set also occurs in the training sets."""
    shares = []
    for assay in np.unique(test["assay"]):
        smiles = test["smiles"][test["assay"] == assay]
        share = np.isin(smiles, train["smiles"]).mean()
        shares.append(f"{share:.0%} of {assays[assay]}'s")
    return f"{', '.join(shares)} test molecules also occur in the training sets"
