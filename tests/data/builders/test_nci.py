"""NCI: small SDF files, prepared and loaded."""

import jax
import numpy as np
import pytest

from mlti_jax import data
from mlti_jax.data import _prepared as prepared
from mlti_jax.data.builders import nci
from mlti_jax.errors import InputError
from tests.support.fingerprints import morgan_bits, path_bits
from tests.support.raw_files import prepare
from tests.support.releases import NCI_ASSAYS, chains, write_nci

Chem = pytest.importorskip("rdkit.Chem")


@pytest.fixture(scope="module")
def nci_ready(tmp_path_factory):
    raw = write_nci(tmp_path_factory.mktemp("nci_raw"))
    data_dir = tmp_path_factory.mktemp("nci_data")
    prepare("nci", raw, data_dir)
    return data_dir


def test_records_hold_molecules_labels_and_fingerprints(nci_ready):
    found = prepared.open_prepared("nci", nci_ready)
    for split, assays in (("train", nci._TRAIN), ("test", nci._TEST)):
        expected = {a: {"inactive": 66, "active": 34} for a in assays}
        assert prepared.counts(found, split) == expected
        fields = ("smiles", "morgan", "path", "label", "assay")
        columns = prepared.read(found, split, fields, range(100 * len(assays)))
        for number, assay in enumerate(assays):
            part = {
                field: column[100 * number : 100 * (number + 1)]
                for field, column in columns.items()
            }
            raw = chains(NCI_ASSAYS.index(assay))
            inactive = [s for i, s in enumerate(raw) if i % 3]
            active = [s for i, s in enumerate(raw) if i % 3 == 0]
            canonical = [
                Chem.MolToSmiles(Chem.MolFromSmiles(s)) for s in inactive + active
            ]
            assert part["smiles"].tolist() == canonical
            assert part["label"].tolist() == [0] * 66 + [1] * 34
            assert (part["assay"] == NCI_ASSAYS.index(assay)).all()
            for row in (0, 50, 99):
                smiles = canonical[row]
                np.testing.assert_array_equal(part["morgan"][row], morgan_bits(smiles))
                np.testing.assert_array_equal(part["path"][row], path_bits(smiles))


def pool_molecules(pool):
    """The set of fingerprints of each domain and class."""
    x, index, count = (np.asarray(part) for part in (pool.x, pool.index, pool.count))
    return {
        (domain, c): {x[row].tobytes() for row in index[d, c, : count[d, c]]}
        for d, domain in enumerate(pool.domains)
        for c in range(2)
    }


@pytest.mark.parametrize("fingerprint", ["morgan", "path"])
def test_paper_split(nci_ready, fingerprint):
    splits = data.load("nci", data_dir=nci_ready, fingerprint=fingerprint)
    assert splits.setting == "label_sharing"
    assert splits.validation is None
    assert splits.train.domains == nci._TRAIN
    assert splits.test.domains == nci._TEST
    assert splits.test.classes == ("inactive", "active")
    assert splits.train.x.dtype == bool
    bits = {"morgan": morgan_bits, "path": path_bits}[fingerprint]
    got = pool_molecules(splits.train)
    for number, assay in enumerate(nci._TRAIN):
        active = [s for i, s in enumerate(chains(number)) if i % 3 == 0]
        assert got[assay, 1] == {bits(smiles).tobytes() for smiles in active}
    task = data.sample_task(splits.test, jax.random.key(0), ways=2, shots=5, queries=10)
    assert task.query.x.shape == (20, 1024)
    assert set(np.unique(task.query.x)) == {0.0, 1.0}


def no_value(assay, text):
    return text.replace("<value>", "<other>", 1) if assay == "47" else text


def wrong_value(assay, text):
    return text.replace("\n1.0\n", "\n0.7\n", 1) if assay == "47" else text


def cut(assay, text):
    return text[:-100] if assay == "47" else text


def without_assay(assay, text):
    return None if assay == "47" else text


def all_active(assay, text):
    return text.replace("-1.0", "1.0") if assay == "47" else text


def too_many_bonds(assay, text):
    """RDKit rejects a tenth of the molecules."""
    if assay != "47":
        return text
    records = text.split("$$$$\n")[:-1]
    bad = Chem.MolToMolBlock(Chem.MolFromSmiles("C(C)(C)(C)(C)C", sanitize=False))
    for i in range(0, 100, 10):
        records[i] = f"{bad}> <value>\n1.0\n\n"
    return "".join(f"{record}$$$$\n" for record in records)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_value, r"record 0 of .*47-balance.sdf in .* property <value> ''"),
        (wrong_value, r"record 0 of .*47-balance.sdf .* '0.7'; expected 1.0"),
        (cut, r"47-balance.sdf in .* is truncated: record 99 has no end"),
        (without_assay, r"has no 47-balance.sdf"),
        (all_active, r"47-balance.sdf in .* has no inactive molecule"),
        (
            too_many_bonds,
            r"can't parse 10 of the 100 molecules in .*47.* \(records \[0, 10",
        ),
    ],
)
def test_bad_archives(tmp_path, change, message):
    folder = write_nci(tmp_path / "raw", change)
    with pytest.raises(InputError, match=message):
        prepare("nci", folder, tmp_path / "data")
    with pytest.raises(InputError, match="nci is not prepared"):
        data.load("nci", data_dir=tmp_path / "data")


def test_truncated_archive(tmp_path):
    folder = write_nci(tmp_path / "raw")
    path = folder / nci._ARCHIVE
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InputError, match="NCI_balanced.zip is a damaged zip file"):
        prepare("nci", folder, tmp_path / "data")
