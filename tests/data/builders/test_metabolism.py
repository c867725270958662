"""Metabolism: small tables, prepared and loaded."""

import pytest

from mlti_jax import data
from mlti_jax.data import _prepared as prepared
from mlti_jax.data.builders import metabolism
from mlti_jax.data.builders._molecules import draw_assays
from mlti_jax.errors import InputError
from tests.support.raw_files import linked_copy, prepare, replace
from tests.support.releases import write_metabolism

pytest.importorskip("rdkit.Chem")


@pytest.fixture(scope="module")
def metabolism_raw(tmp_path_factory):
    return write_metabolism(tmp_path_factory.mktemp("metabolism_raw"))


@pytest.fixture(scope="module")
def metabolism_ready(metabolism_raw, tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("metabolism_data")
    prepare("metabolism", metabolism_raw, data_dir, processes=2)
    return data_dir


def test_metabolism_is_balanced(metabolism_ready):
    splits = data.load("metabolism", data_dir=metabolism_ready)
    assert splits.train.domains == metabolism._TRAIN
    assert splits.test.domains == metabolism._TEST
    assert (splits.train.count == 25).all()  # 25 molecules are active, 75 inactive.
    small = data.load("metabolism", data_dir=metabolism_ready, molecules_per_assay=31)
    assert (small.test.count == 15).all()


def test_overlap_is_counted_by_molecule(metabolism_ready):
    splits = data.load("metabolism", data_dir=metabolism_ready)
    found = prepared.open_prepared("metabolism", metabolism_ready)
    draw = {"size": 1000, "balanced": True, "seed": 0}
    smiles = {}
    for split in ("train", "test"):
        rows = draw_assays(found, split, **draw)
        smiles[split] = prepared.read(found, split, ("smiles",), rows)["smiles"]
    train = set(smiles["train"])
    for number, name in enumerate(metabolism._TEST):
        part = smiles["test"][50 * number : 50 * (number + 1)]
        share = sum(s in train for s in part) / 50
        assert f"{share:.0%} of {name}'s" in splits.note


def test_few_rejected_molecules_are_skipped_and_counted(tmp_path, metabolism_raw):
    folder = linked_copy(metabolism_raw, tmp_path / "raw")
    path = folder / "cyp2d6_veith.tab"
    text = path.read_text().replace("\tCCl\t", "\tC(C)(C)(C)(C)C\t")
    assert text != path.read_text()
    replace(path, text.encode())
    builder = prepare("metabolism", folder, tmp_path / "data")
    skipped = builder.info.metadata["skipped"]
    assert skipped == {"cyp2d6_veith: RDKit can't read the molecule": 1}
    count = prepared.counts(builder, "train")["cyp2d6_veith"]
    assert prepared.total(count) == 99


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Drug_ID\tDrug\tY", "Drug_ID\tDrug\tLabel", r"veith.tab has no column 'Y'"),
        ("Drug_ID\tDrug\tY", "Drug_ID,Drug,Y", r"veith.tab has no column 'Drug'"),
        ("\t1\n", "\t3\n", r"line 2 of .*veith.tab has Drug .* and Y '3'"),
        ("\t1\n", "\n", r"line 2 of .*veith.tab has Drug .* and Y None"),
    ],
)
def test_bad_tables(tmp_path, metabolism_raw, old, new, message):
    folder = linked_copy(metabolism_raw, tmp_path / "raw")
    path = folder / "cyp2c9_veith.tab"
    replace(path, path.read_text().replace(old, new, 1).encode())
    with pytest.raises(InputError, match=message):
        prepare("metabolism", folder, tmp_path / "data")


def test_a_missing_table_is_named(tmp_path, metabolism_raw):
    folder = linked_copy(metabolism_raw, tmp_path / "raw")
    (folder / "cyp1a2_veith.tab").unlink()
    with pytest.raises(InputError, match="has no cyp1a2_veith.tab. .*Therapeutics"):
        prepare("metabolism", folder, tmp_path / "data")
