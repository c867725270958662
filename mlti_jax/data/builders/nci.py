"""NCI (App. D.1): nine anticancer assays; label-sharing, 2-way 5-shot.

Six assays are for meta-training and three for meta-testing; the paper has no validation
tasks. A molecule is a fingerprint of 1,024 bits, labeled active or inactive.
"""

from __future__ import annotations

import os
import pathlib
import zipfile
from collections.abc import Iterable, Mapping

import tensorflow_datasets as tfds

from mlti_jax.data._readers import files, fingerprints
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders._base import Example
from mlti_jax.data.builders._molecules import Assay, MoleculeBuilder, load_assays
from mlti_jax.errors import InputError

__all__ = ["Nci", "load"]

_TRAIN = ("41", "47", "81", "83", "109", "145")
_TEST = ("1", "33", "123")
_ARCHIVE = "NCI_balanced.zip"
_END_OF_BLOCK = "M  END"
_END_OF_RECORD = "$$$$"


class Nci(MoleculeBuilder):
    """TFDS builder of NCI; records are grouped by assay."""

    EXAMPLES = 32_451
    INSTRUCTIONS = (
        f"Download {_ARCHIVE} ('NCI balanced', graph classification data sets by Shirui"
        " Pan, nine files like NCI_balanced/1-balance.sdf) and put it, without"
        " unpacking, into a folder DIR."
    )

    def _info(self) -> tfds.core.DatasetInfo:
        return self.describe(
            self.molecule_features(_TRAIN + _TEST),
            description="Nine NCI bioassays of anticancer activity, balanced.",
            homepage="https://github.com/shiruipan/graph_datasets",
            citation="""@misc{nci, title={{NCI} balanced graph classification data},
              author={Pan, Shirui}, year={2015}}""",
            license="PubChem bioassay data; see PubChem's terms of use.",
        )

    def read_raw(self, raw: pathlib.Path) -> Mapping[str, Iterable[Example]]:
        """Read the archive; see the base class."""
        fingerprints.require_rdkit()
        path = files.find(raw, _ARCHIVE, instructions=self.INSTRUCTIONS)
        assays = {}
        with files.open_zip(path) as archive:
            for assay, member in _members(archive).items():
                content = files.read_member(archive, member)
                assays[assay] = _read_sdf(content, f"{member} in {path}")
        splits = {"train": _TRAIN, "test": _TEST}
        return self.assay_splits(fingerprints.parse_mol_block, assays, splits)


def _members(archive: zipfile.ZipFile) -> dict[str, str]:
    """Return the archive's file of each assay."""
    names = {pathlib.PurePosixPath(name).name: name for name in archive.namelist()}
    members = {}
    for assay in _TRAIN + _TEST:
        wanted = f"{assay}-balance.sdf"
        if wanted not in names:
            raise InputError(
                f"{archive.filename} has no {wanted}; the complete release of NCI"
                f" balanced has nine such files. {Nci.INSTRUCTIONS}"
            )
        members[assay] = names[wanted]
    return members


def _read_sdf(content: bytes, place: str) -> Assay:
    """Return the mol blocks and labels of an SDF file."""
    records = _split_records(content, place)
    labels = [_read_label(n, record, place) for n, record in enumerate(records)]
    blocks = [
        f"{record.partition(_END_OF_BLOCK)[0]}{_END_OF_BLOCK}\n" for record in records
    ]
    return Assay(place, blocks, labels)


def _split_records(content: bytes, place: str) -> list[str]:
    text = content.decode("utf-8", errors="replace").replace("\r\n", "\n")
    *records, rest = text.split(f"{_END_OF_RECORD}\n")
    if rest.strip() == _END_OF_RECORD:  # The last line has no line end.
        rest = ""
    if rest.strip() or not records:
        raise InputError(
            f"{place} is truncated: record {len(records)} has no end"
            f" ({_END_OF_RECORD}); {files.DOWNLOAD_AGAIN}"
        )
    return records


def _read_label(number: int, record: str, place: str) -> int:
    """Return 1 for active and 0 for inactive, from a record's property `value`."""
    lines = [line.strip() for line in record.splitlines()]
    header = next((i for i, line in enumerate(lines) if "<value>" in line), None)
    value = lines[header + 1] if header is not None and header + 1 < len(lines) else ""
    if value not in ("1.0", "-1.0"):
        raise InputError(
            f"record {number} of {place} has the property <value> {value!r}; expected"
            " 1.0 (active) or -1.0 (inactive). Use the release 'NCI balanced'"
        )
    return int(value == "1.0")


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    split: str = "paper",
    train_classes: int = len(_TRAIN),
    molecules_per_assay: int | None = 1000,
    fingerprint: str = "morgan",
    seed: int = 0,
    draw: str = "random",
) -> Splits:
    """Load NCI from prepared records.

    Args:
      data_dir: folder of prepared datasets; None for the default.
      split: `paper`, or `disjoint`, where no test molecule occurs in a training set.
      train_classes: number of training assays, the first of the paper's list.
      molecules_per_assay: number of molecules drawn from each assay; None for all.
      fingerprint: `morgan` (radius 2) or `path` (RDKit's path fingerprint).
      seed: seed of the draw.
      draw: `random`, or `first`: train with the first molecules of each class, half of
        `molecules_per_assay` each, in the order of the release, and test with all
        molecules, as the released code does.

    Returns:
      Domains are assays, classes are `inactive` and `active`; inputs bool `[M, 1024]`.

    Raises:
      InputError: if an option is invalid or the dataset is not prepared.
    """
    return load_assays(
        "nci",
        data_dir,
        balanced=False,
        split=split,
        train_classes=train_classes,
        molecules_per_assay=molecules_per_assay,
        fingerprint=fingerprint,
        seed=seed,
        draw=draw,
    )
