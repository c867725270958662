"""FS-Mol: small files in both layouts, prepared and loaded."""

import gzip

import jax
import numpy as np
import pytest

from mlti_jax import data
from mlti_jax.data import _prepared as prepared
from mlti_jax.data import _sheet, _splits
from mlti_jax.data._pools import check_episode
from mlti_jax.data._readers import descriptors
from mlti_jax.data.builders.fsmol import Fsmol
from mlti_jax.data.describe import describe
from mlti_jax.errors import InputError
from tests.support.raw_files import linked_copy, prepare, read, replace
from tests.support.releases import (
    UNREADABLE,
    fsmol_assays,
    write_fsmol_files,
    write_fsmol_tables,
)

chem = pytest.importorskip("rdkit.Chem")
LAYOUTS = {"tables": write_fsmol_tables, "files": write_fsmol_files}
SPLITS = {"train": "train", "validation": "valid", "test": "test"}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return {
        name: write(tmp_path_factory.mktemp("raw") / name)
        for name, write in LAYOUTS.items()
    }


@pytest.fixture(scope="module")
def ready(raw, tmp_path_factory):
    folders = {}
    for name, folder in raw.items():
        folders[name] = tmp_path_factory.mktemp("data")
        prepare("fsmol", folder, folders[name])
    return folders


def load(ready, layout="tables", **options):
    options = {"min_per_class": 8, **options}
    return data.load("fsmol", data_dir=ready[layout], **options)


def readable(rows):
    return [(text, label) for text, label in rows if text != UNREADABLE]


def bits_of(smiles):
    from rdkit.Chem import rdFingerprintGenerator

    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    return np.array(generator.GetFingerprint(chem.MolFromSmiles(smiles)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_assays_have_their_molecules_and_labels(ready, layout):
    splits = load(ready, layout, features="fingerprints")
    raw_assays = fsmol_assays()
    for split, folder in SPLITS.items():
        pool = getattr(splits, split)
        x, index, count = map(np.asarray, (pool.x, pool.index, pool.count))
        assert x.dtype == np.uint8
        assert x.shape[1] == 2048
        for domain, name in enumerate(pool.domains):
            for label in range(2):
                rows = index[domain, label, : count[domain, label]]
                expected = [
                    bits_of(text)
                    for text, own in readable(raw_assays[folder][name])
                    if own == label
                ]
                np.testing.assert_array_equal(x[rows] // 255, expected)


def test_molecules_are_stored_once(ready):
    pool = load(ready).train
    measurements = {
        text
        for name in pool.domains
        for text, _ in readable(fsmol_assays()["train"][name])
    }
    assert len(pool.x) == len(measurements) < int(pool.count.sum())


def test_both_layouts_are_equal(ready):
    tables, files = load(ready), load(ready, "files")
    assert tables.note == files.note
    for split in SPLITS:
        one, other = getattr(tables, split), getattr(files, split)
        assert one.domains == other.domains
        for one_leaf, other_leaf in zip(
            jax.tree.leaves(one), jax.tree.leaves(other), strict=True
        ):
            np.testing.assert_array_equal(one_leaf, other_leaf)


def test_skipped_molecules_and_small_assays_are_counted(ready):
    builder = prepared.open_prepared("fsmol", ready["tables"])
    assert builder.info.metadata["skipped"] == {
        "RDKit can't read the molecule": 5,
        "assays without active or without inactive molecules": 1,
    }
    splits = load(ready, min_per_class=12)
    # Of the 6 training assays that are left, 36, 45, 60 and 39 have 12 active ones.
    assert len(splits.train.domains) == 4
    assert "4 training assays with 12 or more molecules of each" in splits.note
    assert "(2 smaller ones left out)" in splits.note
    assert int(splits.train.count.min()) >= 12
    check_episode(splits.train, ways=2, shots=8, queries=4)


def test_training_assays_are_nested_and_depend_on_the_seed(ready):
    everything = load(ready).train.domains
    assert len(everything) == 6
    for number in range(1, 6):
        assert load(ready, train_classes=number).train.domains == everything[:number]
    orders = {load(ready, seed=seed).train.domains for seed in range(4)}
    assert len(orders) > 1
    assert {frozenset(order) for order in orders} == {frozenset(everything)}
    other = load(ready, train_classes=2)
    assert other.test.domains == load(ready).test.domains


def test_overlap_is_stated(ready):
    splits = load(ready, train_classes=3)
    raw_assays = fsmol_assays()
    known = {
        text for name in splits.train.domains for text, _ in raw_assays["train"][name]
    }
    for split, folder in SPLITS.items():
        if split != "train":
            rows = [row for rows in raw_assays[folder].values() for row in rows]
            texts = [text for text, _ in readable(rows)]
            share = np.mean([text in known for text in texts])
            assert f"{share:.0%} of the {split} molecules also occur" in splits.note


def test_descriptors_are_ranks_among_the_training_molecules(ready):
    splits = load(ready, features="descriptors", train_classes=4)
    texts = list(
        dict.fromkeys(
            text
            for name in splits.train.domains
            for text, _ in readable(fsmol_assays()["train"][name])
        )
    )
    place = descriptors.NAMES.index("MolLogP")
    values = np.array([descriptors.parse_smiles(t).descriptors[place] for t in texts])
    ranks = np.asarray(splits.train.x)[:, place] / 255
    expected = [((values < v).mean() + (values <= v).mean()) / 2 for v in values]
    np.testing.assert_allclose(ranks, expected, atol=6e-3)
    # The same molecule has the same features in a test assay.
    both = load(ready, features="both", train_classes=4)
    assert both.test.x.shape[1] == 2048 + 189
    np.testing.assert_array_equal(both.test.x[:, 2048:], splits.test.x)


def test_counts(ready):
    pool = load(ready, features="fingerprints", fingerprint="counts").test
    name = pool.domains[1]
    active = [text for text, label in fsmol_assays()["test"][name] if label]
    rows = np.asarray(pool.index)[1, 1, : len(active)]
    for text, found in zip(active, np.asarray(pool.x)[rows], strict=True):
        molecule = descriptors.parse_smiles(text)
        expected = np.zeros(2048)
        expected[molecule.bits] = np.log2(1 + molecule.counts.astype(float)) / 4
        np.testing.assert_allclose(found / 255, expected.clip(max=1), atol=3e-3)


def test_description_of_many_domains(ready, tmp_path, monkeypatch):
    assert "records of train: 6 (" in describe("fsmol", ready["tables"])
    splits = load(ready)
    monkeypatch.setattr(_splits, "MAX_LINES", 3)
    lines = _splits.pool_lines(splits)
    assert "  inactive    per domain: 16 to 40, median 25" in lines
    monkeypatch.setattr(_sheet, "MAX_BARS", 3)
    _sheet.save_sheet(splits, tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "graphs"}, "unknown features of molecules 'graphs'"),
        ({"fingerprint": "path"}, "unknown fingerprint 'path'"),
        ({"train_classes": 7}, "train_classes is 7; expected an integer from 1 to 6"),
        ({"min_per_class": 99}, "min_per_class is 99, but no .* expected at most 20"),
        ({"min_per_class": 0}, "min_per_class is 0; expected an integer"),
    ],
)
def test_wrong_options(ready, options, message):
    with pytest.raises(InputError, match=message):
        load(ready, **options)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("task,smiles", "assay,smiles", r"train.csv.gz has no column 'task'"),
        (",1,,B", ",2,,B", r"line 2 of .*train.csv.gz has .* label '2'"),
        ("CHEMBL900,C", "CHEMBL900,,C", r"more fields than the header"),
        ("CHEMBL900", "CHEMBL837", r"CHEMBL837 is in train and in test of"),
    ],
)
def test_bad_tables(tmp_path, raw, old, new, message):
    folder = linked_copy(raw["tables"], tmp_path / "raw")
    path = folder / "train.csv.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    assert old in text
    number = -1 if "CHEMBL837" in new else 1
    replace(path, gzip.compress(text.replace(old, new, number).encode()))
    with pytest.raises(InputError, match=message):
        read("fsmol", folder, tmp_path / "data")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"Property": "1.0"', '"Property": "2.0"', "line 1 of .*CHEMBL900.jsonl.gz"),
        ('"SMILES"', '"Smiles"', "line 1 of .*KeyError.*expected JSON with SMILES"),
        ("{", "[", "line 1 of .*CHEMBL900.jsonl.gz is not a molecule"),
    ],
)
def test_bad_files(tmp_path, raw, old, new, message):
    folder = linked_copy(raw["files"], tmp_path / "raw")
    path = folder / "train" / "CHEMBL900.jsonl.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    assert old in text
    replace(path, gzip.compress(text.replace(old, new, 1).encode()))
    with pytest.raises(InputError, match=message):
        read("fsmol", folder, tmp_path / "data")


def test_damaged_and_missing_files(tmp_path, raw):
    folder = linked_copy(raw["tables"], tmp_path / "raw")
    path = folder / "test.csv.gz"
    replace(path, path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"test.csv.gz is a damaged gzip file"):
        read("fsmol", folder, tmp_path / "data")
    path.unlink()
    with pytest.raises(InputError, match=r"has no test.csv.gz or test.csv or test"):
        read("fsmol", folder, tmp_path / "data")
    (folder / "test").mkdir()
    with pytest.raises(InputError, match=r"has no file \*.jsonl.gz"):
        read("fsmol", folder, tmp_path / "data")


def test_many_unreadable_molecules_are_an_error(tmp_path, raw):
    folder = linked_copy(raw["tables"], tmp_path / "raw")
    path = folder / "valid.csv"
    replace(path, path.read_text().replace(",C", ",X").encode())
    with pytest.raises(InputError, match=r"RDKit can't parse \d+ of the"):
        read("fsmol", folder, tmp_path / "data")


def test_records_are_sorted_and_can_be_read_with_tfds(ready):
    import tensorflow_datasets as tfds

    builder = tfds.builder(
        "fsmol", data_dir=ready["tables"], file_format="array_record"
    )
    assert isinstance(builder, Fsmol)
    records = list(builder.as_data_source("test"))
    names = [record["assay"].decode() for record in records]
    assert names == sorted(fsmol_assays()["test"])
    first = records[0]
    assert len(first["smiles"]) == len(first["label"]) == len(first["counts"])
