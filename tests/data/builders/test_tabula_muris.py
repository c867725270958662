"""Tabula Muris: preprocessing against NumPy and scanpy, and invalid files."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import scipy.sparse

from mlti_jax import data
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers import cells as cell_files
from mlti_jax.data.builders import tabula_muris
from mlti_jax.errors import InputError
from tests.support.raw_files import prepare
from tests.support.releases import (
    CELL_FILE,
    CELL_TYPE,
    GENES,
    cell_counts,
    cell_table,
    write_cells,
)

anndata = pytest.importorskip("anndata")
h5py = pytest.importorskip("h5py")
pd = pytest.importorskip("pandas")

ALL_ORGANS = [organ for organs in tabula_muris._ORGANS.values() for organ in organs]


@pytest.fixture(scope="module")
def table():
    return cell_table()


@pytest.fixture(scope="module")
def counts(table):
    return cell_counts(table)


def expected_cells(counts, table):
    """The preprocessing with dense arrays: scaled values, cells, genes."""
    annotated = ~table[CELL_TYPE].astype(str).isin(["nan", "NA"]).to_numpy()
    x = counts[annotated].astype(np.float64)
    genes = np.flatnonzero((x > 0).sum(0) >= 5)
    x = x[:, genes]
    usable = (x.sum(1) >= 5000) & ((x > 0).sum(1) >= 500)
    x = x[usable]
    x = x / x.sum(1, keepdims=True) * 1e4

    log_mean = np.log1p(x.mean(0))
    varies = x.std(0) > 0
    dispersion = np.full(x.shape[1], np.nan)
    dispersion[varies] = np.log(x.var(0, ddof=1)[varies] / x.mean(0)[varies])
    width = (log_mean.max() - log_mean.min()) / 20
    # Bin b is from b * width, exclusive, to (b + 1) * width, inclusive.
    number = np.ceil((log_mean - log_mean.min()) / width - 1e-12).astype(int) - 1
    number = number.clip(0, 19)
    score = np.zeros(x.shape[1])
    for one in range(20):
        inside = (number == one) & varies
        if inside.sum() == 1:
            score[inside] = 1
        elif inside.any():
            values = dispersion[inside]
            score[inside] = (values - values.mean()) / values.std(ddof=1)
    chosen = (score > 0.5) & (log_mean > 0.0125) & (log_mean < 10)

    x = np.log1p(x[:, chosen])
    x = (x - x.mean(0)) / x.std(0, ddof=1)
    cells = np.flatnonzero(annotated)[usable]
    return np.where(x > 10, 10, x), cells, genes[chosen]


@pytest.fixture(scope="module")
def expected(counts, table):
    return expected_cells(counts, table)


@pytest.fixture(scope="module")
def ready(tmp_path_factory, counts, table):
    raw = write_cells(tmp_path_factory.mktemp("raw"), counts, table)
    data_dir = tmp_path_factory.mktemp("data")
    prepare("tabula_muris", raw, data_dir)
    return data_dir


def test_file_covers_all_cases(expected, counts, table):
    x, cells, genes = expected
    dropped = set(range(12)) - set(genes.tolist())
    assert {0, 1, 2, 3, 4, 11} <= dropped
    assert {5, 10} <= set(genes.tolist())  # in five cells; alone in its bin
    assert x.max() == 10
    assert x.min() < -10
    assert 0 < len(genes) < GENES / 2
    assert len(table) - len(cells) == 60 + 8 + 5  # no type; shallow; few genes


def test_records_against_numpy(ready, expected, table):
    x, cells, genes = expected
    builder = prepared.open_prepared("tabula_muris", ready)
    assert builder.info.metadata["genes"] == [f"gene{i}" for i in genes]
    types = table[CELL_TYPE].astype(str).to_numpy()[cells]
    organs = table["tissue"].to_numpy()[cells]
    wanted = {
        "train": ["B cell", "T cell", "just enough"],
        "validation": ["T cell", "keratinocyte"],
        "test": ["T cell", "acinar cell"],
    }
    splits = data.load("tabula_muris", data_dir=ready)
    for split, names in wanted.items():
        pool = getattr(splits, split)
        assert list(pool.classes) == names
        inside = np.isin(organs, tabula_muris._ORGANS[split])
        for number, name in enumerate(names):
            rows = pool.index[number, : pool.count[number]]
            np.testing.assert_allclose(
                pool.x[rows], x[inside & (types == name)], rtol=1e-4, atol=1e-4
            )
    assert splits.train.count[2] == 20
    assert splits.setting == "non_label_sharing"
    assert "3 training classes" in splits.note
    names = builder.info.features["label"].names
    assert names == sorted({name for split in wanted.values() for name in split})


def test_records_against_scanpy(ready, counts, table):
    scanpy = pytest.importorskip("scanpy")
    annotated = ~table[CELL_TYPE].astype(str).isin(["nan", "NA"])
    cells = anndata.AnnData(
        scipy.sparse.csr_matrix(counts[annotated].astype(np.float32)), table[annotated]
    )
    scanpy.pp.filter_genes(cells, min_cells=5)
    scanpy.pp.filter_cells(cells, min_counts=5000)
    scanpy.pp.filter_cells(cells, min_genes=500)
    scanpy.pp.normalize_total(cells, target_sum=1e4)
    scanpy.pp.log1p(cells)  # The next function inverts the logarithm.
    scanpy.pp.highly_variable_genes(
        cells, min_disp=0.5, min_mean=0.0125, max_mean=10, n_bins=20
    )
    cells = cells[:, cells.var["highly_variable"]].copy()
    cells.X = cells.X.toarray()
    scanpy.pp.scale(cells, max_value=10)
    of_type = cells.obs[CELL_TYPE] == "T cell"
    inside = of_type & cells.obs["tissue"].isin(tabula_muris._TRAIN)
    pool = data.load("tabula_muris", data_dir=ready).train
    rows = pool.index[pool.classes.index("T cell"), :150]
    rows = rows[: inside.sum()]
    # This version of scanpy also clips at -10.
    np.testing.assert_allclose(
        np.maximum(pool.x[rows], -10), cells.X[inside], rtol=1e-3, atol=1e-3
    )


def test_constant_genes_have_no_effect():
    rng = np.random.default_rng(0)
    mean, variance = rng.uniform(1, 50, 200), rng.uniform(1, 50, 200)
    chosen = cell_files.highly_variable(mean, variance)
    assert chosen.any()
    more = cell_files.highly_variable(
        np.append(mean, [20.0, 30.0]), np.append(variance, [0.0, 0.0])
    )
    np.testing.assert_array_equal(more, np.append(chosen, [False, False]))


@pytest.mark.parametrize("layout", ["csr", "dense", "old"])
def test_layouts_and_chunks_do_not_matter(
    tmp_path, monkeypatch, counts, table, layout, expected
):
    x, cells, genes = expected
    monkeypatch.setattr(cell_files, "CHUNK_SIZE", 37)
    path = write_cells(tmp_path, counts, table, layout) / CELL_FILE
    found = cell_files.preprocess(cell_files.CellFile.open(path))
    everything = np.arange(len(found.types))
    np.testing.assert_allclose(found.scaled(everything), x, rtol=1e-4, atol=1e-4)
    assert found.types.tolist() == table[CELL_TYPE].iloc[cells].tolist()
    assert found.organs.tolist() == table["tissue"].iloc[cells].tolist()
    assert found.genes.tolist() == [f"gene{i}" for i in genes]


def test_whole_and_chunked_are_equal(tmp_path, monkeypatch, counts, table):
    write_cells(tmp_path, counts, table)
    file = cell_files.CellFile.open(tmp_path / CELL_FILE)
    whole = cell_files.preprocess(file)
    monkeypatch.setattr(cell_files, "CHUNK_SIZE", 100)
    monkeypatch.setattr(tabula_muris, "CHUNK_SIZE", 100)
    parts = cell_files.preprocess(file)
    assert (whole.expression != parts.expression).nnz == 0
    np.testing.assert_allclose(whole.mean, parts.mean, rtol=1e-12)
    np.testing.assert_allclose(whole.std, parts.std, rtol=1e-9)
    rows = tabula_muris._split_rows(whole, tabula_muris._TRAIN)
    examples = list(tabula_muris._examples(parts, rows))
    np.testing.assert_allclose(
        [example["genes"] for example in examples], whole.scaled(rows), rtol=1e-5
    )
    assert [example["label"] for example in examples] == whole.types[rows].tolist()


def test_training_types_are_the_first(ready):
    splits = data.load("tabula_muris", data_dir=ready, train_classes=2)
    assert splits.train.classes == ("B cell", "T cell")
    assert len(splits.test.classes) == 2
    with pytest.raises(InputError, match="train_classes is 4; expected .* from 1 to 3"):
        data.load("tabula_muris", data_dir=ready, train_classes=4)


def test_missing_file_and_missing_data(tmp_path):
    (tmp_path / "another.file").touch()
    with pytest.raises(InputError, match=f"has no {CELL_FILE}. .*snap-stanford/comet"):
        prepare("tabula_muris", tmp_path, tmp_path / "data")
    with pytest.raises(InputError, match="tabula_muris is not prepared in .* Then run"):
        data.load("tabula_muris", data_dir=tmp_path / "data")


def test_missing_package(tmp_path, monkeypatch):
    (tmp_path / "another.file").touch()
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(InputError, match=r"'anndata'; pip install -e '.\[cells\]'"):
        prepare("tabula_muris", tmp_path, tmp_path / "data")


def check_error(tmp_path, message):
    with pytest.raises(InputError, match=message) as error:
        prepare("tabula_muris", tmp_path, tmp_path / "data")
    assert str(tmp_path / CELL_FILE) in str(error.value)


def test_missing_organ(tmp_path, counts, table):
    kept = ~table["tissue"].isin(["Limb_Muscle", "Aorta"]).to_numpy()
    write_cells(tmp_path, counts[kept], table[kept])
    check_error(
        tmp_path, "no cells of Limb_Muscle, Aorta .column 'tissue'., found .*BAT"
    )


@pytest.mark.parametrize("column", ["tissue", CELL_TYPE])
def test_missing_column(tmp_path, counts, table, column):
    write_cells(tmp_path, counts, table.rename(columns={column: "other"}))
    check_error(tmp_path, f"no column '{column}' in obs, found .*other")


@pytest.mark.parametrize("layout", ["csr", "dense"])
@pytest.mark.parametrize("value", [-1.0, 0.5, np.nan, np.inf])
def test_values_that_are_not_counts(tmp_path, counts, table, layout, value):
    counts = counts.astype(np.float32)
    counts[-1, -1] = value
    write_cells(tmp_path, counts, table, layout)
    check_error(tmp_path, f"holds the value {value}; expected counts, integers")


def test_counts_stored_by_columns(tmp_path, counts, table):
    write_cells(tmp_path, counts, table, "csc")
    check_error(tmp_path, r"stored by columns .* X = X.tocsr\(\)")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_truncated_file(tmp_path, counts, table, share):
    path = write_cells(tmp_path, counts, table) / CELL_FILE
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    check_error(
        tmp_path, "can't read .* as an .h5ad file .* truncated .* download or copy it"
    )


def test_damage_inside_the_file(tmp_path, counts, table):
    path = write_cells(tmp_path, counts, table) / CELL_FILE
    with h5py.File(path, "r+") as file:
        del file["X/indices"]
    check_error(tmp_path, "can't read .* as an .h5ad file")


def test_file_without_counts(tmp_path, table):
    anndata.AnnData(obs=table.astype("category")).write_h5ad(tmp_path / CELL_FILE)
    check_error(tmp_path, "can't read .* as an .h5ad file")


def test_other_kinds_of_files(tmp_path):
    path = tmp_path / CELL_FILE
    path.write_text("gene,count\n")
    check_error(tmp_path, "can't read .* as an .h5ad file")
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros(3)
    check_error(
        tmp_path, "no column 'tissue' in obs, found none|can't read .* as an .h5ad"
    )


def test_no_usable_cells(tmp_path, counts, table):
    write_cells(tmp_path, counts // 100, table)
    check_error(tmp_path, "has 0 annotated cells with 5,000 counts and 500 genes")


def test_no_type_with_enough_cells_in_a_split(tmp_path, counts, table):
    small = table.copy()
    rare = small["tissue"].isin(tabula_muris._VALIDATION).to_numpy()
    small.loc[rare, CELL_TYPE] = [f"type {i}" for i in range(rare.sum())]
    write_cells(tmp_path, counts, small)
    check_error(
        tmp_path, "no cell type with 20 usable cells in the organs of validation"
    )


def test_number_of_organs():
    assert [len(organs) for organs in tabula_muris._ORGANS.values()] == [15, 4, 4]
    assert len(set(ALL_ORGANS)) == 23
