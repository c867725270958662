"""Single-cell counts in .h5ad files, and the preprocessing of Tabula Muris.

The preprocessing is that of Cao et al. (2020) with scanpy of that year, whose scaling
clips values above 10 only; scanpy 1.10 and later also clip below -10. As in the
benchmark, gene statistics are computed over the cells of all splits: they do not use
cell types, but they do see the cells of the test organs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import scipy.sparse

from mlti_jax._internal import extras
from mlti_jax.data._readers import files
from mlti_jax.errors import InputError

ORGAN_COLUMN = "tissue"
_TYPE_COLUMN = "cell_ontology_class_reannotated"
_NOT_ANNOTATED = ("nan", "NA")
CHUNK_SIZE = 1024  # cells; 100 MB if the file's matrix is dense
_MAX_BYTES = 2**30  # of a column of cells or genes; the release has less than 10 MB

_MIN_CELLS_PER_GENE = 5
_MIN_COUNTS_PER_CELL = 5000
_MIN_GENES_PER_CELL = 500
_TARGET_SUM = 1e4
_BINS = 20
_LOG_MEAN_RANGE = (0.0125, 10)
_MIN_DISPERSION = 0.5
_MAX_VALUE = 10


@dataclasses.dataclass(frozen=True)
class CellFile:
    """An .h5ad file whose counts are read in chunks.

    Attributes:
      path: the file.
      organs: organ of each of its M cells, `[M]`.
      types: type of each cell, `[M]`.
      annotated: whether a cell has a type, bool `[M]`.
      genes: names of the genes, `[G]`.
    """

    path: pathlib.Path
    organs: np.ndarray
    types: np.ndarray
    annotated: np.ndarray
    genes: np.ndarray

    @classmethod
    def open(cls, path: pathlib.Path) -> CellFile:
        """Read everything except the counts.

        Raises:
          InputError: if the file is damaged or lacks a column.
        """
        with _open_h5ad(path) as data:
            for column in (ORGAN_COLUMN, _TYPE_COLUMN):
                if column not in data.obs:
                    raise InputError(
                        f"{path} has no column {column!r} in obs, found"
                        f" {', '.join(data.obs) or 'none'}; it is not the file of"
                        " the benchmark"
                    )
            organs = data.obs[ORGAN_COLUMN].astype(str).to_numpy(str)
            types = data.obs[_TYPE_COLUMN].astype(str).str.strip().to_numpy(str)
            annotated = data.obs[_TYPE_COLUMN].notna().to_numpy()
            genes = data.var_names.to_numpy(str)
        annotated &= ~np.isin(types, _NOT_ANNOTATED)
        return cls(path, organs, types, annotated, genes)

    def chunks(self, cells: np.ndarray) -> Iterator[scipy.sparse.csr_array]:
        """Yield the counts `[n, G]` of selected `cells`, bool `[M]`, in chunks."""
        with _open_h5ad(self.path) as data:
            with _reading(self.path):
                counts = data.X
            if getattr(counts, "format", "csr") != "csr":
                raise InputError(
                    f"X of {self.path} is stored by columns (CSC) and can't be read in"
                    " chunks; store it by rows: X = X.tocsr()"
                )
            for start in range(0, len(cells), CHUNK_SIZE):
                chosen = cells[start : start + CHUNK_SIZE]
                with _reading(self.path):
                    rows = counts[start : start + len(chosen)]
                    part = scipy.sparse.csr_array(rows)
                    # SciPy's functions read outside the arrays if indices are wrong.
                    part.check_format(full_check=True)
                    if part.shape != (len(chosen), len(self.genes)):
                        raise ValueError(f"X has rows of shape {part.shape}")
                part.eliminate_zeros()  # The remaining entries are expressed.
                self._check_counts(part.data)
                yield part[np.flatnonzero(chosen)]

    def _check_counts(self, values: np.ndarray) -> None:
        wrong = ~((values >= 0) & (values < np.inf) & (values == np.rint(values)))
        if wrong.any():
            raise InputError(
                f"X of {self.path} holds the value {values[np.argmax(wrong)]}; expected"
                " counts, integers of 0 or more. The file was processed already; use"
                " the original file"
            )


@dataclasses.dataclass(frozen=True)
class Cells:
    """Cells that passed the filters, log-normalized and not yet scaled.

    Attributes:
      expression: expression of the highly variable genes, float32 `[N, H]`, sparse.
      mean: mean of each gene, `[H]`.
      std: standard deviation of each gene, `[H]`.
      organs: organ of each cell, `[N]`.
      types: type of each cell, `[N]`.
      genes: names of the genes, `[H]`.
    """

    expression: scipy.sparse.csr_array
    mean: np.ndarray
    std: np.ndarray
    organs: np.ndarray
    types: np.ndarray
    genes: np.ndarray

    def scaled(self, rows: np.ndarray) -> np.ndarray:
        """Return standard scores of some cells, clipped at 10, float32 `[n, H]`."""
        # The std of a highly variable gene is never 0.
        scores = (self.expression[rows].toarray() - self.mean) / self.std
        return np.minimum(scores, _MAX_VALUE).astype(np.float32)


class _Moments:
    """Mean and variance of columns, accumulated over chunks of rows."""

    def __init__(self) -> None:
        self.number = 0
        self.sum: Any = 0.0
        self.squares: Any = 0.0

    def add(self, chunk: scipy.sparse.csr_array) -> None:
        """Add rows, float64 `[n, G]`."""
        self.number += chunk.shape[0]
        self.sum += chunk.sum(axis=0)
        self.squares += chunk.multiply(chunk).sum(axis=0)

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean `[G]` and unbiased variance `[G]`."""
        mean = self.sum / self.number
        variance = (self.squares / self.number - mean**2).clip(0)
        return mean, variance * (self.number / (self.number - 1))


@contextlib.contextmanager
def _open_h5ad(path: pathlib.Path) -> Iterator[Any]:
    anndata = extras.require("anndata", "cells")

    files.check_file(path)
    with _reading(path), warnings.catch_warnings():
        _check_sizes(path)
        # Users can't do anything about the old format of the published file.
        warnings.simplefilter("ignore", anndata.OldFormatWarning)
        data = anndata.read_h5ad(path, backed="r")
    try:
        yield data
    finally:
        data.file.close()


def _check_sizes(path: pathlib.Path) -> None:
    """Raise `ValueError` if a part that is read as a whole has too many bytes."""
    h5py = extras.require("h5py", "cells")  # a requirement of anndata
    with h5py.File(path) as file:

        def check(name: str, part: Any) -> None:
            in_chunks = name == "X" or name in ("X/data", "X/indices")
            size = getattr(part, "nbytes", 0)
            if size > _MAX_BYTES and not in_chunks:
                raise ValueError(f"{name} has {size:,} bytes unpacked")

        file.visititems(check)


@contextlib.contextmanager
def _reading(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # HDF5 and anndata raise errors of many types.
        line = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise InputError(
            f"can't read {path} as an .h5ad file ({type(error).__name__}: {line}); it"
            f" is damaged, truncated or of another type; {files.DOWNLOAD_AGAIN}"
        ) from error


Watch = Callable[[Iterable[Any], str], Iterable[Any]]


def preprocess(file: CellFile, watch: Watch = lambda items, label: items) -> Cells:
    """Filter cells and genes, normalize the counts and take the logarithm.

    The file is read three times: memory only has to hold the highly variable genes.

    Args:
      file: the counts.
      watch: yields chunks of cells and shows progress.

    Raises:
      InputError: if too few cells or genes remain.
    """
    cells_per_gene = np.zeros(len(file.genes), np.int64)
    for chunk in watch(file.chunks(file.annotated), "selecting common genes"):
        cells_per_gene += np.bincount(chunk.indices, minlength=len(file.genes))
    common = np.flatnonzero(cells_per_gene >= _MIN_CELLS_PER_GENE)

    passed, moments = [], _Moments()
    for chunk in watch(file.chunks(file.annotated), "selecting cells"):
        chunk = chunk[:, common]
        deep = chunk.sum(axis=1, dtype=np.float64) >= _MIN_COUNTS_PER_CELL
        passed.append(deep & (np.diff(chunk.indptr) >= _MIN_GENES_PER_CELL))
        moments.add(_normalize(chunk[np.flatnonzero(passed[-1])]))
    usable = file.annotated.copy()
    usable[file.annotated] = np.concatenate(passed)
    if moments.number < 2:
        raise InputError(
            f"{file.path} has {moments.number} annotated cells with"
            f" {_MIN_COUNTS_PER_CELL:,} counts and {_MIN_GENES_PER_CELL} genes;"
            " expected about 100,000. Use the release of raw counts"
        )
    chosen = highly_variable(*moments.result())
    if not chosen.any():
        raise InputError(
            f"{file.path} has no highly variable gene among {len(common)}; expected"
            " about 3,000. Use the release of raw counts"
        )

    parts, moments = [], _Moments()
    for chunk in watch(file.chunks(usable), "normalizing"):
        # The total counts include common genes that are not selected.
        part = _normalize(chunk[:, common])[:, np.flatnonzero(chosen)].log1p()
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


def _normalize(counts: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Scale the counts of each cell, `[n, G]`, to a sum of 10,000, in float64."""
    factor = _TARGET_SUM / counts.sum(axis=1, dtype=np.float64)
    normal = counts.astype(np.float64)
    normal.data *= np.repeat(factor, np.diff(counts.indptr))
    return normal


def highly_variable(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Select genes by dispersion, variance over mean, relative to similar means.

    Args:
      mean: mean of each gene's normalized counts, `[G]`.
      variance: variance of each gene's normalized counts, `[G]`.

    Returns:
      Whether a gene varies more than others in its bin of log mean, bool `[G]`.
    """
    import pandas as pd

    with np.errstate(divide="ignore", invalid="ignore"):
        dispersion = pd.Series(np.log(variance / mean))
    dispersion[variance == 0] = np.nan  # Constant genes must not affect their bin.
    log_mean = np.log1p(mean)
    in_bin = dispersion.groupby(pd.cut(log_mean, _BINS), observed=True)
    spread = in_bin.transform("std")
    score = (dispersion - in_bin.transform("mean")) / spread
    score[spread.isna() & dispersion.notna()] = 1  # Alone in its bin: selected.
    low, high = _LOG_MEAN_RANGE
    return (score.to_numpy() > _MIN_DISPERSION) & (low < log_mean) & (log_mean < high)
