"""Assays of molecules: draws, disjoint splits and options."""

import numpy as np
import pytest

from mlti_jax import data
from mlti_jax.data import _prepared as prepared
from mlti_jax.data.builders import _molecules as molecules
from mlti_jax.data.builders import nci
from mlti_jax.errors import InputError
from tests.support.fingerprints import morgan_bits
from tests.support.raw_files import prepare
from tests.support.releases import NCI_ASSAYS, chains, write_nci

pytest.importorskip("rdkit.Chem")


@pytest.fixture(scope="module")
def nci_ready(tmp_path_factory):
    raw = write_nci(tmp_path_factory.mktemp("nci_raw"))
    data_dir = tmp_path_factory.mktemp("nci_data")
    prepare("nci", raw, data_dir)
    return data_dir


def test_draws_depend_on_seed_and_assay(nci_ready):
    def load(**options):
        return data.load("nci", data_dir=nci_ready, molecules_per_assay=40, **options)

    first, again, other = load(), load(), load(seed=1)
    assert first.train.count.sum(axis=1).tolist() == [40] * 6
    np.testing.assert_array_equal(first.train.x, again.train.x)
    assert not np.array_equal(first.train.x, other.train.x)
    fewer = load(train_classes=2)
    assert fewer.train.domains == nci._TRAIN[:2]
    np.testing.assert_array_equal(fewer.train.x, first.train.x[:80])
    np.testing.assert_array_equal(fewer.test.x, first.test.x)
    # Not balanced: the number of active molecules varies between assays.
    assert len(set(first.train.count[:, 1].tolist())) > 1


@pytest.mark.parametrize("size", [40, 80, None])
def test_first_molecules_of_each_class_and_all_at_test(nci_ready, size):
    splits = data.load(
        "nci", data_dir=nci_ready, draw="first", molecules_per_assay=size, seed=3
    )
    for pool, assays, number in (
        (splits.train, nci._TRAIN, size),
        (splits.test, nci._TEST, None),
    ):
        each = None if number is None else number // 2
        expected = []
        for assay in assays:
            raw = chains(NCI_ASSAYS.index(assay))  # the file; every third is active
            expected += [s for i, s in enumerate(raw) if i % 3][:each]
            expected += [s for i, s in enumerate(raw) if i % 3 == 0][:each]
        bits = np.stack([morgan_bits(smiles) for smiles in expected])
        np.testing.assert_array_equal(np.asarray(pool.x), bits)
    active, inactive = (34, 66) if size is None else (min(34, size // 2), size // 2)
    assert splits.train.count.tolist() == [[inactive, active]] * 6
    assert splits.test.count.tolist() == [[66, 34]] * 3
    assert "the first of each class in file order" in splits.note


def test_first_molecules_of_the_disjoint_split(nci_ready):
    splits = data.load(
        "nci",
        data_dir=nci_ready,
        draw="first",
        split="disjoint",
        molecules_per_assay=40,
    )
    test = {s for a in nci._TEST for s in chains(NCI_ASSAYS.index(a))}
    rows = np.asarray(splits.train.x)
    for number, assay in enumerate(splits.train.domains):
        raw = list(enumerate(chains(NCI_ASSAYS.index(assay))))
        expected = [s for i, s in raw if i % 3 and s not in test][:20]
        got = rows[np.asarray(splits.train.index[number, 0, :20])]
        np.testing.assert_array_equal(got, [morgan_bits(s) for s in expected])


def test_disjoint_split_shares_no_molecules(nci_ready):
    options = {"data_dir": nci_ready, "molecules_per_assay": 60}
    paper = data.load("nci", split="paper", **options)
    disjoint = data.load("nci", split="disjoint", **options)
    np.testing.assert_array_equal(paper.test.x, disjoint.test.x)
    np.testing.assert_array_equal(paper.test.index, disjoint.test.index)
    assert "0% of 1's, 0% of 33's, 0% of 123's test molecules" in disjoint.note

    found = prepared.open_prepared("nci", nci_ready)
    draw = {"size": 60, "balanced": False, "seed": 0}
    rows = molecules.draw_assays(found, "test", **draw)
    test = set(prepared.read(found, "test", ("smiles",), rows)["smiles"])
    assert len(rows) == 180
    rows = molecules.draw_assays(found, "train", **draw)
    train = prepared.read(found, "train", ("smiles",), rows)["smiles"]
    assert test & set(train)
    rows = molecules.draw_assays(found, "train", excluded=test, **draw)
    left = prepared.read(found, "train", ("smiles",), rows)["smiles"]
    assert not test & set(left)
    assert len(left) == len(disjoint.train.x)


def test_disjoint_split_drops_small_assays(nci_ready, monkeypatch):
    everything = data.load(
        "nci", data_dir=nci_ready, split="disjoint", molecules_per_assay=None
    )
    kept = set(everything.train.domains)
    test = {s for a in nci._TEST for s in chains(NCI_ASSAYS.index(a))}
    for number, assay in enumerate(nci._TRAIN):
        left = [i for i, s in enumerate(chains(number)) if s not in test]
        active = sum(i % 3 == 0 for i in left)
        smallest = min(active, len(left) - active)
        assert (assay in kept) == (smallest >= molecules.MIN_PER_CLASS)
    assert 0 < len(kept) < len(nci._TRAIN)
    assert f"{len(kept)} training assays remain" in everything.note
    monkeypatch.setattr(molecules, "MIN_PER_CLASS", 1000)
    with pytest.raises(InputError, match="no assay of nci has 1000 molecules"):
        data.load("nci", data_dir=nci_ready, split="disjoint")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "random"}, "unknown split of molecules 'random'"),
        ({"fingerprint": "maccs"}, "unknown fingerprint 'maccs'"),
        ({"train_classes": 7}, "train_classes is 7; expected .* from 1 to 6"),
        ({"molecules_per_assay": 1}, "molecules_per_assay is 1"),
        ({"draw": "last"}, "unknown draw of molecules 'last'"),
    ],
)
def test_bad_options(nci_ready, options, message):
    with pytest.raises(InputError, match=message):
        data.load("nci", data_dir=nci_ready, **options)


def test_draw_against_a_loop():
    label = np.random.default_rng(0).integers(0, 2, 200)
    for seed in range(5):
        rows = molecules.draw(label, 30, False, np.random.default_rng(seed))
        assert len(set(rows.tolist())) == 30
        balanced = molecules.draw(label, 30, True, np.random.default_rng(seed))
        assert len(set(balanced.tolist())) == 30
        assert label[balanced].sum() == 15
    assert molecules.draw(label, None, False, np.random.default_rng(0)).size == 200
    few = np.array([0] * 10 + [1] * 3)
    assert molecules.draw(few, None, True, np.random.default_rng(0)).size == 6
    # All rows are equally likely.
    hits = np.zeros(20)
    for seed in range(2000):
        hits[
            molecules.draw(np.arange(20) % 2, 5, False, np.random.default_rng(seed))
        ] += 1
    assert abs(hits / 2000 - 0.25).max() < 0.05
