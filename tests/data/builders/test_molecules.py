"""NCI and Metabolism: from SDF files and tables to assays of fingerprints."""

import shutil
import zipfile

import jax
import numpy as np
import pytest

from mlti_jax import data
from mlti_jax.data import _prepared as prepared
from mlti_jax.data._readers import molecules
from mlti_jax.data.builders import metabolism, nci
from mlti_jax.errors import InputError
from tests.support.raw_files import altered, prepare, replace

Chem = pytest.importorskip("rdkit.Chem")
from rdkit.Chem import AllChem  # noqa: E402

ASSAYS = nci.TRAIN + nci.TEST
TAILS = ("O", "N", "Cl", "S", "F", "Br", "I", "C=O", "C#N", "C(=O)O")
CHAINS = ["C" * length + tail for tail in TAILS for length in range(1, 31)]


def chains(number: int) -> list[str]:
    """100 molecules of an assay, of which neighbouring assays share some.

    The test assays have molecules 150 to 299 of all, and of the training assays the
    last three have some of these.
    """
    return CHAINS[25 * number : 25 * number + 100]


def sdf_record(smiles: str, value: str) -> str:
    block = Chem.MolToMolBlock(Chem.MolFromSmiles(smiles))
    return f"{block}> <value>\n{value}\n\n$$$$\n"


def write_nci(folder, change=None):
    """An archive in which every third molecule of an assay is active."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / nci.ARCHIVE, "w") as archive:
        for number, assay in enumerate(ASSAYS):
            records = [
                sdf_record(smiles, "1.0" if i % 3 == 0 else "-1.0")
                for i, smiles in enumerate(chains(number))
            ]
            text = "".join(records)
            if change is not None:
                text = change(assay, text)
            if text is not None:
                archive.writestr(f"NCI_balanced/{assay}-balance.sdf", text)
    return folder


@pytest.fixture(scope="module")
def nci_raw(tmp_path_factory):
    return write_nci(tmp_path_factory.mktemp("nci_raw"))


@pytest.fixture(scope="module")
def nci_ready(nci_raw, tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("nci_data")
    prepare("nci", nci_raw, data_dir)
    return data_dir


@pytest.fixture(scope="module")
def metabolism_raw(tmp_path_factory):
    """Tables in which every fourth molecule is active."""
    folder = tmp_path_factory.mktemp("metabolism_raw")
    for number, name in enumerate(metabolism.TRAIN + metabolism.TEST):
        rows = [
            f"{i}.0\t{smiles}\t{int(i % 4 == 0)}"
            for i, smiles in enumerate(chains(number))
        ]
        text = "\n".join(["Drug_ID\tDrug\tY", *rows]) + "\n"
        (folder / f"{name}.tab").write_text(text)
    return folder


@pytest.fixture(scope="module")
def metabolism_ready(metabolism_raw, tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("metabolism_data")
    prepare("metabolism", metabolism_raw, data_dir, processes=2)
    return data_dir


def morgan_by_hand(smiles: str) -> np.ndarray:
    """By RDKit's older interface, which lists the bits that are set."""
    mol = Chem.MolFromSmiles(smiles)
    vector = AllChem.GetMorganFingerprintAsBitVect(mol, radius=2, nBits=1024)
    bits = np.zeros(1024, bool)
    bits[list(vector.GetOnBits())] = True
    return bits


def path_by_hand(smiles: str) -> np.ndarray:
    vector = Chem.RDKFingerprint(Chem.MolFromSmiles(smiles), fpSize=1024)
    bits = np.zeros(1024, bool)
    bits[list(vector.GetOnBits())] = True
    return bits


def test_records_hold_molecules_labels_and_fingerprints(nci_ready):
    found = prepared.open_prepared("nci", nci_ready)
    for split, assays in (("train", nci.TRAIN), ("test", nci.TEST)):
        expected = {a: {"inactive": 66, "active": 34} for a in assays}
        assert prepared.counts(found, split) == expected
        fields = ("smiles", "morgan", "path", "label", "assay")
        columns = prepared.read(found, split, fields, range(100 * len(assays)))
        for number, assay in enumerate(assays):
            part = {
                field: column[100 * number : 100 * (number + 1)]
                for field, column in columns.items()
            }
            raw = chains(ASSAYS.index(assay))
            inactive = [s for i, s in enumerate(raw) if i % 3]
            active = [s for i, s in enumerate(raw) if i % 3 == 0]
            canonical = [
                Chem.MolToSmiles(Chem.MolFromSmiles(s)) for s in inactive + active
            ]
            assert part["smiles"].tolist() == canonical
            assert part["label"].tolist() == [0] * 66 + [1] * 34
            assert (part["assay"] == ASSAYS.index(assay)).all()
            for row in (0, 50, 99):
                smiles = canonical[row]
                np.testing.assert_array_equal(
                    part["morgan"][row], morgan_by_hand(smiles)
                )
                np.testing.assert_array_equal(part["path"][row], path_by_hand(smiles))


def pool_molecules(pool):
    """Of each domain and class, the set of fingerprints."""
    x, index, count = (np.asarray(part) for part in (pool.x, pool.index, pool.count))
    return {
        (domain, c): {x[row].tobytes() for row in index[d, c, : count[d, c]]}
        for d, domain in enumerate(pool.domains)
        for c in range(2)
    }


@pytest.mark.parametrize("fingerprint", ["morgan", "path"])
def test_splits_of_the_paper(nci_ready, fingerprint):
    splits = data.load("nci", data_dir=nci_ready, fingerprint=fingerprint)
    assert splits.setting == "label_sharing"
    assert splits.validation is None
    assert splits.train.domains == nci.TRAIN
    assert splits.test.domains == nci.TEST
    assert splits.test.classes == ("inactive", "active")
    assert splits.train.x.dtype == bool
    by_hand = {"morgan": morgan_by_hand, "path": path_by_hand}[fingerprint]
    got = pool_molecules(splits.train)
    for number, assay in enumerate(nci.TRAIN):
        active = [s for i, s in enumerate(chains(number)) if i % 3 == 0]
        assert got[assay, 1] == {by_hand(smiles).tobytes() for smiles in active}
    task = data.sample_task(splits.test, jax.random.key(0), ways=2, shots=5, queries=10)
    assert task.query.x.shape == (20, 1024)
    assert set(np.unique(task.query.x)) == {0.0, 1.0}


def test_the_draw_is_random_and_depends_on_the_assay_alone(nci_ready):
    def load(**options):
        return data.load("nci", data_dir=nci_ready, molecules_per_assay=40, **options)

    first, again, other = load(), load(), load(seed=1)
    assert first.train.count.sum(axis=1).tolist() == [40] * 6
    np.testing.assert_array_equal(first.train.x, again.train.x)
    assert not np.array_equal(first.train.x, other.train.x)
    fewer = load(train_classes=2)
    assert fewer.train.domains == nci.TRAIN[:2]
    np.testing.assert_array_equal(fewer.train.x, first.train.x[:80])
    np.testing.assert_array_equal(fewer.test.x, first.test.x)
    # Plainly random: the number of active ones varies between assays.
    assert len(set(first.train.count[:, 1].tolist())) > 1


def test_disjoint_has_the_same_test_sets_and_shares_nothing(nci_ready):
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
    rows = molecules.draw_assays(found, "train", without=test, **draw)
    left = prepared.read(found, "train", ("smiles",), rows)["smiles"]
    assert not test & set(left)
    assert len(left) == len(disjoint.train.x)


def test_disjoint_leaves_out_assays_with_too_little_left(nci_ready, monkeypatch):
    everything = data.load(
        "nci", data_dir=nci_ready, split="disjoint", molecules_per_assay=None
    )
    kept = set(everything.train.domains)
    test = {s for a in nci.TEST for s in chains(ASSAYS.index(a))}
    for number, assay in enumerate(nci.TRAIN):
        left = [i for i, s in enumerate(chains(number)) if s not in test]
        active = sum(i % 3 == 0 for i in left)
        smallest = min(active, len(left) - active)
        assert (assay in kept) == (smallest >= molecules.SMALLEST_CLASS)
    assert 0 < len(kept) < len(nci.TRAIN)
    assert f"so {len(kept)} training assays remain" in everything.note
    monkeypatch.setattr(molecules, "SMALLEST_CLASS", 1000)
    with pytest.raises(InputError, match="no assay of nci has 1000 molecules"):
        data.load("nci", data_dir=nci_ready, split="disjoint")


def test_metabolism_is_balanced(metabolism_ready):
    splits = data.load("metabolism", data_dir=metabolism_ready)
    assert splits.train.domains == metabolism.TRAIN
    assert splits.test.domains == metabolism.TEST
    assert (splits.train.count == 25).all()  # of 25 active and 75 inactive ones
    small = data.load("metabolism", data_dir=metabolism_ready, molecules_per_assay=31)
    assert (small.test.count == 15).all()


def test_overlap_is_counted_by_molecule(metabolism_ready):
    splits = data.load("metabolism", data_dir=metabolism_ready)
    found = prepared.open_prepared("metabolism", metabolism_ready)
    draw = {"size": 1000, "balanced": True, "seed": 0}
    smiles = {}
    for split in ("train", "test"):
        rows = molecules.draw_assays(found, split, **draw)
        smiles[split] = prepared.read(found, split, ("smiles",), rows)["smiles"]
    train = set(smiles["train"])
    for number, name in enumerate(metabolism.TEST):
        part = smiles["test"][50 * number : 50 * (number + 1)]
        share = sum(s in train for s in part) / 50
        assert f"{share:.0%} of {name}'s" in splits.note


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "random"}, "unknown split of molecules 'random'"),
        ({"fingerprint": "maccs"}, "unknown fingerprint 'maccs'"),
        ({"train_classes": 7}, "train_classes is 7; expected .* from 1 to 6"),
        ({"molecules_per_assay": 1}, "molecules_per_assay is 1"),
    ],
)
def test_bad_options(nci_ready, options, message):
    with pytest.raises(InputError, match=message):
        data.load("nci", data_dir=nci_ready, **options)


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


def carbon_with_nine_bonds(assay, text):
    """A tenth of the molecules can't be sanitised."""
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
        (cut, r"47-balance.sdf in .* is cut off: record 99 has no end"),
        (without_assay, r"lacks 47-balance.sdf"),
        (all_active, r"47-balance.sdf in .* has no inactive molecule"),
        (
            carbon_with_nine_bonds,
            r"of the 100 molecules in .*47.* can't read 10 \(records \[0, 10",
        ),
    ],
)
def test_bad_archives(tmp_path, change, message):
    folder = write_nci(tmp_path / "raw", change)
    with pytest.raises(InputError, match=message):
        prepare("nci", folder, tmp_path / "data")
    with pytest.raises(InputError, match="nci is not prepared"):
        data.load("nci", data_dir=tmp_path / "data")


def test_a_truncated_archive(tmp_path, nci_raw):
    folder = shutil.copytree(nci_raw, tmp_path / "raw")
    path = folder / nci.ARCHIVE
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InputError, match="NCI_balanced.zip is a damaged zip file"):
        prepare("nci", folder, tmp_path / "data")


def test_a_few_bad_molecules_are_left_out_and_counted(tmp_path, metabolism_raw):
    folder = altered(metabolism_raw, tmp_path / "raw")
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
    folder = altered(metabolism_raw, tmp_path / "raw")
    path = folder / "cyp2c9_veith.tab"
    replace(path, path.read_text().replace(old, new, 1).encode())
    with pytest.raises(InputError, match=message):
        prepare("metabolism", folder, tmp_path / "data")


def test_a_missing_table_is_named(tmp_path, metabolism_raw):
    folder = altered(metabolism_raw, tmp_path / "raw")
    (folder / "cyp1a2_veith.tab").unlink()
    with pytest.raises(InputError, match="has no cyp1a2_veith.tab. .*Therapeutics"):
        prepare("metabolism", folder, tmp_path / "data")


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
    # Every row is as likely as any other.
    hits = np.zeros(20)
    for seed in range(2000):
        hits[
            molecules.draw(np.arange(20) % 2, 5, False, np.random.default_rng(seed))
        ] += 1
    assert abs(hits / 2000 - 0.25).max() < 0.05
