"""TDC Metabolism (App. D.1): eight CYP data sets; label-sharing, 2-way 5-shot.

Five for meta-training and three for meta-testing (the main text says six; the appendix
names these); the paper has no validation tasks. A molecule is 1,024 bits, and a set is
balanced, with at most 1,000 molecules.
"""

from __future__ import annotations

import csv
import os
import pathlib
from collections.abc import Iterable

from mlti_jax.data._readers import fingerprints, molecules, raw
from mlti_jax.data._readers.molecules import Assay, MoleculeBuilder
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders.base import Example
from mlti_jax.errors import InputError

TRAIN = (
    "cyp1a2_veith",
    "cyp3a4_veith",
    "cyp2d6_veith",
    "cyp2c9_substrate_carbonmangels",
    "cyp2d6_substrate_carbonmangels",
)
TEST = ("cyp2c19_veith", "cyp2c9_veith", "cyp3a4_substrate_carbonmangels")
FILES = ", ".join(f"{name}.tab" for name in TRAIN + TEST)
COLUMNS = ("Drug", "Y")


class Metabolism(MoleculeBuilder):
    """The builder; records are grouped by data set, which is called assay here."""

    EXAMPLES = 64_800
    INSTRUCTIONS = (
        "Download the eight CYP data sets of the Therapeutics Data Commons (TDC, tasks"
        " 'CYP P450 Inhibition, Veith et al.' and 'CYP Substrate, Carbon-Mangels et"
        f" al.') and put their files {FILES} (columns Drug_ID, Drug, Y) into a folder"
        " DIR."
    )

    def _info(self):
        return self.describe(
            self.molecule_features(TRAIN + TEST),
            description="Inhibitors and substrates of cytochrome P450 enzymes.",
            homepage="https://tdcommons.ai",
            citation="""@inproceedings{huang2021therapeutics,
              title={Therapeutics Data Commons: Machine Learning Datasets and Tasks for
                Drug Discovery and Development},
              author={Huang, Kexin and Fu, Tianfan and Gao, Wenhao and others},
              booktitle={NeurIPS Datasets and Benchmarks}, year={2021}}""",
            license="CC BY 4.0",
        )

    def read_raw(self, folder: pathlib.Path) -> dict[str, Iterable[Example]]:
        """Reads the tables; see the base class."""
        fingerprints.require_rdkit()
        assays = {}
        for name in TRAIN + TEST:
            path = raw.require(folder, f"{name}.tab", instructions=self.INSTRUCTIONS)
            assays[name] = read_table(path)
        splits = {"train": TRAIN, "test": TEST}
        return self.assay_splits(fingerprints.parse_smiles, assays, splits)


def read_table(path: pathlib.Path) -> Assay:
    """SMILES and labels of a TDC table."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} can't be read as a table ({error})") from error
    found = list(rows[0]) if rows else []
    for column in COLUMNS:
        if column not in found:
            raise InputError(
                f"{path} has no column {column!r}, but {found}; use TDC's own file,"
                " separated by tabs"
            )
    for number, row in enumerate(rows, start=2):
        if row["Y"] not in ("0", "1", "0.0", "1.0") or not row["Drug"]:
            raise InputError(
                f"line {number} of {path} has Drug {row['Drug']!r} and Y {row['Y']!r};"
                f" expected SMILES, and 0 or 1. If the file is cut off, {raw.AGAIN}"
            )
    labels = [int(float(row["Y"])) for row in rows]
    return Assay(str(path), [row["Drug"] for row in rows], labels)


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    split: str = "paper",
    train_classes: int = len(TRAIN),
    molecules_per_assay: int | None = 1000,
    fingerprint: str = "morgan",
    seed: int = 0,
) -> Splits:
    """Loads Metabolism; sets are balanced, the arguments are those of `nci.load`."""
    return molecules.load_assays(
        "metabolism",
        data_dir,
        balanced=True,
        split=split,
        train_classes=train_classes,
        molecules_per_assay=molecules_per_assay,
        fingerprint=fingerprint,
        seed=seed,
    )
