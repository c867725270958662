"""FS-Mol (Stanley et al. 2021): thousands of small assays; label-sharing, 2-way.

Not in the paper: its many small tasks show how results depend on the number of training
tasks. An assay labels molecules as active or inactive. The publisher's splits have
4,938 training, 40 validation and 157 test assays; half of the training assays have
fewer than 50 molecules.

A record is an assay. It has what RDKit computes of each molecule: a count fingerprint
and 2D descriptors. On loading, both become features in [0, 1], stored as uint8.
Molecules that occur in several assays are stored once.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal.checks import check_range, unknown_name
from mlti_jax._internal.processes import ordered_map
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._pools import DomainPool
from mlti_jax.data._readers import descriptors, files, fingerprints
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders._base import DatasetBuilder, Example
from mlti_jax.data.builders._molecules import CLASSES, MAX_SKIPPED_SHARE, Assay
from mlti_jax.errors import InputError

__all__ = ["FEATURES", "FINGERPRINTS", "Fsmol", "load"]

FEATURES = ("fingerprints", "descriptors", "both")
FINGERPRINTS = ("bits", "counts")
_FILES = {"train": "train", "validation": "valid", "test": "test"}
_SUFFIX = ".jsonl.gz"
_COUNT_BITS = 4  # of counts, log2(1 + 15)


class Fsmol(DatasetBuilder):
    """TFDS builder of FS-Mol; a record is an assay, records are sorted by name."""

    GROUPED_BY = ("assay",)
    EXAMPLES = 5_135
    INSTRUCTIONS = (
        "Download FS-Mol (https://github.com/microsoft/FS-Mol) and put its folders"
        " train, valid and test, with one file like CHEMBL1006005.jsonl.gz per assay,"
        " into a folder DIR; or three tables train.csv.gz, valid.csv.gz and test.csv.gz"
        " with the columns task, smiles and label."
    )

    def _info(self) -> tfds.core.DatasetInfo:
        tensor = functools.partial(
            tfds.features.Tensor, encoding=tfds.features.Encoding.ZLIB
        )
        size, numbers = descriptors.BITS, len(descriptors.NAMES)
        return self.describe(
            {
                "assay": tfds.features.Text(doc="ChEMBL's name of the assay"),
                "smiles": tfds.features.Sequence(
                    tfds.features.Text(doc="canonical SMILES of RDKit")
                ),
                "label": tensor(shape=(None,), dtype=np.uint8, doc="1 is active"),
                "counts": tensor(
                    shape=(None, size),
                    dtype=np.uint8,
                    doc="Morgan count fingerprint of radius 2",
                ),
                "descriptors": tensor(
                    shape=(None, numbers),
                    dtype=np.float32,
                    doc=f"RDKit's 2D descriptors {', '.join(descriptors.NAMES)}",
                ),
            },
            description="Activities of molecules in many small assays of ChEMBL.",
            homepage="https://github.com/microsoft/FS-Mol",
            citation="""@inproceedings{stanley2021fsmol,
              title={{FS-Mol}: A Few-Shot Learning Dataset of Molecules},
              author={Stanley, Megan and Bronskill, John F and Maziarz, Krzysztof and
                Misztela, Hubert and Lanini, Jessica and Segler, Marwin and
                Schneider, Nadine and Brockschmidt, Marc},
              booktitle={NeurIPS Datasets and Benchmarks}, year={2021}}""",
            license="CC BY-SA 3.0 (ChEMBL)",
        )

    def read_raw(self, raw: pathlib.Path) -> Mapping[str, Iterable[Example]]:
        """Read the tables or the assays' files; see the base class."""
        fingerprints.require_rdkit()
        splits = {split: self._read(raw, name) for split, name in _FILES.items()}
        for one, other in itertools.combinations(splits, 2):
            both = sorted(splits[one].keys() & splits[other].keys())
            if both:
                raise InputError(
                    f"assay {both[0]} is in {_FILES[one]} and in {_FILES[other]} of"
                    f" {raw}; expected it in one of them. {files.DOWNLOAD_AGAIN}"
                )

        @functools.cache
        def molecules() -> dict[str, descriptors.Features | None]:
            # Assays share molecules, so each is parsed only once.
            texts = dict.fromkeys(
                text
                for assays in splits.values()
                for assay in assays.values()
                for text in assay.texts
            )
            parsed = ordered_map(descriptors.parse_smiles, texts, self.processes)
            parsed = self.watch(parsed, "parsing molecules", len(texts), "molecule")
            found = dict(zip(texts, parsed, strict=True))
            rejected = [text for text, molecule in found.items() if molecule is None]
            if len(rejected) > MAX_SKIPPED_SHARE * len(found):
                raise InputError(
                    f"RDKit can't parse {len(rejected)} of the {len(found)} molecules"
                    f" in {raw}, such as {fingerprints.unreadable(rejected[0])}, more"
                    f" than {MAX_SKIPPED_SHARE:.0%}; the files are damaged or from"
                    f" another dataset. If they are damaged, {files.DOWNLOAD_AGAIN}"
                )
            return found

        def examples(assays: Mapping[str, Assay]) -> Iterator[Example]:
            for name in sorted(assays):
                example = self._example(assays[name], molecules())
                if example is not None:
                    yield {**example, "assay": name}

        return {split: examples(assays) for split, assays in splits.items()}

    def _read(self, raw: pathlib.Path, name: str) -> dict[str, Assay]:
        """Return the assays of a split by name."""
        path = files.find(
            raw, f"{name}.csv.gz", f"{name}.csv", name, instructions=self.INSTRUCTIONS
        )
        if not path.is_dir():
            return _read_table(path)
        paths = sorted(path.glob(f"*{_SUFFIX}"))
        if not paths:
            raise InputError(f"{path} has no file *{_SUFFIX}. {self.INSTRUCTIONS}")
        assays = ordered_map(_read_lines, paths, self.processes)
        assays = self.watch(assays, f"reading {name}", len(paths), "assay")
        names = [path.name.removesuffix(_SUFFIX) for path in paths]
        return dict(zip(names, assays, strict=True))

    def _example(
        self, assay: Assay, molecules: Mapping[str, descriptors.Features | None]
    ) -> Example | None:
        """Return the record of an assay; None if it lacks a class.

        Molecules that RDKit rejects are skipped.
        """
        kept = [
            (molecule, label)
            for text, label in zip(assay.texts, assay.labels, strict=True)
            if (molecule := molecules[text]) is not None
        ]
        self.skip("RDKit can't read the molecule", len(assay.texts) - len(kept))
        labels = np.array([label for _, label in kept], np.uint8)
        if len(np.unique(labels)) < len(CLASSES):
            self.skip("assays without active or without inactive molecules")
            return None
        counts = np.zeros((len(kept), descriptors.BITS), np.uint8)
        for row, (molecule, _) in zip(counts, kept, strict=True):
            row[molecule.bits] = molecule.counts
        return {
            "smiles": [molecule.smiles for molecule, _ in kept],
            "label": labels,
            "counts": counts,
            "descriptors": np.stack([molecule.descriptors for molecule, _ in kept]),
        }


def _read_table(path: pathlib.Path) -> dict[str, Assay]:
    """Read the assays of a table with the columns task, smiles and label."""
    columns = ("task", "smiles", "label")
    assays: dict[str, Assay] = {}
    for number, row in files.read_table(path, columns, source="FS-Mol's tables"):
        task, smiles, label = (row[column] for column in columns)
        if label not in ("0", "1", "0.0", "1.0") or not task or not smiles:
            raise InputError(
                f"line {number} of {path} has task {task!r}, smiles {smiles!r} and"
                f" label {label!r}; expected a name, SMILES, and 0 or 1. If the file is"
                f" truncated, {files.DOWNLOAD_AGAIN}"
            )
        assay = assays.setdefault(task, Assay(str(path), [], []))
        assay.texts.append(smiles)  # type: ignore[attr-defined]
        assay.labels.append(int(float(label)))  # type: ignore[attr-defined]
    if not assays:
        raise InputError(f"{path} has no rows; {files.DOWNLOAD_AGAIN}")
    return assays


def _read_lines(path: pathlib.Path) -> Assay:
    """Read the file of an assay, with a JSON object per line."""
    content = files.unpack_gzip(files.read_bytes(path), path)
    texts, labels = [], []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            # A line has thousands of numbers besides: fingerprints and a graph.
            fields = json.loads(line)
            smiles, value = fields["SMILES"], fields["Property"]
            label = ("0.0", "1.0").index(str(float(value)))
            if not isinstance(smiles, str) or not smiles:
                raise ValueError(f"SMILES is {smiles!r}")
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise InputError(
                f"line {number} of {path} is not a molecule of FS-Mol"
                f" ({type(error).__name__}: {error}); expected JSON with SMILES and"
                f' Property, "0.0" or "1.0". {files.DOWNLOAD_AGAIN}'
            ) from error
        texts.append(smiles)
        labels.append(label)
    return Assay(str(path), texts, labels)


# -------------------------------------------------------------------------- loading


class _Molecules(NamedTuple):
    """The molecules of some assays.

    Attributes:
      assays: names.
      smiles: of the distinct molecules, in order of their first occurrence.
      domain, label, row: of each measurement: its assay, its class, its molecule.
      fingerprints: features of the distinct molecules in [0, 255], uint8 `[M, 2048]`,
        or `[M, 0]`.
      descriptors: float32 `[M, D]`, or `[M, 0]`.
    """

    assays: list[str]
    smiles: list[str]
    domain: np.ndarray
    label: np.ndarray
    row: np.ndarray
    fingerprints: np.ndarray
    descriptors: np.ndarray


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    train_classes: int | None = None,
    features: str = "both",
    fingerprint: str = "bits",
    min_per_class: int = 16,
    seed: int = 0,
) -> Splits:
    """Load FS-Mol from prepared records.

    Training assays are taken in a random order, so that the first 8 are among the first
    16. Descriptors are replaced with their ranks among the molecules of these assays:
    0 for less than all of them, 1 for more, 1/2 for NaN, and the mean rank for equal
    values. So outliers and infinite values do no harm, and no statistics of other
    assays are used.

    Args:
      data_dir: folder of prepared datasets; None for the default.
      train_classes: number of training assays; None for all.
      features: `fingerprints` (Morgan, radius 2, 2,048 bits), `descriptors` (189 of
        RDKit's 2D descriptors), or `both`.
      fingerprint: `bits`, or `counts`: log2(1 + count) / 4, counts up to 15.
      min_per_class: training assays with fewer molecules of a class are left out. A
        task needs shots + queries per class.
      seed: seed of the order of the training assays.

    Returns:
      Domains are assays, classes are `inactive` and `active`; inputs uint8 `[M, 2237]`
      for both kinds of features, which pools read as [0, 1].

    Raises:
      InputError: if an option is invalid or the dataset is not prepared.
    """
    if features not in FEATURES:
        raise unknown_name("features of molecules", features, FEATURES)
    if fingerprint not in FINGERPRINTS:
        raise unknown_name("fingerprint", fingerprint, FINGERPRINTS)
    check_range("min_per_class", min_per_class, 10**6)
    found = prepared.open_prepared("fsmol", data_dir)
    rows, left_out = _training_assays(found, train_classes, min_per_class, seed)
    read = functools.partial(
        _read_assays, found, features=features, fingerprint=fingerprint
    )
    train = read("train", rows)
    ranks = descriptors.Ranks.of(train.descriptors)
    notes = [
        f"fsmol, {len(train.assays):,} training assays with {min_per_class} or more"
        f" molecules of each class ({left_out:,} smaller ones left out), {features}"
    ]
    if features != "descriptors":
        notes[0] += f" ({fingerprint})"
    known = set(train.smiles)

    def other(split: str) -> DomainPool:
        molecules = read(split, np.arange(len(prepared.counts(found, split))))
        seen = np.array([smiles in known for smiles in molecules.smiles])
        share = seen[molecules.row].mean()
        notes.append(
            f"{share:.0%} of the {split} molecules also occur in the training assays"
        )
        return _pool(molecules, ranks)

    validation, test = other("validation"), other("test")
    return Splits(
        name="fsmol",
        setting="label_sharing",
        train=_pool(train, ranks),
        validation=validation,
        test=test,
        note="; ".join(notes),
    )


def _training_assays(
    found: DatasetBuilder, number: int | None, min_per_class: int, seed: int
) -> tuple[np.ndarray, int]:
    """Return rows of training assays, in order, and how many assays are too small."""
    names = list(prepared.counts(found, "train"))
    labels = prepared.read_each(found, "train", ("label",), range(len(names)))
    smallest = [
        np.bincount(example["label"], minlength=len(CLASSES)).min()
        for example in labels
    ]
    usable = [
        name for name, n in zip(names, smallest, strict=True) if n >= min_per_class
    ]
    if not usable:
        raise InputError(
            f"min_per_class is {min_per_class}, but no training assay of fsmol has so"
            f" many molecules of each class; expected at most {max(smallest)}"
        )
    if number is not None:
        check_range("train_classes", number, len(usable))

    def place(name: str) -> bytes:
        # By name, so that the order does not depend on which other assays there are.
        return hashlib.sha256(f"{seed} {name}".encode()).digest()

    position = {name: row for row, name in enumerate(names)}
    rows = [position[name] for name in sorted(usable, key=place)[:number]]
    return np.array(rows), len(names) - len(usable)


def _read_assays(
    found: DatasetBuilder,
    split: str,
    rows: Sequence[int] | np.ndarray,
    *,
    features: str,
    fingerprint: str,
) -> _Molecules:
    """Read assays: first which molecules they have, then features of each molecule."""
    assays: list[str] = []
    labels: list[np.ndarray] = []
    of_measurement: list[int] = []
    position: dict[str, int] = {}
    sources: list[np.ndarray] = []  # molecules that an assay is the first to have
    for example in prepared.read_each(found, split, ("assay", "smiles", "label"), rows):
        assays.append(example["assay"].decode())
        labels.append(example["label"])
        before = len(position)
        new: list[int] = []
        for place, smiles in enumerate(example["smiles"]):
            number = position.setdefault(smiles.decode(), len(position))
            if number == before + len(new):
                new.append(place)
            of_measurement.append(number)
        sources.append(np.array(new, np.int64))
    size, numbers = len(position), len(descriptors.NAMES)
    fields = []
    if features != "descriptors":
        fields.append("counts")
    if features != "fingerprints":
        fields.append("descriptors")
    columns: dict[str, np.ndarray] = {
        "counts": np.empty((size, descriptors.BITS * ("counts" in fields)), np.uint8),
        "descriptors": np.empty(
            (size, numbers * ("descriptors" in fields)), np.float32
        ),
    }
    codes = _codes(fingerprint)
    start = 0
    examples = prepared.read_each(found, split, fields, rows)
    for example, new_rows in zip(examples, sources, strict=True):
        stop = start + len(new_rows)
        for field in fields:
            values = example[field][new_rows]
            columns[field][start:stop] = codes[values] if field == "counts" else values
        start = stop
    return _Molecules(
        assays,
        list(position),
        np.repeat(np.arange(len(assays)), [len(label) for label in labels]),
        np.concatenate(labels).astype(np.int64),
        np.array(of_measurement),
        columns["counts"],
        columns["descriptors"],
    )


def _codes(fingerprint: str) -> np.ndarray:
    """Return the feature in [0, 255] of each count, uint8 `[256]`."""
    counts = np.arange(descriptors.LARGEST_COUNT + 1)
    if fingerprint == "bits":
        return np.where(counts > 0, 255, 0).astype(np.uint8)
    shares = np.log2(1 + counts).clip(max=_COUNT_BITS) / _COUNT_BITS
    return np.rint(255 * shares).astype(np.uint8)


def _pool(molecules: _Molecules, ranks: descriptors.Ranks) -> DomainPool:
    x = np.concatenate([molecules.fingerprints, ranks(molecules.descriptors)], axis=1)
    return DomainPool.from_arrays(
        x,
        molecules.domain,
        molecules.label,
        row=molecules.row,
        domains=molecules.assays,
        classes=CLASSES,
    )
