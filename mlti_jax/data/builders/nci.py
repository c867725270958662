"""NCI (App. D.1): nine anticancer assays, active or not; label-sharing, 2-way 5-shot.

Six assays for meta-training and three for meta-testing; the paper has no validation
tasks. A molecule is 1,024 bits.
"""

from __future__ import annotations

import os
import pathlib
import zipfile
from collections.abc import Iterable

from mlti_jax.data._readers import fingerprints, molecules, raw
from mlti_jax.data._readers.molecules import Assay, MoleculeBuilder
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders.base import Example
from mlti_jax.errors import InputError

TRAIN = ("41", "47", "81", "83", "109", "145")
TEST = ("1", "33", "123")
ARCHIVE = "NCI_balanced.zip"
END_OF_RECORD = "$$$$"


class Nci(MoleculeBuilder):
    """The builder; records are grouped by assay."""

    EXAMPLES = 32_451
    INSTRUCTIONS = (
        f"Download {ARCHIVE} ('NCI balanced', graph classification data sets by Shirui"
        " Pan, nine files like NCI_balanced/1-balance.sdf) and put it, packed, into a"
        " folder DIR."
    )

    def _info(self):
        return self.describe(
            self.molecule_features(TRAIN + TEST),
            description="Nine NCI bioassays of anticancer activity, balanced.",
            homepage="https://github.com/shiruipan/graph_datasets",
            citation="""@misc{nci, title={{NCI} balanced graph classification data},
              author={Pan, Shirui}, year={2015}}""",
            license="PubChem bioassay data; see PubChem's terms of use.",
        )

    def read_raw(self, folder: pathlib.Path) -> dict[str, Iterable[Example]]:
        """Reads the archive; see the base class."""
        fingerprints.require_rdkit()
        path = raw.require(folder, ARCHIVE, instructions=self.INSTRUCTIONS)
        assays = {}
        with raw.open_zip(path) as archive:
            for assay, member in _members(archive).items():
                content = raw.read_member(archive, member)
                assays[assay] = read_sdf(content, f"{member} in {path}")
        splits = {"train": TRAIN, "test": TEST}
        return self.assay_splits(parse_block, assays, splits)


def _members(archive: zipfile.ZipFile) -> dict[str, str]:
    """The archive's file of each assay."""
    names = {pathlib.PurePosixPath(name).name: name for name in archive.namelist()}
    members = {}
    for assay in TRAIN + TEST:
        wanted = f"{assay}-balance.sdf"
        if wanted not in names:
            raise InputError(
                f"{archive.filename} lacks {wanted}; it is no complete release of"
                f" NCI balanced, which has nine such files. {Nci.INSTRUCTIONS}"
            )
        members[assay] = names[wanted]
    return members


def read_sdf(content: bytes, place: str) -> Assay:
    """The molecules' blocks and the labels of an SDF file."""
    records = split_records(content, place)
    labels = [read_label(n, record, place) for n, record in enumerate(records)]
    blocks = [record.partition("M  END")[0] for record in records]
    return Assay(place, blocks, labels)


def split_records(content: bytes, place: str) -> list[str]:
    """The records of an SDF file."""
    text = content.decode("utf-8", errors="replace").replace("\r\n", "\n")
    *records, rest = text.split(f"{END_OF_RECORD}\n")
    if rest.strip() == END_OF_RECORD:  # no line end after the last one
        rest = ""
    if rest.strip() or not records:
        raise InputError(
            f"{place} is cut off: record {len(records)} has no end ({END_OF_RECORD});"
            f" {raw.AGAIN}"
        )
    return records


def read_label(number: int, record: str, place: str) -> int:
    """1 for active or 0, by a record's property `value`."""
    lines = [line.strip() for line in record.splitlines()]
    header = next((i for i, line in enumerate(lines) if "<value>" in line), None)
    value = lines[header + 1] if header is not None and header + 1 < len(lines) else ""
    if value not in ("1.0", "-1.0"):
        raise InputError(
            f"record {number} of {place} has the property <value> {value!r}; expected"
            " 1.0 (active) or -1.0. Use the release 'NCI balanced'"
        )
    return int(value == "1.0")


def parse_block(block: str) -> fingerprints.Molecule | None:
    """The molecule of a record's block without its last line; None if refused."""
    from rdkit import Chem

    fingerprints.silence_rdkit()
    return fingerprints.featurise(Chem.MolFromMolBlock(f"{block}M  END\n"))


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    split: str = "paper",
    train_classes: int = len(TRAIN),
    molecules_per_assay: int | None = 1000,
    fingerprint: str = "morgan",
    seed: int = 0,
) -> Splits:
    """Loads NCI.

    Args:
      data_dir: where prepared data lives; None for the default.
      split: `paper`, or `disjoint`, where no test molecule is in a training set.
      train_classes: training assays, the first of `TRAIN`.
      molecules_per_assay: drawn from each assay; None for all.
      fingerprint: `morgan` (radius 2) or `path` (RDKit's own).
      seed: fixes the draw.
    """
    return molecules.load_assays(
        "nci",
        data_dir,
        balanced=False,
        split=split,
        train_classes=train_classes,
        molecules_per_assay=molecules_per_assay,
        fingerprint=fingerprint,
        seed=seed,
    )
