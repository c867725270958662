"""Tabula Muris (App. E.1): types of mouse cells; non-label-sharing, 5-way, 1/5-shot.

The benchmark of Cao et al. (2020): 23 organs, 15 for meta-training, 4 for
meta-validation and 4 for meta-testing. A class is a cell type, its cells pooled over
the organs of a split; a type may occur in several splits. A cell is a vector of the
expression of highly variable genes (2,866 of about 23,000).

See `mlti_jax.data._readers.cells` for the preprocessing.
"""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import tensorflow_datasets as tfds

from mlti_jax._internal import extras
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers import files
from mlti_jax.data._readers.cells import (
    CHUNK_SIZE,
    ORGAN_COLUMN,
    CellFile,
    Cells,
    preprocess,
)
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import _base as base
from mlti_jax.errors import InputError

__all__ = ["TabulaMuris", "load"]

_TRAIN = (
    "BAT",
    "MAT",
    "Limb_Muscle",
    "Trachea",
    "Heart",
    "Spleen",
    "GAT",
    "SCAT",
    "Mammary_Gland",
    "Liver",
    "Kidney",
    "Bladder",
    "Brain_Myeloid",
    "Brain_Non-Myeloid",
    "Diaphragm",
)
_VALIDATION = ("Skin", "Lung", "Thymus", "Aorta")
_TEST = ("Large_Intestine", "Marrow", "Pancreas", "Tongue")
_ORGANS = {"train": _TRAIN, "validation": _VALIDATION, "test": _TEST}

_FILE = "tabula-muris-comet.h5ad"
_MIN_CELLS_PER_TYPE = 20  # in a split


class TabulaMuris(base.DatasetBuilder):
    """TFDS builder of Tabula Muris; records are grouped by cell type.

    Genes and cell types are known only from the file. So the feature `genes` has a
    variable length (equal in all records; the metadata lists the genes), and the names
    of `label` are set when the file is read.
    """

    INSTRUCTIONS = (
        "Download tabula-muris-comet.zip (the Tabula Muris benchmark of Cao et al.,"
        " linked on https://github.com/snap-stanford/comet), unpack it, and put"
        f" {_FILE} into a folder DIR."
    )
    EXAMPLES = 105_960

    def _info(self) -> tfds.core.DatasetInfo:
        return self.describe(
            {
                "genes": base.bytes_tensor((None,), np.float32),
                "label": tfds.features.ClassLabel(),
            },
            description="Single cells of 23 mouse organs, by cell type.",
            homepage="https://snap.stanford.edu/comet",
            citation="""@inproceedings{cao2020concept,
              title={Concept Learners for Few-Shot Learning},
              author={Cao, Kaidi and Brbi{\\'c}, Maria and Leskovec, Jure},
              booktitle={International Conference on Learning Representations},
              year={2021}}""",
            license="Tabula Muris Senis; see the publisher's terms of use.",
        )

    def read_raw(self, raw: pathlib.Path) -> Mapping[str, Iterable[base.Example]]:
        """Read the file; see the base class."""
        extras.require("anndata", "cells")
        path = files.find(raw, _FILE, instructions=self.INSTRUCTIONS)
        try:
            cells, rows = self._select(CellFile.open(path))
        except InputError as error:
            raise InputError(f"{error}. {self.INSTRUCTIONS}") from error
        names = np.unique(cells.types[np.concatenate(list(rows.values()))])
        self.info.features["label"].names = names.tolist()
        self.info.metadata["genes"] = cells.genes.tolist()
        return {split: _examples(cells, chosen) for split, chosen in rows.items()}

    def _select(self, file: CellFile) -> tuple[Cells, dict[str, np.ndarray]]:
        """Preprocess the counts. Returns all usable cells and the rows per split."""
        present = np.unique(file.organs)
        missing = [o for part in _ORGANS.values() for o in part if o not in present]
        if missing:
            raise InputError(
                f"{file.path} has no cells of {', '.join(missing)} (column"
                f" {ORGAN_COLUMN!r}), found {', '.join(present)}; the release is"
                " incomplete"
            )
        chunks = math.ceil(len(file.organs) / CHUNK_SIZE)
        cells = preprocess(
            file, lambda items, label: self.watch(items, label, chunks, "chunk")
        )
        rows = {split: _split_rows(cells, organs) for split, organs in _ORGANS.items()}
        for split, chosen in rows.items():
            if not len(chosen):
                raise InputError(
                    f"{file.path} has no cell type with {_MIN_CELLS_PER_TYPE} usable"
                    f" cells in the organs of {split} ({', '.join(_ORGANS[split])});"
                    " the release is incomplete"
                )
        return cells, rows


def _split_rows(cells: Cells, organs: tuple[str, ...]) -> np.ndarray:
    """Return the cells of a split, sorted by type, without types of too few cells."""
    rows = np.flatnonzero(np.isin(cells.organs, organs))
    types, count = np.unique(cells.types[rows], return_counts=True)
    rows = rows[np.isin(cells.types[rows], types[count >= _MIN_CELLS_PER_TYPE])]
    return rows[np.argsort(cells.types[rows], kind="stable")]


def _examples(cells: Cells, rows: np.ndarray) -> Iterator[base.Example]:
    for start in range(0, len(rows), CHUNK_SIZE):
        part = rows[start : start + CHUNK_SIZE]
        for genes, name in zip(cells.scaled(part), cells.types[part], strict=True):
            yield {"genes": genes, "label": str(name)}


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    train_classes: int | None = None,
) -> Splits:
    """Load Tabula Muris from prepared records.

    Args:
      data_dir: folder of prepared datasets; None for the default.
      train_classes: number of training types, the first in alphabetical order; None for
        all (57 in the benchmark's file).

    Returns:
      Training, validation and test cell types; inputs float32 `[M, genes]`.

    Raises:
      InputError: if `train_classes` is out of range or the dataset is not prepared.
    """
    if train_classes is None:
        found = prepared.open_prepared("tabula_muris", data_dir)
        train_classes = len(prepared.counts(found, "train"))
    return prepared.class_splits(
        "tabula_muris",
        data_dir,
        train_classes=train_classes,
        field="genes",
        note="Tabula Muris, cell types by highly variable genes",
    )
