"""Tabula Muris (App. E.1): types of mouse cells; non-label-sharing, 5-way, 1/5-shot.

The benchmark of Cao et al. (2020): 23 organs, 15 for meta-training, 4 for
meta-validation and 4 for meta-testing. A class is a cell type, its cells pooled over
the organs of a split; a type may occur in several splits. A cell is a vector of the
expression of its highly variable genes (2,866 of about 23,000).

The preprocessing is that of Cao et al. with the scanpy of 2020. Its scaling clips
values above 10 and leaves negative ones as they are; scanpy 1.10 and later also clip
below -10. Statistics of genes are over the cells of all splits, as in the benchmark:
they use no types of cells, yet they do see the cells of the test organs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import scipy.sparse
import tensorflow_datasets as tfds

from mlti_jax._internal import extras
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers import raw
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import base
from mlti_jax.data.builders.base import DatasetBuilder, Example
from mlti_jax.errors import InputError

TRAIN = (
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
VALIDATION = ("Skin", "Lung", "Thymus", "Aorta")
TEST = ("Large_Intestine", "Marrow", "Pancreas", "Tongue")
ORGANS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}

FILE = "tabula-muris-comet.h5ad"
ORGAN_COLUMN = "tissue"
TYPE_COLUMN = "cell_ontology_class_reannotated"
NOT_ANNOTATED = ("nan", "NA")
CELLS_AT_ONCE = 1024  # 100 MB where the file's matrix is dense

CELLS_PER_GENE = 5  # at least
COUNTS_PER_CELL = 5000  # at least
GENES_PER_CELL = 500  # at least
NORMAL_COUNTS = 1e4
BINS = 20
LOG_MEAN_RANGE = (0.0125, 10)
SMALLEST_DISPERSION = 0.5
LARGEST_VALUE = 10
CELLS_PER_TYPE = 20  # at least, in a split


class TabulaMuris(DatasetBuilder):
    """The builder; records are grouped by cell type.

    How many genes and which types there are is known only from the file. So the
    feature `genes` has any length (all records have the same; the metadata name the
    genes), and `label` gets its names when the file is read.
    """

    INSTRUCTIONS = (
        "Download tabula-muris-comet.zip (the Tabula Muris benchmark of Cao et al.,"
        " named on https://github.com/snap-stanford/comet), unpack it, and put"
        f" {FILE} into a folder DIR."
    )
    EXAMPLES = 105_960

    def _info(self):
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

    def read_raw(self, folder: pathlib.Path) -> dict[str, Iterable[Example]]:
        """Reads the file; see the base class."""
        require_anndata()
        path = raw.require(folder, FILE, instructions=self.INSTRUCTIONS)
        file = CellFile.open(path)
        chunks = math.ceil(len(file.organs) / CELLS_AT_ONCE)
        cells = preprocess(
            file, lambda items, label: self.watch(items, label, chunks, "chunk")
        )
        rows = {split: split_rows(cells, organs) for split, organs in ORGANS.items()}
        for split, chosen in rows.items():
            if not len(chosen):
                raise InputError(
                    f"{path} has no cell type with {CELLS_PER_TYPE} usable cells in the"
                    f" organs of {split} ({', '.join(ORGANS[split])}); it is no"
                    f" complete release. {self.INSTRUCTIONS}"
                )
        names = np.unique(cells.types[np.concatenate(list(rows.values()))])
        self.info.features["label"].names = names.tolist()
        self.info.metadata["genes"] = cells.genes.tolist()
        return {split: _examples(cells, chosen) for split, chosen in rows.items()}


@dataclasses.dataclass(frozen=True)
class CellFile:
    """An .h5ad file whose counts are read in chunks.

    Attributes:
      path: the file.
      organs: of its M cells, `[M]`.
      types: of its cells, `[M]`.
      annotated: which cells have a type, bool `[M]`.
      genes: names, `[G]`.
    """

    path: pathlib.Path
    organs: np.ndarray
    types: np.ndarray
    annotated: np.ndarray
    genes: np.ndarray

    @classmethod
    def open(cls, path: pathlib.Path) -> CellFile:
        """Reads all but the counts."""
        with _open_h5ad(path) as data:
            for column in (ORGAN_COLUMN, TYPE_COLUMN):
                if column not in data.obs:
                    raise InputError(
                        f"{path} has no column {column!r} in obs, but"
                        f" {', '.join(data.obs) or 'none at all'}; it is no file of"
                        f" this benchmark. {TabulaMuris.INSTRUCTIONS}"
                    )
            organs = data.obs[ORGAN_COLUMN].astype(str).to_numpy(str)
            types = data.obs[TYPE_COLUMN].astype(str).str.strip().to_numpy(str)
            annotated = data.obs[TYPE_COLUMN].notna().to_numpy()
            genes = data.var_names.to_numpy(str)
        missing = [
            organ
            for split in ORGANS.values()
            for organ in split
            if organ not in set(organs)
        ]
        if missing:
            raise InputError(
                f"{path} has no cells of {', '.join(missing)} (column"
                f" {ORGAN_COLUMN!r}), but of {', '.join(np.unique(organs))}; it is no"
                f" complete release. {TabulaMuris.INSTRUCTIONS}"
            )
        annotated &= ~np.isin(types, NOT_ANNOTATED)
        return cls(path, organs, types, annotated, genes)

    def chunks(self, cells: np.ndarray) -> Iterator[scipy.sparse.csr_array]:
        """The counts `[n, G]` of the chosen `cells`, bool `[M]`, some at a time."""
        with _open_h5ad(self.path) as data:
            with _reading(self.path):
                counts = data.X
            if getattr(counts, "format", "csr") != "csr":
                raise InputError(
                    f"X of {self.path} is stored by columns (CSC), which can't be read"
                    " in parts; store it by rows: X = X.tocsr()"
                )
            for start in range(0, len(cells), CELLS_AT_ONCE):
                chosen = cells[start : start + CELLS_AT_ONCE]
                with _reading(self.path):
                    rows = counts[start : start + len(chosen)]
                part = scipy.sparse.csr_array(rows)
                part.eliminate_zeros()  # Every entry that is left is expressed.
                self._check_counts(part.data)
                yield part[np.flatnonzero(chosen)]

    def _check_counts(self, values: np.ndarray) -> None:
        wrong = ~((values >= 0) & (values < np.inf) & (values == np.rint(values)))
        if wrong.any():
            raise InputError(
                f"X of {self.path} holds the value {values[np.argmax(wrong)]}; expected"
                " counts, whole numbers from 0 on. It seems to be processed already;"
                f" use the original file. {TabulaMuris.INSTRUCTIONS}"
            )


@dataclasses.dataclass(frozen=True)
class Cells:
    """Cells that passed the filters; log-normalised, not yet scaled.

    Attributes:
      expression: of the highly variable genes, float32 `[N, H]`, mostly zeros.
      mean, std: of each gene, `[H]`.
      organs, types: of each cell, `[N]`.
      genes: names, `[H]`.
    """

    expression: scipy.sparse.csr_array
    mean: np.ndarray
    std: np.ndarray
    organs: np.ndarray
    types: np.ndarray
    genes: np.ndarray

    def scaled(self, rows: np.ndarray) -> np.ndarray:
        """Standard scores of some cells, at most 10, float32 `[n, H]`."""
        # A highly variable gene varies, so that no std is 0.
        scores = (self.expression[rows].toarray() - self.mean) / self.std
        return np.minimum(scores, LARGEST_VALUE).astype(np.float32)


class Moments:
    """Mean and variance of columns, summed up over chunks of rows."""

    def __init__(self) -> None:
        self.number, self.sum, self.squares = 0, 0.0, 0.0

    def add(self, chunk: scipy.sparse.csr_array) -> None:
        """Takes in more rows, float64 `[n, G]`."""
        self.number += chunk.shape[0]
        self.sum += chunk.sum(axis=0)
        self.squares += chunk.multiply(chunk).sum(axis=0)

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean `[G]` and unbiased variance `[G]`."""
        mean = self.sum / self.number
        variance = (self.squares / self.number - mean**2).clip(0)
        return mean, variance * (self.number / (self.number - 1))


def require_anndata() -> None:
    """Says which extra to install, where the reader of .h5ad files is missing."""
    extras.require("anndata", "cells")


@contextlib.contextmanager
def _open_h5ad(path: pathlib.Path) -> Iterator[Any]:
    import anndata

    with _reading(path), warnings.catch_warnings():
        # That a file of 2020 should be written anew is no concern of the user's.
        warnings.simplefilter("ignore", anndata.OldFormatWarning)
        data = anndata.read_h5ad(path, backed="r")
    try:
        yield data
    finally:
        data.file.close()


@contextlib.contextmanager
def _reading(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # HDF5 and anndata raise errors of many types.
        line = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise InputError(
            f"{path} was not read as an .h5ad file ({type(error).__name__}: {line}); it"
            f" is damaged, cut off, or no such file; {raw.AGAIN}"
        ) from error


Watch = Callable[[Iterable[Any], str], Iterable[Any]]


def preprocess(file: CellFile, watch: Watch = lambda items, label: items) -> Cells:
    """Filters cells and genes, normalises, and takes the logarithm.

    The file is read three times, so that only the highly variable genes are ever
    held in memory for all cells.

    Args:
      file: the counts.
      watch: passes chunks of cells on and shows how far it is.
    """
    cells_per_gene = np.zeros(len(file.genes), np.int64)
    for chunk in watch(file.chunks(file.annotated), "choosing common genes"):
        cells_per_gene += np.bincount(chunk.indices, minlength=len(file.genes))
    common = np.flatnonzero(cells_per_gene >= CELLS_PER_GENE)

    passed, moments = [], Moments()
    for chunk in watch(file.chunks(file.annotated), "choosing cells"):
        chunk = chunk[:, common]
        deep = chunk.sum(axis=1, dtype=np.float64) >= COUNTS_PER_CELL
        passed.append(deep & (np.diff(chunk.indptr) >= GENES_PER_CELL))
        moments.add(normalise(chunk[np.flatnonzero(passed[-1])]))
    usable = file.annotated.copy()
    usable[file.annotated] = np.concatenate(passed)
    if moments.number < 2:
        raise InputError(
            f"{file.path} has {moments.number} annotated cells with"
            f" {COUNTS_PER_CELL:,} counts and {GENES_PER_CELL} genes; expected about"
            f" 100,000. It is no release of raw counts. {TabulaMuris.INSTRUCTIONS}"
        )
    chosen = highly_variable(*moments.result())
    if not chosen.any():
        raise InputError(
            f"{file.path} has no highly variable gene among {len(common)}; expected"
            f" about 3,000. It is no release of raw counts. {TabulaMuris.INSTRUCTIONS}"
        )

    parts, moments = [], Moments()
    for chunk in watch(file.chunks(usable), "normalising"):
        # Counts are of all common genes, also those that are not chosen.
        part = normalise(chunk[:, common])[:, np.flatnonzero(chosen)].log1p()
        moments.add(part)
        parts.append(part.astype(np.float32))
    mean, variance = moments.result()
    return Cells(
        expression=scipy.sparse.vstack(parts, format="csr"),
        mean=mean,
        std=np.sqrt(variance),
        organs=file.organs[usable],
        types=file.types[usable],
        genes=file.genes[common][chosen],
    )


def normalise(counts: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Scales each cell `[G]` of `[n, G]` to 10,000 counts, in float64."""
    factor = NORMAL_COUNTS / counts.sum(axis=1, dtype=np.float64)
    normal = counts.astype(np.float64)
    normal.data *= np.repeat(factor, np.diff(counts.indptr))
    return normal


def highly_variable(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Chooses genes by dispersion: variance by mean, compared to genes of like mean.

    Args:
      mean: of each gene's normalised counts, `[G]`.
      variance: `[G]`.

    Returns:
      Which genes vary more than others in the same bin of log mean, bool `[G]`.
    """
    import pandas as pd

    with np.errstate(divide="ignore", invalid="ignore"):
        dispersion = pd.Series(np.log(variance / mean))
    dispersion[variance == 0] = np.nan  # A constant gene is not to shift its bin.
    log_mean = np.log1p(mean)
    in_bin = dispersion.groupby(pd.cut(log_mean, BINS), observed=True)
    spread = in_bin.transform("std")
    score = (dispersion - in_bin.transform("mean")) / spread
    score[spread.isna() & dispersion.notna()] = 1  # alone in its bin: chosen
    low, high = LOG_MEAN_RANGE
    return (
        (score.to_numpy() > SMALLEST_DISPERSION) & (low < log_mean) & (log_mean < high)
    )


def split_rows(cells: Cells, organs: tuple[str, ...]) -> np.ndarray:
    """The cells of a split, sorted by type; types with too few cells are left out."""
    rows = np.flatnonzero(np.isin(cells.organs, organs))
    types, count = np.unique(cells.types[rows], return_counts=True)
    rows = rows[np.isin(cells.types[rows], types[count >= CELLS_PER_TYPE])]
    return rows[np.argsort(cells.types[rows], kind="stable")]


def _examples(cells: Cells, rows: np.ndarray) -> Iterator[Example]:
    for start in range(0, len(rows), CELLS_AT_ONCE):
        part = rows[start : start + CELLS_AT_ONCE]
        for genes, name in zip(cells.scaled(part), cells.types[part], strict=True):
            yield {"genes": genes, "label": str(name)}


def load(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    train_classes: int | None = None,
) -> Splits:
    """Loads Tabula Muris.

    Args:
      data_dir: where prepared data lives; None for the default.
      train_classes: training types, the first in alphabetical order; None for all (57
        in the benchmark's file).
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
