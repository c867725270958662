"""Molecules (NCI and Metabolism, App. D.1): fingerprints, and sets drawn from assays.

An assay labels molecules as active or not. Its records hold every molecule; the
paper's sample of 1,000 is drawn when they are read. Assays share molecules: a large
part of the meta-test molecules also stand in the meta-training sets, with labels of
related assays. So there are two splits: `paper` draws as the paper does; `disjoint`
draws the same test sets, so that test episodes can be paired, and then draws the
training sets from the molecules (by canonical SMILES) that no test set holds. An assay
with fewer than 20 such molecules of a class is left out.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._pools import DomainPool
from mlti_jax.data._readers import raw
from mlti_jax.data._readers.fingerprints import BITS, FINGERPRINTS, Molecule
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders.base import DatasetBuilder, Example
from mlti_jax.errors import InputError

CLASSES = ("inactive", "active")
SPLITS = ("paper", "disjoint")
LARGEST_SHARE_SKIPPED = 0.05
SMALLEST_CLASS = 20  # of a training assay in the split `disjoint`


class MoleculeBuilder(DatasetBuilder, skip_registration=True):
    """Assays of molecules, with splits `train` and `test`."""

    GROUPED_BY = ("assay", "label")

    def molecule_features(self, assays: tuple[str, ...]) -> dict[str, Any]:
        """The features of a record."""
        bits = functools.partial(
            tfds.features.Tensor,
            shape=(BITS,),
            dtype=np.bool_,
            encoding=tfds.features.Encoding.ZLIB,
        )
        return {
            "smiles": tfds.features.Text(doc="canonical, by RDKit"),
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
        """The examples of each split.

        Args:
          parse: makes a molecule of a text, or None where RDKit refuses it.
          assays: by name.
          splits: the names of the assays of each split.
        """

        @functools.cache
        def molecules() -> dict[str, Molecule | None]:
            # Assays share molecules: each is parsed once.
            texts = dict.fromkeys(t for assay in assays.values() for t in assay.texts)
            parsed = raw.ordered_map(parse, texts, self.processes)
            parsed = self.watch(parsed, "parsing molecules", len(texts), "molecule")
            return dict(zip(texts, parsed, strict=True))

        def examples(names: Sequence[str]) -> Iterator[Example]:
            for name in names:
                yield from self._examples(name, assays[name], molecules())

        return {split: examples(names) for split, names in splits.items()}

    def _examples(
        self, name: str, assay: Assay, molecules: Mapping[str, Molecule | None]
    ) -> Iterator[Example]:
        """Inactive ones first; molecules that RDKit refuses are left out."""
        refused = [i for i, text in enumerate(assay.texts) if molecules[text] is None]
        if len(refused) > LARGEST_SHARE_SKIPPED * len(assay.texts):
            raise InputError(
                f"of the {len(assay.texts)} molecules in {assay.place}, RDKit can't"
                f" read {len(refused)} (records {refused[:5]} and so on), more than"
                f" {LARGEST_SHARE_SKIPPED:.0%}; the file is damaged or no release of"
                " this dataset. Download it again"
            )
        for _ in refused:
            self.skip(f"{name}: RDKit can't read the molecule")
        for wanted, class_name in enumerate(CLASSES):
            kept = [
                molecules[text]
                for text, label in zip(assay.texts, assay.labels, strict=True)
                if label == wanted and molecules[text] is not None
            ]
            if not kept:
                raise InputError(
                    f"{assay.place} has no {class_name} molecule; it is cut off or no"
                    " release of this dataset. Download it again"
                )
            for molecule in kept:
                yield {**molecule._asdict(), "label": wanted, "assay": name}


class Assay(NamedTuple):
    """The file, for errors; its molecules, as texts; 1 for active, 0 for inactive."""

    place: str
    texts: Sequence[str]
    labels: Sequence[int]


def draw(
    label: np.ndarray, size: int | None, balanced: bool, rng: np.random.Generator
) -> np.ndarray:
    """Draws the sample of an assay: rows, sorted.

    Args:
      label: 0 or 1, `[M]`.
      size: at most so many molecules; None for all (if balanced: all that balance).
      balanced: as many of each class.
      rng: randomness.
    """
    order = rng.permutation(len(label))
    if not balanced:
        return np.sort(order[:size])
    by_class = [order[label[order] == c] for c in range(len(CLASSES))]
    largest = min(len(rows) for rows in by_class)
    each = largest if size is None else min(largest, size // len(CLASSES))
    return np.sort(np.concatenate([rows[:each] for rows in by_class]))


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
) -> Splits:
    """Loads a prepared dataset of assays; the arguments are those of NCI's `load`."""
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
    sampler = functools.partial(
        draw_assays, found, size=molecules_per_assay, balanced=balanced, seed=seed
    )
    fields = ("smiles", fingerprint, "label", "assay")
    test = prepared.read(found, "test", fields, sampler("test"))
    without = set(test["smiles"].tolist()) if split == "disjoint" else None
    rows = sampler("train", assays=train_classes, without=without)
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

    splits = Splits(
        name=name,
        setting="label_sharing",
        train=pool(train),
        validation=None,
        test=pool(test),
        note="",
        source=split,
    )
    cut = "all" if molecules_per_assay is None else f"at most {molecules_per_assay:,}"
    left_out = set(assays[:train_classes]) - set(splits.train.domains)
    note = (
        f"{name}, {cut} molecules an assay, {fingerprint} fingerprints, split {split}:"
        f" {_overlap(train, test, assays)}"
    )
    if left_out:
        note += (
            f"; fewer than {SMALLEST_CLASS} molecules of a class are left of"
            f" {', '.join(sorted(left_out))}, so {len(splits.train.domains)} training"
            " assays remain"
        )
    return dataclasses.replace(splits, note=note)


def draw_assays(
    found: DatasetBuilder,
    split: str,
    *,
    assays: int | None = None,
    size: int | None,
    balanced: bool,
    seed: int,
    without: set[str] | None = None,
) -> np.ndarray:
    """Draws from each assay of a prepared dataset; see `draw`.

    Args:
      found: the prepared dataset.
      split: `train` or `test`.
      assays: only the first so many; None for all.
      size, balanced: as in `draw`.
      seed: of the draw, which depends on the seed and the assay alone.
      without: SMILES that must not be drawn.

    Returns:
      Rows of the split's records.
    """
    feature = found.info.features["assay"]
    drawn, start = [], 0
    for assay, count in list(prepared.counts(found, split).items())[:assays]:
        label = np.repeat(np.arange(len(CLASSES)), [count[name] for name in CLASSES])
        rows = np.arange(start, start + len(label))
        start += len(label)
        if without is not None:
            smiles = prepared.read(found, split, ("smiles",), rows)["smiles"]
            kept = np.array([text not in without for text in smiles])
            label, rows = label[kept], rows[kept]
            if np.bincount(label, minlength=len(CLASSES)).min() < SMALLEST_CLASS:
                continue
        rng = np.random.default_rng([seed, feature.str2int(assay)])
        drawn.append(rows[draw(label, size, balanced, rng)])
    if not drawn:
        raise InputError(
            f"no assay of {found.name} has {SMALLEST_CLASS} molecules of each class"
            " that no test set holds; use split='paper', or more training assays"
        )
    return np.concatenate(drawn)


def _overlap(
    train: dict[str, np.ndarray], test: dict[str, np.ndarray], assays: list[str]
) -> str:
    """How many test molecules also stand in the training sets, in words."""
    shares = []
    for assay in np.unique(test["assay"]):
        smiles = test["smiles"][test["assay"] == assay]
        share = np.isin(smiles, train["smiles"]).mean()
        shares.append(f"{share:.0%} of {assays[assay]}'s")
    return f"{', '.join(shares)} test molecules also stand in the training sets"
