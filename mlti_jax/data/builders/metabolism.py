"""TDC Metabolism (App. D.1): eight CYP data sets; label-sharing, 2-way 5-shot.

Five are for meta-training and three for meta-testing (the main text says six; the
appendix lists these); the paper has no validation tasks. A molecule is a fingerprint of
1,024 bits. Each set is balanced and has at most 1,000 molecules.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Mapping

import tensorflow_datasets as tfds

from mlti_jax.data._readers import files, fingerprints
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders._base import Example
from mlti_jax.data.builders._molecules import Assay, MoleculeBuilder, load_assays
from mlti_jax.errors import InputError

__all__ = ["Metabolism", "load"]

_TRAIN = (
    "cyp1a2_veith",
    "cyp3a4_veith",
    "cyp2d6_veith",
    "cyp2c9_substrate_carbonmangels",
    "cyp2d6_substrate_carbonmangels",
)
_TEST = ("cyp2c19_veith", "cyp2c9_veith", "cyp3a4_substrate_carbonmangels")
_FILES = ", ".join(f"{name}.tab" for name in _TRAIN + _TEST)


class Metabolism(MoleculeBuilder):
    """TFDS builder of Metabolism; records are grouped by data set ("assay")."""

    EXAMPLES = 64_800
    INSTRUCTIONS = (
        "Download the eight CYP data sets of the Therapeutics Data Commons (TDC, tasks"
        " 'CYP P450 Inhibition, Veith et al.' and 'CYP Substrate, Carbon-Mangels et"
        f" al.') and put their files {_FILES} (columns Drug_ID, Drug, Y) into a folder"
        " DIR."
    )

    def _info(self) -> tfds.core.DatasetInfo:
        return self.describe(
            self.molecule_features(_TRAIN + _TEST),
            description="Inhibitors and substrates of cytochrome P450 enzymes.",
            homepage="https://tdcommons.ai",
            citation="""@inproceedings{huang2021therapeutics,
              title={Therapeutics Data Commons: Machine Learning Datasets and Tasks for
                Drug Discovery and Development},
              author={Huang, Kexin and Fu, Tianfan and Gao, Wenhao and others},
              booktitle={NeurIPS Datasets and Benchmarks}, year={2021}}""",
            license="CC BY 4.0",
        )

    def read_raw(self, raw: pathlib.Path) -> Mapping[str, Iterable[Example]]:
        """Read the tables; see the base class."""
        fingerprints.require_rdkit()
        assays = {}
        for name in _TRAIN + _TEST:
            path = files.find(raw, f"{name}.tab", instructions=self.INSTRUCTIONS)
            assays[name] = _read_assay(path)
        splits = {"train": _TRAIN, "test": _TEST}
        return self.assay_splits(fingerprints.parse_smiles, assays, splits)


def _read_assay(path: pathlib.Path) -> Assay:
    """Read SMILES and labels of a TDC table."""
    rows = files.read_table(
        path,
        ("Drug", "Y"),
        source="TDC's own file, separated by tabs",
        delimiter="\t",
    )
    for number, row in rows:
        if row["Y"] not in ("0", "1", "0.0", "1.0") or not row["Drug"]:
            raise InputError(
                f"line {number} of {path} has Drug {row['Drug']!r} and Y {row['Y']!r};"
                " expected SMILES, and 0 or 1. If the file is truncated,"
                f" {files.DOWNLOAD_AGAIN}"
            )
    labels = [int(float(row["Y"])) for _, row in rows]
    return Assay(str(path), [row["Drug"] for _, row in rows], labels)


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    split: str = "paper",
    train_classes: int = len(_TRAIN),
    molecules_per_assay: int | None = 1000,
    fingerprint: str = "morgan",
    seed: int = 0,
) -> Splits:
    """Load Metabolism from prepared records.

    Args:
      data_dir: folder of prepared datasets; None for the default.
      split: `paper`, or `disjoint`, where no test molecule occurs in a training set.
      train_classes: number of training sets, the first of the paper's list.
      molecules_per_assay: number of molecules drawn from each set, half of them active;
        None for as many as possible.
      fingerprint: `morgan` (radius 2) or `path` (RDKit's path fingerprint).
      seed: seed of the draw.

    Returns:
      Domains are data sets, classes are `inactive` and `active`; inputs bool
      `[M, 1024]`.

    Raises:
      InputError: if an option is invalid or the dataset is not prepared.
    """
    return load_assays(
        "metabolism",
        data_dir,
        balanced=True,
        split=split,
        train_classes=train_classes,
        molecules_per_assay=molecules_per_assay,
        fingerprint=fingerprint,
        seed=seed,
    )
